"""`decode`: record batches to a table of their records."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.sources import PathOrBytes, input_bytes
from kbatch.escaping import counted
from kbatch.format import DEFAULT_LIMITS, MIN_ENTRY_SIZE, Limits
from kbatch.public_names import public_in
from kbatch.read.committed import Aborted, decode_committed
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.in_memory import decode_part
from kbatch.table import RecordTable

__all__ = ["decode", "decode_array"]


@public_in("kbatch")
def decode(
    data: PathOrBytes,
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
    data : buffer, path or binary file
        Consecutive record batches, as in a fetch response or a segment file: bytes, bytearray, memoryview, mmap or
        ndarray. A file, or the file at a local path, is read to its end. An incomplete batch at the end is not decoded;
        ``consumed`` is the position where it begins (FRM-R3), and ``remaining`` the number of its bytes.
    isolation : {"read_uncommitted", "read_committed"}
        Which records to return: all of them, or, as Kafka's consumer does, only non-transactional records and records
        of committed transactions.
    aborted : iterable of (producer id, first offset), or ndarray of ABORTED_DTYPE, optional
        The aborted transactions, as a fetch response or a ``.txnindex`` file lists them
        (`kbatch.log.read_transaction_index`). Ignored under read_uncommitted. Without this list, the markers in `data`
        decide. Records from the first transaction without a marker on are withheld; of a transaction whose marker may
        have been lost to damage, only its own records are withheld. See ``pending`` and ``last_stable_offset`` of the
        table.
    include_control : bool
        Whether to return the records of control batches too. Consumers never see them (CTL-R5).
    crc : {"verify", "mark", "skip"}
        How to treat checksums (CRC-32C of a batch from its attributes on, CRC-32 of a message of magic 0 or 1 from its
        magic on). "verify": a batch with a bad checksum is damaged. "mark": its records are returned, and its
        ``status`` in `batches` is `BatchStatus.BAD_CRC`. "skip": checksums are not computed.
    on_error : {"raise", "stop", "skip"}
        How to treat damage: raise an error; return the records before it; or resume after it, at the next header whose
        length, magic and checksum are valid. "stop" and "skip" list every lost range in ``losses``.
    start_offset, stop_offset : int, optional
        Return only records with an offset of at least `start_offset` and below `stop_offset`. Batches that are outside
        by their headers have no row, and damage in them is not reported. The exception is ``on_error="skip"``, which
        verifies their checksums, because the offsets of a damaged header may be wrong, and reports a loss.
    threads : int
        The maximum number of threads; 0 is the number of processors that this process may use. The table does not
        depend on the number. The calling thread decodes small inputs alone. For compressed batches, each thread
        allocates up to 16 MiB for the duration of the call.
    limits : Limits, optional
        The limits on the size of a batch.
    columns : sequence of str, optional
        Some of "offset", "timestamp", "timestampType", "key", "value" and "headers"; default is all. The rows of
        ``records`` have only the fields that these columns need: 24 bytes for offset and timestamp instead of 56.
        Without key, value and headers, decompressed payloads are not kept, and ``data`` is empty. All columns are
        checked in any case: a batch that cannot be read completely has no records.

    Returns
    -------
    RecordTable

    Raises
    ------
    CorruptBatchError
        At bytes that no batch can begin with. The zeros at the end of a preallocated segment file are such bytes;
        `kbatch.Log` distinguishes them from damage (FRM-R7).
    CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At a batch that cannot be read; it gives no records.

    Warns
    -----
    RuntimeWarning
        If `data` has 1 to 16 bytes, too few to recognize a record batch.

    Notes
    -----
    `decode` accepts the input that Kafka's own reader accepts (``DefaultRecordBatch``, ``DefaultRecord``), except that
    a batch is all or nothing: Kafka's iterators return the first records of a batch whose end is bad (CNT-R3).

    References
    ----------
    Rules such as FRM-R3 are listed in ``docs/format-rules.md``.

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
    if aborted is not None:
        # `DecodeOptions` and `input_bytes` check the other arguments in less time.
        check_types(decode, locals())
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
    array, source = input_bytes(data, "kbatch.decode")
    table = decode_array(array, options, aborted, source)
    if table.remaining == len(array) and 0 < len(array) < MIN_ENTRY_SIZE:
        # With more bytes, an illegal length or magic is an error.
        warnings.warn(
            f"decode: {counted(len(array), 'byte')}, too few to recognize a record batch, so the table is empty",
            RuntimeWarning,
            stacklevel=2,
        )
    return table


def decode_array(
    array: npt.NDArray[np.uint8], options: DecodeOptions, aborted: Aborted | None, source: str | None = None
) -> RecordTable:
    """Decode record batches; errors name the `source`."""
    if options.isolation == "read_uncommitted":
        # Kafka's consumer ignores the list too (TXN-R12).
        table = decode_part(array, options, source=source)
    else:
        table = decode_committed(array, options, aborted, source)
    # Under on_error="stop", the bytes after the damage are a loss.
    end = table.losses.end
    remaining = len(array) - max(table.consumed, end)
    return table._with(remaining=remaining) if remaining else table
