"""Batches from chunks of any size, as sockets, pipes and object stores give them: `StreamDecoder`, `decode_stream`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, Unpack

from kbatch.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.errors import KbatchError, TruncatedBatchError
from kbatch.format import BATCH_DTYPE, BATCH_HEADER_SIZE, LOG_OVERHEAD, MIN_ENTRY_SIZE, Limits
from kbatch.framing import byte_array, entry_size, most_believed, scan_part
from kbatch.isolation import Aborted, counts_for_transactions, tracking_options
from kbatch.kernels.buffers import allocate
from kbatch.passes import Part, decode_part
from kbatch.stable import StableFront
from kbatch.table import Loss, RecordTable
from kbatch.transactions import AbortedRanges

__all__ = ["StreamDecoder", "StreamOptions", "decode_stream"]

# Of damage whose extent only later bytes can tell, so many are kept before it is decided without them.
_PATIENCE = 16 << 20
# How many batches are framed at a time, so that their rows stay in the cache: only their number is wanted.
_FRAMED_AT_A_TIME = 1024
_LEAST_ROOM = 16 << 10
# Room that a header gets on its word alone: what it claims is at most so much more than what came.
_MOST_TRUSTED = 1 << 20
_READ_BYTES = 1 << 20
# From so many bytes on, copying a chunk takes longer than one table more.
_WORTH_HOLDING = 1 << 20
_NEVER = sys.maxsize
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
    def read(self, size: int, /) -> Buffer | None: ...


class StreamDecoder:
    """Decode batches from chunks of any size, as a socket, a pipe or an object store gives them.

    `feed` takes the chunks, `flush` gives a table of everything that is whole so far, and `finish` ends the stream. How
    the stream is cut into chunks, and when it is flushed, changes nothing: all tables together have the records,
    batches and losses that `kbatch.decode` finds in the whole; see the notes for its exceptions.

    Parameters
    ----------
    isolation, aborted, include_control, crc, on_error, start_offset, stop_offset, threads, limits, columns
        As for `kbatch.decode`.
    origin : int
        Position of the first byte in a larger source; every position that is told counts from there.
    source : str, optional
        Name of the stream, for errors.

    Notes
    -----
    **Damage.** Under ``on_error="raise"`` `flush` first hands out what is whole before the damage, and the next call
    raises; so does every further one. Under ``"skip"`` and ``"stop"`` a loss is told once, by the flush (or `finish`)
    at which its end is known. What isn't known yet is kept: the bytes of a bad batch until those after it show whether
    its length is right.

    **Transactions.** Under ``isolation="read_committed"`` a flush hands out what comes before the last stable offset of
    what was fed, without aborted batches. Everything from the first transaction on that no marker has decided is kept
    back, as bytes, until a marker decides it (LSO-R1); `finish` gives what is still undecided as batches of status
    `BatchStatus.UNDECIDED` without records. ``pending`` and ``last_stable_offset`` of each table tell what is open by
    then. With `aborted` nothing is kept back: entries of a fetch response end at their markers as these come. Each
    checksum is computed twice, and each payload decoded once. Damage that is an error, or that ends the stream, ends
    the reading of markers too: what is undecided before it stays so, under ``"raise"`` inside the decoder.

    **Copies.** A read-only chunk (``bytes``, a read-only ``mmap``, ...) that meets an empty decoder is held, not
    copied, until all of it is flushed; if it is flushed before the next chunk comes, as where chunks are whole fetch
    responses, ``data`` of a table of uncompressed batches is the chunk's own memory. Any other chunk is copied when it
    is fed, behind the bytes that still wait: to memory that is used again, and grows by doubling. So a writable chunk
    (``bytearray``, a ``recv_into`` buffer) is the caller's again as soon as `feed` returns, and a batch that is spread
    over chunks is joined once, however many there are. After a flush what is left, the incomplete batch at the end,
    moves once more, if it is less than what was handed out.
    `read_from` saves the copy: it lets a socket or file write to the decoder's own memory. And `tables` never copies
    read-only chunks of 1 MiB or more: the batch that begins in one and ends in the next is a table of its own.

    **Memory** is what was fed and not flushed, and what a transaction keeps back. If each chunk is followed by a flush,
    that is the chunk and the largest batch, or the longest transaction. No header gets memory for what it claims,
    beyond 1 MiB, before the bytes come; and one that claims more than ``limits.max_batch_bytes`` is damage at once
    (`LimitExceededError`), so that a damaged length can't make the decoder wait for 2 GiB. Below that it waits, also in
    a search after damage for whatever looks like a header: as long as a batch may still turn out to be there, the bytes
    are kept.

    **Where it differs from decoding the whole.** `kbatch.decode` takes a batch that claims more than that, if all of it
    is there. And where more than 16 MiB go by after a bad batch and no good one is found, they become one loss, in
    which `kbatch.decode` may still have told single bad batches. Under read_committed the offsets of batches must go
    up, as in any log: what was handed out isn't taken back if a later transaction begins at a smaller offset.

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
        self._options = DecodeOptions(
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
        self._most = most_believed(self._options.limits)
        self._source = source
        # Under read_committed the transactions are followed first, in a pass of its own ahead of the decoding. A list
        # of closed ranges decides alone; under read_uncommitted any list is of no effect (TXN-R12).
        self._stable: StableFront | None = None
        if isolation == "read_committed":
            if isinstance(aborted, np.ndarray) and aborted.dtype.names is not None:
                self._options = replace(self._options, aborted=AbortedRanges.from_rows(aborted))
            else:
                self._stable = StableFront(self._options.limits, aborted)
        # The bytes that wait are one stretch, which begins at `_position` of the stream: a chunk that is held, or the
        # part of `_buffer` from `_begin` on, which has room for more behind it. Memory that a table may point into is
        # never written to again.
        self._position = origin
        self._data = _nothing()
        self._buffer: npt.NDArray[np.uint8] | None = None
        self._begin = 0
        # The first `_followed` bytes of `_data` are kept back only for transactions: none unless there is a `_stable`.
        # Before `_data` has `_wanted` bytes nothing in it is whole that isn't counted yet. From `_followed` up to
        # `_framed` are `_ready` batches; or only a pass can tell what they are, if it is `_searching` or `_undecided`.
        self._followed = 0
        self._wanted = LOG_OVERHEAD
        self._framed = 0
        self._ready = 0
        self._searching = False
        self._undecided = False
        # What following the transactions came upon: damage that is an error, or after which nothing is wanted.
        self._damaged = False
        self._follows_no_more = False
        # Whether the decoding has to begin with a search. It is the same search unless the decoding is behind; then it
        # gets on when there are `_decodable` bytes.
        self._resuming = False
        self._behind = False
        self._decodable = 0
        # The last loss, if its end is not known yet.
        self._open_loss: Loss | None = None
        self._stopped = False
        self._finished = False

    @property
    def position(self) -> int:
        """Where in the stream the first byte stands that no flush has dealt with."""
        return self._position

    @property
    def pending_bytes(self) -> int:
        """Bytes from `position` on that have been fed and are kept."""
        return len(self._data)

    @property
    def stopped(self) -> bool:
        """Whether ``on_error="stop"`` met damage: further chunks are counted and dropped."""
        return self._stopped

    def __repr__(self) -> str:
        return f"<StreamDecoder at byte {self._position}: {len(self._data)} bytes wait, {self._ready} batches whole>"

    # -- bytes in

    def feed(self, chunk: Buffer) -> int:
        """Take the next bytes of the stream.

        Parameters
        ----------
        chunk : buffer
            Any number of bytes. A read-only one may be held until it is flushed, and must not change; a writable one is
            copied.

        Returns
        -------
        int
            How many batches are whole and came since the last flush, by their headers. Damage that ends this count adds
            one, so that 0 always means: `flush` has nothing new. Batches that a flush has kept back for a transaction
            count no more; what decides them is a new batch.

        Raises
        ------
        ValueError
            After `finish`.
        """
        array = byte_array(chunk)
        if self._finished:
            raise ValueError("the stream is finished: a further one needs a StreamDecoder of its own")
        if self._stopped:
            self._position += len(array)
        elif len(array) and not len(self._data) and _is_constant(chunk):
            self._data, self._buffer = array, None
            self._frame()
        elif len(array):
            self._room(len(array))[:] = array
            self._grow(len(array))
        return max(self._ready, int(self._behind and len(self._data) >= self._decodable))

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
        if self._finished:
            raise ValueError("the stream is finished: a further one needs a StreamDecoder of its own")
        count = readinto(self._room(size).data)
        if count is None:
            raise BlockingIOError(_NOT_READY)
        if not 0 <= count <= size:
            raise ValueError(f"readinto told of {count} bytes written to a buffer of {size}")
        if self._stopped:
            self._position += count
        elif count:
            self._grow(count)
        return count

    def _room(self, count: int) -> npt.NDArray[np.uint8]:
        """Return the `count` bytes of memory behind the bytes that wait."""
        used = len(self._data)
        if self._buffer is None or self._begin + used + count > len(self._buffer):
            claimed = 0 if self._wanted == _NEVER else min(self._wanted, used + _MOST_TRUSTED)
            size = max(used + count, claimed, 2 * used if self._buffer is not None else 0, _LEAST_ROOM)
            buffer = np.frombuffer(memoryview(allocate(size)), np.uint8)
            buffer[:used] = self._data
            self._buffer, self._begin = buffer, 0
            self._grow(0)
        return self._buffer[self._begin + used : self._begin + used + count]

    def _grow(self, count: int) -> None:
        """Count the `count` bytes behind those that wait among them."""
        assert self._buffer is not None
        self._data = self._buffer[self._begin : self._begin + len(self._data) + count]
        self._data.flags.writeable = False
        if count:
            self._frame()

    def _frame(self) -> None:
        """Count the batches that are whole by now."""
        if len(self._data) < self._wanted:
            return
        if self._searching or self._undecided or self._damaged:
            self._ready = 1
            return
        while True:
            scan = scan_part(self._data, position=self._framed, max_batches=_FRAMED_AT_A_TIME, max_size=self._most)
            self._ready += len(scan.batches)
            self._framed = scan.consumed
            if scan.finding is not None:
                self._ready += 1
                self._wanted = _NEVER
                return
            if len(scan.batches) < _FRAMED_AT_A_TIME:
                break
        self._wanted = self._framed + _entry_wants(self._data, self._framed)

    # -- tables out

    def flush(self) -> RecordTable:
        """Return a table of everything that is whole and was not flushed before; an incomplete batch is kept.

        Returns
        -------
        RecordTable
            Positions in ``batches`` and ``losses`` count from the beginning of the stream. ``consumed`` is how many of
            its bytes this flush is done with. Under read_committed, ``pending`` and ``last_stable_offset`` are those of
            all that was fed and is whole, also if this table is empty.

        Raises
        ------
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, if the first thing that waits is damaged; under read_committed, if nothing that
            is decided waits before the damage.
        """
        return self._decode(final=False)

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
            Under ``on_error="raise"``, if the stream ends within a batch. Then nothing has changed: `flush` still gives
            the whole batches before it, and `feed` takes the rest.
        CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
            Under ``on_error="raise"``, at damage in anything that waits. `flush` still gives what is before it.
        """
        if self._finished or self._stopped:
            table = _lost(self._options, 0, [])
        else:
            if self._stable is not None:
                self._follow(final=True)
            part = self._part(self._data, self._limit(final=True), final=True)
            self._raise_damage()
            left = len(self._data) - part.table.consumed
            if left and not part.stopped:
                text = self._truncation(part.table.consumed)
                if self._options.on_error == "raise":
                    raise self._truncated(part.table.consumed, text)
                part.table.losses.append(Loss(self._position + part.table.consumed, left, text))
                part.table.consumed += left
            table = self._take(part)
        loss = self._open_loss
        if loss is not None:
            # After a stop, all that was fed since is lost too.
            length = self._position - loss.position
            table.consumed += length - loss.length
            table.losses.append(loss._replace(length=length))
            self._open_loss = None
        self._finished = True
        return self._told(table)

    def tables(self, chunks: Iterable[Buffer], *, max_bytes: int = 64 << 20) -> Iterator[RecordTable]:
        """Feed chunk by chunk, and finish: for sources that give their bytes by iteration.

        Parameters
        ----------
        chunks : iterable of buffer
            With ``on_error="stop"`` nothing is taken from it after damage; the loss reaches as far as bytes were taken.
        max_bytes : int
            What records, batches and bytes of one table may take, about; one batch is decoded at least.

        Yields
        ------
        RecordTable
            One or more for each chunk that makes something whole; a table's cost is the same for few records as for
            many, so chunks of some hundred KiB are worth while.

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
        return self._tables(self._feeds(chunks), max_bytes)

    def _feeds(self, chunks: Iterable[Buffer]) -> Iterator[int]:
        """Feed chunk by chunk, and yield after each: of a large one first the end of the batch that waits."""
        for chunk in chunks:
            rest = byte_array(chunk).data
            if len(rest) >= _WORTH_HOLDING and _is_constant(chunk):
                while len(self._data) and not self._ready and 0 < self._missing() < len(rest):
                    missing = self._missing()
                    self.feed(rest[:missing])
                    rest = rest[missing:]
                if self._ready:
                    yield self._ready
                ready = self.feed(rest)
            else:
                ready = self.feed(chunk)
            del chunk, rest
            yield ready

    def _missing(self) -> int:
        return self._wanted - len(self._data)

    def _tables(self, feeds: Iterable[int], max_bytes: int) -> Iterator[RecordTable]:
        for _ in feeds:
            yield from self._whole(max_bytes, final=False)
            if self._stopped:
                break
        yield from self._whole(max_bytes, final=True)
        table = self.finish()
        if len(table.batches) or table.losses:
            yield table

    def _whole(self, max_bytes: int, *, final: bool) -> Iterator[RecordTable]:
        """Yield tables until nothing more is whole."""
        before = -1
        while self._position != before and not self._stopped:
            before = self._position
            table = self._decode(final=final, max_bytes=max_bytes)
            if len(table.batches) or table.losses:
                yield table
            # What the caller drops must be free for the next table: no reference is kept.
            del table

    def _decode(self, *, final: bool, max_bytes: int | None = None) -> RecordTable:
        whole = self._ready > 0 or len(self._data) >= self._wanted or final
        if self._stable is not None and len(self._data):
            if whole:
                self._follow(final=final)
            limit = self._limit(final=final)
            whole = limit > 0 and (final or len(self._data) >= self._decodable)
            if limit <= 0:
                self._raise_damage()
        if not whole or not len(self._data):
            return self._told(_lost(self._options, 0, []))
        limit = self._limit(final=final)
        try:
            part = self._part(self._data, limit, final=final, max_bytes=max_bytes)
        except KbatchError as error:
            good = 0 if error.position is None else error.position - self._position
            if good <= 0:
                raise
            part = self._part(self._data[:good], min(limit, good), final=final, max_bytes=max_bytes)
        return self._told(self._take(part))

    def _part(self, data: npt.NDArray[np.uint8], limit: int, *, final: bool, max_bytes: int | None = None) -> Part:
        """Decode what begins before `limit` of `data`."""
        options = self._options
        if self._stable is not None:
            # Before the limit everything is decided, unless it is the end.
            stable = self._stable.last_stable_offset if self._hands_out_all(final=final) else None
            options = replace(
                options, aborted=self._stable.ranges(), undecided=self._stable.undecided(), stable_offset=stable
            )
        return decode_part(
            data,
            options,
            origin=self._position,
            source=self._source,
            max_bytes=max_bytes,
            final=final,
            searching=self._resuming,
            patience=_PATIENCE,
            max_size=self._most,
            until=limit,
        )

    def _take(self, part: Part) -> RecordTable:
        """Make the table of `part` that of a stream, and let go of the bytes that are done with."""
        table = part.table
        if part.stopped:
            table.consumed = len(self._data)
        losses = table.losses
        if self._open_loss is not None and not (losses and self._continues(losses[0])):
            losses.insert(0, self._open_loss)
        elif self._open_loss is not None:
            losses[0] = self._open_loss._replace(length=self._open_loss.length + losses[0].length)
        self._open_loss = losses.pop() if part.searching or part.stopped else None
        done = table.consumed
        self._position += done
        self._data = self._data[done:]
        if done and len(self._data) <= done:
            # Moving what waits to other memory costs less than what was done; only then, so that it never adds up.
            self._buffer = None
        else:
            self._begin += done
        if not len(self._data):
            self._data = _nothing()
        self._resuming = part.searching
        self._stopped = part.stopped
        if self._stable is None:
            self._await(done, part.searching)
        else:
            self._stable.release(self._position)
            self._followed = max(self._followed - done, 0)
            self._framed = max(self._framed - done, self._followed)
            if self._wanted != _NEVER:
                self._wanted = max(self._wanted - done, 0)
            self._behind = self._limit(final=False) > 0
            self._decodable = 0 if done or not self._behind else self._wanted_at(0)[0]
        return table if len(table.batches) else _lost(self._options, table.consumed, losses)

    # -- transactions

    def _follow(self, *, final: bool) -> None:
        """Follow the transactions over what is whole."""
        assert self._stable is not None
        if self._damaged or self._follows_no_more:
            return
        data = self._data[self._followed :]
        origin = self._position + self._followed
        try:
            part = self._ahead(data, final=final)
        except KbatchError as error:
            if error.position is None:
                raise
            self._damaged = True
            part = self._ahead(data[: error.position - origin], final=final)
        done = part.table.consumed
        batches = part.table.batches
        good, lost = counts_for_transactions(batches, self._options)
        chosen = good | lost
        self._stable.add(data, batches[chosen], origin, origin + done, lost[chosen])
        self._followed += done
        self._follows_no_more = part.stopped
        self._await(done, part.searching)

    def _ahead(self, data: npt.NDArray[np.uint8], *, final: bool) -> Part:
        return decode_part(
            data,
            tracking_options(self._options),
            origin=self._position + self._followed,
            source=self._source,
            final=final,
            searching=self._searching,
            patience=_PATIENCE,
            max_size=self._most,
        )

    def _await(self, done: int, searching: bool) -> None:
        """Begin to count anew, after a pass that is done with `done` more bytes."""
        self._searching = searching
        self._framed = self._followed
        self._ready = 0
        self._undecided = False
        if searching:
            # What is left is a header that may be right, or too short to hold one.
            at = self._followed
            size = len(self._data) - at
            self._wanted = at + (entry_size(self._data, at) if size >= BATCH_HEADER_SIZE else BATCH_HEADER_SIZE)
        elif done or self._damaged or self._follows_no_more:
            # There may be more that is whole, if there was no room for it in the table; or damage is to be told.
            self._wanted = 0
        else:
            self._wanted, self._undecided = self._wanted_at(self._followed)

    def _raise_damage(self) -> None:
        """Raise what the transactions could not be followed over: no marker behind it decides anything."""
        if self._damaged:
            self._ahead(self._data[self._followed :], final=False)

    def _hands_out_all(self, *, final: bool) -> bool:
        """Whether what is undecided by now is so for good, and gets rows that say so."""
        return (final and not self._damaged) or self._follows_no_more

    def _limit(self, *, final: bool) -> int:
        """Return how many of the bytes that wait are to be decoded."""
        if self._stable is None or self._hands_out_all(final=final):
            return len(self._data)
        cut = self._stable.cut()
        return self._followed if cut is None else min(cut - self._position, self._followed)

    def _told(self, table: RecordTable) -> RecordTable:
        if self._stable is not None:
            self._stable.mark(table)
        return table

    # -- damage and ends

    def _continues(self, loss: Loss) -> bool:
        """Whether the first loss of a part goes on with the one that is open: the search for its end."""
        return self._resuming and loss.position == self._position and loss.base_offset is None

    def _wanted_at(self, at: int) -> tuple[int, bool]:
        """Tell how many bytes have to be there before one more pass gets beyond `at`, where the last one ended.

        And whether a bad batch stands there, of which only a pass can tell what becomes of it.
        """
        size = len(self._data)
        wanted = at + _entry_wants(self._data, at)
        if wanted > size:
            return wanted, False
        # A bad batch is whole. Whether its length is right the next one tells, or a search in ever more bytes.
        if size < wanted + MIN_ENTRY_SIZE:
            return wanted + MIN_ENTRY_SIZE, True
        follower = wanted + entry_size(self._data, wanted)
        return min(follower if follower > size else size + (size - at) // 4 + 1, at + _PATIENCE), True

    def _truncation(self, at: int) -> str:
        left = len(self._data) - at
        wanted = _entry_wants(self._data, at)
        size = f"{wanted} bytes" if left >= MIN_ENTRY_SIZE else "a batch"
        return f"the stream ends within a batch: {left} of {size} are there"

    def _truncated(self, at: int, text: str) -> TruncatedBatchError:
        where = f"{self._source}, " if self._source else ""
        return TruncatedBatchError(
            f"{where}byte {self._position + at}: {text}; feed the rest, or let "
            "on_error='stop' or 'skip' take it as a loss",
            source=self._source,
            position=self._position + at,
        )


def _check_max_bytes(max_bytes: int) -> None:
    if max_bytes < 1:
        raise ValueError(f"max_bytes must be positive, got {max_bytes}")


def _nothing() -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8)


def _lost(options: DecodeOptions, consumed: int, losses: list[Loss]) -> RecordTable:
    """Make a table that has no batch."""
    return RecordTable(
        np.empty(0, options.record_dtype),
        np.empty(0, BATCH_DTYPE),
        _nothing(),
        consumed=consumed,
        losses=losses,
        columns=options.record_columns,
    )


def _is_constant(chunk: Buffer) -> bool:
    """Whether a chunk won't change while it is held: it is read-only, and no view of something that isn't."""
    view = memoryview(chunk)
    return view.readonly and memoryview(view.obj).readonly


def _entry_wants(data: npt.NDArray[np.uint8], position: int) -> int:
    """Return the bytes from `position` on that tell more about the entry there: its header's first ones, or all."""
    left = len(data) - position
    if left < MIN_ENTRY_SIZE:
        return LOG_OVERHEAD if left < LOG_OVERHEAD else MIN_ENTRY_SIZE
    return entry_size(data, position)


def _feeds(decoder: StreamDecoder, stream: _Readable | Iterable[Buffer]) -> Iterator[int]:
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
        yield from decoder._feeds(stream)


def decode_stream(
    stream: _Readable | Iterable[Buffer], /, *, max_bytes: int = 64 << 20, **options: Unpack[StreamOptions]
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
