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
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def project_pages() -> dict[str, str]:
    """Return the pages that are files outside of docs/, in Markdown."""
    docs = ROOT / "docs"
    return {
        f"{page}.markdown": rewritten((ROOT / file).read_text(), ROOT / file, docs / page, docs)
        for file, page in PROJECT_PAGES.items()
    }


def rewritten(text: str, file: Path, page: Path, docs: Path) -> str:
    """Lead the links of a file, which is a page of the site, to pages. Links to files that are none become text."""

    def target(match: re.Match[str]) -> str:
        mark, shown, link, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"\w+:", link) or mark:
            return match[0]
        found = (file.parent / link).resolve()
        name = str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else ""
        if name in PROJECT_PAGES:
            found = docs / f"{PROJECT_PAGES[name]}.markdown"
        elif name == "README.md":
            found, anchor = docs / "index.md", ""
        if found.is_relative_to(docs):
            return f"[{shown}]({os.path.relpath(found, page.parent)}{anchor})"
        return shown

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _LINK.sub(target, part) for number, part in enumerate(parts))
