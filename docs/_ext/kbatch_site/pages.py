"""Generated pages, which are the only pages in docs/reference.

Pages are in reStructuredText; pages that are files of the project are in Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["escaped", "first_sentence", "heading", "list_table", "literal", "toctree", "write"]


def write(source: Path, texts: Mapping[str, str]) -> None:
    """Write pages by name, but leave unchanged pages alone, because Sphinx reads newer files again."""
    named = {name if name.endswith(".markdown") else f"{name}.rst": text for name, text in texts.items()}
    expected = {source / name: text for name, text in named.items()}
    for path in (source / "reference").rglob("*"):
        if path.is_file() and path not in expected:
            path.unlink()
    for path, text in expected.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def escaped(text: str) -> str:
    """Return text without markup, except for code: text in backticks, and the flags of commands."""
    parts = re.split(r"(`+[^`]+`+|(?<![\w-])--[a-z][\w-]*)", text)
    return "".join(
        literal(part.strip("`")) if number % 2 else re.sub(r"([\\*_|<>])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def first_sentence(text: str) -> str:
    """Return the first sentence, without text after a colon."""
    match = re.match(r"(.*?[.:?])(?: |$)", text)
    found = match[1] if match else text
    return f"{found[:-1]}." if found.endswith(":") else found


def literal(text: str) -> str:
    """Return inline code."""
    return f"``{text}``" if text.strip() else ""


def heading(text: str, underline: str = "=") -> str:
    """Return a heading; the underline is ``=`` for the title of a page, and ``-`` or ``~`` for lower headings."""
    return f"{text}\n{underline * (len(text) + 2)}\n\n"


def list_table(header: Sequence[str], rows: Iterable[Sequence[str]], widths: str = "auto", kind: str = "") -> str:
    """Return a table; a cell may have several lines."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}"]
    lines += [f"   :class: {kind}"] if kind else []
    lines.append("")
    for row in (header, *rows):
        for number, cell in enumerate(row):
            mark = "* -" if number == 0 else "  -"
            lines.append(f"   {mark} {cell.replace(chr(10), chr(10) + ' ' * 7)}".rstrip())
    return "\n".join(lines) + "\n\n"


def toctree(names: Iterable[str], *, hidden: bool = True, depth: int = 1) -> str:
    """Return a toctree of pages, which may be written as ``Title <name>``."""
    lines = [".. toctree::", f"   :maxdepth: {depth}", *(["   :hidden:"] if hidden else []), ""]
    return "\n".join([*lines, *(f"   {name}" for name in names)]) + "\n\n"
