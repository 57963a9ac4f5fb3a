"""Batches -> the same records in other batches: the driver of `convert` and `recompress`.

A `Rewriter` selects batches and rewrites a run of them at a time; all others are copied. Damage is an error, or is left
out and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.batches.codecs import check_level
from kbatch.batches.framing import byte_array, scan_part
from kbatch.errors import KbatchError, TruncatedBatchError, error_at, offset_of
from kbatch.format import INT32_MAX, BatchStatus, Codec, Limits
from kbatch.kernels.checksum import first_bad_crc
from kbatch.kernels.growing import Growing
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import decode_part
from kbatch.records.data import Loss
from kbatch.table import RecordTable
from kbatch.write.encoding import check_range, new_memory, parse_codec

__all__ = [
    "LOST_TEXTS",
    "Memory",
    "OnError",
    "Output",
    "RewriteReport",
    "RewriteSettings",
    "Rewriter",
    "Run",
    "good_batches",
    "rewrite_batches",
    "rewrite_bytes",
]

OnError = Literal["raise", "skip"]
Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]
# Returns memory of at least the given size for a piece of the output.
Memory = Callable[[int], memoryview]

# Checksums are verified, and batches rewritten, in runs of so many bytes.
_RUN_BYTES = 1 << 20
# Batches scanned at a time.
_MAX_BATCHES = 8192
# The expected size of an output is at most so many times that of the input.
_MAX_GROWTH = 8

# What can be lost, by the field of the report that counts it.
LOST_TEXTS = {
    "control_batches": "{count} control batch(es), which end transactions",
    "transactional_batches": "that {count} batch(es) belong to transactions; what was aborted becomes visible",
    "producer_batches": "producer id, epoch and sequence of {count} batch(es)",
    "delete_horizons": "the delete horizon of {count} batch(es)",
    "records_with_headers": "the headers of {count} record(s)",
    "timestamps": "the timestamps of {count} record(s)",
    "leader_epochs": "the leader epoch of {count} batch(es)",
    "empty_batches": "{count} batch(es) without records",
}


@dataclass
class RewriteReport:
    """What a rewriting did, summed up over all calls that were given it.

    Attributes
    ----------
    batches, bytes : int
        Whole batches that were read, a message of magic 0 or 1 that isn't compressed counting as one.
    rewritten : int
        How many of them were not copied as they are.
    records : int
        Records of the batches that were converted; of a recompression, those whose headers tell how many they are.
    batches_written, bytes_written : int
    control_batches : int
        Control batches that were dropped.
    producer_batches, transactional_batches, delete_horizons, leader_epochs : int
        Batches that lost these fields of their headers.
    empty_batches : int
        Batches without records that were dropped.
    records_with_headers, timestamps : int
        Records that lost theirs.
    tail_bytes : int
        Bytes after the last whole batch of a log, an incomplete one or zeros, that were not copied.
    damage : list of Loss
        Ranges of the input that were left out with ``on_error="skip"``. Of a log, whatever `on_error` says, also
        producer snapshots and leader epochs that can't be read: they can be made anew from the log.

    Examples
    --------
    >>> import kbatch
    >>> report = kbatch.RewriteReport()
    >>> message = kbatch.convert(kbatch.encode([b"v"], timestamps=1000), 0, lossy="drop", report=report)
    >>> report.batches, report.records, report.lost
    (1, 1, {'timestamps': 1})
    """

    batches: int = 0
    bytes: int = 0
    rewritten: int = 0
    records: int = 0
    batches_written: int = 0
    bytes_written: int = 0
    control_batches: int = 0
    producer_batches: int = 0
    transactional_batches: int = 0
    delete_horizons: int = 0
    leader_epochs: int = 0
    empty_batches: int = 0
    records_with_headers: int = 0
    timestamps: int = 0
    tail_bytes: int = 0
    damage: list[Loss] = field(default_factory=list)

    @property
    def lost(self) -> dict[str, int]:
        """What the magic couldn't hold, by the name of the count; without what there was none of."""
        return {name: getattr(self, name) for name in LOST_TEXTS if getattr(self, name)}

    def add(self, other: RewriteReport) -> None:
        """Add the counts of another."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Output:
    """What becomes of `total` bytes of input, of which `consumed` are done."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.consumed = self.expected = 0
        self._bytes = Growing()

    def add(self, pieces: Iterable[memoryview], consumed: int) -> None:
        """Append what becomes of the input up to `consumed`."""
        if not self.expected:
            # The first tell how much all of it will be: to move large memory costs more than to fill it.
            pieces = list(pieces)
            made = sum(map(len, pieces))
            # And may be nothing like the rest: no more is asked for on their word than the input and they suggest.
            self.expected = made + min(int(1.02 * made * self.total / max(consumed, 1)), _MAX_GROWTH * self.total)
        for piece in pieces:
            self._bytes.append(piece, self.expected)
        self.consumed = consumed

    def memory(self, size: int) -> memoryview:
        """Return memory for a piece: where the next one belongs, if there is room for it."""
        spare = self._bytes.spare(size)
        return new_memory(size) if spare is None else spare

    def take(self) -> bytes:
        """Return all of it."""
        return self._bytes.take()


@dataclass(frozen=True)
class RewriteSettings:
    """What `convert` and `recompress` have in common; see there for the parameters."""

    codec: Codec | None = None
    level: int | None = None
    batch_size: int = 16384
    on_error: OnError = "raise"
    limits: Limits = field(default_factory=Limits)
    report: RewriteReport = field(default_factory=RewriteReport)

    @classmethod
    def of(
        cls,
        codec: Codec | str | int | None,
        level: int | None,
        batch_size: int,
        on_error: OnError,
        limits: Limits | None,
        report: RewriteReport | None,
    ) -> RewriteSettings:
        """Check what a caller gave, and fill in defaults."""
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        check_range("batch_size", batch_size, 0, INT32_MAX)
        codec = None if codec is None else parse_codec(codec)
        if codec is not None:
            check_level(codec, level)
        report = RewriteReport() if report is None else report
        return cls(codec, level, batch_size, on_error, limits or Limits(), report)

    @cached_property
    def decoding(self) -> DecodeOptions:
        """Options for decoding the records of batches that are rewritten."""
        return DecodeOptions(on_error=self.on_error, limits=self.limits)

    @cached_property
    def framing(self) -> DecodeOptions:
        """Options for a pass that only finds the batches that are whole and whose checksums hold."""
        return DecodeOptions(on_error=self.on_error, limits=self.limits, framing_only=True)

    def leave_out(self, row: np.void, text: str, source: str | None, kind: type[KbatchError]) -> None:
        """Raise an error about a batch, or report it as damage that is left out."""
        if self.on_error == "raise":
            raise error_at(kind, row, source, text)
        self.add_damage([Loss(int(row["position"]), int(row["size"]), text, offset_of(row))], source)

    def add_damage(self, losses: Iterable[Loss], source: str | None) -> None:
        """Report damage that is left out; of a file, the reason names it."""
        where = "" if source is None else f"{source}: "
        self.report.damage += [loss._replace(reason=f"{where}{loss.reason}") for loss in losses]


class Run(NamedTuple):
    """Adjacent batches whose checksums hold.

    Attributes
    ----------
    data : ndarray of uint8
        Their bytes, and no others.
    batches : ndarray of BATCH_DTYPE
    source : str or None
        For errors.
    """

    data: Bytes
    batches: Batches
    source: str | None

    @property
    def origin(self) -> int:
        """Position of ``data[0]`` in the source."""
        return int(self.batches["position"][0])


class Rewriter(Protocol):
    """What is done to batches."""

    @property
    def settings(self) -> RewriteSettings:
        """What the caller chose, with the report to add to."""

    @property
    def keeps_producers(self) -> bool:
        """Whether producer ids and control batches are kept."""

    def kinds(self, batches: Batches) -> npt.NDArray[np.int8]:
        """Return 0 for each batch that is copied; batches of the same other number are rewritten in one run."""

    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield whole batches that replace those of a run."""


def rewrite_batches(
    rewriter: Rewriter,
    data: Bytes,
    batches: Batches,
    origin: int = 0,
    source: str | None = None,
    memory: Memory = new_memory,
    run_bytes: int = _RUN_BYTES,
) -> Iterator[memoryview]:
    """Rewrite batches.

    Parameters
    ----------
    rewriter : Rewriter
    data : ndarray of uint8
    batches : ndarray of BATCH_DTYPE
        Batches in `data`, in order, whose checksums hold.
    origin : int
        Position of ``data[0]`` in the source.
    source : str, optional
        For errors.
    memory : callable
        Where rewritten batches are placed; a piece may be overwritten once it was consumed.
    run_bytes : int
        How much is rewritten at a time; offsets have to rise within each run.

    Yields
    ------
    memoryview
        Whole batches, of bytes.
    """
    if not len(batches):
        return
    report = rewriter.settings.report
    kinds = rewriter.kinds(batches)
    starts, ends = batches["position"], batches["position"] + batches["size"]
    report.batches += len(batches)
    report.bytes += int(batches["size"].sum())
    report.rewritten += int(np.count_nonzero(kinds))
    # Damage between two batches separates them too.
    borders = np.flatnonzero((kinds[1:] != kinds[:-1]) | (starts[1:] != ends[:-1])) + 1
    for lo, hi in pairwise([0, *borders.tolist(), len(batches)]):
        if kinds[lo] == 0:
            piece = data[int(starts[lo]) - origin : int(ends[hi - 1]) - origin].data
            report.batches_written += hi - lo
            report.bytes_written += len(piece)
            yield piece
            continue
        for first, last in _runs(batches[lo:hi], run_bytes):
            run = batches[lo + first : lo + last]
            part = data[int(starts[lo + first]) - origin : int(ends[lo + last - 1]) - origin]
            for piece in rewriter.rewrite(Run(part, run, source), memory):
                report.bytes_written += len(piece)
                yield piece


def rewrite_bytes(
    rewriter: Rewriter, data: Buffer, *, run_bytes: int = _RUN_BYTES, max_batches: int = _MAX_BATCHES
) -> bytes:
    """Rewrite all of `data`, of which `max_batches` are scanned at a time."""
    array = byte_array(data)
    out = Output(len(array))
    while out.consumed < len(array):
        scan = scan_part(array, position=out.consumed, max_batches=max_batches)
        for lo, hi in _runs(scan.batches, run_bytes):
            # A run at a time, so that each step finds it in the cache.
            if first_bad_crc(array, scan.batches, lo, hi, 0)[0] < hi:
                break
            run = scan.batches[lo:hi]
            end = int(run["position"][-1] + run["size"][-1])
            out.add(rewrite_batches(rewriter, array, run, memory=out.memory, run_bytes=run_bytes), end)
        if out.consumed < scan.consumed or not len(scan.batches):
            _rewrite_damaged(rewriter, array[out.consumed :], out)
            break
    return out.take()


def _rewrite_damaged(rewriter: Rewriter, data: Bytes, out: Output) -> None:
    """Rewrite the good batches of `data`, which begins where `out` ends; an error unless damage is left out."""
    settings, origin = rewriter.settings, out.consumed
    table = decode_part(data, settings.framing, origin=origin)
    settings.report.damage += table.losses
    left, end = len(data) - table.consumed, origin + table.consumed
    if left:
        if settings.on_error == "raise":
            raise TruncatedBatchError(
                f"byte {end}: {left} bytes that are no whole batch; give whole batches, or on_error='skip' to leave "
                "them out",
                position=end,
            )
        settings.report.damage.append(Loss(end, left, "cut in a batch"))
    out.expected = max(out.expected, len(data))
    out.add(rewrite_batches(rewriter, data, good_batches(table), origin, memory=out.memory), end)


def _runs(batches: Batches, size: int) -> Iterator[tuple[int, int]]:
    """Split adjacent batches into runs of `size` bytes, or of one batch that is larger."""
    ends = batches["position"] + batches["size"]
    done = 0
    while done < len(batches):
        stop = max(done + 1, int(np.searchsorted(ends, batches["position"][done] + size, "right")))
        yield done, stop
        done = stop


def good_batches(table: RecordTable) -> Batches:
    """Return the batches of a framing pass that are whole and hold their checksum."""
    good = table.batches["status"] == BatchStatus.OK
    # NumPy is slow at choosing rows of many fields.
    return table.batches if good.all() else table.batches[good]
