"""Decoding of chunks of any size from sockets, pipes and object stores: `StreamDecoder`, `decode_stream`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array, entry_size, scan_part
from kbatch.batches.sources import open_segment, source_name
from kbatch.errors import KbatchError, LimitExceededError
from kbatch.escaping import counted
from kbatch.format import LOG_OVERHEAD, MIN_ENTRY_SIZE, BytesLike, Limits
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.read.budget import checked_table_bytes, table_limit
from kbatch.read.chunks import ChunkBuffer
from kbatch.read.committed import Aborted
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.reader import BatchReader
from kbatch.read.stable import StableFront
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges, Withheld
from kbatch.tuning import STREAM_FRAMED, STREAM_READ_BYTES

__all__ = ["INCOMPLETE_END", "StreamDecoder", "decode_stream"]

# The maximum number of bytes allocated in advance for a batch because of its length field.
_MAX_TRUSTED = 1 << 20
_NEVER = 1 << 62
INCOMPLETE_END = "the stream ends within a batch"  # The reason of the loss begins with it.
_NOT_READY = "the source has nothing to read now; wait for it, or make it blocking"


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int, /) -> BytesLike | None: ...


@public_in("kbatch")
class StreamDecoder:
    """Decode batches from chunks of any size, such as reads from a socket, a pipe or an object store.

    `feed` takes a chunk, `flush` returns a table of everything that is complete, and `finish` ends the stream. The
    result does not depend on the chunks and the flushes: all tables together have the records, batches and losses that
    `kbatch.decode` returns for the whole stream.

    Parameters
    ----------
    isolation, aborted, include_control, crc, on_error, start_offset, stop_offset, threads, limits, columns
        As for `kbatch.decode`.
    origin : int
        Position of the first byte in a larger source. Reported positions are positions in that source.
    source : str, optional
        Name of the stream, for errors.

    Notes
    -----
    **Damage.** Under ``on_error="raise"``, `flush` first returns the complete batches before the damage; the next call
    and all later ones raise. Under ``"skip"`` and ``"stop"``, a loss is reported once, by the flush (or `finish`) at
    which its end is known.

    **Transactions.** Under ``isolation="read_committed"``, a flush returns the batches below the last stable offset of
    the bytes fed so far, without aborted batches. The decoder keeps all bytes from the first open transaction on until
    a marker decides it (LSO-R1). `finish` returns batches that are still undecided with the status
    `BatchStatus.UNDECIDED` and without records. ``pending`` and ``last_stable_offset`` of each table describe the
    transactions that are open at that time, and those whose markers are lost until a flush has returned the batches
    before the markers; in the table of `finish` all of them. With `aborted`, nothing is withheld: each entry of a fetch
    response ends at its marker. Each checksum is computed twice, and each payload decoded once. Damage that ends the
    stream also ends the reading of markers.

    **Memory** holds the bytes that were fed and not flushed, and the bytes that open transactions keep back. `feed`
    copies a chunk to memory of the decoder, which tables point into; with `read_from` a socket or file writes to it.
    For a header alone, at most 1 MiB is allocated before its bytes arrive. A length above ``limits.max_batch_bytes`` is
    damage at once (`LimitExceededError`), so that a damaged length cannot make the decoder wait for 2 GiB.

    References
    ----------
    Rules such as LSO-R1 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> batch = bytes.fromhex(
    ...     "0000000000000000" "0000003a" "ffffffff" "02" "e99b8dd8" "0000" "00000000" "0000018bcfe56800"
    ...     "0000018bcfe56800" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
    ...     "10" "00" "00" "00" "02" "6b" "02" "76" "00"
    ... )
    >>> decoder = kbatch.StreamDecoder()
    >>> decoder.feed(batch[:40]), decoder.feed(batch[40:] + batch[:7])
    (0, 1)
    >>> decoder.flush().values(), decoder.pending_bytes
    ([b'v'], 7)
    >>> decoder.feed(batch[7:]), decoder.finish().values()
    (1, [b'v'])
    """

    def __init__(
        self,
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
        origin: int = 0,
        source: str | None = None,
    ) -> None:
        check_types(StreamDecoder.__init__, locals())
        options = DecodeOptions(
            isolation=isolation,
            include_control=include_control,
            crc=crc,
            on_error=on_error,
            start_offset=start_offset,
            stop_offset=stop_offset,
            limits=limits if limits is not None else Limits(),
            columns=columns,
            threads=threads,
        )
        self._bytes = ChunkBuffer(origin)
        # Under read_committed, a second reader follows the transactions, ahead of the decoding. It is not needed for a
        # list of closed ranges. Under read_uncommitted, any list is ignored (TXN-R12).
        self._front: StableFront | None = None
        if isolation == "read_committed":
            if isinstance(aborted, np.ndarray) and aborted.dtype.names is not None:
                options = replace(options, withheld=Withheld(AbortedRanges.from_rows(aborted)))
            else:
                self._front = StableFront(options, aborted, source=source, position=origin)
        self._decoding = BatchReader(options, source=source, position=origin)
        # The complete batches since the last flush, by their headers; the position up to which they were counted; and
        # the position up to which the stream has to be known to count another one.
        self._ready = 0
        self._counted = origin
        self._needed = origin + LOG_OVERHEAD
        # The position up to which tables have reported the stream.
        self._reported = origin
        # The first table of `finish`, if there are several. `flush` returns it.
        self._kept: RecordTable | None = None
        self._finished = False

    @property
    def position(self) -> int:
        """Position in the stream of the first byte that no flush has processed."""
        if self._kept is not None:
            return self._reported
        return self._bytes.end if self.stopped else self._decoding.position

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that have been fed from `position` on."""
        return self._bytes.end - self.position

    @property
    def stopped(self) -> bool:
        """Whether damage ended the reading under ``on_error="stop"``: further chunks are counted and dropped."""
        return self._decoding.stopped

    def __repr__(self) -> str:
        return (
            f"<StreamDecoder at byte {self.position}: {counted(self.pending_bytes, 'byte')} pending, "
            f"{counted(self._ready, 'complete batch')}>"
        )

    # -- bytes in

    def feed(self, chunk: BytesLike) -> int:
        """Take the next bytes of the stream.

        Parameters
        ----------
        chunk : buffer
            Any number of bytes. They are copied.

        Returns
        -------
        int
            The number of complete batches since the last flush, by their headers. Damage that ends this count adds one,
            so that 0 always means that `flush` has nothing new. Batches that a flush has withheld for a transaction
            are not counted again.

        Raises
        ------
        ValueError
            After `finish`.
        """
        array = byte_array(chunk, "chunk")
        _check_open(self._bytes)
        self._bytes.append(array, _batch_capacity(self._bytes, self._needed))
        self._count()
        return self._ready

    def read_from(self, readinto: Callable[[memoryview], int | None], size: SizeLike = STREAM_READ_BYTES) -> int:
        """Take the next bytes from a function that writes them to a buffer, without a copy.

        Parameters
        ----------
        readinto : callable
            A function such as ``socket.recv_into`` or ``file.readinto``: it is called once with a writable memoryview
            of `size` bytes and returns the number of bytes that it wrote.
        size : int or str
            The maximum number of bytes.

        Returns
        -------
        int
            The number of bytes written; 0 at the end.

        Raises
        ------
        BlockingIOError
            If a non-blocking source has no data now (`readinto` returned None).

        Examples
        --------
        >>> import io
        >>> import kbatch
        >>> decoder = kbatch.StreamDecoder()
        >>> decoder.read_from(io.BytesIO(b"abc").readinto), decoder.pending_bytes
        (3, 3)
        """
        check_types(StreamDecoder.read_from, locals())
        size = size_between("size", size, 1)
        _check_open(self._bytes)
        count = readinto(self._bytes.free(size, _batch_capacity(self._bytes, self._needed)).data)
        if count is None:
            raise BlockingIOError(_NOT_READY)
        if not 0 <= count <= size:
            raise ValueError(f"readinto returned {count} for a buffer of {size} bytes")
        self._bytes.end += count
        self._count()
        return count

    def _count(self) -> None:
        """Count the batches that are complete by now."""
        if self.stopped:
            self._bytes.release(self._bytes.end)
            return
        first, end = self._first_reader, self._bytes.end
        held = [reader for reader in (first, self._decoding) if reader.is_undecided or reader.error is not None]
        if held:
            if any(reader.error is not None or not reader.waits(self._bytes) for reader in held):
                self._ready = max(self._ready, 1)
            return
        if end < self._needed:
            return
        start, data = self._counted, self._bytes.window(self._counted, end)
        is_last = False
        while not is_last:
            scan = scan_part(
                data, position=self._counted - start, max_batches=STREAM_FRAMED, max_size=first.damage.max_size
            )
            self._ready += len(scan.batches) + (scan.finding is not None)
            self._counted = start + scan.consumed
            is_last = scan.finding is not None or len(scan.batches) < STREAM_FRAMED
        self._needed = _NEVER if scan.finding is not None else self._counted + _known_size(data[scan.consumed :])

    @property
    def _first_reader(self) -> BatchReader:
        """The reader that comes to new bytes first."""
        return self._decoding if self._front is None else self._front.reader

    # -- tables out

    def flush(self) -> RecordTable:
        """Return a table of everything that is complete and was not flushed before; an incomplete batch is kept.

        If that exceeds ``limits.max_table_bytes``, further calls return the rest.

        Returns
        -------
        RecordTable
            Positions in ``batches`` and ``losses`` count from the beginning of the stream. ``consumed`` is the number
            of its bytes that this flush has processed. Under read_committed, ``pending`` and ``last_stable_offset``
            describe all complete batches fed so far, also if this table is empty.

        Raises
        ------
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, if there is damage and no batch before it that this table could have; under
            read_committed, if there is no decided batch before it.
        """
        table, self._kept = self._kept, None
        if table is None:
            table = self._read(table_limit(self._decoding.options.limits))
        self._settle(table.consumed)
        if not len(table.batches) and not table.losses:
            _raise_error(self._decoding, self._first_reader)
        return table

    def finish(self) -> RecordTable:
        """End the stream and return the remaining batches, including batches that only the end of the stream decides.

        Under ``on_error="stop"`` and ``"skip"`` an incomplete batch at the end is a loss. Under read_committed, batches
        that no marker has decided have a row and no records.

        Returns
        -------
        RecordTable

        Raises
        ------
        LimitExceededError
            If the rest does not fit one table of ``limits.max_table_bytes``. Nothing is lost: `flush` returns the rest
            in several tables, and `finish` must be called again after them.
        TruncatedBatchError
            Under ``on_error="raise"``, if the stream ends within a batch. The decoder is then unchanged: `flush` still
            returns the complete batches before it, and `feed` takes the rest.
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, at damage in the pending bytes. `flush` still returns the batches before it.
        """
        if self._finished:
            return RecordTable._empty(self._decoding.options.table_columns)
        raises = self._decoding.options.on_error == "raise"
        reader = self._decoding
        if self._kept is not None or reader.is_splitting:
            raise _too_large(reader, self.position)
        if raises:
            # An error leaves the decoder as it is.
            self._decoding = reader.restarted()
        self._bytes.is_final = True
        try:
            self._decoding.is_full = False
            table = self._read(_NEVER)
            if self._decoding.has_ended_early(self._bytes.end):
                self._kept = table
                raise _too_large(reader, self.position)
            pending = {} if self._front is None else self._front.pending(is_finished=True)
            if raises:
                _raise_error(self._decoding, self._first_reader)
            losses = table.losses._extended(_lost_end(self._decoding, self._bytes))
        except KbatchError:
            if self._kept is None:
                self._decoding = reader
                self._bytes.is_final = False
            raise
        consumed = self.position - self._reported
        self._settle(consumed)
        self._finished = True
        return table._with(losses=losses, consumed=consumed, **pending)

    def tables(self, chunks: Iterable[BytesLike], *, max_bytes: SizeLike | None = None) -> Iterator[RecordTable]:
        """Feed the chunks of an iterable, flush after each, and finish.

        Parameters
        ----------
        chunks : iterable of buffer
            Under ``on_error="stop"``, it is not read further after damage; the loss ends with the last chunk taken.
        max_bytes : int or str, optional
            As for `kbatch.Log.tables`.

        Yields
        ------
        RecordTable
            At least one for each chunk that completes a batch. The fixed cost of a table makes chunks of some hundred
            KiB worthwhile.

        Raises
        ------
        KbatchError
            As `flush` and `finish`, after the batches before the damage have been yielded.

        Examples
        --------
        >>> import kbatch
        >>> list(kbatch.StreamDecoder().tables([b"", b""]))
        []
        """
        check_types(StreamDecoder.tables, locals())
        return self._tables((self.feed(chunk) for chunk in chunks), _limited(self._decoding, max_bytes))

    def _tables(self, feeds: Iterable[int], max_bytes: int) -> Iterator[RecordTable]:
        for _ in feeds:
            yield from self._complete(max_bytes)
            if self.stopped:
                break
        self._bytes.is_final = True
        yield from self._complete(max_bytes)
        table = self.finish()
        if len(table.batches) or table.losses:
            yield table

    def _complete(self, max_bytes: int) -> Iterator[RecordTable]:
        """Yield tables until nothing more is complete."""
        before = -1
        while (self.position != before or self._decoding.is_splitting) and not self.stopped:
            before = self.position
            table = self._read(max_bytes)
            self._settle(table.consumed)
            if len(table.batches) or table.losses:
                yield table
            # Keep no reference: if the caller drops the table, the next one can use its memory.
            del table
        _raise_error(self._decoding, self._first_reader)

    def _read(self, max_bytes: int) -> RecordTable:
        """Read the next table of complete and decided batches."""
        data, reader, front = self._bytes, self._decoding, self._front
        if self.stopped:
            return RecordTable._empty(reader.options.table_columns, **({} if front is None else front.pending()))
        stop = data.end
        if front is not None:
            front.follow(data)
            stop = front.decided_end(data)
        if reader.error is not None or reader.position >= stop or (reader.waits(data) and not reader.is_splitting):
            table = RecordTable._empty(reader.options.table_columns)
        else:
            options = None
            if front is not None:
                options = front.restrict(reader.options, data)
                max_bytes = front.table_bytes(max_bytes)
            table = reader.read(data, stop=stop, max_bytes=max_bytes, options=options)
        if not len(table.batches):
            # An empty table must not keep the stream's bytes alive.
            table = RecordTable._empty(reader.options.table_columns, losses=table.losses)
        consumed = self.position - self._reported
        return table._with(consumed=consumed, **({} if front is None else front.pending()))

    def _settle(self, consumed: int) -> None:
        """Drop the bytes that are not needed after a table of `consumed` bytes, and restart the count of batches."""
        first = self._first_reader
        self._reported += consumed
        if self._front is not None:
            self._front.release(self.position)
        self._bytes.release(self.position if self.stopped else min(self._decoding.first_byte(), first.first_byte()))
        self._ready, self._counted = 0, first.position
        self._needed = max(first.needed, first.position + LOG_OVERHEAD)


def _check_open(data: ChunkBuffer) -> None:
    if data.is_final:
        raise ValueError("the stream is finished; use another StreamDecoder for another stream")


def _batch_capacity(data: ChunkBuffer, needed: int) -> int:
    """Return the capacity for a batch that ends at `needed`, limited because its length may be damaged."""
    return min(needed - data.start, data.end - data.start + _MAX_TRUSTED)


def _raise_error(*readers: BatchReader) -> None:
    """Raise the error that follows the last table of a reader, if there is one."""
    for reader in readers:
        if reader.error is not None:
            raise reader.error


def _too_large(reader: BatchReader, position: int) -> LimitExceededError:
    """Return the error of `StreamDecoder.finish` if the rest is more than one table."""
    return LimitExceededError(
        "the rest of the stream does not fit one table (Limits(max_table_bytes=...)); call flush() until it returns no "
        "batches, and then finish()",
        source=reader.source,
        position=position,
    )


def _limited(reader: BatchReader, max_bytes: SizeLike | None) -> int:
    """Return the size of a table; a batch that does not fit it is refused if the caller has set it."""
    if max_bytes is not None:
        reader.options = replace(reader.options, is_strict=True)
    return checked_table_bytes(max_bytes)


def _lost_end(reader: BatchReader, data: ChunkBuffer) -> list[Loss]:
    """Return the loss of an incomplete batch at the end, or of everything since damage stopped the reading."""
    if reader.stopped:
        loss = reader.damage.open_loss
        return [] if loss is None else [loss._replace(length=data.end - loss.position)]
    if data.end == reader.position:
        return []
    hint = "feed the rest, or let on_error='stop' or 'skip' report it as a loss"
    return [reader.lose_tail(data, None, _truncation(data, reader.position), hint)]


def _truncation(data: ChunkBuffer, position: int) -> str:
    left = data.end - position
    size = entry_size(data.window(position, data.end), 0) if left >= MIN_ENTRY_SIZE else None
    return f"{INCOMPLETE_END}, after {counted(left, 'byte') if size is None else f'{left:,} of {size:,} bytes'}"


def _known_size(data: npt.NDArray[np.uint8]) -> int:
    """Return the number of bytes that must be known to continue with the entry at the beginning of `data`."""
    if len(data) < MIN_ENTRY_SIZE:
        return LOG_OVERHEAD if len(data) < LOG_OVERHEAD else MIN_ENTRY_SIZE
    return entry_size(data, 0)


def _feeds(decoder: StreamDecoder, stream: _Readable | Iterable[BytesLike]) -> Iterator[int]:
    """Feed the data of `stream`, and yield after each chunk."""
    readinto = getattr(stream, "readinto1", None) or getattr(stream, "readinto", None)
    if readinto is not None:
        while count := decoder.read_from(readinto):
            yield count
    elif isinstance(stream, _Readable):
        while (chunk := stream.read(STREAM_READ_BYTES)) != b"":
            if chunk is None:
                raise BlockingIOError(_NOT_READY)
            yield decoder.feed(chunk)
    else:
        yield from map(decoder.feed, stream)


def _tables_of_file(decoder: StreamDecoder, file: io.FileIO, max_bytes: int) -> Iterator[RecordTable]:
    with file:
        yield from decoder._tables(_feeds(decoder, file), max_bytes)


@public_in("kbatch")
def decode_stream(
    stream: _Readable | Iterable[BytesLike] | str | os.PathLike[str],
    /,
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
    max_bytes: SizeLike | None = None,
    origin: int = 0,
    source: str | None = None,
) -> Iterator[RecordTable]:
    """Decode a file object, a pipe, a socket or an iterable of chunks to tables of bounded size.

    Parameters
    ----------
    stream : file object, path or iterable of buffer
        An object with ``readinto1``, ``readinto`` or ``read`` is read to its end, up to 1 MiB at a time:
        ``open(path, "rb")``, ``process.stdout``, ``socket.makefile("rb")``, a body from an object store. Any other
        object is iterated: ``iter(lambda: os.read(fd, 1 << 20), b"")``.
    isolation, aborted, include_control, crc, on_error, start_offset, stop_offset, threads, limits, columns
        As for `kbatch.decode`.
    max_bytes : int or str, optional
        As for `kbatch.Log.tables`.
    origin, source
        As for `StreamDecoder`; the name of a file is the default of `source`.

    Returns
    -------
    iterator of RecordTable
        A table is yielded as soon as a chunk completes a batch; see `StreamDecoder.tables`.

    Raises
    ------
    KbatchError
        As `StreamDecoder.flush` and `StreamDecoder.finish`, after the batches before the damage have been yielded.

    Examples
    --------
    >>> import io
    >>> import kbatch
    >>> batch = kbatch.encode([b"v"], timestamps=0)
    >>> [table.values() for table in kbatch.decode_stream(io.BytesIO(batch))]
    [[b'v']]
    >>> [table.values() for table in kbatch.decode_stream([batch, batch[:9], batch[9:]])]
    [[b'v'], [b'v']]
    """
    check_types(decode_stream, locals())
    if isinstance(stream, bytes | bytearray | memoryview | np.ndarray):
        kind = type(stream).__name__
        raise TypeError(f"decode_stream takes a file or an iterable of chunks, got {kind}; kbatch.decode takes buffers")
    if isinstance(stream, io.TextIOBase):
        raise TypeError("decode_stream needs a file that is open for binary reading, as open(path, 'rb')")
    is_file = hasattr(stream, "read") or hasattr(stream, "readinto")
    if not is_file and not isinstance(stream, str | os.PathLike | Iterable):
        raise TypeError(f"decode_stream takes a file, a path or an iterable of chunks, got {type(stream).__name__}")
    decoder = StreamDecoder(
        isolation=isolation,
        aborted=aborted,
        include_control=include_control,
        crc=crc,
        on_error=on_error,
        start_offset=start_offset,
        stop_offset=stop_offset,
        threads=threads,
        limits=limits,
        columns=columns,
        origin=origin,
        source=source or source_name(stream),
    )
    table_bytes = _limited(decoder._decoding, max_bytes)
    if isinstance(stream, str | os.PathLike):
        return _tables_of_file(decoder, open_segment(stream, "kbatch.decode_stream"), table_bytes)
    return decoder._tables(_feeds(decoder, stream), table_bytes)
