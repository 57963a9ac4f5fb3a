"""The results of a run as Markdown: one table of ratios, the floors, and on demand every contestant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.floors import Floor, floors
from bench.results import ALONE, COPY, CRC, CRC_CALLS, DROPPED, IN_TURNS, KBATCH, KEPT, PEERS, Result, Results

__all__ = ["about", "details", "floors_table", "live_table", "ratio_table", "report", "summary"]

STAGES = (
    "scan",
    "CRC",
    "decode",
    "decompress",
    "foreign",
    "to Arrow",
    "to Arrow, views",
    "to pandas",
    "to pandas, ArrowDtype",
    "threads",
    "transactions",
    "encode",
)
LANGUAGES = ("Java", "Go", "Rust")
# The rows that README shows.
HEADLINES = {
    "decode": {"small", "medium", "large", "headers", "single", "million", "small-v1"},
    "decompress": {f"medium-{size}-{codec}" for size in ("16k", "1m") for codec in ("gzip", "snappy", "lz4", "zstd")},
    "to Arrow": {"small", "medium"},
    "to Arrow, views": {"small", "medium"},
    "to pandas": {"small", "medium"},
    "to pandas, ArrowDtype": {"small", "medium"},
    "threads": {"small", "large", "medium-1m-gzip", "medium-1m-lz4", "medium-1m-zstd"},
    "encode": {"small", "medium"},
    "encode compressed": {"medium-16k-lz4", "medium-16k-zstd"},
    "convert to magic 1": {"small"},
    "convert to magic 2": {"small-v1"},
    "recompress to lz4": {"small"},
    "recompress to zstd": {"small-lz4"},
}
# Who stands in a row of its own, beside those whose name begins with "kbatch".
OWN = {"two threads": "threads", "read_committed": "transactions"}


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]], texts: int, last_texts: int = 0) -> str:
    """Write a table; its first and its last columns are text, the others numbers."""
    heads = list(heads)
    rule = "|---" * texts + "|---:" * (len(heads) - texts - last_texts) + "|---" * last_texts + "|"
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float | None, form: str = ".1f", missing: str = "") -> str:
    return missing if value is None else f"{value:{form}}"


def short(value: float | None) -> str:
    """Write a ratio with two or three figures."""
    return "" if value is None else f"{value:{'.2f' if value < 3 else '.1f' if value < 30 else '.0f'}}"


def about(results: Results) -> str:
    """Say what machine it was, and what ran."""
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return f"{results.machine}. {versions}."


def ordered(stages: list[str]) -> list[str]:
    known = [stage for stage in STAGES if stage in stages]
    return known + [stage for stage in stages if stage not in known]


def limits(results: Results, stage: str, corpus: str, who: str) -> str:
    """Return what kbatch takes as a multiple of what bounds it, and of what."""
    said: list[str] = []

    def say(ratio: float | None, what: str) -> None:
        if ratio is not None:
            said.append(f"{ratio:.2f} {what}")

    if stage == "decode":
        say(results.to_limit(stage, corpus, [CRC]), "CRC")
        say(results.to_limit(stage, corpus, [CRC, COPY]), "CRC + copy")
    elif stage == "CRC":
        say(results.to_limit(stage, corpus, [CRC]), "one call")
        say(results.to_limit(stage, corpus, [CRC_CALLS]), "a call a batch")
    elif stage == "decompress":
        for ending in (KEPT, DROPPED):
            found = results.library(corpus, ending)
            if found:
                say(found[1], f"{found[0].split()[0]}{ending}")
    elif stage == "threads":
        ratio = results.ratio(stage, corpus, "one thread", who)
        said += [f"{ratio:.2f} times as fast as one"] if ratio else []
        most = results.most_by_two(corpus)
        said += [f"two processes {most:.2f}"] if most else []
    elif stage == "transactions":
        say(results.ratio(stage, corpus, who, "read_uncommitted"), "read_uncommitted")
    elif who == KBATCH:
        say(results.to_limit(stage, corpus, [ALONE]), ALONE)
    own = results.get(stage, corpus, who)
    if own and (corpus == "single" or stage == "scan"):
        said.append(f"{own.seconds / own.batches * 1e9:.0f} ns a batch")
    return ", ".join(said)


def ratio_rows(results: Results) -> Iterator[list[str]]:
    for stage in ordered(results.stages()):
        if stage == "foreign":
            continue
        for corpus in results.corpora(stage):
            for who, own in results.contestants(stage, corpus).items():
                if not (who == KBATCH or who.startswith(KBATCH + ",") or OWN.get(who) == stage):
                    continue
                name = corpus + who.removeprefix(KBATCH).replace("two threads", "")
                name = name.removesuffix("read_committed")
                foreign: list[str] = []
                for language in LANGUAGES:
                    decoded = stage in ("decode", "decompress") and who == KBATCH
                    found = results.foreign(corpus, language) if decoded else None
                    foreign.append(short(found and found.ratio))
                # Of headers only a rate by records or bytes would say nothing.
                rates = [own.records, own.payload_bytes] if stage != "scan" else []
                million, megabytes = (f"{value / own.seconds / 1e6:,.1f}" for value in rates) if rates else ("", "")
                yield [
                    stage,
                    name,
                    million,
                    megabytes.partition(".")[0],
                    *(short(results.ratio(stage, corpus, peer, who)) for peer in PEERS),
                    *foreign,
                    limits(results, stage, corpus, who),
                ]


def ratio_table(results: Results, *, headlines: bool = False) -> str:
    """Return the one table: kbatch's rate, how many times as long others take, and kbatch as a multiple of limits.

    With `headlines` only the rows that README shows.
    """
    heads = ["stage", "corpus", "million records/s", "MB/s", *PEERS, *LANGUAGES, "kbatch / limit"]
    rows = [row for row in ratio_rows(results) if not headlines or row[1] in HEADLINES.get(row[0], ())]
    keep = [column for column in range(len(heads)) if column < 4 or any(row[column] for row in rows)]
    return markdown(
        [heads[i] for i in keep], ([row[i] for i in keep] for row in rows), 2, int(keep[-1] == len(heads) - 1)
    )


def floors_table(results: Results) -> str:
    def cells(floor: Floor) -> list[str]:
        state = "ran" if results.quick and floor.measured is not None else floor.state
        # Enough figures to tell which side it is on.
        close = floor.measured is not None and f"{floor.measured:.2f}" == f"{floor.bound:.2f}"
        measured = number(floor.measured, ".4f" if close else ".2f")
        return [floor.text, f"{floor.side} {floor.bound:g}", measured, state, floor.note]

    heads = ["floor", "wanted", "measured", "", "beside it"]
    return markdown(heads, map(cells, floors(results)), 1, 2)


def live_table(results: Results) -> str:
    """Return what clients on a broker did: thousand records a second, to a count and to an Arrow table."""

    def cell(found: dict[str, float] | None) -> str:
        return " / ".join(f"{found[form] / 1e3:,.0f}" for form in ("count", "arrow") if form in found) if found else ""

    clients = dict.fromkeys(who for found in results.live.values() for who in found)
    rows = ([who, *(cell(found.get(who)) for found in results.live.values())] for who in clients)
    return markdown(["thousand records/s, to a count / to Arrow", *results.live], rows, 1)


def summary(results: Results) -> str:
    """Say in a line how many floors are met."""
    found = floors(results)
    if results.quick:
        return f"{sum(floor.measured is not None for floor in found)} of {len(found)} floors were run; none was timed."
    met, missing = sum(floor.met for floor in found), sum(floor.measured is None for floor in found)
    text = f"{met} of {len(found)} floors are met, {len(found) - met - missing} are not"
    return f"{text}, {missing} didn't run." if missing else f"{text}."


def details(results: Results) -> str:
    """Return a table a stage, with every contestant."""

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
                    number(base and result.seconds / base.seconds, ".2f"),
                ]

    heads = ["corpus", "who", "ms", "million records/s", "MB/s", "/ kbatch"]
    parts = [f"### {stage}\n\n{markdown(heads, rows(stage), 2)}" for stage in ordered(results.stages())]
    if results.memory:
        lines = (
            [entry["corpus"], f"{entry['gib']:g}"]
            + [f"{entry[key] / (1 << 20):,.0f}" for key in ("max_bytes", "before", "after", "anonymous")]
            for entry in results.memory
        )
        heads = ["corpus", "GiB", "max_bytes, MiB", "before, MiB", "peak, MiB", "of it own memory, MiB"]
        parts.append(f"### memory\n\n{markdown(heads, lines, 1)}")
    return "\n\n".join(parts)


def report(results: Results, *, detailed: bool = False) -> str:
    """Return all of it."""
    parts = [f"{about(results)} Medians of CPU time, one thread, CRC checked."]
    if results.quick:
        parts.append("**Quick: each ran once, on little data. What it says about speed means nothing.**")
    parts += ["## Ratios: how many times as long as kbatch the others take", ratio_table(results)]
    if results.live:
        parts += ["## From a broker, by the clock", live_table(results)]
    parts += ["## Floors", summary(results), floors_table(results)]
    if detailed:
        parts += ["## Every contestant", details(results)]
    for head, lines in (("Skipped", results.skipped), ("Failed", results.failed)):
        if lines:
            parts += [f"## {head}", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"
