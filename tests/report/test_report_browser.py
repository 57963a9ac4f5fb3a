"""A report in a browser: no horizontal scrolling, from a phone to a desktop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import PROGRAM, Browser
from report_logs import BEGIN, write_report_logs
from transaction_logs import damaged, txn

import kbatch
from kbatch.report.page import page, tiles

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("logs")
    logs = {"usual": write_report_logs(root / "usual", 3000), "empty": root / "empty", "damaged": root / "damaged"}
    (root / "empty" / "t-0").mkdir(parents=True)
    (root / "empty" / "t-0" / "00000000000000000000.log").touch()
    for number in range(5):
        # Long names without a place to break.
        directory = root / "damaged" / f"{'w' * 240}{number}-{number}"
        directory.mkdir(parents=True)
        batches = [txn(3 * i, 1 << 61, 3, base_timestamp=BEGIN + i, max_timestamp=1 << 60) for i in range(9)]
        batches[4] = damaged(batches[4])
        (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    for name, source in logs.items():
        kbatch.write_report(source, root / f"{name}.html")
    return {name: root / f"{name}.html" for name in logs}


@pytest.mark.parametrize("width", [320, 945, 1280])
@pytest.mark.parametrize("name", ["usual", "empty", "damaged"])
def test_a_page_is_as_wide_as_the_window(
    name: str, width: int, browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    found = browser.picture(pages[name], tmp_path / "page.png", width)
    assert found["width"] <= width
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_of_the_summary_is_on_one_line(browser: Browser, tmp_path: Path) -> None:
    entries = [
        ("10,000,000,000", "records", False),
        *[(str(i), "from 2023-11-14 22:13:20 on", False) for i in range(6)],
    ]
    (tmp_path / "page.html").write_text(page("kbatch report", [], [], [tiles(entries)], ""))
    for width in (320, 1280):
        browser.picture(tmp_path / "page.html", tmp_path / "page.png", width)
        heights = "[...document.querySelectorAll('.tiles b')].map(each => each.offsetHeight)"
        found = browser.call("Runtime.evaluate", expression=heights, returnByValue=True)["result"]["value"]
        assert len(found) == 7
        assert len(set(found)) == 1
