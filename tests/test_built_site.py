"""The built documentation site: complete, without requests to other sites, and searchable offline.

`.ci/site` builds it and names its directory in KBATCH_SITE; otherwise this module is not collected.
"""

from __future__ import annotations

import os
import re
import time
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import Browser

ROOT = Path(__file__).parent.parent
SITE = ROOT / os.environ.get("KBATCH_SITE", "build/site")
# Elements whose attributes make a browser request something when it opens the page.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "video": "src", "link": "href"}


class Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.classes |= set(found.get("class", "").split())
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if LOADED.get(tag) in found and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found[LOADED[tag]])


@cache
def page(path: Path) -> Page:
    return Page(path)


def pages() -> list[Path]:
    return sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)


def test_every_page_of_the_documentation_is_built() -> None:
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert written <= {path.relative_to(SITE) for path in pages()}
    assert len(pages()) > 200


def test_links_lead_to_pages_and_anchors() -> None:
    for path in pages():
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in page(target).anchors, f"{path}: {link}"


def test_pages_load_nothing_from_other_sites() -> None:
    for path in pages():
        assert [each for each in page(path).loaded if re.match(r"(\w+:)?//", each)] == [], path
    for path in (SITE / "_static").rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", path.read_text()) == [], path


def test_files_that_pages_load_exist() -> None:
    for path in pages():
        for each in page(path).loaded:
            if not each.startswith(("data:", "#")):
                assert (path.parent / unquote(urlsplit(each).path)).exists(), f"{path}: {each}"


def test_pages_have_no_markup_errors() -> None:
    for path in pages():
        assert not {"system-message", "problematic"} & page(path).classes, path


def test_llms_txt_has_a_title_a_summary_and_sections_of_links_that_exist() -> None:
    """The format is that of llmstxt.org."""
    lines = (SITE / "llms.txt").read_text().splitlines()
    assert lines[0] == "# kbatch"
    assert lines[2].startswith("> kbatch turns the bytes")
    sections = [line for line in lines if line.startswith("## ")]
    assert {"## How-to", "## Guide", "## Reference", "## Explanation"} <= set(sections)
    links = [line for line in lines if line.startswith("- ")]
    for line in links:
        match = re.fullmatch(r"- \[[^\]]+\]\(([^)]+)\): \S.*\.?", line)
        assert match, line
        assert (SITE / match[1]).exists(), line
    assert len(lines) == len(set(links)) + sum(not line.startswith("- ") for line in lines)
    full = (SITE / "llms-full.txt").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        assert path.read_text().strip() in full, path
        assert (SITE / path.relative_to(ROOT / "docs")).read_text() == path.read_text()


def test_public_names_commands_and_pages_are_linked_from_text() -> None:
    links = page(SITE / "live-commands.html").links
    assert "reference/commands/kbatch-consume.html" in links
    assert any(link.startswith("reference/python/kbatch.consume.html") for link in page(SITE / "live.html").links)
    rules = page(SITE / "reference" / "python" / "kbatch.decode.html").links
    assert "../../format-rules.html#frm-r3" in rules


def test_docstrings_link_to_other_packages() -> None:
    links = page(SITE / "reference" / "python" / "kbatch.log.LogList.html").links
    assert "https://arrow.apache.org/docs/python/generated/pyarrow.Table.html#pyarrow.Table" in links
    assert "https://docs.python.org/3/library/functions.html#int" in links


COMPARED = sorted(path.stem for path in (ROOT / "docs" / "coming-from").glob("*.md"))


@pytest.mark.parametrize("name", COMPARED)
def test_pages_for_users_of_other_tools_have_pairs_of_code(name: str) -> None:
    text = (SITE / "coming-from" / f"{name}.html").read_text()
    pairs = re.findall(r'<div class="sides\b', text)
    assert len(pairs) >= 9
    assert len(re.findall(r'<div class="side\b(?!-)', text)) == 2 * len(pairs)


# How many pairs of code are side by side and one below the other, and the code whose lines do not fit in its column.
COLUMNS = """(() => {
    const pairs = [...document.querySelectorAll(".sides")].map(
        each => [...each.querySelectorAll(":scope > .side")].map(side => side.getBoundingClientRect()));
    const wrapped = [...document.querySelectorAll(".sides pre")].filter(pre => {
        const style = getComputedStyle(pre);
        const inside = pre.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
        return inside > (pre.textContent.trimEnd().split("\\n").length + 0.5) * parseFloat(style.lineHeight);
    });
    return {
        beside: pairs.filter(([a, b]) => a.top === b.top && a.right < b.left).length,
        below: pairs.filter(([a, b]) => a.bottom <= b.top && a.left === b.left).length,
        pairs: pairs.length,
        wrapped: wrapped.map(pre => pre.textContent),
    };
})()"""


@pytest.mark.long
@pytest.mark.parametrize("name", COMPARED)
def test_code_of_two_tools_is_side_by_side_and_in_one_column_on_a_phone(name: str, tmp_path: Path) -> None:
    found = {}
    with Browser() as browser:
        for width in (1280, 390):
            browser.picture(SITE / "coming-from" / f"{name}.html", tmp_path / "page.png", width, height=10)
            result = browser.call("Runtime.evaluate", expression=COLUMNS, returnByValue=True)["result"]
            found[width] = result["value"]
    assert found[1280]["beside"] == found[1280]["pairs"] == found[390]["below"] > 0
    assert found[1280]["wrapped"] == []


@pytest.mark.long
def test_search_works_without_a_server() -> None:
    with Browser() as browser:
        browser.call("Page.navigate", url=f"{(SITE / 'search.html').resolve().as_uri()}?q=scan_logs")
        browser.wait_for("Page.loadEventFired")
        found: list[str] = []
        script = "[...document.querySelectorAll('#search-results li a')].map(each => each.getAttribute('href'))"
        for _ in range(50):
            result = browser.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]
            found = result.get("value") or []
            if found:
                break
            time.sleep(0.1)
    assert any("kbatch.scan_logs" in link for link in found)


# The beginnings of tables of sentences that are wider than the window.
WIDE = """[...document.querySelectorAll("table.stacked")]
    .filter(table => table.scrollWidth > table.clientWidth || table.getBoundingClientRect().right > innerWidth)
    .map(table => table.textContent.trim().slice(0, 80))"""


@pytest.mark.long
def test_tables_of_sentences_fit_a_phone(tmp_path: Path) -> None:
    wide = {}
    with Browser() as browser:
        for source in (ROOT / "docs").rglob("*.md"):
            name = source.relative_to(ROOT / "docs").with_suffix(".html")
            browser.picture(SITE / name, tmp_path / "page.png", 390, height=10)
            wide[str(name)] = browser.call("Runtime.evaluate", expression=WIDE, returnByValue=True)["result"]["value"]
    assert {name: tables for name, tables in wide.items() if tables} == {}


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    """Wide tables and code scroll by themselves."""
    with Browser() as browser:
        sizes = {
            str(path.relative_to(SITE)): browser.picture(path, tmp_path / "page.png", width, height=10)["width"]
            for path in pages()
        }
    assert {name: size for name, size in sizes.items() if size > width} == {}
