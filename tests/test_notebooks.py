"""The notebooks of the documentation run as they are printed, without a kernel, a network or a broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pl = pytest.importorskip("polars")
matplotlib = pytest.importorskip("matplotlib")

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def executed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Return the names that the cells of a notebook have defined, and the figures that they have drawn."""
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    text = (NOTEBOOKS / name).read_text()
    found: dict[str, Any] = {"__name__": "notebook"}
    for cell in CELL.finditer(text):
        # Tracebacks have the lines of the page.
        lines = "\n" * text.count("\n", 0, cell.start(1)) + cell[1]
        exec(compile(lines, str(NOTEBOOKS / name), "exec"), found)
    found["figures"] = [pyplot.figure(number) for number in pyplot.get_fignums()]
    for figure in found["figures"]:
        figure.canvas.draw()
    pyplot.close("all")
    return found


def test_every_notebook_is_tested() -> None:
    assert {each.name for each in NOTEBOOKS.glob("*.md")} == {"topic-health.md", "daily-orders.md"}
    for page in NOTEBOOKS.glob("*.md"):
        text = page.read_text()
        assert "format_name: myst" in text
        assert len(CELL.findall(text)) == text.count("{code-cell}") >= 5


def test_the_notebook_about_a_topics_health_finds_its_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = executed("topic-health.md", monkeypatch, tmp_path)
    partitions = made["partitions"].to_dicts()
    assert [each["records"] for each in partitions] == [24_000, 4_000, 5_610]
    assert partitions[0]["share"] > 0.7
    assert partitions[1]["batch_bytes"] < 200 < partitions[0]["batch_bytes"]
    assert made["hourly"]["records"].sum() == 33_610
    ratios = dict(made["ratios"].rows())
    assert ratios[0] > 3
    assert ratios[1] < 1
    assert made["gaps"].rows() == [(0, 12_000, 13_999, 2_000)]
    assert made["transactions"].select("partition", "producer", "lag").rows() == [(2, 1001, 610)]
    assert len(made["figures"]) == 2


def test_the_notebook_about_orders_draws_the_revenue_of_each_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = executed("daily-orders.md", monkeypatch, tmp_path)
    assert made["bad"].rows()[0][0] == b"not JSON"
    assert len(made["bad"]) == 1
    assert made["orders_by_day"]["orders"].sum() == 2_999
    assert made["daily"].columns == ["day", "DE", "FR", "PL"]
    assert len(made["daily"]) == 14
    expected = made["totals"].sum() - made["totals"][100]
    assert made["daily"].drop("day").to_numpy().sum() == pytest.approx(expected)
    assert len(made["figures"]) == 1
