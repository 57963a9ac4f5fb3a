"""Rewrites the records of batches as other batches: the driver of `convert` and `recompress`.

A `Rewriter` selects batches and rewrites them one run at a time; all other batches are copied. Damage raises an error,
or is left out and reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.codecs import parse_codec
from kbatch.batches.framing import byte_array, scan_part
from kbatch.errors import KbatchError, TruncatedBatchError, error_at, offset_of
from kbatch.format import DEFAULT_LIMITS, INT32_MAX, BatchStatus, BytesLike, Codec, Limits
from kbatch.kernels.checksum import first_bad_crc
from kbatch.kernels.growing import Growing
from kbatch.options import RaiseOrSkip
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, size_between
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.records.display import short_repr
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, record_counts
from kbatch.write.composing import new_memory

__all__ = [
    "LOST_TEXTS",
    "Memory",
    "Output",
    "RewriteReport",
    "Rewriter",
    "Run",
    "rewrite_batches",
    "rewrite_bytes",
    "valid_batches",
]

# The size of the output is estimated as at most this multiple of the input.
REWRITE_MAX_GROWTH = 8

# A function that returns memory of at least the given size for a piece of the output.
Memory = Callable[[int], memoryview]


# Descriptions of the losses, by the field of the report that counts them.
LOST_TEXTS = {
    "control_batches": "{count} control batch(es), which end transactions",
    "transactional_batches": "the transaction of {count} batch(es); records of aborted transactions become visible",
    "producer_batches": "producer id, epoch and sequence of {count} batch(es)",
    "delete_horizons": "the delete horizon of {count} batch(es)",
    "records_with_headers": "the headers of {count} record(s)",
    "timestamps": "the timestamps of {count} record(s)",
    "leader_epochs": "the leader epoch of {count} batch(es)",
    "empty_batches": "{count} batch(es) without records",
}


@public_in("kbatch")
@dataclass
class RewriteReport:
    """Counts of `convert` and `recompress`, summed over all calls with the same report.

    Attributes
    ----------
    batches, bytes : int
        Complete batches read. An uncompressed message of magic 0 or 1 counts as one batch.
    rewritten : int
        Batches that were not copied unchanged.
    records, control_records : int
        Records written; records of control batches, such as transaction markers, are `control_records` only.
    uncounted_batches : int
        Compressed message sets of magic 0 and 1 whose records were not parsed: their headers state no number.
    batches_written, bytes_written : int
        Batches written, and their size.
    control_batches : int
        Control batches that were dropped.
    producer_batches, transactional_batches, delete_horizons, leader_epochs : int
        Batches that lost these header fields.
    empty_batches : int
        Batches without records that were dropped.
    records_with_headers, timestamps : int
        Records that lost their headers, and records that lost their timestamps.
    open_transactions : sequence of OpenTransaction
        The transactions without a marker in a log that keeps its transactions.
    tail_bytes : int
        Bytes after the last complete batch of a log, a partial batch or zeros, that were not copied.
    damage : list of Loss
        Ranges of the input that were left out with ``on_error="skip"``. For a log also producer snapshots and leader
        epochs that can't be read, with any `on_error`: they can be rebuilt from the log.

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
    control_records: int = 0
    uncounted_batches: int = 0
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
    open_transactions: Sequence[OpenTransaction] = ()
    tail_bytes: int = 0
    damage: list[Loss] = field(default_factory=list)

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    @property
    def lost(self) -> dict[str, int]:
        """The counts of losses that are not 0, by the name of their field."""
        return {name: getattr(self, name) for name in LOST_TEXTS if getattr(self, name)}

    def _count_written(self, batches: npt.NDArray[np.void]) -> None:
        """Count batches that are written without parsing their records."""
        found = record_counts(batches)
        self.batches_written += len(batches)
        self.records += found.records
        self.control_records += found.control_records
        self.uncounted_batches += found.uncounted_batches

    def add(self, other: RewriteReport) -> None:
        """Add the counts of another report."""
        still_open = self.open_transactions, other.open_transactions
        self.open_transactions = [*still_open[0], *still_open[1]] if all(still_open) else still_open[0] or still_open[1]
        for each in fields(self):
            if each.name != "open_transactions":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Output:
    """The output for `total` bytes of input; the first `consumed` have been rewritten."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.consumed = self.expected = 0
        self._bytes = Growing()

    def add(self, pieces: Iterable[memoryview], consumed: int) -> None:
        """Append the output for the input up to `consumed`."""
        if not self.expected:
            # The first pieces give an estimate of the whole: moving a large buffer costs more than filling it. They may
            # not be representative, so the size of the input limits the estimate.
            pieces = list(pieces)
            made = sum(map(len, pieces))
            self.expected = made + min(
                int(1.02 * made * self.total / max(consumed, 1)), REWRITE_MAX_GROWTH * self.total
            )
        for piece in pieces:
            self._bytes.append(piece, self.expected)
        self.consumed = consumed

    def memory(self, size: int) -> memoryview:
        """Return memory for a piece, within the output if its capacity suffices."""
        spare = self._bytes.spare(size)
        return new_memory(size) if spare is None else spare

    def take(self) -> bytes:
        """Return the whole output."""
        return self._bytes.take()


class Run(NamedTuple):
    """Adjacent batches with valid checksums.

    Attributes
    ----------
    data : ndarray of uint8
        Exactly the bytes of these batches.
    batches : ndarray of BATCH_DTYPE
    source : str or None
        For errors.
    """

    data: npt.NDArray[np.uint8]
    batches: npt.NDArray[np.void]
    source: str | None

    @property
    def origin(self) -> int:
        """Position of ``data[0]`` in the source."""
        return int(self.batches["position"][0])


class Rewriter(ABC):
    """Selects batches and rewrites them; its subclasses are `Conversion` and `Recompression`.

    It takes the parameters of `convert` and `recompress`.
    """

    # Whether producer ids and control batches are kept.
    keeps_producers = True
    # Checksums are verified, and batches rewritten, in runs of this size.
    run_bytes = 1 << 20
    # The number of batches scanned at a time.
    scan_batches = 8192

    def __init__(
        self,
        codec: Codec | str | None = None,
        *,
        batch_size: SizeLike = 16384,
        on_error: RaiseOrSkip = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        self.codec: Codec | None = None
        self.level: int | None = None
        if codec is not None:
            self.codec, self.level = parse_codec(codec)
        self.batch_size = size_between("batch_size", batch_size, 0, INT32_MAX)
        self.on_error = on_error
        self.limits = limits or DEFAULT_LIMITS
        self.report = RewriteReport() if report is None else report
        # Options to decode the records of batches, and to find only complete batches with valid checksums.
        self.decoding = DecodeOptions(on_error=on_error, limits=self.limits)
        self.framing = DecodeOptions(on_error=on_error, limits=self.limits, framing_only=True)

    @abstractmethod
    def kinds(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.int8]:
        """Return 0 for each batch that is copied; adjacent batches with the same nonzero number form a run."""

    @abstractmethod
    def rewrite(self, run: Run, memory: Memory) -> Iterator[memoryview]:
        """Yield the batches that replace a run."""

    def leave_out(self, row: np.void, text: str, source: str | None, kind: type[KbatchError]) -> None:
        """Raise an error about a batch, or report the batch as left out."""
        if self.on_error == "raise":
            raise error_at(kind, row, source, text)
        self.add_damage([Loss(int(row["position"]), int(row["size"]), text, offset_of(row))], source)

    def add_damage(self, losses: Iterable[Loss], source: str | None) -> None:
        """Report damage that is left out."""
        self.report.damage += [loss._replace(file=source) for loss in losses]


def rewrite_batches(
    rewriter: Rewriter,
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.void],
    origin: int = 0,
    source: str | None = None,
    memory: Memory = new_memory,
) -> Iterator[memoryview]:
    """Rewrite batches, one run at a time; offsets must ascend within each run.

    Parameters
    ----------
    rewriter : Rewriter
    data : ndarray of uint8
    batches : ndarray of BATCH_DTYPE
        Batches in `data`, in order, with valid checksums.
    origin : int
        Position of ``data[0]`` in the source.
    source : str, optional
        For errors.
    memory : callable
        Returns memory for rewritten batches. The memory may be used again after the piece was consumed.

    Yields
    ------
    memoryview
        Complete batches.
    """
    if not len(batches):
        return
    report = rewriter.report
    kinds = rewriter.kinds(batches)
    starts, ends = batches["position"], batches["position"] + batches["size"]
    report.batches += len(batches)
    report.bytes += int(batches["size"].sum())
    report.rewritten += int(np.count_nonzero(kinds))
    # Damage between two batches separates their runs.
    borders = np.flatnonzero((kinds[1:] != kinds[:-1]) | (starts[1:] != ends[:-1])) + 1
    for lo, hi in pairwise([0, *borders.tolist(), len(batches)]):
        if kinds[lo] == 0:
            piece = data[int(starts[lo]) - origin : int(ends[hi - 1]) - origin].data
            report._count_written(batches[lo:hi])
            report.bytes_written += len(piece)
            yield piece
            continue
        for first, last in _runs(batches[lo:hi], rewriter.run_bytes):
            run = batches[lo + first : lo + last]
            part = data[int(starts[lo + first]) - origin : int(ends[lo + last - 1]) - origin]
            for piece in rewriter.rewrite(Run(part, run, source), memory):
                report.bytes_written += len(piece)
                yield piece


def rewrite_bytes(rewriter: Rewriter, data: BytesLike) -> bytes:
    """Rewrite all of `data`."""
    array = byte_array(data)
    out = Output(len(array))
    while out.consumed < len(array):
        scan = scan_part(array, position=out.consumed, max_batches=rewriter.scan_batches)
        for lo, hi in _runs(scan.batches, rewriter.run_bytes):
            # One run at a time, so that each step finds it in the cache.
            if first_bad_crc(array, scan.batches, lo, hi, 0)[0] < hi:
                break
            run = scan.batches[lo:hi]
            end = int(run["position"][-1] + run["size"][-1])
            out.add(rewrite_batches(rewriter, array, run, memory=out.memory), end)
        if out.consumed < scan.consumed or not len(scan.batches):
            _rewrite_damaged(rewriter, array[out.consumed :], out)
            break
    return out.take()


def _rewrite_damaged(rewriter: Rewriter, data: npt.NDArray[np.uint8], out: Output) -> None:
    """Rewrite the valid batches of `data`, the rest of the input; raise unless damage is left out."""
    origin = out.consumed
    table = decode_part(data, rewriter.framing, origin=origin)
    rewriter.report.damage += table.losses
    left, end = len(data) - table.consumed, origin + table.consumed
    if left:
        if rewriter.on_error == "raise":
            raise TruncatedBatchError(
                f"byte {end}: the last {left} bytes are not a complete batch; on_error='skip' leaves them out",
                position=end,
            )
        rewriter.report.damage.append(Loss(end, left, "partial batch"))
    out.expected = max(out.expected, len(data))
    out.add(rewrite_batches(rewriter, data, valid_batches(table), origin, memory=out.memory), end)


def _runs(batches: npt.NDArray[np.void], run_bytes: int) -> Iterator[tuple[int, int]]:
    """Split adjacent batches into runs of `run_bytes`; a larger batch is a run by itself."""
    ends = batches["position"] + batches["size"]
    done = 0
    while done < len(batches):
        stop = max(done + 1, int(np.searchsorted(ends, batches["position"][done] + run_bytes, "right")))
        yield done, stop
        done = stop


def valid_batches(table: RecordTable) -> npt.NDArray[np.void]:
    """Return the complete batches of a framing pass that have valid checksums."""
    good = table.batches["status"] == BatchStatus.OK
    # Selecting rows with many fields is slow in NumPy.
    return table.batches if good.all() else table.batches[good]
