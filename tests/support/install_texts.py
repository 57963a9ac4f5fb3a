"""How pages install kbatch: from a clone, or from the package index once the distribution is there."""

from __future__ import annotations

import re
from pathlib import Path

from kbatch import extras

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ROOT / "kbatch" / "extras.py"
# An installer, and what precedes the requirement. -e installs a clone for working on it, with the index too.
_INSTALLER = r"(?:\b(?:pip|uv tool|pipx) install|\buvx --from)"
_BEFORE = rf"{_INSTALLER}(?: (?!-e\b|--editable\b|\.)(?:[\w./:<>=-]+|'(?!\.)[^'\n]*'))*? "
_EXTRAS = r"(?:\[[\w,]+\])?"
_PLACE = r"(?P<place>`?(?:,? in a clone(?: of kbatch)?))?"
FROM_CLONE = re.compile(
    rf"(?P<before>{_BEFORE})(?P<quote>['\"]?)\.(?P<extras>{_EXTRAS})(?P=quote)(?=[\s`;)]|$){_PLACE}"
)
FROM_INDEX = re.compile(rf"{_BEFORE}['\"]?{extras.DISTRIBUTION}\b")
# The message of a missing package, which names the packages of an extra until the index has kbatch.
_MESSAGE = re.compile(r"(?<=install the extra 'arrow': pip install )'pyarrow[\w.>=]*'")
# A part of docs/install.md that is written by `section`.
SECTION = re.compile(r"(?<=<!-- install: begin -->\n).*?(?=<!-- install: end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages with install texts."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")]
    return [*named, *sorted((ROOT / "docs").rglob("*.md"))]


def section(published: bool) -> str:
    """Return the paragraph of docs/install.md that says where kbatch is installed from."""
    name = extras.DISTRIBUTION
    if published:
        return f"kbatch is the distribution `{name}` of the package index:\n\n```\npip install {name}\n```\n\n"
    return (
        "No package index has kbatch yet: it is installed from a clone, where pip compiles it, or from a\n"
        "[wheel](#from-a-wheel). Run these commands in the clone:\n\n```\npip install .\n```\n\n"
    )


def expected(text: str, published: bool) -> str:
    """Return a page as it should be."""
    text = SECTION.sub(lambda _: "\n" + section(published), text)
    if not published:
        return text
    text = _MESSAGE.sub(f"'{extras.DISTRIBUTION}[arrow]'", text)

    def from_index(match: re.Match[str]) -> str:
        name = extras.DISTRIBUTION + match["extras"]
        # The end of the code, without the place.
        end = "`" if (match["place"] or "").startswith("`") else ""
        return match["before"] + (f"'{name}'" if match["extras"] else name) + end

    return FROM_CLONE.sub(from_index, text)


def announce() -> list[Path]:
    """Change the constant and all pages to the package index, and return the files that have changed."""
    changed = []
    for path in [CODE, *pages()]:
        text = path.read_text()
        new = text.replace("\nPUBLISHED = False\n", "\nPUBLISHED = True\n") if path == CODE else expected(text, True)
        if new != text:
            path.write_text(new)
            changed.append(path)
    return changed
