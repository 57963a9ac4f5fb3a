"""The manual page, made from the parsers of the commands (``man`` macros of groff)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping

from kbatch.cli.command_parser import CommandParser, text_items
from kbatch.cli.filling import column_starts
from kbatch.version import VERSION

__all__ = ["manual_lines"]

_ENVIRONMENT = {
    "COLUMNS": "The width of help, tables and messages, in place of that of the terminal.",
    "NO_COLOR": "With any value, the output has no colors.",
    "FORCE_COLOR, CLICOLOR_FORCE": "With a value other than 0, output to a pipe or a file has colors too.",
    "TERM": "With the value dumb, the output has no colors.",
    "KBATCH_NATIVE_CODECS": "With the value 0, the codecs are called as Python functions only.",
}
_HEADING = re.compile(r"\S.*:\s*$")


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
    yield from _synopsis(parser)
    yield ".SH DESCRIPTION"
    yield from _text(parser.description or "")
    yield ".SH COMMANDS"
    for name, command in commands.items():
        yield from _tagged(f"\\fB{_escaped(name)}\\fR", command.summary)
    for name, command in commands.items():
        yield f'.SH "KBATCH {_escaped(name.upper())}"'
        yield from _synopsis(command)
        yield ".PP"
        yield from _text(command.description or "")
        yield from _options(command)
        yield from _text(command.epilog or "")
    yield ".SH ENVIRONMENT"
    for name, meaning in _ENVIRONMENT.items():
        yield from _tagged(f"\\fB{_escaped(name)}\\fR", meaning)
    yield ".SH EXIT STATUS"
    yield from _text((parser.epilog or "").partition("exit status:\n")[2])


def _escaped(text: str) -> str:
    """Return text whose characters mean nothing to roff."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + shown if shown.startswith(".") else shown


def _synopsis(parser: CommandParser) -> Iterator[str]:
    rest = parser.short_usage().removeprefix(f"usage: {parser.prog}").strip()
    yield f"\\fB{_escaped(parser.prog)}\\fR {_escaped(rest)}"


def _tagged(tag: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield tag
    yield _escaped(" ".join(text.split())) or "\\&"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments and options of a command, in the groups of its help."""
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if actions:
            yield f".SS {_escaped(group.title or '')}"
        for action in actions:
            # How argparse joins names and values depends on the version of Python.
            value = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
            names = ", ".join(action.option_strings)
            text = formatter._expand_help(action) if action.help else ""
            yield from _tagged(f"\\fB{_escaped(names)}\\fR {_escaped(value)}".removeprefix("\\fB\\fR ").strip(), text)


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs and lists, which are separated by empty lines."""
    for paragraph in filter(str.strip, re.split(r"\n\s*\n", text.strip("\n"))):
        lines = paragraph.split("\n")
        if _HEADING.match(lines[0]):
            yield f".SS {_escaped(lines.pop(0).strip().removesuffix(':').capitalize())}"
            if paragraph.startswith("examples:"):
                yield from _verbatim(lines)
                continue
        else:
            yield ".PP"
        yield from _items(lines)


def _verbatim(lines: Iterable[str]) -> Iterator[str]:
    yield ".nf"
    yield from (_escaped(line.strip()) for line in lines)
    yield ".fi"


def _items(lines: Iterable[str]) -> Iterator[str]:
    """Yield list entries: a tag and its text, or a text of its own."""
    for item in text_items(lines):
        indent, *second = column_starts(item)
        if second:
            yield from _tagged(f"\\fB{_escaped(item[indent : second[0]].strip())}\\fR", item[second[0] :])
        else:
            yield _escaped(item.strip())
