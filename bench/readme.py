"""The blocks of README.md and docs/benchmarks.md with the benchmark's figures, which a run writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.chart import ROWS, draw
from bench.report import about, faster_decoders, faster_table, floors_table, live_table, ratio_table, report, summary
from bench.results import Results

__all__ = ["BEGIN", "BLOCKS", "END", "chart_block", "full_block", "read_block", "renew", "replace_block"]

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- benchmark: begin (written by `python -m bench --readme`) -->"
END = "<!-- benchmark: end -->"
ALT = "Million records decoded per second, by input and decoder"
QUICK = "**A quick run: its figures mean nothing.**"


def read_block(text: str) -> str:
    """Return the text between the lines `BEGIN` and `END`."""
    return text[slice(*_bounds(text))].strip("\n")


def replace_block(text: str, inner: str) -> str:
    """Return `text` with `inner` between the lines `BEGIN` and `END`."""
    start, end = _bounds(text)
    return f"{text[:start]}\n\n{inner.strip()}\n\n{text[end:]}"


def _bounds(text: str) -> tuple[int, int]:
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the block needs one line {BEGIN!r} and one line {END!r} after it")
    return text.index(BEGIN) + len(BEGIN), text.index(END)


def chart_block(results: Results) -> str:
    """Return the block of README.md: the chart, light or dark as the reader's browser, and what it shows."""
    parts = [
        *[QUICK] * results.quick,
        f"""\
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="bench/chart-dark.svg">
  <img alt="{ALT}" src="bench/chart.svg">
</picture>""",
        f"Measured on {results.machine}.{_faster_sentence(results)} [Benchmarks](docs/benchmarks.md) has all figures.",
    ]
    return "\n\n".join(parts)


def _faster_sentence(results: Results) -> str:
    """Return a sentence with the inputs of the chart that another decoder decodes faster, without sums."""
    labels = {corpus: label.partition("\n")[0] for label, corpus in ROWS.items()}
    faster = {labels[corpus]: found.name for corpus, found in faster_decoders(results) if found.ratio < 1}
    if not faster:
        return ""
    names = {next((each for each in results.versions if each.startswith(name)), name) for name in faster.values()}
    return f" In the rows {_listed([f'*{row}*' for row in faster])}, {_listed(sorted(names))} is as fast or faster."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def full_block(results: Results) -> str:
    """Return the block of docs/benchmarks.md: the contestants that are faster, every ratio, and the floors."""
    parts = [
        *[QUICK] * results.quick,
        f"![{ALT}](../bench/chart.svg)",
        f"Measured on {about(results)}",
        f"Each corpus has {results.document['size'] / 1e6:g} MB before compression. Times are medians of the CPU time "
        "of one run, on one thread, with checksums verified. Columns named after an alternative give its time divided "
        'by kbatch\'s time: above 1, kbatch is faster. "Library alone" only decompresses the same payloads, with the '
        'library that kbatch uses. "One thread" is the wall-clock time of kbatch on one thread divided by that on two.',
        ratio_table(results),
        "### Where a decoder in another language is faster",
        "Time of the decoder divided by that of kbatch; below 1, the decoder is faster. It sums offsets, timestamps "
        "and lengths, and keeps no table. kbatch builds its table, and in the last column also computes these sums.",
        faster_table(results),
        "### Floors",
        f"A floor is a ratio that kbatch must reach; missing one is a regression. {summary(results)}",
        floors_table(results),
    ]
    if results.live:
        parts += [
            "### From a broker",
            "Read from a broker on the same machine; wall-clock time, including fetching (`python -m bench.live`):",
            live_table(results.live),
        ]
    return "\n\n".join(parts)


# The pages with a block, relative to the top of the repository.
BLOCKS: dict[str, Callable[[Results], str]] = {"README.md": chart_block, "docs/benchmarks.md": full_block}


def renew(results: Results, root: Path = ROOT) -> list[Path]:
    """Rewrite the blocks, the chart, the full report and the results file; return the paths."""
    pages = {root / name: replace_block((root / name).read_text(), block(results)) for name, block in BLOCKS.items()}
    figures, full = root / "bench" / "results.json", root / "bench" / "RESULTS.md"
    results.write(figures)
    full.write_text(f"# Results\n\nWritten by `python -m bench --readme`.\n\n{report(results, detailed=True)}")
    charts = draw(results, root / "bench")
    for path, text in pages.items():
        path.write_text(text)
    return [*pages, figures, full, *charts]
