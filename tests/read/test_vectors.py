"""Every byte vector of the catalogue: its outcome, and the records and header fields that Kafka's classes read.

The package and the oracle are compared with the same table.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import oracle
import pytest
from tables import assert_accounted, batches_of, lost

import kbatch

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
RAW_HEADER_KEYS = {
    "HDR-03G": (b"\xff\xfe",),
    "HDR-13": (b"\xed\xa0\x80",),
}  # the golden digest is over Java's replacement characters (HDR-R4)


class Vector(NamedTuple):
    id: str
    outcome: str
    records: int | None

    @property
    def data(self) -> bytes:
        return (VECTORS / f"{self.id}.bin").read_bytes()

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The batches that Kafka read, one dictionary per batch, without the last line, which describes the file."""
        text = (VECTORS / f"{self.id}.bin.expected.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()][:-1]

    @property
    def accepted(self) -> bool:
        return self.outcome.startswith("accept")

    @property
    def broken(self) -> tuple[int, int] | None:
        """The (start, end) of the unreadable bytes; FRM-11 and FRM-12 begin with a good batch."""
        if self.outcome == "accept-then-corrupt":
            return self.expected[0]["size"], len(self.data)
        return None if self.accepted else (0, len(self.data))


def _table() -> list[Vector]:
    with (VECTORS / "EXPECT.tsv").open(newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns = next(rows)
        assert columns[:5] == ["id", "size", "construction", "recommended", "records"]
        return [Vector(row[0], row[3], int(row[4]) if row[4].isdigit() else None) for row in rows]


ALL = _table()
MAGIC_2 = [v for v in ALL if not v.id.startswith("LEG-")]
REFUSED = {"reject-batch", "unsupported-codec", "crc invalid; records reject-batch"}


def for_vectors(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[v.id for v in vectors])


def errors_of(vector: Vector, crc: str) -> tuple[type[kbatch.KbatchError], ...]:
    """Return the exceptions allowed for a rejected vector; two if the catalogue allows either."""
    family = vector.id.partition("-")[0]
    if family == "CRC":
        # Marked, the wrong checksum stays the reason why the records are not returned.
        return (kbatch.InvalidRecordError,) if crc == "skip" else (kbatch.CrcMismatchError,)
    if family == "FRM" or vector.outcome == "corrupt":
        return (kbatch.CorruptBatchError,)
    if vector.outcome == "unsupported-codec":
        return (kbatch.UnsupportedFormatError,)
    if vector.id.startswith(
        ("COD-05", "COD-08")
    ):  # COD-R3, COD-R7: garbage may decompress, and then contain invalid records
        return kbatch.CodecError, kbatch.InvalidRecordError
    if vector.id.startswith("COD-07"):  # COD-R6
        return (kbatch.InvalidRecordError,)
    return (kbatch.CodecError,) if family in {"COD", "GZ", "SN", "L4", "ZS"} else (kbatch.InvalidRecordError,)


ORACLE_ERRORS: dict[type[kbatch.KbatchError], type[oracle.OracleError]] = {
    kbatch.CorruptBatchError: oracle.Corrupt,
    kbatch.CrcMismatchError: oracle.BadCrc,
    kbatch.InvalidRecordError: oracle.Invalid,
    kbatch.CodecError: oracle.CodecFailure,
    kbatch.UnsupportedFormatError: oracle.Unsupported,
}


def assert_batches(batches: list[oracle.Batch], expected: list[dict[str, Any]], vector: Vector) -> None:
    """Compare the header fields that the magic has, and the digests, with the values of Kafka's classes."""
    codecs = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    assert len(batches) == len(expected)
    for batch, expected_batch in zip(batches, expected, strict=True):
        found = {
            "position": batch.position,
            "size": batch.size,
            "magic": batch.magic,
            "baseOffset": batch.base_offset,
            "lastOffset": batch.base_offset + batch.last_offset_delta,
            "nextOffset": batch.base_offset + batch.last_offset_delta + 1,
            "leaderEpoch": batch.partition_leader_epoch,
            "crc": batch.crc,
            "codec": batch.attributes & 7,
            "timestampType": timestamp_type(batch),
            "transactional": bool(batch.attributes & oracle.TRANSACTIONAL),
            "control": bool(batch.attributes & oracle.CONTROL),
            "deleteHorizonMs": batch.base_timestamp if batch.attributes & oracle.DELETE_HORIZON else None,
            "maxTimestamp": batch.max_timestamp,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "baseSequence": batch.base_sequence,
            "count": batch.record_count,
            "records": len(batch.records),
        }
        if batch.magic < 2:
            # Kafka's classes return only the fields that the format has (LEG-R23, LEG-R24).
            found = {name: value for name, value in found.items() if name in expected_batch}
            assert {"position", "size", "magic", "lastOffset", "crc", "timestampType", "maxTimestamp"} <= found.keys()
        assert found == {name: expected_batch[name] for name in found} | {"codec": codecs[expected_batch["codec"]]}
        first = [
            [r.offset, r.timestamp, -1 if r.key is None else len(r.key), -1 if r.value is None else len(r.value)]
            for r in batch.records[:50]
        ]
        assert first == expected_batch["first50"]
        if vector.id in RAW_HEADER_KEYS:
            assert tuple(key for key, _ in batch.records[0].headers) == RAW_HEADER_KEYS[vector.id]
        else:
            assert oracle.digest(batch.records) == expected_batch["sha1"]


def timestamp_type(batch: oracle.Batch) -> str:
    """Return Kafka's name of the timestamp type; magic 0 has none (LEG-R4)."""
    if batch.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if batch.attributes & oracle.LOG_APPEND_TIME else "CreateTime"


def test_the_table_has_every_vector() -> None:
    assert len(ALL) == len(list(VECTORS.glob("*.bin")))
    assert {v.outcome for v in MAGIC_2 if not v.accepted} == REFUSED
    assert len(MAGIC_2) > 100


@for_vectors(ALL)
@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
def test_decode_has_the_outcome_of_the_vector(vector: Vector, crc: Any) -> None:
    """Records, header fields and positions are Kafka's; only CRC-06 depends on ``crc``."""
    if vector.accepted and vector.broken is None:
        try:
            table = kbatch.decode(vector.data, include_control=True, crc=crc)
        except kbatch.CodecError:
            assert vector.outcome == "accept-or-reject"
            return
        assert len(table) == vector.records
        assert_batches(batches_of(table), vector.expected, vector)
        flagged = vector.id == "LEG-28" and crc != "skip"  # the checksum of an inner message
        status = kbatch.BatchStatus.BAD_INNER_CRC if flagged else kbatch.BatchStatus.OK
        assert (table.batches["status"] == status).all()
        assert table.consumed == sum(batch["size"] for batch in vector.expected)
        assert table.losses == []
    else:
        with pytest.raises(kbatch.KbatchError) as caught:
            kbatch.decode(vector.data, include_control=True, crc=crc)
        assert isinstance(caught.value, errors_of(vector, crc))
        assert vector.broken is not None
        assert caught.value.position == vector.broken[0]
        assert f"byte {vector.broken[0]}" in str(caught.value)


@for_vectors(ALL)
def test_skip_keeps_good_batches_and_reports_the_rest(vector: Vector) -> None:
    """With ``on_error="skip"`` no error is raised; all bytes outside good batches are a loss or an unread tail."""
    table = kbatch.decode(vector.data, include_control=True, on_error="skip")
    assert_accounted(table, len(vector.data))
    if vector.outcome == "accept-or-reject" and table.losses:
        assert lost(table) == [(0, len(vector.data))]
        return
    assert lost(table) == ([vector.broken] if vector.broken else [])
    assert len(table) == (vector.records or 0)
    good = [batch for batch in batches_of(table) if batch.records or batch.record_count == 0]
    if vector.accepted:
        assert_batches(good, vector.expected, vector)


@for_vectors(ALL)
def test_stop_returns_the_batches_before_the_damage(vector: Vector) -> None:
    """With ``on_error="stop"`` the bytes from the damage on are a loss and are not searched (FRM-R8)."""
    table = kbatch.decode(vector.data, include_control=True, on_error="stop")
    if vector.outcome == "accept-or-reject" and table.losses:
        return
    assert len(table) == (vector.records or 0)
    assert lost(table) == ([vector.broken] if vector.broken else [])
    if vector.broken:
        assert table.consumed == vector.broken[0]


@for_vectors([v for v in MAGIC_2 if v.id.startswith(("CTL", "EMP-04"))])
def test_control_batches_are_withheld(vector: Vector) -> None:
    """CTL-R5: consumers get no control records; the batches keep their rows, which advance the next offset."""
    table = kbatch.decode(vector.data)
    assert len(table) == 0
    assert len(table.batches) == len(vector.expected)
    assert table.batches["base_offset"].tolist() == [batch["baseOffset"] for batch in vector.expected]
    assert table.consumed == len(vector.data)


@for_vectors(ALL)
def test_scan_reads_headers_whatever_the_payload(vector: Vector) -> None:
    """COD-R1, ATT-R3: headers are read even if the payload is invalid; only broken framing ends a scan."""
    if vector.id.startswith(("FRM-09", "FRM-10", "FRM-11", "FRM-12")) or vector.outcome == "corrupt":
        with pytest.raises(kbatch.CorruptBatchError) as caught:
            kbatch.scan(vector.data)
        assert vector.broken is not None
        assert caught.value.position == vector.broken[0]
        return
    batches = kbatch.scan(vector.data)
    last = [batch.get("lastOffset") for batch in vector.expected]
    assert all(offset in (None, int(found)) for found, offset in zip(batches["last_offset"], last, strict=True))
    hidden = (batches["magic"] < 2) & (batches["attributes"] & 7 != 0)
    assert (batches["base_offset"][hidden] == -1).all()  # LEG-R23
    assert batches.dtype == kbatch.BATCH_DTYPE
    assert batches["position"].tolist() == [batch["position"] for batch in vector.expected]
    assert batches["size"].tolist() == [batch["size"] for batch in vector.expected]
    counts = [batch.get("count") for batch in vector.expected]
    assert all(count in (None, int(found)) for found, count in zip(batches["record_count"], counts, strict=True))
    assert (batches["record_count"][hidden] == -1).all()


@for_vectors(ALL)
def test_the_oracle_has_the_outcome_of_the_vector(vector: Vector) -> None:
    """The oracle is compared with the same table as the package."""
    batches, error, unread = oracle.decode(vector.data)
    if vector.id == "LEG-28":
        assert isinstance(error, oracle.BadCrc)  # CRC-R5: the package flags the batch instead
        batches, error, unread = oracle.decode(vector.data, verify=False)
    if error is not None:
        if vector.outcome == "accept-or-reject":
            return
        if vector.outcome == "corrupt":  # LEG-23: the batches before it are read
            assert_batches(batches, vector.expected, vector)
            broken = sum(batch["size"] for batch in vector.expected)
        else:
            assert vector.broken is not None
            broken = vector.broken[0]
        assert isinstance(error, tuple(ORACLE_ERRORS[kind] for kind in errors_of(vector, "verify")))
        assert error.position == broken
        assert unread == len(vector.data) - error.position
        return
    assert vector.broken is None
    assert_batches(batches, vector.expected, vector)
    assert len(vector.data) - unread == sum(batch["size"] for batch in vector.expected)
