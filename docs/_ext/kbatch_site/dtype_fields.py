"""The meaning of the fields of the structured arrays, for their pages."""

from __future__ import annotations

__all__ = ["FIELDS", "PURPOSES"]

PURPOSES = {
    "RECORD_DTYPE": "A row of `kbatch.RecordTable.records`: a record.",
    "BATCH_DTYPE": "A row of `kbatch.RecordTable.batches`, and of the result of `kbatch.scan`: a batch.",
    "HEADER_DTYPE": "A row of `kbatch.RecordTable.headers`: a header of a record.",
    "CONTROL_DTYPE": "A row of the result of `kbatch.control_records`: a control record.",
    "ABORTED_DTYPE": "An aborted transaction, as `kbatch.log.read_transaction_index` returns it (TXI-R1).",
    "PRODUCER_DTYPE": "The state of a producer, as `kbatch.log.read_producer_snapshot` returns it (DSK-R6).",
}
_KEY_AND_VALUE = {
    "key_pos": "Position of the key's first byte in `data`.",
    "value_pos": "Position of the value's first byte in `data`.",
    "key_len": "Length of the key in bytes: -1 for null, 0 for an empty key.",
    "value_len": "Length of the value in bytes: -1 for null, 0 for an empty value.",
}
FIELDS: dict[str, dict[str, str]] = {
    "RECORD_DTYPE": {
        "offset": "Offset of the record in its partition.",
        "timestamp": "Milliseconds since the epoch, or -1 without a timestamp.",
        **_KEY_AND_VALUE,
        "headers_pos": "Position of the first header in `data`.",
        "header_count": "Number of headers.",
        "batch": "Row of the record's batch in `batches`.",
    },
    "BATCH_DTYPE": {
        "base_offset": "Offset of the first record; -1 for a compressed message of magic 0 or 1 (LEG-R23).",
        "base_timestamp": "Timestamp that the deltas of the records refer to, in milliseconds.",
        "max_timestamp": "Largest timestamp of the batch, in milliseconds.",
        "producer_id": "Id of the idempotent producer, or -1.",
        "position": "Position of the batch in its source, in bytes.",
        "size": "Bytes of the whole batch in its source.",
        "first_record": "Row of its first record in `records`.",
        "last_offset": "Last offset of the batch.",
        "last_offset_delta": "Last offset minus base offset.",
        "record_count": "Number of records; -1 for a compressed message of magic 0 or 1 (LEG-R23).",
        "base_sequence": "Sequence number of the first record, or -1.",
        "partition_leader_epoch": "Epoch of the leader that appended the batch, or -1.",
        "crc": "Checksum as stored: CRC-32C for magic 2, CRC-32 for 0 and 1.",
        "producer_epoch": "Epoch of the producer, or -1.",
        "attributes": "Bits of the codec, the timestamp type, transactional and control batches.",
        "magic": "Version of the format: 0, 1 or 2.",
        "status": "Result of decoding, as a `kbatch.BatchStatus`.",
    },
    "HEADER_DTYPE": {"record": "Row of the header's record in `records`.", **_KEY_AND_VALUE},
    "CONTROL_DTYPE": {
        "record": "Row of the record in `records`.",
        "offset": "Offset of the record.",
        "timestamp": "Milliseconds since the epoch.",
        "producer_id": "Id of the producer whose transaction the marker ends.",
        "batch": "Row of its batch in `batches`.",
        "coordinator_epoch": "Epoch of the transaction coordinator that wrote the marker.",
        "type": "Kind of the record, as a `kbatch.ControlType`.",
        "version": "Version of the record's key.",
        "producer_epoch": "Epoch of the producer.",
        "valid": "Whether key and value could be read: 1 or 0.",
    },
    "ABORTED_DTYPE": {
        "producer_id": "Id of the producer.",
        "first_offset": "First offset of the transaction.",
        "last_offset": "Offset of its marker.",
        "last_stable_offset": "Last stable offset when the marker was written.",
    },
    "PRODUCER_DTYPE": {
        "producer_id": "Id of the producer.",
        "last_offset": "Last offset of its last batch, or -1 without one.",
        "timestamp": "Time of its last batch, in milliseconds.",
        "current_txn_first_offset": "First offset of its open transaction, or -1.",
        "last_sequence": "Last sequence number of its last batch, or -1 without one.",
        "offset_delta": "Last offset of its last batch minus the first.",
        "coordinator_epoch": "Epoch of the transaction coordinator.",
        "producer_epoch": "Epoch of the producer.",
    },
}
