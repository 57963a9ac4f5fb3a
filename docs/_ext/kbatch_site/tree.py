"""The pages of each section, from the names and patterns in ``site_sections`` of conf.py."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["entries", "matching"]


def matching(patterns: Iterable[str], pages: Iterable[str]) -> Iterator[str]:
    """Yield the pages that match patterns, without duplicates; ``*`` does not match a slash."""
    listed: set[str] = set()
    known = sorted(pages)
    for pattern in patterns:
        for page in known:
            same_depth = page.count("/") == pattern.count("/")
            if same_depth and fnmatch.fnmatchcase(page, pattern) and page not in listed:
                listed.add(page)
                yield page


def entries(page: str, sections: Mapping[str, tuple[str, str, list[str]]], pages: set[str]) -> list[str]:
    """Return the entries of a page's toctree; if a section has no page, its pages belong to the front page."""
    if page != "index":
        return list(matching(sections[page][2], pages)) if page in sections else []
    found: list[str] = []
    for name, (title, _, patterns) in sections.items():
        found += [f"{title} <{name}>"] if name in pages else matching(patterns, pages)
    return found
