"""The blocks of README.md and docs/performance.md with the benchmark's figures, which a run writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.chart import draw
from bench.report import about, floors_table, live_table, ratio_table, report, short_table, summary
from bench.results import Results

__all__ = ["BEGIN", "BLOCKS", "END", "full_block", "read_block", "renew", "replace_block", "short_block"]

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- benchmark: begin (written by `python -m bench --readme`) -->"
END = "<!-- benchmark: end -->"
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


def short_block(results: Results) -> str:
    """Return the block of README.md: the chart, and the ratios that users compare."""
    parts = [
        *[QUICK] * results.quick,
        "![Million records decoded per second, by input and decoder](bench/chart.svg)",
        "How many times faster kbatch is than each alternative, on one thread with checksums verified; below 1, kbatch "
        "is slower, and an empty cell was not measured "
        f"({results.machine}, Python {results.versions.get('Python', '?')}):",
        short_table(results),
        "The clients in Python iterate their records and drop them, which is the least they can do. The decoders in "
        "Java, Go and Rust are separate programs that sum offsets, timestamps and lengths; kbatch only builds "
        f"its table.{_with_sums(results)}",
    ]
    return "\n\n".join(parts)


def _with_sums(results: Results) -> str:
    """Return a sentence with the smallest ratio to a decoder in another language if kbatch also sums its columns."""
    fastest = results.foreign("small", "Java", "Go", "Rust")
    if fastest is None or fastest.with_sums is None:
        return ""
    return (
        f" If kbatch sums its columns as well, the ratio to the fastest of them ({fastest.name}, values of 32 bytes) "
        f"is {fastest.with_sums:.2f} instead of {fastest.ratio:.2f}."
    )


def full_block(results: Results) -> str:
    """Return the block of docs/performance.md: every ratio, and the floors."""
    parts = [
        *[QUICK] * results.quick,
        "![Million records decoded per second, by input and decoder](../bench/chart.svg)",
        f"Measured on {about(results)}",
        f"Each corpus has {results.document['size'] / 1e6:g} MB before compression. Times are medians of the CPU time "
        "of one run, on one thread, with checksums verified. Columns named after an alternative give its time divided "
        'by kbatch\'s time: above 1, kbatch is faster. "Library alone" only decompresses the same payloads, with the '
        'library that kbatch uses. "One thread" is the wall-clock time of kbatch on one thread divided by that on two.',
        ratio_table(results),
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
BLOCKS: dict[str, Callable[[Results], str]] = {"README.md": short_block, "docs/performance.md": full_block}


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
