"""The parser of a command: errors that help, and help that fits the terminal."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kbatch.escaping import printable
from kbatch.options import did_you_mean

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["CommandParser", "add_command"]

# The exit statuses that every command has.
_COMMON_STATUSES = {0: "done", 1: "error", 2: "wrong usage", 130: "interrupted"}
_TWO_SPACES = re.compile(r"\S( {2,})\S")
# The value of a switch that may have one, in an argument of its own; anything else after the switch is not its value.
_TOPIC_VALUE = re.compile(r"[\w.*-]+=\w+", re.ASCII)


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs and lists to the width of the terminal (or ``COLUMNS``), and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join("\n".join(_filled(part, width)) for part in text.strip("\n").split("\n\n"))


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors state a one-line usage, how to get help, and the nearest name for an unknown one.

    Errors are escaped: the shell may have put the names of files in place of a pattern.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **keywords})
        # No option begins with a digit: -10: and -1h are values, as argparse treats -10.
        self._negative_number_matcher = re.compile(r"-\d")
        self._given: Sequence[str] = ()
        # What the command does, in one line.
        self.summary = ""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; unknown arguments are an error of this parser, not of `kbatch` as in argparse."""
        self._given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(list(self._completed(self._given)), namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")
        return found, unknown

    def _completed(self, given: Sequence[str]) -> Iterator[str]:
        """Yield the arguments; a switch that may have a value gets one unless it follows.

        argparse would take the next positional argument for its value.
        """
        is_flag = True
        for word, following in itertools.zip_longest(given, given[1:], fillvalue=""):
            is_flag &= word != "--"
            named = self._option_string_actions.get(word)
            if named is None and is_flag and word.startswith("--"):
                found = [
                    self._option_string_actions[flag] for flag in self._option_string_actions if flag.startswith(word)
                ]
                named = found[0] if len(found) == 1 else None
            has_value = named is None or named.nargs != "?" or _TOPIC_VALUE.fullmatch(following)
            yield word if has_value or not is_flag else f"{word}=true"

    def _misspelt(self) -> list[str]:
        """Return the options on the command line that do not exist."""
        known = tuple(self._option_string_actions)
        words = itertools.takewhile(lambda word: word != "--", self._given)
        names = ((word, word.partition("=")[0]) for word in words if word.startswith("--"))
        return [word for word, name in names if not any(each.startswith(name) for each in known)]

    def _hint(self, unknown: Iterable[str]) -> str:
        options = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        hints = (did_you_mean(each.partition("=")[0], options) for each in unknown if each.startswith("--"))
        return next(filter(None, hints), "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # A type has checked its values itself.
        if action.type is not None or action.choices is None or value in action.choices:
            return
        names = [str(each) for each in action.choices]
        hint = did_you_mean(str(value), names)
        listed = f"(choose from {', '.join(map(repr, names))})"
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, f"unknown command {value!r}{hint} {listed}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint} {listed}")

    def error(self, message: str) -> NoReturn:
        """Print a usage of one line, the command for help and the message, and exit with status 2."""
        if message.startswith("the following arguments are required") and (unknown := self._misspelt()):
            # argparse reports what is missing first, also if its name is misspelt.
            message = f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}"
        command = self.prog.partition(" ")[2]
        lines = (self._short_usage(), f"help: kbatch help {command}".rstrip(), f"{self.prog}: error: {message}")
        self.exit(2, "".join(f"{printable(line)}\n" for line in lines))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit after the output is complete, so that a closed pipe is an exception here and not at exit."""
        if sys.stdout is not None:
            sys.stdout.flush()
        super().exit(status, message)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print a message; argparse ignores an error of standard output, such as a full disk."""
        if message and file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def _short_usage(self) -> str:
        formatter = self._get_formatter()
        words = ["usage:", self.prog]
        for action in self._actions:
            arguments = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
            if not action.option_strings:
                words.append(arguments)
            elif action.required:
                words.append(f"{action.option_strings[-1]} {arguments}")
            elif "[OPTION ...]" not in words:
                words.append("[OPTION ...]")
        return " ".join(words)


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str = "",
    statuses: Mapping[int, str] | None = None,
    error_status: int = 1,
) -> CommandParser:
    """Add the parser of a command.

    Parameters
    ----------
    commands : action
        The subparsers of ``kbatch``.
    run : callable
        Runs the command and returns the exit status. It imports what the command needs: NumPy and what is built on it
        would delay help, completion and usage errors.
    name, help, description, epilog : str
        Paragraphs and lists of `description` and `epilog` are filled to the width of the terminal. Lines below
        ``examples:`` stay as they are.
    statuses : mapping of int to str, optional
        The exit statuses of the command, for its help; the common ones are added.
    error_status : int
        The exit status of errors.
    """
    listed = sorted({**_COMMON_STATUSES, **(statuses or {})}.items())
    text = "".join(f"  {status:<4} {meaning}\n" for status, meaning in listed)
    parser: CommandParser = commands.add_parser(
        name, help=help, description=description, epilog=f"{epilog.rstrip()}\n\nexit status:\n{text}"
    )
    parser.summary = help
    parser.set_defaults(run=run, error_status=error_status)
    return parser


def _filled(paragraph: str, width: int) -> Iterator[str]:
    """Yield the lines of a paragraph, which may be a heading with a list, filled to a width."""
    lines = paragraph.split("\n")
    if lines[0].rstrip() == "examples:":
        yield lines[0]
        for line in lines[1:]:
            yield from _filled_item(line, width, split_command=True)
        return
    for item in _items(lines):
        yield from _filled_item(item, width)


def _items(lines: Iterable[str]) -> Iterator[str]:
    """Join lines that continue the line before: with its indentation, or that of its second column."""
    item = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        columns = _column_starts(item)
        is_plain = item and not _TWO_SPACES.search(line.strip())
        if is_plain and indent == columns[-1] and (len(columns) == 2 or not _TWO_SPACES.search(item.strip())):
            item += " " + line.strip()
        else:
            if item:
                yield item
            item = line.rstrip()
    if item:
        yield item


def _column_starts(line: str) -> list[int]:
    """Return the indentation of a line, and the position of its second column, after two spaces, if it has one."""
    indent = len(line) - len(line.lstrip())
    gap = _TWO_SPACES.search(line, indent)
    return [indent] if gap is None else [indent, gap.end(1)]


def _filled_item(item: str, width: int, *, split_command: bool = False) -> Iterator[str]:
    if len(item) <= width:
        yield item
        return
    indent, *second = _column_starts(item)
    if second and second[0] > width - 30:
        # The second column has no room: it goes to a line of its own.
        yield item[: second[0]].rstrip()
        second_indent = " " * (indent + 4)
        yield from textwrap.wrap(
            item[second[0] :], width, initial_indent=second_indent, subsequent_indent=second_indent
        )
    elif split_command and not second:
        # A command that is copied to a shell is not split.
        yield item
    else:
        hanging = " " * (second[0] if second else indent)
        start = item[: second[0]] if second else " " * indent
        yield from textwrap.wrap(
            item[len(start) :], width, initial_indent=start, subsequent_indent=hanging, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
