"""The block of README.md that holds the benchmark's figures, which are never written by hand."""

from __future__ import annotations

from pathlib import Path

from bench.chart import draw
from bench.report import about, floors_table, live_table, ratio_table, report, summary
from bench.results import Results

__all__ = ["BEGIN", "END", "block", "read_block", "renew", "replace_block"]

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- benchmark: begin (written by `python -m bench --readme`) -->"
END = "<!-- benchmark: end -->"


def read_block(text: str) -> str:
    """Return the text between the two lines."""
    return text[slice(*_bounds(text))].strip("\n")


def replace_block(text: str, inner: str) -> str:
    """Return `text` with something else between the two lines."""
    start, end = _bounds(text)
    return f"{text[:start]}\n\n{inner.strip()}\n\n{text[end:]}"


def _bounds(text: str) -> tuple[int, int]:
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the block needs one line {BEGIN!r} and one line {END!r} after it")
    return text.index(BEGIN) + len(BEGIN), text.index(END)


def block(results: Results) -> str:
    """Return the content of the block for a run."""
    quick = ["**A quick run: its figures mean nothing.**"] if results.quick else []
    parts = [
        *quick,
        "![Records decoded per second, by corpus and contestant](bench/chart.svg)",
        f"{about(results)} Corpora of {results.document['size'] / 1e6:g} MB; medians of CPU time of one run, one "
        "thread, CRCs verified. The figures of contestants are their time divided by kbatch's: above 1, kbatch is "
        'faster. "Library alone" only decompresses the same payloads, with the library that kbatch uses.',
        ratio_table(results),
        f"{summary(results)} Every contestant: [bench/RESULTS.md](bench/RESULTS.md).",
        f"<details><summary>The floors</summary>\n\n{floors_table(results)}\n\n</details>",
    ]
    if results.live:
        text = "From a broker on the same machine, fetching included, by the clock (`python -m bench.live`):"
        parts += [text, live_table(results)]
    return "\n\n".join(parts)


def renew(results: Results, root: Path = ROOT) -> list[Path]:
    """Rewrite the block of README.md, the chart, the full report and the results behind them; return the files."""
    readme, figures, full = root / "README.md", root / "bench" / "results.json", root / "bench" / "RESULTS.md"
    text = replace_block(readme.read_text(), block(results))
    results.write(figures)
    full.write_text(f"# Results\n\nWritten by `python -m bench --readme`.\n\n{report(results, detailed=True)}")
    charts = draw(results, root / "bench")
    readme.write_text(text)
    return [readme, figures, full, *charts]
