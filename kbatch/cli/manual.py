"""The manual page, made from the parsers of the commands (``man`` macros of groff)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping

from kbatch.cli.command_parser import CommandParser, text_items
from kbatch.cli.filling import column_starts
from kbatch.version import VERSION

__all__ = ["manual_lines"]

_VARIABLES = {
    "COLUMNS": "The width of help, tables and messages, in place of that of the terminal.",
    "NO_COLOR": "With any value, the output has no colors.",
    "FORCE_COLOR, CLICOLOR_FORCE": "With a value other than 0, output to a pipe or a file has colors too.",
    "TERM": "With the value dumb, the output has no colors.",
    "KBATCH_NATIVE_CODECS": "With the value 0, the codecs are called as Python functions only.",
}
_LIST_HEADING = re.compile(r"\S.*:\s*$")


def manual_lines(parser: CommandParser, commands: Mapping[str, CommandParser]) -> Iterator[str]:
    """Yield the lines of the manual page of kbatch, in roff.

    Parameters
    ----------
    parser : CommandParser
    commands : mapping of str to CommandParser
        By name.
    """
    yield '.\\" Made by `kbatch help --man` from the parsers of the commands.'
    yield f'.TH KBATCH 1 "" "kbatch {VERSION}" "User Commands"'
    yield ".SH NAME"
    yield "kbatch \\- read, check, compare and rewrite the log files and topics of Apache Kafka"
    yield ".SH SYNOPSIS"
    yield from _synopsis_lines(parser)
    yield ".SH DESCRIPTION"
    yield from _paragraph_lines(parser.description or "")
    yield ".SH COMMANDS"
    for name, command in commands.items():
        yield from _tagged_lines(f"\\fB{_roff(name)}\\fR", command.summary)
    for name, command in commands.items():
        yield f'.SH "KBATCH {_roff(name.upper())}"'
        yield from _synopsis_lines(command)
        yield ".PP"
        yield from _paragraph_lines(command.description or "")
        yield from _option_lines(command)
        yield from _paragraph_lines(command.epilog or "")
    yield ".SH ENVIRONMENT"
    for name, meaning in _VARIABLES.items():
        yield from _tagged_lines(f"\\fB{_roff(name)}\\fR", meaning)
    yield ".SH EXIT STATUS"
    yield from _paragraph_lines((parser.epilog or "").partition("exit status:\n")[2])


def _roff(text: str) -> str:
    """Return text whose characters mean nothing to roff."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + shown if shown.startswith(".") else shown


def _synopsis_lines(parser: CommandParser) -> Iterator[str]:
    rest = parser.short_usage().removeprefix(f"usage: {parser.prog}").strip()
    yield f"\\fB{_roff(parser.prog)}\\fR {_roff(rest)}"


def _tagged_lines(tag: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield tag
    yield _roff(" ".join(text.split())) or "\\&"


def _option_lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments and options of a command, in the groups of its help."""
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if actions:
            yield f".SS {_roff(group.title or '')}"
        for action in actions:
            # How argparse joins names and values depends on the version of Python.
            value = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
            names = ", ".join(action.option_strings)
            text = formatter._expand_help(action) if action.help else ""
            yield from _tagged_lines(f"\\fB{_roff(names)}\\fR {_roff(value)}".removeprefix("\\fB\\fR ").strip(), text)


def _paragraph_lines(text: str) -> Iterator[str]:
    """Yield paragraphs and lists, which are separated by empty lines."""
    for paragraph in filter(str.strip, re.split(r"\n\s*\n", text.strip("\n"))):
        lines = paragraph.split("\n")
        if _LIST_HEADING.match(lines[0]):
            yield f".SS {_roff(lines.pop(0).strip().removesuffix(':').capitalize())}"
            if paragraph.startswith("examples:"):
                yield from _example_lines(lines)
                continue
        else:
            yield ".PP"
        yield from _item_lines(lines)


def _example_lines(lines: Iterable[str]) -> Iterator[str]:
    yield ".nf"
    yield from (_roff(line.strip()) for line in lines)
    yield ".fi"


def _item_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield list entries: a tag and its text, or a text of its own."""
    for item in text_items(lines):
        indent, *second = column_starts(item)
        if second:
            yield from _tagged_lines(f"\\fB{_roff(item[indent : second[0]].strip())}\\fR", item[second[0] :])
        else:
            yield _roff(item.strip())
