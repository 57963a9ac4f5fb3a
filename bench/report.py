"""The results of a run as Markdown: a table of ratios, the floors, and optionally every contestant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bench.floors import Floor, floors
from bench.load import BUSY
from bench.results import ALONE, IN_TURNS, KBATCH, PEERS, Foreign, Result, Results

__all__ = [
    *("LIVE", "about", "cpu_table", "details", "faster_decoders", "faster_table", "floors_markdown", "floors_table"),
    *("live_table", "memory_table", "ratio_table", "report", "summary"),
]

LANGUAGES = ("Java", "Go", "Rust")
# The client of live topics to which the others are compared.
LIVE = "kbatch.consume"
# Figures by topic, client and form of the result.
ByClient = dict[str, dict[str, dict[str, float]]]


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]], texts: int, last_texts: int = 0) -> str:
    """Return a table whose first `texts` and last `last_texts` columns are text and the others numbers."""
    heads = list(heads)
    rule = "|---" * texts + "|---:" * (len(heads) - texts - last_texts) + "|---" * last_texts + "|"
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)])


def short(value: float | None) -> str:
    """Format a ratio with two or three digits."""
    return "" if value is None else f"{value:{'.2f' if value < 3 else '.1f' if value < 30 else '.0f'}}"


def about(results: Results) -> str:
    """Return the machine, its other work during the run, and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return f"{results.machine}. {other_work(results)} {versions}."


def other_work(results: Results) -> str:
    """Return a sentence about the processors that other processes used during the run."""
    processors = results.other_work
    if processors is None:
        return "How busy the machine was is not known."
    if processors > BUSY:
        return f"**The machine was busy: other processes used {processors:.2f} processors, which distorts figures.**"
    return f"Other processes used {processors:.2f} processors."


def ratios_to_others(results: Results, stage: str, corpus: str) -> list[str]:
    """Return the time of each client in Python, and of the fastest decoder in each language, divided by kbatch's."""
    foreign = [results.foreign(corpus, language) if stage == "decode" else None for language in LANGUAGES]
    return [
        *(short(results.ratio(stage, corpus, peer)) for peer in PEERS),
        *(short(found and found.ratio) for found in foreign),
    ]


def ratio_rows(results: Results) -> Iterator[list[str]]:
    for stage in results.stages():
        if stage == "foreign":
            continue
        for corpus in results.corpora(stage):
            who = "two threads" if stage == "threads" else KBATCH
            own = results.get(stage, corpus, who)
            if own is None:
                continue
            yield [
                stage,
                corpus,
                f"{own.records / own.seconds / 1e6:,.1f}",
                f"{own.payload_bytes / own.seconds / 1e6:,.0f}",
                *ratios_to_others(results, stage, corpus),
                short(results.ratio(stage, corpus, ALONE)),
                short(results.ratio(stage, corpus, "one thread", who)),
            ]


def ratio_table(results: Results) -> str:
    """Return the rate of kbatch, and the time of each contestant as a multiple of kbatch's."""
    heads = ["stage", "corpus", "million records/s", "MB/s", *PEERS, *LANGUAGES, ALONE, "one thread"]
    rows = list(ratio_rows(results))
    keep = [column for column in range(len(heads)) if column < 4 or any(row[column] for row in rows)]
    return markdown([heads[i] for i in keep], ([row[i] for i in keep] for row in rows), 2)


def faster_decoders(results: Results) -> Iterator[tuple[str, Foreign]]:
    """Yield the corpora that a decoder in another language decodes faster than kbatch, and the fastest such decoder.

    It counts as faster if it is so only when kbatch sums its columns, as these decoders do.
    """
    for corpus in results.corpora("foreign"):
        found = results.foreign(corpus, *LANGUAGES)
        if found and min(found.ratio, found.with_sums or found.ratio) < 1:
            yield corpus, found


def faster_table(results: Results) -> str:
    """Return the ratios of `faster_decoders`."""
    rows = (
        [corpus, found.name, short(found.ratio), short(found.with_sums)] for corpus, found in faster_decoders(results)
    )
    return markdown(["corpus", "decoder", "kbatch decodes", "kbatch decodes and sums"], rows, 2)


def floors_table(results: Results) -> str:
    """Return every floor, its bound, and the measured figure."""
    return floors_markdown(floors(results), is_timed=not results.quick)


def floors_markdown(found: Iterable[Floor], *, is_timed: bool = True) -> str:
    """Return a table of floors."""

    def cells(floor: Floor) -> list[str]:
        state = floor.state if is_timed or floor.measured is None else "ran"
        # Enough digits to show whether the figure is above or below the bound.
        close = floor.measured is not None and f"{floor.measured:.2f}" == f"{floor.bound:.2f}"
        measured = "" if floor.measured is None else f"{floor.measured:{'.4f' if close else '.2f'}}"
        return [floor.text, f"{floor.side} {floor.bound:g}", measured, state, floor.note]

    return markdown(["floor", "bound", "measured", "", "contestant"], map(cells, found), 1, 2)


def by_client(found: ByClient, cell: Callable[[str, str, str], str]) -> str:
    """Return a table with a row for each topic and client, and a column for each form of the result."""
    forms = dict.fromkeys(form for clients in found.values() for figures in clients.values() for form in figures)
    rows = (
        [topic, who, *(cell(topic, who, form) if form in figures else "" for form in forms)]
        for topic, clients in found.items()
        for who, figures in clients.items()
    )
    return markdown(["topic", "client", *forms], rows, 2)


def live_table(live: ByClient) -> str:
    """Return the rates of clients that read topics from a broker, and the ratio of kbatch's rate to each.

    `live` has records per second by topic, client and form of the result.
    """

    def cell(topic: str, who: str, form: str) -> str:
        rate, own = live[topic][who][form], live[topic].get(LIVE, {}).get(form)
        text = f"{rate / 1e6:,.2f}"
        return text if own is None or who == LIVE else f"{text} ({short(own / rate)})"

    return f"Million records/s; in brackets, the rate of `{LIVE}` divided by it.\n\n{by_client(live, cell)}"


def cpu_table(cpu: ByClient, faults: ByClient) -> str:
    """Return the CPU time of clients for a million records, and their page faults."""
    text = (
        "CPU seconds of the client for a million records, all threads; in brackets, page faults for a thousand records."
    )

    def cell(topic: str, who: str, form: str) -> str:
        return f"{cpu[topic][who][form]:.3f} ({faults[topic][who][form] / 1e3:.1f})"

    return f"{text}\n\n{by_client(cpu, cell)}"


def memory_table(memory: dict[str, list[dict[str, int]]]) -> str:
    """Return how much the resident memory of kbatch has grown at most, by topic and limit."""

    def cells(topic: str, one: dict[str, int]) -> list[str]:
        sizes = (f"{one[name] / (1 << 20):,.0f}" for name in ("max_bytes", "growth"))
        return [topic, *sizes, short(one["growth"] / one["max_bytes"])]

    rows = (cells(topic, one) for topic, found in memory.items() for one in found)
    return markdown(["topic", "max_bytes, MiB", "growth of resident memory, MiB", "ratio"], rows, 1)


def summary(results: Results) -> str:
    """Return a sentence with the number of floors that are met."""
    found = floors(results)
    if results.quick:
        return f"{sum(floor.measured is not None for floor in found)} of {len(found)} floors ran; none was timed."
    met, missing = sum(floor.met for floor in found), sum(floor.measured is None for floor in found)
    text = f"{met} of {len(found)} floors are met, {len(found) - met - missing} are not"
    return f"{text}, {missing} did not run." if missing else f"{text}."


def details(results: Results) -> str:
    """Return one table per stage, with every contestant."""

    def rows(stage: str) -> Iterator[list[str]]:
        for corpus in results.corpora(stage):
            found = results.contestants(stage, corpus)
            for who, result in found.items():
                base: Result | None = found.get(IN_TURNS + who, found.get(KBATCH))
                yield [
                    corpus,
                    who,
                    f"{result.seconds * 1e3:.3f}",
                    f"{result.records / result.seconds / 1e6:.2f}",
                    f"{result.payload_bytes / result.seconds / 1e6:,.0f}",
                    f"{result.seconds / base.seconds:.2f}" if base else "",
                ]

    heads = ["corpus", "contestant", "ms", "million records/s", "MB/s", "time / kbatch's"]
    return "\n\n".join(f"### {stage}\n\n{markdown(heads, rows(stage), 2)}" for stage in results.stages())


def report(results: Results, *, detailed: bool = False) -> str:
    """Return the whole report."""
    parts = [f"{about(results)} Medians of CPU time, one thread, CRCs verified."]
    if results.quick:
        parts.append("**A quick run: everything ran once, on little data. The figures are meaningless.**")
    parts += ["## Ratios: time of each contestant / time of kbatch", ratio_table(results)]
    if results.live:
        parts += ["## From a broker, wall-clock time", live_table(results.live)]
    parts += ["## Floors", summary(results), floors_table(results)]
    if detailed:
        parts += ["## Every contestant", details(results)]
    for head, lines in (("Skipped", results.skipped), ("Failed", results.failed)):
        if lines:
            parts += [f"## {head}", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"
