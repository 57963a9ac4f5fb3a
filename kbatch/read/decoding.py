"""Batches -> a table of their records: `decode`."""

from __future__ import annotations

from collections.abc import Sequence

from kbatch.batches.framing import byte_array
from kbatch.format import DEFAULT_LIMITS, BytesLike, Limits
from kbatch.read.committed import Aborted, decode_committed
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.reader import decode_part
from kbatch.table import RecordTable

__all__ = ["decode"]


def decode(
    data: BytesLike,
    *,
    isolation: Isolation = "read_uncommitted",
    aborted: Aborted | None = None,
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError = "raise",
    start_offset: int | None = None,
    stop_offset: int | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    columns: Sequence[str] | None = None,
) -> RecordTable:
    """Decode record batches to columns.

    Parameters
    ----------
    data : buffer
        Record batches one after the other, as in a fetch response or a segment file: bytes, bytearray, memoryview,
        mmap, ndarray. An incomplete batch at the end is left alone; ``consumed`` says where it begins (FRM-R3).
    isolation : {"read_uncommitted", "read_committed"}
        Which records of transactions are wanted: all, or as Kafka's consumer hands them out those of committed ones
        and of none.
    aborted : iterable of (producer id, first offset), or ndarray of ABORTED_DTYPE, optional
        Aborted transactions as a fetch response lists them, or as a ``.txnindex`` file does
        (`kbatch.log.read_transaction_index`); of no effect under read_uncommitted. Without it the markers
        in `data` decide, and nothing is handed out from the first transaction on that none of them decides; of one
        whose marker has a bad checksum only its own records are withheld: see
        ``pending`` and ``last_stable_offset`` of the table.
    include_control : bool
        Whether the records of control batches are wanted too. Consumers never see them (CTL-R5).
    crc : {"verify", "mark", "skip"}
        What to do with checksums (CRC-32C over each batch from its attributes on, CRC-32 over messages of magic 0 and 1
        from their magic on): treat a batch where it is wrong as damaged; hand out its records all the same with
        ``status`` `BatchStatus.BAD_CRC` in `batches`; or not look.
    on_error : {"raise", "stop", "skip"}
        What to do at damage: raise; return what was before it; or go on after it, at the next header whose length,
        magic and checksum hold. With the last two every lost range stands in ``losses``.
    start_offset, stop_offset : int, optional
        Only records with an offset from `start_offset` up to but without `stop_offset`. Batches that by their headers
        lie wholly outside are not looked at: they have no row, and damage in them is not told. Only with
        ``on_error="skip"`` their checksums are: a damaged header may say anything, so that it is told as a loss.
    threads : int
        How many threads decode, at most; 0 is as many as there are processors that this process may use. The table is
        the same, whatever the number. Little input is decoded by the calling thread alone. For compressed batches each
        thread has up to 16 MiB of its own for the time of the call.
    limits : Limits, optional
        What a batch may cost at most.
    columns : sequence of str, optional
        Which of "offset", "timestamp", "timestampType", "key", "value" and "headers" are wanted; default is all of
        them. Rows of ``records`` have only the fields that these need, 24 bytes for offset and timestamp instead of 56.
        Where neither key, value nor headers are wanted, what is decompressed isn't kept, and ``data`` is empty. What is
        checked is the same: a batch that can't be read whole gives no rows, whatever is wanted of it.

    Returns
    -------
    RecordTable

    Raises
    ------
    CorruptBatchError
        At bytes that no batch can begin with; the zeros at the end of a preallocated segment file are such bytes, which
        `kbatch.Log` tells from damage (FRM-R7).
    CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At a batch that can't be read; none of its records is handed out.

    Notes
    -----
    What is accepted is what Kafka's own reader accepts (``DefaultRecordBatch``, ``DefaultRecord``), except that a batch
    is all or nothing: Kafka's iterators hand out the first records of a batch whose end turns out to be bad (CNT-R3).

    Examples
    --------
    >>> import kbatch
    >>> batch = bytes.fromhex(
    ...     "0000000000000000" "0000003a" "ffffffff" "02" "e99b8dd8" "0000" "00000000" "0000018bcfe56800"
    ...     "0000018bcfe56800" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
    ...     "10" "00" "00" "00" "02" "6b" "02" "76" "00"
    ... )
    >>> table = kbatch.decode(batch)
    >>> table.records["offset"].tolist(), table.key(0), table.value(0)
    ([0], b'k', b'v')
    >>> kbatch.decode(batch, columns=["offset", "timestamp"]).records.dtype.names
    ('offset', 'timestamp', 'batch')
    """
    options = DecodeOptions(
        isolation=isolation,
        include_control=include_control,
        crc=crc,
        on_error=on_error,
        start_offset=start_offset,
        stop_offset=stop_offset,
        limits=limits if limits is not None else DEFAULT_LIMITS,
        columns=columns,
        threads=threads,
    )
    array = byte_array(data)
    if isolation == "read_uncommitted":
        # A list is of no effect there, as in Kafka's consumer (TXN-R12).
        return decode_part(array, options)
    return decode_committed(array, options, aborted)
