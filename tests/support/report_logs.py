"""A log directory with something for each section of a report: ``python report_logs.py OUT [RECORDS]`` writes one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import kbatch

# 2026-03-02, a Monday.
BEGIN = 1_772_409_600_000
HOUR, DAY = 3_600_000, 86_400_000
DAYS = 5
# Keys of customers that a compaction keeps.
CUSTOMERS = 3000


def write_report_logs(root: Path, records: int = 60_000, seed: int = 7) -> Path:
    """Write the logs of four topics, with this number of records in all partitions of ``orders``."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for partition, share in enumerate((0.64, 0.19, 0.17)):
        count = int(records * share)
        write(root / f"orders-{partition}", orders(rng, count), segments=3)
    for partition in range(4):
        write(root / f"clicks-{partition}", clicks(rng, records // 40))
    write(root / "payments-0", payments(rng, max(records // 600, 10)))
    write(root / "customers-0", customers(rng, records // 10))
    return root


def write(directory: Path, batches: Iterator[bytes], segments: int = 1) -> None:
    """Write batches as a log of about this number of segments."""
    found = list(batches)
    size = sum(map(len, found)) // segments + 1
    with kbatch.log.LogWriter(directory, segment_bytes=max(size, 1 << 14)) as writer:
        for each in found:
            writer.append(each)


def times(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Return ascending times with more in the afternoons."""
    hours = np.arange(DAYS * 24)
    weights = 1.15 + np.sin((hours % 24 - 9) / 24 * 2 * np.pi)
    chosen = rng.choice(hours, count, p=weights / weights.sum())
    found: npt.NDArray[np.int64] = np.sort(BEGIN + chosen * HOUR + rng.integers(0, HOUR, count))
    return found


def texts(template: str, *columns: npt.NDArray[np.int64]) -> list[bytes]:
    return [template.format(*row).encode() for row in zip(*(each.tolist() for each in columns), strict=True)]


def orders(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield batches with zstd, one frequent key, and some late records."""
    stamps = times(rng, count)
    late = rng.random(count) < 0.03
    stamps[late] -= rng.exponential(20 * 60_000, late.sum()).astype(np.int64)
    names = np.where(rng.random(count) < 0.12, 1, rng.zipf(1.2, count) % 50_000)
    for start in range(0, count, 20_000):
        part = slice(start, start + 20_000)
        amounts = rng.integers(100, 99_999, len(names[part]))
        yield kbatch.encode(
            texts('{{"customer":{},"amount":{},"currency":"EUR","items":["{}"]}}', names[part], amounts, amounts % 977),
            keys=texts("customer-{}", names[part]),
            timestamps=stamps[part],
            base_offset=start,
            codec="zstd",
            max_records=200,
            producer_id=7000 + start // 20_000 % 2,
            producer_epoch=0,
            base_sequence=start,
        )


def clicks(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield batches of two records without compression and without keys."""
    stamps, pages = times(rng, count), rng.integers(0, 500, count)
    values = texts('{{"page":"/products/{}","agent":"Mozilla/5.0 (X11; Linux x86_64)"}}', pages)
    yield kbatch.encode(values, timestamps=stamps, max_records=2, codec="none")


def payments(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield transactions of three producers, of which every seventh is aborted, and one that stays open."""
    offset, step = 0, DAYS * DAY // count
    for number in range(count):
        producer, when = 9001 + number % 3, BEGIN + number * step
        last = number == count - 2
        size = int(rng.integers(2, 30))
        yield kbatch.encode(
            texts('{{"payment":{}}}', np.arange(size)), keys=texts("payment-{}", np.arange(size)),
            timestamps=when, base_offset=offset, codec="lz4", producer_id=producer, producer_epoch=3,
            base_sequence=offset, transactional=True,
        )  # fmt: skip
        offset += size
        if last:
            continue
        end = when + int(rng.exponential(step / 12)) + 5
        kind = "abort" if number % 7 == 6 else "commit"
        yield kbatch.encode_marker(kind, producer_id=producer, producer_epoch=3, offset=offset, timestamp=end)
        offset += 1


def customers(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield what compaction leaves of updates: the older half has one record for each key, and some are tombstones."""
    names, stamps = rng.integers(0, CUSTOMERS, count), times(rng, count)
    old = count // 2
    _, reverse = np.unique(names[:old][::-1], return_index=True)
    kept = np.sort(np.append(old - 1 - reverse, np.arange(old, count)))
    values = [None if number % 29 == 0 else value for number, value in enumerate(texts('{{"id":{}}}', names[kept]))]
    yield kbatch.encode(
        values, keys=texts("{}", names[kept]), timestamps=stamps[kept], offsets=kept, codec="gzip", max_records=100
    )


if __name__ == "__main__":
    write_report_logs(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
