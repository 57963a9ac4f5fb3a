"""The chart: records per second by corpus and contestant, drawn as dots on a logarithmic scale."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from bench.results import KBATCH, Results

__all__ = ["draw"]

# The label and the corpus of each row.
ROWS = {
    "small\n8 B key, 32 B value": "small",
    "medium\n16 B key, 100 B value": "medium",
    "large\n16 B key, 1 KiB value": "large",
    "3 headers\n16 B key, 100 B value": "headers",
    "one-record batches\nas small": "single",
    "ten-record batches\nas small": "ten",
    "magic 1\nas small": "small-v1",
    "gzip\nmedium, 16 KiB batches": "medium-16k-gzip",
    "snappy\nmedium, 16 KiB batches": "medium-16k-snappy",
    "lz4\nmedium, 16 KiB batches": "medium-16k-lz4",
    "zstd\nmedium, 16 KiB batches": "medium-16k-zstd",
}


class Series(NamedTuple):
    """How a contestant is drawn. Most colours are from the palette of Okabe and Ito, and each shape is different."""

    label: str
    colour: str
    marker: str
    size: float
    # On a dark page, if the colour would be too dark there, or like another one.
    on_dark: str = ""


class Theme(NamedTuple):
    """The colours of a chart on a light or a dark page."""

    page: str
    text: str
    small_text: str
    axis: str
    line: str
    grid: str
    is_dark: bool

    def colour(self, series: Series) -> str:
        return (self.is_dark and series.on_dark) or series.colour


LIGHT = Theme("white", "#222222", "#666666", "#888888", "#DDDDDD", "#EEEEEE", is_dark=False)
DARK = Theme("#0D1117", "#E6EDF3", "#9DA7B3", "#6E7681", "#3A424C", "#222931", is_dark=True)


SERIES = {
    "kafka-python": Series("kafka-python", "#E69F00", "v", 6.5),
    "aiokafka": Series("aiokafka (C)", "#009E73", "s", 6),
    "Java": Series("Java: Kafka's MemoryRecords", "#CC79A7", "^", 6.5),
    "Go": Series("Go", "#56B4E9", "D", 5.5, "#F0E442"),
    "Rust": Series("Rust", "#D55E00", "P", 7),
    KBATCH: Series("kbatch, one thread", "#0072B2", "o", 9, "#58A6FF"),
    "two threads": Series("kbatch, two threads", "#0072B2", "o", 9, "#58A6FF"),
}


def rates(results: Results, corpus: str) -> dict[str, float]:
    """Return million records per second for every contestant that decoded a corpus."""
    found: dict[str, float] = {}
    own = results.get("decode", corpus, KBATCH)
    for who in (KBATCH, "aiokafka", "kafka-python"):
        result = results.get("decode", corpus, who)
        if result:
            found[who] = result.records / result.seconds / 1e6
    for language in ("Java", "Go", "Rust"):
        ratio = results.foreign(corpus, language)
        if ratio and own:
            # Computed from the ratio to kbatch, which was measured in turns with this decoder.
            found[language] = own.records / own.seconds / 1e6 / ratio.ratio
    both = results.ratio("threads", corpus, "one thread", "two threads")
    if both and own:
        found["two threads"] = own.records / own.seconds / 1e6 * both
    return found


def vertical_shifts(values: dict[str, float], width: float) -> dict[str, float]:
    """Return how far below its row each mark of width `width` is drawn, so that no mark hides another."""
    found = {who: 0.0 for who in (KBATCH, "two threads") if who in values}
    for who in sorted(set(values) - set(found), key=values.__getitem__):
        near = {found[other] for other in found if abs(math.log10(values[who]) - math.log10(values[other])) < width}
        found[who] = next(level for level in (0.0, 0.2, 0.4, -0.2, -0.4, 0.1) if level not in near)
    return found


def label(results: Results, name: str) -> str:
    """Return the name of a contestant in the legend; a language is followed by its fastest decoder."""
    if name not in ("Go", "Rust"):
        return SERIES[name].label
    decoders = (results.foreign(corpus, name) for corpus in ROWS.values())
    whose = {decoder.name for decoder in decoders if decoder}
    return f"{name}: {' or '.join(sorted(whose))}" if whose - {""} else name


def draw(results: Results, directory: Path, name: str = "chart") -> list[Path]:
    """Draw the chart for light and dark pages; print a message if matplotlib is missing or nothing was decoded."""
    try:
        import matplotlib
    except ImportError:
        print("no chart: matplotlib is not installed (pip install -e '.[bench]')")
        return []
    found = {text: rates(results, corpus) for text, corpus in ROWS.items()}
    found = {text: values for text, values in found.items() if KBATCH in values}
    if not found:
        print("no chart: nothing was decoded")
        return []
    matplotlib.use("Agg")
    light, dark, png = (directory / each for each in (f"{name}.svg", f"{name}-dark.svg", f"{name}.png"))
    for theme, path in ((LIGHT, light), (DARK, dark)):
        style = {
            "font.family": "DejaVu Sans",
            "font.size": 9.5,
            "svg.hashsalt": "kbatch",  # equal charts are written as equal files
            "axes.edgecolor": theme.axis,
            "axes.facecolor": theme.page,
            "axes.labelcolor": theme.text,
            "text.color": theme.text,
            "xtick.color": theme.text,
        }
        with matplotlib.rc_context(style):
            figure = plot(results, found, theme)
            figure.savefig(path, metadata={"Date": None})
            if theme is LIGHT:
                figure.savefig(png, dpi=160)
    return [light, dark, png]


def plot(results: Results, found: dict[str, dict[str, float]], theme: Theme = LIGHT) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    height = 1.9 + 0.5 * len(found)
    figure = Figure(figsize=(8.6, height), layout=None, facecolor=theme.page)
    axes = figure.add_axes((0.215, 0.62 / height, 0.76, 1 - 1.72 / height))
    everything = [math.log10(value) for values in found.values() for value in values.values()]
    mark_width = 0.02 * (max(everything) - min(everything))
    shifts = [vertical_shifts(values, mark_width) for values in found.values()]
    for row, values in enumerate(found.values()):
        axes.plot([min(values.values()), max(values.values())], [row, row], color=theme.line, linewidth=1.5, zorder=1)
    for who, series in SERIES.items():
        points = [(values[who], row + shifts[row][who]) for row, values in enumerate(found.values()) if who in values]
        if points:
            hollow, colour = who == "two threads", theme.colour(series)
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linestyle="none",
                marker=series.marker,
                markersize=series.size,
                markerfacecolor=theme.page if hollow else colour,
                markeredgecolor=colour if hollow else theme.page,
                markeredgewidth=1.6 if hollow else 0.7,
                label=label(results, who),
                zorder=2 if hollow else 3,
                clip_on=False,
            )
            if who == KBATCH:
                for x, y in points:
                    text = f"{x:.1f}" if x < 10 else f"{x:.0f}"
                    axes.annotate(
                        text, (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=colour
                    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("million records decoded per second, CRCs verified (logarithmic)")
    axes.set_yticks(range(len(found)), [""] * len(found))
    for row, text in enumerate(found):
        first, _, second = text.partition("\n")
        at = {"transform": axes.get_yaxis_transform(), "ha": "right", "clip_on": False}
        axes.text(-0.015, row - 0.06, first, va="bottom", weight="bold", **at)
        axes.text(-0.015, row + 0.02, second, va="top", fontsize=8, color=theme.small_text, **at)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="x", color=theme.grid, zorder=0)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.text(0.02, 1 - 0.16 / height, "Decoding Kafka record batches", weight="bold", fontsize=13, va="top")
    handles, labels = axes.get_legend_handles_labels()
    place = {"loc": "upper left", "bbox_to_anchor": (0.012, 1 - 0.42 / height), "ncols": 4, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **place, handletextpad=0.2, columnspacing=1.4, fontsize=9)
    python = results.versions.get("Python", "?")
    figure.text(
        0.02,
        0.1 / height,
        f"{results.machine}, Python {python}; medians of one run",
        fontsize=7.5,
        color=theme.small_text,
    )
    return figure
