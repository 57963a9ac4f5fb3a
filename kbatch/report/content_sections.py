"""The sections of a report on the records: over time, by topic and codec, sizes, keys, lateness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.escaping import counted, format_size, format_time
from kbatch.report.advice import total
from kbatch.report.buckets import TIME_WIDTHS, Buckets
from kbatch.report.collecting import DAY, SIZE_EDGES, LogFigures, SizeFigures, TopicFigures
from kbatch.report.keys import FREQUENT, OFTEN
from kbatch.report.page import (
    LISTED,
    NAME_LENGTH,
    PICTURED_ROWS,
    beside,
    figure,
    legend,
    message,
    remark,
    section,
    table,
)
from kbatch.report.pictures import Bar, Pictures, Row, Series, cut
from kbatch.report.scales import format_duration, format_width, number_scale, short, size_scale, time_ticks

__all__ = [
    "DURATION_LABELS",
    "common_times",
    "key_section",
    "lateness_section",
    "size_section",
    "summed",
    "time_section",
    "topic_section",
]

_COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
_OTHER = "c7"
_CODEC_COLOURS = {"none": "c7", "gzip": "c1", "snappy": "c2", "lz4": "c3", "zstd": "c0"}
# The most buckets of a picture, and as many as small sums have; then as many as have this number each on average.
_BUCKETS, _FEW_BUCKETS = 128, 24
_PER_BUCKET = 4
# Times at the ends that have fewer records than this part are not drawn, if the others are drawn much larger.
_OUTSIDE = 0.0005
_MUCH_LARGER = 4
DURATION_LABELS = ("< 1 s", "< 1 min", "< 10 min", "< 1 h", "< 6 h", "< 1 d", "≥ 1 d")


class TimeRange(NamedTuple):
    """The times that pictures show: in buckets of `width` from `first` on, and the records at other times."""

    width: int
    first: int
    buckets: int
    outside: int

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The ticks of the axis."""
        return time_ticks(self.first * self.width, (self.first + self.buckets) * self.width)

    def place(self, times: Buckets, column: int) -> npt.NDArray[np.float64]:
        """Return one of the sums of buckets for each bucket of the range."""
        joined = Buckets(TIME_WIDTHS, times.sums.shape[1] - 1)
        joined.merge(times)
        joined.widen(self.width)
        at = joined.ids - self.first
        inside = (at >= 0) & (at < self.buckets)
        found = np.zeros(self.buckets)
        found[at[inside]] = joined.sums[inside, column]
        return found


def common_times(times: Iterable[Buckets], now: int, column: int = 0) -> TimeRange | None:
    """Return the range that shows the times of several logs; None without times.

    Parameters
    ----------
    times : iterable of Buckets
    now : int
        Later times are not shown if there are others.
    column : int
        Of the sums that are shown; for a few of them the range has fewer and wider buckets.
    """
    found: Buckets | None = None
    for each in times:
        if found is None:
            found = Buckets(TIME_WIDTHS, each.sums.shape[1] - 1, limit=4096)
        found.merge(each)
    if found is None or not len(found):
        return None
    total_count = found.sums[:, 0].sum()
    chosen = np.arange(len(found))
    plausible = np.flatnonzero(found.ids * float(found.width) <= now + DAY)
    if len(plausible):
        chosen = plausible
    cumulated = np.cumsum(found.sums[chosen, 0])
    low = int(np.searchsorted(cumulated, _OUTSIDE * cumulated[-1], "right"))
    high = int(np.searchsorted(cumulated, (1 - _OUTSIDE) * cumulated[-1]))
    ids = found.ids[chosen]
    if _MUCH_LARGER * (int(ids[high]) - int(ids[low]) + 1) < int(ids[-1]) - int(ids[0]) + 1:
        ids = ids[low : high + 1]
        outside = total_count - found.sums[chosen[low : high + 1], 0].sum()
    else:
        outside = total_count - cumulated[-1]
    first, last, width = int(ids[0]), int(ids[-1]), found.width
    buckets = min(max(int(found.sums[:, column].sum()) // _PER_BUCKET, _FEW_BUCKETS), _BUCKETS)
    for wider in TIME_WIDTHS[TIME_WIDTHS.index(width) + 1 :]:
        if last - first < buckets:
            break
        first, last, width = first // (wider // width), last // (wider // width), wider
    return TimeRange(width, first, last - first + 1, round(outside))


def summed(figures: Iterable[SizeFigures]) -> npt.NDArray[np.int64]:
    """Return the sums of histograms with the same edges."""
    found: npt.NDArray[np.int64] = np.sum([each.counts for each in figures], axis=0)
    return found


def time_section(pictures: Pictures, logs: Sequence[LogFigures], now: int) -> str:
    """Return the section on records and bytes over time."""
    title = "Records and bytes over time"
    shown = common_times((log.times for log in logs), now)
    parts = []
    if shown is None:
        parts.append(remark("No record has a timestamp."))
    else:
        parts.append(_time_pictures(pictures, logs, shown))
        if shown.outside:
            parts.append(remark(f"Not drawn: {counted(shown.outside, 'record')} at times far from all others."))
    largest = sorted(logs, key=lambda log: -log.statistics["bytes"])
    sizes: dict[str, int] = {}
    for log in logs:
        sizes[log.topic] = sizes.get(log.topic, 0) + log.statistics["bytes"]
    times = ("first time (UTC)", "last time (UTC)")
    columns = ["partition", "records", "stored", "share of the topic", "segments", *times]
    rows = [
        [
            cut(log.name, NAME_LENGTH),
            f"{log.statistics['records']:,}",
            format_size(log.statistics["bytes"]),
            f"{log.statistics['bytes'] / sizes[log.topic]:.1%}" if sizes[log.topic] else "-",
            "-" if log.statistics["segments"] is None else f"{log.statistics['segments']:,}",
            format_time(log.statistics["first_timestamp"]),
            format_time(log.statistics["last_timestamp"]),
        ]
        for log in largest[:LISTED]
    ]
    parts.append(table("Partitions, the largest first", columns, rows, len(largest) - LISTED, times))
    return section("time", title, *parts)


def _time_pictures(pictures: Pictures, logs: Sequence[LogFigures], shown: TimeRange) -> str:
    # Several directories may have logs of one topic-partition.
    names = list(dict.fromkeys(log.name for log in sorted(logs, key=lambda log: -log.statistics["bytes"])))
    shown_count = len(_COLOURS) if len(names) != len(_COLOURS) + 1 else len(_COLOURS) - 1
    others, names = len(names) - shown_count, names[:shown_count]
    colours = dict(zip(names, _COLOURS, strict=False))
    entries = [(colour, cut(name, 60)) for name, colour in colours.items()]
    if others > 0:
        entries.append((_OTHER, f"{others:,} other partitions"))
    found = []
    width = format_width(shown.width)
    for column, what, scale in ((0, "Records", number_scale), (1, "Stored bytes", size_scale)):
        rest = np.zeros(shown.buckets)
        series: dict[str, npt.NDArray[np.float64]] = {}
        for log in logs:
            numbers = shown.place(log.times, column)
            if log.name in colours:
                series[log.name] = series.get(log.name, 0) + numbers
            else:
                rest += numbers
        drawn = [Series(name, colours[name], series[name]) for name in names]
        drawn.append(Series("others", _OTHER, rest))
        sums = np.sum([each.numbers for each in drawn], axis=0)
        most = float(sums.max(initial=0.0))
        peak = format_time((shown.first + int(sums.argmax())) * shown.width)
        amount = short(most) if column == 0 else format_size(round(most))
        caption = f"{what} per {width}"
        description = f"At most {amount} per {width}, at {peak} UTC, over {shown.buckets} times {width}."
        found.append(figure(caption, pictures.areas(caption, description, drawn, shown.ticks, scale(most))))
    return f'<div class="pair">{"".join(found)}</div>{legend(entries)}'


def topic_section(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    """Return the section on sizes by topic and codec."""
    largest = sorted(topics, key=lambda topic: -total(topic, "bytes"))
    most = max((total(topic, "bytes") for topic in topics), default=0) or 1
    rows, lines, used = [], [], set()
    for topic in largest[:LISTED]:
        codecs = _sizes_by_codec(topic)
        used |= set(codecs)
        bars, at = [], 0.0
        for name, (size, _, _) in codecs.items():
            bars.append(Bar(at, at + size / most, _CODEC_COLOURS.get(name, _OTHER)))
            at += size / most
        packed, plain = (sum(entry[i] for name, entry in codecs.items() if name != "none") for i in (1, 2))
        ratio = f"{plain / packed:.2f}x" if packed and plain else "-"
        stored = format_size(total(topic, "bytes"))
        rows.append(Row(topic.topic, bars, stored if ratio == "-" else f"{stored}, {ratio}"))
        lines.append(
            [
                cut(topic.topic, NAME_LENGTH),
                f"{len(topic.logs):,}",
                f"{total(topic, 'records'):,}",
                f"{total(topic, 'control_records'):,}",
                stored,
                ", ".join(f"{name} {format_size(entry[0])}" for name, entry in codecs.items()) or "-",
                ratio,
            ]
        )
    columns = ["topic", "partitions", "records", "control records", "stored", "by codec", "compression ratio"]
    entries = [(colour, name) for name, colour in _CODEC_COLOURS.items() if name in used]
    picture = figure(
        "Stored bytes by topic and codec",
        pictures.rows("Stored bytes by topic and codec", _rows_text(rows), rows[:PICTURED_ROWS]),
        legend(entries),
    )
    return section(
        "topics",
        "Size by topic and codec",
        remark("The ratio divides the decompressed size of compressed payloads by their stored size."),
        beside(picture, table("Topics, the largest first", columns, lines, len(topics) - LISTED, ["by codec"])),
    )


def _rows_text(rows: Sequence[Row]) -> str:
    return "; ".join(f"{cut(row.name, 40)}: {row.text}" for row in rows[:PICTURED_ROWS])


def _sizes_by_codec(topic: TopicFigures) -> dict[str, tuple[int, int, int]]:
    """Return by codec the stored bytes, and the stored and the decompressed bytes of payloads."""
    found: dict[str, tuple[int, int, int]] = {}
    for log in topic.logs:
        for name, entry in log.statistics["codecs"].items():
            size, packed, plain = found.get(name, (0, 0, 0))
            new = (size + entry["bytes"], packed + entry["payload_bytes"], plain + (entry["plain_bytes"] or 0))
            found[name] = new
    return dict(sorted(found.items(), key=lambda each: -each[1][0]))


def size_section(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    """Return the section on the sizes of batches and records."""
    kinds = (
        ("Batches by their records", [topic.batch_records for topic in topics], False),
        ("Batches by their stored bytes", [topic.batch_bytes for topic in topics], True),
        ("Records by the bytes of key and value", [topic.record_bytes for topic in topics], True),
    )
    found = [_histogram(pictures, title, summed(numbers), are_bytes) for title, numbers, are_bytes in kinds if numbers]
    columns = ["topic", "batches"]
    kinds_of_size = ("records of a batch", "bytes of a batch", "bytes of a record")
    columns += [f"{what}: {each}" for what in kinds_of_size for each in ("mean", "p99")]
    columns.append("largest record")
    rows = []
    for topic in topics[:LISTED]:
        cells = [cut(topic.topic, NAME_LENGTH), f"{total(topic, 'batches'):,}"]
        for numbers in (topic.batch_records, topic.batch_bytes, topic.record_bytes):
            mean = numbers.figures["mean"]
            cells += ["-" if mean is None else f"{mean:,.1f}", _shown_count(numbers.figures["p99"])]
        rows.append([*cells, _shown_size(topic.record_bytes.figures["max"])])
    return section(
        "sizes",
        "Batches and records",
        remark("Each column counts sizes from its label up to the next one."),
        f'<div class="pair">{"".join(found)}</div>',
        table("Sizes by topic; at most one percent exceed p99", columns, rows, len(topics) - LISTED),
    )


def _shown_count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _shown_size(number: int | None) -> str:
    return "-" if number is None else format_size(number)


def _histogram(pictures: Pictures, title: str, counts: npt.NDArray[np.int64], are_bytes: bool) -> str:
    used = np.flatnonzero(counts)
    if not len(used):
        return figure(title, "", remark("There are none."))
    first, last = int(used[0]), int(used[-1]) + 1
    edges = SIZE_EDGES[first:last].tolist()
    labels = [_edge(each) if are_bytes else f"{each:,}" for each in edges]
    chosen = counts[first:last]
    peak = int(chosen.argmax())
    description = f"From {labels[0]} up to {labels[-1]} and more; most often from {labels[peak]} on: {chosen[peak]:,}."
    return figure(
        title, pictures.columns(title, description, chosen.tolist(), labels, number_scale(float(chosen.max())))
    )


def _edge(size: int) -> str:
    """Format a power of two in few characters."""
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << power:
            return f"{size >> power} {unit}"
    return f"{size}"


def key_section(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    """Return the section on keys."""
    title = "Keys"
    if topics and all(topic.keys is None for topic in topics):
        return section(
            "keys",
            title,
            remark("Keys were not counted: the package datasketches, of the extra report, is not installed."),
        )
    columns = ["topic", "records with a key", "null keys"]
    columns += ["different keys, about", "95 % confidence", "records of a key, about"]
    rows, frequent, bars = [], [], []
    for topic in topics[:LISTED]:
        keys = topic.keys
        assert keys is not None
        rows.append(
            [
                cut(topic.topic, NAME_LENGTH),
                f"{keys.records:,}",
                f"{total(topic, 'null_keys'):,}",
                f"{keys.distinct:,}",
                f"{keys.least:,} to {keys.most:,}" if keys.distinct else "-",
                f"{keys.records / keys.distinct:,.1f}" if keys.distinct else "-",
            ]
        )
        for each in keys.frequent:
            share = each.least / keys.records
            number = f"{each.least:,}" if each.least == each.most else f"{each.least:,} to {each.most:,}"
            name = _key(each.key, each.size)
            frequent.append([cut(name, NAME_LENGTH), cut(topic.topic, NAME_LENGTH), number, f"{share:.1%}"])
            bars.append(Row(f"{name} · {topic.topic}", [Bar(0, share, "c0")], f"{share:.1%}"))
    parts = [table("Keys by topic", columns, rows, len(topics) - LISTED)]
    which = f"{FREQUENT:.1%} of the records of their topic or more, and {OFTEN} times the average or more"
    if frequent:
        bars = sorted(bars, key=lambda row: -row.bars[0].end)[:PICTURED_ROWS]
        caption = "The most frequent keys, as a share of the records of their topic with a key"
        columns = ["key", "topic", "records", "share"]
        picture = figure(caption, pictures.rows(caption, _rows_text(bars), bars, background=True))
        parts.append(beside(picture, table(f"Keys with {which}", columns, frequent[:LISTED], texts=["topic"])))
    elif rows:
        parts.append(message(f"No keys have {which}."))
    return section("keys", title, *parts)


def _key(key: bytes, size: int) -> str:
    """Return a key for people; bytes that are not UTF-8 are escaped."""
    text = key.decode("utf-8", "backslashreplace")
    if size > len(key):
        text = f"{text}… ({format_size(size)})"
    return text or "(empty)"


def lateness_section(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    """Return the section on timestamps against the order of offsets."""
    columns = ["topic", "records timed by producers", "late", "share", "p50", "p99", "latest"]
    columns += ["timed by the broker", "without a time", "in the future"]
    rows = []
    for topic in topics[:LISTED]:
        timed, late, appended, without, future = (
            sum(getattr(log, name) for log in topic.logs)
            for name in ("timed", "late", "appended", "without_time", "from_future")
        )
        figures = topic.lateness.figures
        rows.append(
            [
                cut(topic.topic, NAME_LENGTH),
                f"{timed:,}",
                f"{late:,}",
                f"{late / timed:.2%}" if timed else "-",
                format_duration(figures["p50"]),
                format_duration(figures["p99"]),
                format_duration(figures["max"]),
                f"{appended:,}",
                f"{without:,}",
                f"{future:,}",
            ]
        )
    parts = [
        remark(
            "A record is late if a record before it in its partition has a later timestamp; the difference is how late "
            "it is. A timestamp is in the future if it is more than a day after this report."
        )
    ]
    counts = summed([topic.lateness for topic in topics]) if topics else np.zeros(1)
    if counts.any():
        caption = "Late records, by how late they are"
        description = "; ".join(f"{label}: {number:,}" for label, number in zip(DURATION_LABELS, counts, strict=True))
        scale = number_scale(float(counts.max()))
        parts.append(figure(caption, pictures.columns(caption, description, counts.tolist(), DURATION_LABELS, scale)))
    else:
        parts.append(message("No record is late."))
    parts.append(table("Lateness by topic", columns, rows, len(topics) - LISTED))
    return section("lateness", "Lateness", *parts)
