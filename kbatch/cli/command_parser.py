"""The parser of a command: errors that help, and help that fits the terminal."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kbatch.cli.filling import column_starts, filled_line
from kbatch.cli.styles import Styled, StyledSpan
from kbatch.cli.terminal import print_errors, print_lines
from kbatch.options import did_you_mean

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["CommandParser", "add_command", "text_items"]

# The exit statuses that every command has.
_COMMON_STATUSES = {0: "done", 1: "error", 2: "wrong usage", 130: "interrupted"}
# What is set off in help: headings, and options at the beginning of a line.
_HEADING = re.compile(r"(usage:|\S[^:]*:$)")
_HELP_FLAGS = re.compile(r" +(-\w\b( [A-Z]\S*)?, )?--[\w-]+")
# The value of a switch that may have one, in an argument of its own; anything else after the switch is not its value.
_TOPIC_VALUE = re.compile(r"[\w.*-]+=\w+", re.ASCII)


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs and lists to the width of the terminal (or ``COLUMNS``), and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join("\n".join(_filled(part, width)) for part in text.strip("\n").split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return list(filled_line(" ".join(text.split()), width, 0))


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors state a one-line usage, how to get help, and the nearest name for an unknown one.

    Errors are escaped: the shell may have put the names of files in place of a pattern.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **keywords})
        # No option begins with a digit: -10: and -1h are values, as argparse treats -10.
        self._negative_number_matcher = re.compile(r"-\d")
        self._given: Sequence[str] = ()
        # Python 3.14 has colors of its own, without the headings of descriptions.
        self.color = False
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
        print_errors(self.short_usage(), f"help: kbatch help {command}".rstrip(), style="heading")
        print_errors(f"{self.prog}: error: {message}", style="error")
        self.exit(2)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit after the output is complete, so that a closed pipe is an exception here and not at exit."""
        if sys.stdout is not None:
            sys.stdout.flush()
        super().exit(status, message)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print a message; argparse ignores an error of standard output, such as a full disk."""
        if message and file is not None and file is sys.stdout:
            print_lines(*map(_help_line, message.removesuffix("\n").split("\n")), wraps=False)
        else:
            super()._print_message(message, file)

    def short_usage(self) -> str:
        """Return the usage in one line, without optional options."""
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


def _help_line(line: str) -> Styled:
    """Return a line of help with its styles."""
    if heading := _HEADING.match(line):
        return Styled(line, [StyledSpan(*heading.span(), "heading")])
    flags = _HELP_FLAGS.match(line)
    return Styled(line, [] if flags is None else [StyledSpan(len(line) - len(line.lstrip()), flags.end(), "name")])


def _filled(paragraph: str, width: int) -> Iterator[str]:
    """Yield the lines of a paragraph, which may be a heading with a list, filled to a width."""
    lines = paragraph.split("\n")
    if lines[0].rstrip() == "examples:":
        yield lines[0]
        for line in lines[1:]:
            yield from _filled_item(line, width, split_command=True)
        return
    for item in text_items(lines):
        yield from _filled_item(item, width)


def text_items(lines: Iterable[str]) -> Iterator[str]:
    """Join lines of help that continue the line before: with its indentation, or that of its second column."""
    item = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        columns = column_starts(item)
        if item and len(column_starts(line)) == 1 and indent == columns[-1]:
            item += " " + line.strip()
        else:
            if item:
                yield item
            item = line.rstrip()
    if item:
        yield item


def _filled_item(item: str, width: int, *, split_command: bool = False) -> Iterator[str]:
    indent, *second = column_starts(item)
    is_whole = split_command and not second
    if len(item) <= width or is_whole:
        # A command that is copied to a shell is not split.
        yield item
        return
    is_apart = bool(second) and second[0] > width - 30
    yield from filled_line(item, width, indent + 4 if is_apart else second[0] if second else indent)
