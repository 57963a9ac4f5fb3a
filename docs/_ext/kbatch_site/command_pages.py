"""The reference of the command line: one page for each command, generated from the parsers."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest import mock

from kbatch.cli.running import make_parser
from kbatch_site.pages import escaped, heading, list_table, toctree

__all__ = ["generate", "parsers"]

_COLUMNS = re.compile(r"(\S.*?)\s{2,}(\S.*)")
# The groups that argparse creates by itself.
_TITLES = {"positional arguments": "Arguments", "options": "Options"}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    # Defaults and usage do not depend on the terminal of the build.
    with mock.patch.dict(os.environ, {"COLUMNS": "90", "NO_COLOR": "1"}):
        return dict(make_parser()[1])


def generate() -> dict[str, str]:
    """Return the texts of all pages."""
    found = parsers()
    texts = {f"reference/commands/kbatch-{name}": _page(name, parser) for name, parser in found.items()}
    rows = [(f":doc:`kbatch {name} <kbatch-{name}>`", escaped(_summary(parser))) for name, parser in found.items()]
    root, _ = make_parser()
    text = "Each page has the options of a command, as ``kbatch help COMMAND`` prints them. :doc:`/command-line` "
    text += "explains the commands with examples.\n\n"
    index = heading("Command line: all options") + text + list_table(("command", "effect"), rows, widths="30 70")
    index += "".join(_blocks(root.epilog or "")) + toctree(f"kbatch {name} <kbatch-{name}>" for name in found)
    return {"reference/commands/index": index, **texts}


def _summary(parser: Any) -> str:
    text: str = parser.summary
    return text


def _page(name: str, parser: argparse.ArgumentParser) -> str:
    text = heading(f"kbatch {name}") + f".. program:: kbatch {name}\n\n"
    text += f".. code-block:: text\n\n   {_usage(parser)}\n\n"
    parts = [*_blocks(parser.description or ""), *_blocks(parser.epilog or "")]
    # The options follow the introduction and its examples.
    place = next((number for number, part in enumerate(parts) if part.startswith("Examples\n")), -1) + 1
    parts.insert(place or len(list(_blocks(parser.description or ""))), _options(parser))
    return text + "".join(parts)


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog)
    words = [parser.prog, "[OPTION ...]"]
    for action in parser._actions:
        if not action.option_strings:
            words.append(formatter._format_args(action, formatter._get_default_metavar_for_positional(action)))
        elif action.required:
            value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
            words.insert(2, f"{action.option_strings[-1]} {value}")
    return " ".join(words)


def _options(parser: argparse.ArgumentParser) -> str:
    text = ""
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            title = group.title or "options"
            text += heading(_TITLES.get(title, title[0].upper() + title[1:]), "-")
            text += "".join(_blocks(group.description or ""))
            text += "".join(_argument(action, parser) for action in actions)
    return text


def _argument(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=90)
    help = formatter._expand_help(action) if action.help else ""
    if not action.option_strings:
        name = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
        return f"``{name}``\n   {escaped(help)}\n\n"
    value = ""
    if action.nargs != 0:
        value = " " + formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    names = ", ".join(f"{flag}{value}" for flag in action.option_strings)
    return f".. option:: {names}\n\n   {escaped(help)}\n\n"


def _blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; paragraphs that begin with a title and a colon are sections."""
    for paragraph in text.strip("\n").split("\n\n"):
        title, *lines = paragraph.split("\n")
        if not (title.rstrip().endswith(":") and lines and all(line.startswith("  ") for line in lines)):
            if paragraph.strip():
                yield _paragraph(paragraph)
            continue
        title = title.strip().removesuffix(":")
        # A flag keeps its name.
        shown = escaped(title) if title.startswith("--") else title[0].upper() + title[1:]
        body = _examples(lines) if title.lower() == "examples" else _items(_dedented(lines), title)
        yield heading(shown, "-") + "".join(body)


def _dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).split("\n")


def _paragraph(text: str) -> str:
    return escaped(" ".join(text.split())) + "\n\n"


def _examples(lines: list[str]) -> Iterator[str]:
    """Yield the commands as a shell block, each after its comment."""
    yield ".. code-block:: sh\n\n"
    for line in lines:
        columns = _COLUMNS.fullmatch(line.strip())
        command, comment = columns.groups() if columns else (line.strip(), "")
        yield f"   # {comment}\n" if comment else ""
        yield f"   {command}\n"
    yield "\n"


def _items(lines: list[str], title: str) -> Iterator[str]:
    """Yield prose as paragraphs, and lists of two columns as tables."""
    rows: list[list[str]] = []
    text: list[str] = []
    for line in lines:
        columns = _COLUMNS.fullmatch(line)
        if columns is not None and not line[0].isspace():
            rows.append([columns[1], columns[2]])
        elif rows and line[:1].isspace():
            rows[-1][1] += " " + line.strip()
        else:
            text.append(line.strip())
    if text:
        yield _paragraph(" ".join(text))
    if rows:
        header = ("status", "meaning") if title == "exit status" else ("form", "meaning")
        yield list_table(header, [(f"``{name}``", escaped(meaning)) for name, meaning in rows], widths="20 80")
