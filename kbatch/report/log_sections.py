"""The sections of a report on the logs: offsets, producers, transactions, tombstones, damage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbatch.escaping import counted, format_size, format_time
from kbatch.report.advice import Advice, total
from kbatch.report.collecting import LogFigures, TopicFigures
from kbatch.report.content_sections import DURATION_LABELS, common_times, summed
from kbatch.report.damage_map import DamageMap
from kbatch.report.page import (
    LISTED,
    NAME_LENGTH,
    PICTURED_ROWS,
    advice_list,
    beside,
    figure,
    legend,
    message,
    remark,
    section,
    table,
)
from kbatch.report.pictures import Bar, Pictures, Row, Series, cut
from kbatch.report.producer_sums import ProducerSums
from kbatch.report.scales import format_duration, format_width, number_scale, time_ticks
from kbatch.report.transaction_history import OUTCOMES, ShownTransaction

__all__ = [
    "advice_section",
    "damage_section",
    "offset_section",
    "producer_section",
    "tombstone_section",
    "transaction_section",
]

_TIMELINE_ROWS = 20
_OUTCOME_COLOURS = {"committed": "c2", "aborted": "c1", "undecided": "c6", "open": "c5"}
# Open transactions come first, and of others those that did not commit.
_OUTCOME_ORDER = {"open": 0, "undecided": 1, "aborted": 2, "committed": 3}
_SHARES = (("f0", "none"), ("f1", "up to 25 %"), ("f2", "up to 50 %"), ("f3", "up to 99 %"), ("f4", "all"))


def advice_section(advice: Sequence[Advice]) -> str:
    """Return the section on what to change."""
    title = "What to change"
    if not advice:
        return section("advice", title, message("Nothing looks wrong: no damage, and no setting that stands out."))
    labels = {"problem": "Problem", "setting": "Setting"}
    entries = [
        (each.level, labels[each.level], cut(each.where, 100), cut(each.finding, 300), each.change) for each in advice
    ]
    return section("advice", title, advice_list(entries[:LISTED], len(entries) - LISTED))


def offset_section(pictures: Pictures, logs: Sequence[LogFigures]) -> str:
    """Return the section on missing offsets and compaction."""
    with_gaps = sorted(filter(_missing_count, logs), key=_missing_count, reverse=True)
    parts = [
        remark(
            "Compaction removes records, and leaves their offsets out. Offsets that are missing between two segments "
            "without any sign of compaction, or next to damage, are lost. Control records have offsets too."
        )
    ]
    if with_gaps:
        rows = [_coverage(log) for log in with_gaps[:PICTURED_ROWS]]
        caption = "Offsets that have a record, from the first to the last offset of each partition"
        picture = pictures.rows(
            caption, "; ".join(f"{cut(row.name, 40)}: {row.text}" for row in rows), rows, background=True
        )
        parts.append(figure(caption, picture, legend(_SHARES)))
    elif logs:
        parts.append(message("No offset is missing."))
    columns = ["partition", "offsets", "missing", "removed from batches", "removed batches"]
    columns += [
        "between segments, by compaction",
        "lost",
        "batches written by the log cleaner",
        "with a delete horizon",
    ]
    lines = [
        [
            cut(log.name, NAME_LENGTH),
            _offsets(log),
            f"{_missing_count(log):,}",
            f"{log.removed_inside:,}",
            f"{log.removed_between:,}",
            f"{log.removed_segments:,}",
            f"{log.lost_offsets:,}",
            f"{log.rewritten:,}",
            f"{log.horizons:,}",
        ]
        for log in (with_gaps or list(logs))[:LISTED]
    ]
    caption = "Missing offsets, by partition" if with_gaps else "Offsets by partition"
    parts.append(table(caption, columns, lines, len(with_gaps or logs) - LISTED))
    return section("offsets", "Offset gaps and compaction", *parts)


def _missing_count(log: LogFigures) -> int:
    return log.removed_inside + log.removed_between + log.removed_segments + log.lost_offsets


def _offsets(log: LogFigures) -> str:
    last = log.statistics["last_offset"]
    return "-" if last is None else f"{min(log.start_offset, log.statistics['first_offset']):,} to {last:,}"


def _coverage(log: LogFigures) -> Row:
    """Return a row whose colours show which part of the offsets has records."""
    buckets, last = log.offsets, log.statistics["last_offset"]
    if not len(buckets) or last is None:
        return Row(log.name, [], "no records")
    first = min(log.start_offset, int(buckets.ids[0]) * buckets.width)
    span = float(last) - first + 1
    bars: list[Bar] = []
    for number, count in zip(buckets.ids.tolist(), buckets.sums[:, 0].tolist(), strict=True):
        begin, end = max(number * buckets.width, first), min((number + 1) * buckets.width, last + 1)
        share = count / max(end - begin, 1)
        colour = "f4" if share >= 1 else "f3" if share > 0.5 else "f2" if share > 0.25 else "f1"
        bar = Bar((begin - first) / span, (end - first) / span, colour)
        if bars and bars[-1].colour == colour and bars[-1].end >= bar.start - 1e-9:
            bar = bar._replace(start=bars.pop().start)
        bars.append(bar)
    share = buckets.sums[:, 0].sum() / span
    text = "all" if share >= 1 else f"{min(share, 0.9999):.2%}"
    return Row(log.name, bars, f"{text} of {round(span):,} offsets")


def producer_section(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    """Return the section on producers."""
    found: list[tuple[int, str, list[int], int]] = []
    is_complete = True
    for topic in topics:
        sums = ProducerSums()
        for log in topic.logs:
            sums.merge(log.producers)
        is_complete &= sums.is_complete
        of_topic = zip(sums.ids.tolist(), sums.sums.tolist(), sums.epochs.tolist(), strict=True)
        found += [(number, topic.topic, values, epoch) for number, values, epoch in of_topic]
    found.sort(key=lambda each: -each[2][2])
    title = "Producers"
    if not found:
        return section("producers", title, remark("There are no batches of records."))
    size = sum(values[2] for _, _, values, _ in found)
    rows = [
        Row(f"{_producer(number)} · {topic}", [Bar(0, values[2] / size, "c0")], f"{values[2] / size:.1%}")
        for number, topic, values, _ in found[:PICTURED_ROWS]
    ]
    caption = "Stored bytes by producer, as a share of all"
    description = "; ".join(f"{cut(row.name, 60)}: {row.text}" for row in rows)
    columns = ["producer id", "topic", "epoch", "batches", "records"]
    columns += ["records of a batch", "stored", "transactional batches"]
    lines = [
        [
            _producer(number),
            cut(topic, NAME_LENGTH),
            f"{epoch}" if number >= 0 else "-",
            f"{batches:,}",
            f"{records:,}",
            f"{records / batches:,.1f}",
            format_size(stored),
            f"{transactional:,}",
        ]
        for number, topic, (batches, records, stored, transactional), epoch in found[:LISTED]
    ]
    parts = [
        remark(
            "A producer without idempotence has no id. One without a transactional id gets another id at each start."
        ),
        beside(
            figure(caption, pictures.rows(caption, description, rows, background=True)),
            table("Producers, those with the most bytes first", columns, lines, len(found) - LISTED, ["topic"]),
        ),
    ]
    if not is_complete:
        parts.append(remark("There were too many producers to count: the smallest ones are left out."))
    return section("producers", title, *parts)


def _producer(number: int) -> str:
    return f"{number}" if number >= 0 else "no id"


def transaction_section(pictures: Pictures, topics: Sequence[TopicFigures], now: int) -> str:
    """Return the section on transactions."""
    title = "Transactions"
    logs = [log for topic in topics for log in topic.logs if any(log.statistics["transactions"].values())]
    if not logs:
        return section("transactions", title, remark("There are no transactions."))
    shown = [(log, each) for log in logs for each in log.transactions]
    shown.sort(key=lambda each: (_OUTCOME_ORDER[each[1].outcome], -(each[1].duration or 0)))
    chosen = _chosen(shown)
    parts = ['<div class="pair">', _counts_over_time(pictures, logs, now), _durations(pictures, topics), "</div>"]
    columns = ["partition", *OUTCOMES, "longest"]
    lines = [
        [
            cut(log.name, NAME_LENGTH),
            *(f"{log.statistics['transactions'][name]:,}" for name in OUTCOMES),
            format_duration(max((each.duration or 0 for each in log.transactions), default=None)),
        ]
        for log in logs[:LISTED]
    ]
    parts.append(table("Transactions by partition", columns, lines, len(logs) - LISTED))
    texts = ["outcome", "first time (UTC)"]
    columns = ["producer and partition", "outcome", "offsets", "first time (UTC)", "duration"]
    lines = [
        [
            cut(f"{each.producer_id} · {log.name}", NAME_LENGTH),
            each.outcome,
            f"{each.first_offset:,} to {'?' if each.last_offset is None else format(each.last_offset, ',')}",
            format_time(each.first_time),
            format_duration(each.duration),
        ]
        for log, each in chosen
    ]
    parts.append(beside(_timeline(pictures, chosen), table("The same transactions", columns, lines, texts=texts)))
    return section("transactions", title, *parts)


def _chosen(shown: Sequence[tuple[LogFigures, ShownTransaction]]) -> list[tuple[LogFigures, ShownTransaction]]:
    """Return the transactions that are drawn: some of each outcome."""
    chosen: list[tuple[LogFigures, ShownTransaction]] = []
    for number, outcome in enumerate(_OUTCOME_ORDER):
        found = [each for each in shown if each[1].outcome == outcome]
        # What is left of the rows, in equal parts for this outcome and the following ones.
        parts = len(_OUTCOME_ORDER) - number
        chosen += found[
            : max((_TIMELINE_ROWS - len(chosen)) // parts, 1) if parts > 1 else _TIMELINE_ROWS - len(chosen)
        ]
    return chosen


def _timeline(pictures: Pictures, chosen: Sequence[tuple[LogFigures, ShownTransaction]]) -> str:
    firsts = [each.first_time for _, each in chosen if each.first_time is not None]
    if not firsts:
        return remark("No transaction has a timestamp.")
    ends = [each.first_time + (each.duration or 0) for _, each in chosen if each.first_time is not None]
    first, last = min(firsts), max(ends)
    span = max(last - first, 1)
    rows = []
    for log, each in chosen:
        text = f"{each.outcome}, {format_duration(each.duration)}"
        bars = []
        if each.first_time is not None:
            end = 1.0 if each.outcome == "open" else (each.first_time + (each.duration or 0) - first) / span
            bars.append(Bar((each.first_time - first) / span, end, _OUTCOME_COLOURS[each.outcome]))
        rows.append(Row(f"{each.producer_id} · {log.name}", bars, text))
    caption = (
        "The longest transactions of each outcome, by producer and partition; open ones reach to the end of the log"
    )
    description = "; ".join(f"{cut(row.name, 40)}: {row.text}" for row in rows)
    picture = pictures.rows(caption, description, rows, ticks=time_ticks(first, last), background=True, least=2)
    return figure(caption, picture, legend((colour, name) for name, colour in _OUTCOME_COLOURS.items()))


def _counts_over_time(pictures: Pictures, logs: Sequence[LogFigures], now: int) -> str:
    ends = [log.ends for log in logs if log.ends is not None]
    shown = common_times(ends, now)
    if shown is None:
        return ""
    everything = np.sum([shown.place(each, 0) for each in ends], axis=0)
    aborted = np.sum([shown.place(each, 1) for each in ends], axis=0)
    width = format_width(shown.width)
    series = [Series("aborted", "c1", aborted), Series("committed", "c2", everything - aborted)]
    caption = f"Ended transactions per {width}"
    most = float(everything.max(initial=0))
    description = f"At most {most:,.0f} per {width}; {aborted.sum():,.0f} of {everything.sum():,.0f} aborted."
    picture = pictures.areas(caption, description, series, shown.ticks, number_scale(most))
    return figure(caption, picture, legend([("c2", "committed or undecided"), ("c1", "aborted")]))


def _durations(pictures: Pictures, topics: Sequence[TopicFigures]) -> str:
    counts = summed([topic.durations for topic in topics])
    if not counts.any():
        return ""
    caption = "Ended transactions by duration"
    description = "; ".join(f"{label}: {number:,}" for label, number in zip(DURATION_LABELS, counts, strict=True))
    scale = number_scale(float(counts.max()))
    return figure(caption, pictures.columns(caption, description, counts.tolist(), DURATION_LABELS, scale))


def tombstone_section(pictures: Pictures, topics: Sequence[TopicFigures], now: int) -> str:
    """Return the section on tombstones."""
    title = "Tombstones"
    with_some = [topic for topic in topics if total(topic, "tombstones")]
    if not with_some:
        return section("tombstones", title, remark("There are no records with a key and a null value."))
    parts = [
        remark(
            "A tombstone is a record with a key and a null value: compaction removes the key, and later the tombstone."
        )
    ]
    times = [log.times for topic in with_some for log in topic.logs]
    shown = common_times(times, now, 2)
    drawn = ""
    if shown is not None:
        numbers = np.sum([shown.place(each, 2) for each in times], axis=0)
        most = float(numbers.max(initial=0))
        caption = f"Tombstones per {format_width(shown.width)}"
        description = f"At most {most:,.0f}."
        series = [Series("tombstones", "c0", numbers)]
        drawn = figure(caption, pictures.areas(caption, description, series, shown.ticks, number_scale(most)))
    columns = ["topic", "tombstones", "share of the records", "null values", "batches with a delete horizon"]
    rows = [
        [
            cut(topic.topic, NAME_LENGTH),
            f"{total(topic, 'tombstones'):,}",
            f"{total(topic, 'tombstones') / max(total(topic, 'records'), 1):.2%}",
            f"{total(topic, 'null_values'):,}",
            f"{sum(log.horizons for log in topic.logs):,}",
        ]
        for topic in with_some[:LISTED]
    ]
    parts.append(beside(drawn, table("Tombstones by topic", columns, rows, len(with_some) - LISTED)))
    return section("tombstones", title, *parts)


def damage_section(pictures: Pictures, logs: Sequence[LogFigures]) -> str:
    """Return the section on damage."""
    title = "Damage"
    damaged = [log for log in logs if log.damage is not None]
    if not damaged:
        batches = sum(log.statistics["batches"] for log in logs)
        is_live = any(log.statistics["segments"] is None for log in logs)
        missing = "" if is_live else ", and no segment is missing"
        return section(
            "damage",
            title,
            message(f"None: the checksums of {counted(batches, 'batch')} are right{missing}."),
        )
    damaged.sort(key=lambda log: -log.statistics["lost_bytes"])
    rows: list[Row] = []
    lines: list[list[str]] = []
    for log in damaged:
        assert log.damage is not None
        lost = log.statistics["lost_bytes"]
        # A partition of a cluster has no files, and so no place for its damage.
        is_live = log.statistics["segments"] is None
        text = f"{format_size(lost)} of {format_size(log.damage.size)}"
        if len(rows) < PICTURED_ROWS and not is_live:
            rows.append(Row(log.name, _damage_bars(log.damage), text))
        lines += [
            [
                cut(log.name, NAME_LENGTH),
                "-" if is_live else cut(loss.file or "", NAME_LENGTH),
                "-" if is_live else f"{loss.position:,}",
                f"{loss.length:,}",
                "-" if loss.base_offset is None else f"{loss.base_offset:,}",
                cut(loss.reason, 300),
            ]
            for loss in log.damage.listed[: max(LISTED - len(lines), 0)]
        ]
    caption = "Lost bytes, from the first to the last byte of each damaged log"
    description = "; ".join(f"{cut(row.name, 40)}: {row.text}" for row in rows)
    columns = ["partition", "file", "byte", "lost bytes", "offset", "reason"]
    count = sum(log.damage.count for log in damaged if log.damage is not None)
    picture = pictures.rows(caption, description, rows, background=True, least=2)
    colours = legend([("c5", "lost bytes"), ("c1", "offsets missing between two segments")])
    return section(
        "damage",
        title,
        remark("Nothing else of this report includes lost batches. A gap between two segments has no bytes."),
        figure(caption, picture, colours) if rows else "",
        table("Damaged places", columns, lines, count - len(lines), ["file", "reason"]),
    )


def _damage_bars(damage: DamageMap) -> list[Bar]:
    """Return bars for the parts with lost bytes, joined where they are adjacent, and for gaps."""
    edges = np.linspace(0, 1, len(damage.lost) + 1).tolist()
    changes = np.flatnonzero(np.diff(damage.lost > 0, prepend=False, append=False)).tolist()
    bars = [Bar(edges[first], edges[end], "c5") for first, end in zip(changes[::2], changes[1::2], strict=True)]
    return bars + [Bar(place, place, "c1") for place in damage.gaps]
