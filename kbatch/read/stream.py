"""Batches from chunks of any size, as sockets, pipes and object stores give them: `StreamDecoder`, `decode_stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from kbatch.batches.framing import byte_array, entry_size, scan_part
from kbatch.errors import KbatchError
from kbatch.format import LOG_OVERHEAD, MIN_ENTRY_SIZE, BytesLike, Limits
from kbatch.read.chunks import ChunkBuffer
from kbatch.read.committed import Aborted
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.reader import BatchReader
from kbatch.read.stable import StableFront
from kbatch.records.data import Loss
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges

__all__ = ["StreamDecoder", "StreamOptions", "decode_stream"]

# How many batches are framed at a time, so that their rows stay in the cache: only their number is used.
_FRAMED_AT_A_TIME = 1024
# What is allocated on a header's word alone: at most this much more than the bytes that came.
_MAX_TRUSTED = 1 << 20
_READ_BYTES = 1 << 20
_NEVER = 1 << 62
_NOT_READY = "the source has nothing to read now; wait for it, or make it blocking"


class StreamOptions(TypedDict, total=False):
    """The keywords of `StreamDecoder`."""

    isolation: Isolation
    aborted: Aborted | None
    include_control: bool
    crc: Crc
    on_error: OnError
    start_offset: int | None
    stop_offset: int | None
    threads: int
    limits: Limits | None
    columns: Sequence[str] | None
    origin: int
    source: str | None


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int, /) -> BytesLike | None: ...


class StreamDecoder:
    """Decode batches from chunks of any size, as a socket, a pipe or an object store gives them.

    `feed` takes the chunks, `flush` returns a table of everything that is complete so far, and `finish` ends the
    stream. How the stream is cut into chunks, and when it is flushed, changes nothing: all tables together have
    the records, batches and losses that `kbatch.decode` finds in the whole.

    Parameters
    ----------
    isolation, aborted, include_control, crc, on_error, start_offset, stop_offset, threads, limits, columns
        As for `kbatch.decode`.
    origin : int
        Position of the first byte in a larger source; every position that is reported counts from there.
    source : str, optional
        Name of the stream, for errors.

    Notes
    -----
    **Damage.** Under ``on_error="raise"`` `flush` first returns what is complete before the damage, and the next call
    raises; so does every further one. Under ``"skip"`` and ``"stop"`` a loss is reported once, by the flush (or
    `finish`) at which its end is known.

    **Transactions.** Under ``isolation="read_committed"`` a flush returns what comes before the last stable offset of
    what was fed, without aborted batches. Everything from the first transaction on that no marker has decided is kept,
    as bytes, until a marker decides it (LSO-R1); `finish` returns what is still undecided as batches of status
    `BatchStatus.UNDECIDED` without records. ``pending`` and ``last_stable_offset`` of each table list what is open by
    then. Transactions whose markers are lost stand in ``pending`` until a flush has returned what comes before the
    markers, and all of them in that of `finish`. With `aborted` nothing is withheld: entries of a fetch response end at
    their markers as these come. Each checksum is computed twice, and each payload decoded once. Damage that is an
    error, or that ends the stream, ends the reading of markers too: what is undecided before it stays so, under
    ``"raise"`` inside the decoder.

    **Copies.** Chunks are copied when they are fed, to memory of the decoder that tables point into; `read_from` saves
    the copy, since it lets a socket or file write to that memory.

    **Memory** is what was fed and not flushed, and what a transaction keeps back. If each chunk is followed by a flush,
    that is the chunk and the largest batch, or the longest transaction. No header gets more than 1 MiB of memory before
    its bytes come. One that claims more than ``limits.max_batch_bytes`` is damage at once (`LimitExceededError`), so
    that a damaged length cannot make the decoder wait for 2 GiB. Below that limit it waits, also in a search after
    damage for whatever looks like a header: as long as an entry may still turn out to be there, the bytes are kept.

    **Order.** Under read_committed the offsets of batches have to ascend, as in any log: what was returned is not taken
    back if a later transaction begins at a smaller offset.

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
        # Two readers go through the bytes: under read_committed one follows the transactions, ahead of the decoding. A
        # list of closed ranges decides alone; under read_uncommitted any list is of no effect (TXN-R12).
        self._front: StableFront | None = None
        if isolation == "read_committed":
            if isinstance(aborted, np.ndarray) and aborted.dtype.names is not None:
                options = replace(options, aborted=AbortedRanges.from_rows(aborted))
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
        self._finished = False

    @property
    def position(self) -> int:
        """Position in the stream of the first byte that no flush has dealt with."""
        return self._bytes.end if self.stopped else self._decoding.position

    @property
    def pending_bytes(self) -> int:
        """Bytes from `position` on that have been fed."""
        return self._bytes.end - self.position

    @property
    def stopped(self) -> bool:
        """Whether ``on_error="stop"`` met damage: further chunks are counted and dropped."""
        return self._decoding.stopped

    def __repr__(self) -> str:
        return (
            f"<StreamDecoder at byte {self.position}: {self.pending_bytes} bytes pending, "
            f"complete batches: {self._ready}>"
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
            How many complete batches came since the last flush, by their headers. Damage that ends this count adds one,
            so that 0 always means: `flush` has nothing new. Batches that a flush has withheld for a transaction do not
            count any more; what decides them is a new batch.

        Raises
        ------
        ValueError
            After `finish`.
        """
        array = byte_array(chunk)
        self._check_open()
        self._bytes.append(array, self._expected_bytes())
        self._count()
        return self._ready

    def read_from(self, readinto: Callable[[memoryview], int | None], size: int = _READ_BYTES) -> int:
        """Take the next bytes from a function that writes them to a buffer it is given: no copy is made.

        Parameters
        ----------
        readinto : callable
            ``socket.recv_into``, ``file.readinto``, or anything like them: it is called once with a writable
            memoryview of `size` bytes and returns how many of them it wrote.
        size : int
            Bytes to ask for.

        Returns
        -------
        int
            Bytes that came; 0 at the end.

        Raises
        ------
        BlockingIOError
            If nothing came from a source that doesn't block (`readinto` returned None).

        Examples
        --------
        >>> import io
        >>> import kbatch
        >>> decoder = kbatch.StreamDecoder()
        >>> decoder.read_from(io.BytesIO(b"abc").readinto), decoder.pending_bytes
        (3, 3)
        """
        if size < 1:
            raise ValueError(f"size must be positive, got {size}")
        self._check_open()
        count = readinto(self._bytes.free(size, self._expected_bytes()).data)
        if count is None:
            raise BlockingIOError(_NOT_READY)
        if not 0 <= count <= size:
            raise ValueError(f"readinto returned {count} for a buffer of {size} bytes")
        self._bytes.end += count
        self._count()
        return count

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("the stream is finished: a further one needs a StreamDecoder of its own")

    def _expected_bytes(self) -> int:
        """Return how many bytes are going to be kept at least, as far as a header is trusted with memory."""
        kept = self._bytes.end - self._bytes.start
        return min(self._needed - self._bytes.start, kept + _MAX_TRUSTED)

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
        data = self._bytes.window(self._counted, end)
        start = self._counted
        while True:
            scan = scan_part(
                data, position=self._counted - start, max_batches=_FRAMED_AT_A_TIME, max_size=first.damage.max_size
            )
            self._ready += len(scan.batches)
            self._counted = start + scan.consumed
            if scan.finding is not None:
                self._ready += 1
                self._needed = _NEVER
                return
            if len(scan.batches) < _FRAMED_AT_A_TIME:
                break
        self._needed = self._counted + _known_size(data[scan.consumed :])

    @property
    def _first_reader(self) -> BatchReader:
        """The reader that comes to new bytes first."""
        return self._decoding if self._front is None else self._front.reader

    # -- tables out

    def flush(self) -> RecordTable:
        """Return a table of everything that is complete and was not flushed before; an incomplete batch is kept.

        Returns
        -------
        RecordTable
            Positions in ``batches`` and ``losses`` count from the beginning of the stream. ``consumed`` is the number
            of its bytes that this flush has dealt with. Under read_committed, ``pending`` and ``last_stable_offset``
            are those of everything that was fed and is complete, also if this table is empty.

        Raises
        ------
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, if damage comes before anything that this table could hold; under
            read_committed, if nothing that is decided comes before the damage.
        """
        table = self._read()
        self._settle(table.consumed)
        if not len(table.batches) and not table.losses:
            self._raise_damage()
        return table

    def finish(self) -> RecordTable:
        """End the stream, and return what `flush` would and what only the end decides.

        Under ``on_error="stop"`` and ``"skip"`` an incomplete batch at the end is a loss. Under read_committed, batches
        that no marker has decided have a row and no records.

        Returns
        -------
        RecordTable

        Raises
        ------
        TruncatedBatchError
            Under ``on_error="raise"``, if the stream ends within a batch. Then nothing has changed: `flush` still
            returns the complete batches before it, and `feed` takes the rest.
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, at damage in anything that is pending. `flush` still returns what is before it.
        """
        if self._finished:
            return RecordTable._empty(self._decoding.options.record_columns)
        raises = self._decoding.options.on_error == "raise"
        reader = self._decoding
        if raises:
            # An error leaves the decoder as it is.
            self._decoding = reader.restarted()
        self._bytes.is_final = True
        try:
            table = self._read()
            pending = {} if self._front is None else self._front.pending(is_finished=True)
            if raises:
                self._raise_damage()
            losses = [*table.losses, *self._lost_end()]
        except KbatchError:
            self._decoding = reader
            self._bytes.is_final = False
            raise
        consumed = self.position - self._reported
        self._settle(consumed)
        self._finished = True
        return table._with(losses=losses, consumed=consumed, **pending)

    def tables(self, chunks: Iterable[BytesLike], *, max_bytes: int = 64 << 20) -> Iterator[RecordTable]:
        """Feed chunk by chunk, and finish: for sources that give their bytes by iteration.

        Parameters
        ----------
        chunks : iterable of buffer
            With ``on_error="stop"`` nothing is taken from it after damage; the loss reaches as far as bytes were taken.
        max_bytes : int
            About what records, batches and bytes of one table take; one batch is decoded at least.

        Yields
        ------
        RecordTable
            One or more for each chunk that completes something. A table costs the same for few records as for many, so
            that chunks should have some hundred KiB.

        Raises
        ------
        KbatchError
            As `flush` and `finish` do, after what comes before the damage has been yielded.

        Examples
        --------
        >>> import kbatch
        >>> list(kbatch.StreamDecoder().tables([b"", b""]))
        []
        """
        _check_max_bytes(max_bytes)
        return self._tables((self.feed(chunk) for chunk in chunks), max_bytes)

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
        while self.position != before and not self.stopped:
            before = self.position
            table = self._read(max_bytes)
            self._settle(table.consumed)
            if len(table.batches) or table.losses:
                yield table
            # What the caller drops must be free for the next table: no reference is kept.
            del table
        self._raise_damage()

    def _read(self, max_bytes: int | None = None) -> RecordTable:
        """Read the next table of what is complete and decided."""
        data, reader, front = self._bytes, self._decoding, self._front
        if self.stopped:
            return RecordTable._empty(reader.options.record_columns, **({} if front is None else front.pending()))
        stop = data.end
        if front is not None:
            front.follow(data)
            stop = front.decided_end(data)
        if reader.error is not None or reader.position >= stop or reader.waits(data):
            table = RecordTable._empty(reader.options.record_columns)
        else:
            options = None if front is None else front.restrict(reader.options, is_final=data.is_final)
            table = reader.read(data, stop=stop, max_bytes=max_bytes, options=options)
        if not len(table.batches):
            # It keeps no bytes of the stream.
            table = RecordTable._empty(table.columns, losses=table.losses)
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

    # -- damage and ends

    def _raise_damage(self) -> None:
        """Raise the error that follows what was read."""
        for reader in (self._decoding, self._first_reader):
            if reader.error is not None:
                raise reader.error

    def _lost_end(self) -> list[Loss]:
        """Return the loss of an incomplete batch at the end, or of everything since damage stopped the reading."""
        reader, data = self._decoding, self._bytes
        if self.stopped:
            loss = reader.damage.open_loss
            return [] if loss is None else [loss._replace(length=data.end - loss.position)]
        left = self.pending_bytes
        if not left:
            return []
        size = f"{entry_size(data.window(self.position, data.end), 0)} bytes" if left >= MIN_ENTRY_SIZE else "a batch"
        reason = f"the stream ends within a batch: {left} of {size} are there"
        hint = "feed the rest, or let on_error='stop' or 'skip' report it as a loss"
        return [reader.lose_tail(data, None, reason, hint)]


def _check_max_bytes(max_bytes: int) -> None:
    if max_bytes < 1:
        raise ValueError(f"max_bytes must be positive, got {max_bytes}")


def _known_size(data: npt.NDArray[np.uint8]) -> int:
    """Return how many bytes of the entry at the beginning of `data` show more of it."""
    if len(data) < MIN_ENTRY_SIZE:
        return LOG_OVERHEAD if len(data) < LOG_OVERHEAD else MIN_ENTRY_SIZE
    return entry_size(data, 0)


def _feeds(decoder: StreamDecoder, stream: _Readable | Iterable[BytesLike]) -> Iterator[int]:
    """Feed whatever `stream` gives, and yield after each time."""
    readinto = getattr(stream, "readinto1", None) or getattr(stream, "readinto", None)
    if readinto is not None:
        while count := decoder.read_from(readinto):
            yield count
    elif isinstance(stream, _Readable):
        while (chunk := stream.read(_READ_BYTES)) != b"":
            if chunk is None:
                raise BlockingIOError(_NOT_READY)
            yield decoder.feed(chunk)
    else:
        yield from map(decoder.feed, stream)


def decode_stream(
    stream: _Readable | Iterable[BytesLike], /, *, max_bytes: int = 64 << 20, **options: Unpack[StreamOptions]
) -> Iterator[RecordTable]:
    """Decode a file object, a pipe, a socket or an iterable of chunks to tables of bounded size.

    Parameters
    ----------
    stream : file object or iterable of buffer
        What has ``readinto1``, ``readinto`` or ``read`` is read to its end, by 1 MiB at most, which need not come at
        once: ``open(path, "rb")``, ``process.stdout``, ``socket.makefile("rb")``, a body from an object store. Anything
        else is iterated: ``iter(lambda: os.read(fd, 1 << 20), b"")``.
    max_bytes : int
        What records, batches and bytes of one table may take, about; one batch is decoded at least.
    **options
        Those of `StreamDecoder`.

    Returns
    -------
    iterator of RecordTable
        A table comes as soon as a chunk or a read makes a batch whole; see `StreamDecoder.tables`.

    Raises
    ------
    KbatchError
        As `StreamDecoder.flush` and `StreamDecoder.finish` do; what comes before the damage has been yielded.

    Examples
    --------
    >>> import io
    >>> import kbatch
    >>> batch = bytes.fromhex(
    ...     "0000000000000000" "0000003a" "ffffffff" "02" "e99b8dd8" "0000" "00000000" "0000018bcfe56800"
    ...     "0000018bcfe56800" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
    ...     "10" "00" "00" "00" "02" "6b" "02" "76" "00"
    ... )
    >>> [table.values() for table in kbatch.decode_stream(io.BytesIO(batch))]
    [[b'v']]
    >>> [table.values() for table in kbatch.decode_stream([batch, batch[:9], batch[9:]])]
    [[b'v'], [b'v']]
    """
    _check_max_bytes(max_bytes)
    if isinstance(stream, bytes | bytearray | memoryview | np.ndarray):
        raise TypeError("a stream gives chunks; what is all there already is for kbatch.decode")
    decoder = StreamDecoder(**options)
    return decoder._tables(_feeds(decoder, stream), max_bytes)
