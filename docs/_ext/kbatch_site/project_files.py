"""Pages that are files outside of docs/, and the links of Markdown pages to such files."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["PROJECT_PAGES", "project_pages", "rewritten"]

ROOT = Path(__file__).parents[3]
# Files outside of docs/ that are pages of the site.
PROJECT_PAGES = {
    "CHANGELOG.md": "reference/changelog",
    "SECURITY.md": "reference/security",
    "bench/README.md": "reference/running-benchmarks",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
# Titles for files whose own title is already used by another page.
_TITLES = {"bench/README.md": "Running the benchmarks"}
# On the site, the set-up section of README.md is in the first of these pages that exists.
SET_UP_PAGES = ("install.md", "contributing.md#set-up")
_PICTURE = re.compile(
    r"<picture>\s*<source media=\"\(prefers-color-scheme: dark\)\" srcset=\"([^\"]+)\">\s*"
    r"<img alt=\"([^\"]*)\" src=\"([^\"]+)\">\s*</picture>"
)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def project_pages() -> dict[str, str]:
    """Return the pages that are files outside of docs/, in Markdown."""
    docs = ROOT / "docs"
    found = {}
    for file, page in PROJECT_PAGES.items():
        text = rewritten((ROOT / file).read_text(), ROOT / file, docs / page, docs)
        found[f"{page}.markdown"] = re.sub(r"^# .*", f"# {_TITLES[file]}", text, count=1) if file in _TITLES else text
    return found


def rewritten(text: str, file: Path, page: Path, docs: Path) -> str:
    """Point the links of a file that is a page of the site to pages; other links to files become text."""

    def target(match: re.Match[str]) -> str:
        mark, shown, link, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"\w+:", link) or mark:
            return match[0]
        found = (file.parent / link).resolve()
        name = str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else ""
        if name in PROJECT_PAGES:
            found = docs / f"{PROJECT_PAGES[name]}.markdown"
        elif name == "README.md":
            pages = SET_UP_PAGES if anchor == "#set-up" else ("index.md",)
            found, anchor = next(docs / each for each in pages if (docs / each.partition("#")[0]).exists()), ""
        if found.is_relative_to(docs):
            return f"[{shown}]({os.path.relpath(found, page.parent)}{anchor})"
        return shown

    parts = _FENCE.split(text)
    for number in range(0, len(parts), 2):
        # The theme of the site decides, not the system's theme as in HTML.
        parts[number] = _PICTURE.sub(r"![\2](\3){.only-light} ![\2](\1){.only-dark}", _LINK.sub(target, parts[number]))
    return "".join(parts)
