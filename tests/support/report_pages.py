"""A page of a report as data: its tables by caption, and its texts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# Elements without an end.
VOID = {"meta", "br", "path", "rect"}


class Page(HTMLParser):
    """A parsed page; the parser fails for elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # By caption, the rows of a table: by header, the text of the cell.
        self.tables: dict[str, list[dict[str, str]]] = {}
        # The text of each element, by tag.
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.source = path.read_text("utf-8")
        self._open: list[str] = []
        self._caption = ""
        self._headers: list[str] = []
        self._row: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self._row = []
        if tag == "table":
            self._headers = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        text = self.texts[tag][-1]
        if tag == "caption":
            self._caption = text
            self.tables[text] = []
        elif tag in ("th", "td"):
            self._row.append(text)
        elif tag == "tr":
            if "tbody" in self._open:
                self.tables[self._caption].append(dict(zip(self._headers, self._row, strict=True)))
            else:
                self._headers = self._row

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data

    def table(self, caption: str) -> list[dict[str, str]]:
        """Return the rows of the table whose caption begins with this."""
        (found,) = [rows for name, rows in self.tables.items() if name.startswith(caption)]
        return found

    def row(self, caption: str, name: str) -> dict[str, str]:
        (found,) = [row for row in self.table(caption) if next(iter(row.values())) == name]
        return found


def number(text: str) -> int:
    """Return a number with separators of thousands."""
    return int(text.replace(",", ""))


def cells(row: dict[str, str], *names: str) -> list[Any]:
    return [number(row[name]) for name in names]
