"""``kbatch completion SHELL``: a script that completes commands, options and values, generated from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kbatch.cli.arguments import CommandParser, add_command
from kbatch.cli.terminal import print_lines

__all__ = ["add_parser", "run"]

# The placeholders of arguments that are names of files.
_FILES = re.compile(r"A|B|DIR|FILE|LOGDIR|OUT|PATH|SCHEMA")


_DESCRIPTION = """\
Print a script that completes the commands, options, values and file names of kbatch in a shell. The script does not run
kbatch, so print it again after an upgrade.
"""

_EPILOG = """\
examples:
  kbatch completion bash > ~/.local/share/bash-completion/completions/kbatch
  kbatch completion zsh > ~/.zsh/completions/_kbatch     the directory must be in $fpath before compinit
  kbatch completion fish > ~/.config/fish/completions/kbatch.fish
  eval "$(kbatch completion bash)"                       for the current shell
"""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "completion",
        run,
        help="print a completion script for a shell",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


@dataclass(frozen=True)
class Argument:
    """An option or a positional argument.

    Attributes
    ----------
    flags : tuple of str
        Empty for a positional argument.
    help : str
    metavar : str
    takes_value : bool
    is_repeated : bool
    choices : tuple of str
        All values, if there are only a few.
    """

    flags: tuple[str, ...]
    help: str
    metavar: str
    takes_value: bool
    is_repeated: bool
    choices: tuple[str, ...]

    @property
    def is_file(self) -> bool:
        """Whether the value is the name of a file."""
        return self.takes_value and not self.choices and _FILES.fullmatch(self.metavar) is not None


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    parser, commands = arguments.parsers
    scripts: dict[str, Callable[[list[Argument], dict[str, tuple[str, list[Argument]]]], Iterator[str]]]
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    described = {each.dest: each.help or "" for each in _subparsers(parser)._choices_actions}
    listed = {name: (described.get(name, ""), _arguments(each)) for name, each in commands.items()}
    print_lines(*scripts[arguments.shell](_arguments(parser), listed))
    return 0


def _subparsers(parser: CommandParser) -> argparse._SubParsersAction[CommandParser]:
    return next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))


def _arguments(parser: CommandParser) -> list[Argument]:
    formatter = argparse.HelpFormatter(parser.prog)
    found = []
    for each in parser._actions:
        if each.help is argparse.SUPPRESS or isinstance(each, argparse._SubParsersAction):
            continue
        choices = getattr(each, "completions", None) or each.choices or ()
        found.append(
            Argument(
                tuple(each.option_strings),
                formatter._expand_help(each) if each.help else "",
                str(each.metavar or each.dest.upper()),
                each.nargs != 0,
                each.nargs in ("*", "+") or isinstance(each, argparse._AppendAction),
                tuple(map(str, choices)),
            )
        )
    return found


# -- bash, from version 3.2 on, which macOS has


def _bash(options: list[Argument], commands: dict[str, tuple[str, list[Argument]]]) -> Iterator[str]:
    yield from (
        "# Completion of kbatch for bash; printed by `kbatch completion bash`.",
        "_kbatch() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="" i',
        "    # bash splits --option=value at the equals sign.",
        '    [[ $current == = ]] && current=""',
        '    [[ $previous == = ]] && previous="${COMP_WORDS[COMP_CWORD-2]}"',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        [[ ${COMP_WORDS[i]} != -* ]] && command="${COMP_WORDS[i]}" && break',
        "    done",
        '    local flags="" words="" files=""',
        '    case "$command $previous" in',
    )
    for name, (_, arguments) in commands.items():
        for each in arguments:
            if each.flags and each.takes_value:
                patterns = "|".join(f'"{name} {flag}"' for flag in each.flags)
                action = "files=1" if each.is_file else f'words="{" ".join(each.choices)}"'
                yield f"        {patterns}) {action} ;;"
    yield "        *)"
    yield '            case "$command" in'
    flags = " ".join(flag for each in options for flag in each.flags)
    yield f'                "") flags="{flags}" words="{" ".join(commands)}" ;;'
    for name, (_, arguments) in commands.items():
        flags = " ".join(flag for each in arguments for flag in each.flags)
        words = " ".join(word for each in arguments if not each.flags for word in each.choices)
        files = " files=1" if any(each.is_file for each in arguments if not each.flags) else ""
        yield f'                {name}) flags="{flags}" words="{words}"{files} ;;'
    yield from (
        "            esac",
        '            [[ $current == -* ]] && words="$flags" files=""',
        "            ;;",
        "    esac",
        "    local IFS=$' \\t\\n'",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "    if [[ -n $files ]]; then",
        "        IFS=$'\\n'",
        '        COMPREPLY+=($(compgen -f -- "$current"))',
        "    fi",
        "}",
        "complete -o filenames -F _kbatch kbatch",
    )


# -- zsh


def _zsh(options: list[Argument], commands: dict[str, tuple[str, list[Argument]]]) -> Iterator[str]:
    yield from (
        "#compdef kbatch",
        "# Completion of kbatch for zsh; printed by `kbatch completion zsh`.",
        "_kbatch() {",
        "    local context state state_descr line",
        "    local -A opt_args",
        "    local -a commands",
        "    commands=(",
    )
    for name, (help, _) in commands.items():
        yield f"        {_shell_quoted(f'{name}:{help}')}"
    yield "    )"
    yield "    _arguments -C \\"
    for each in options:
        yield f"        {_zsh_argument(each)} \\"
    yield "        '1:command:->command' '*::argument:->argument'"
    yield "    case $state in"
    yield "        (command) _describe command commands ;;"
    yield "        (argument)"
    yield "            case $words[1] in"
    for name, (_, arguments) in commands.items():
        yield f"                ({name}) _arguments \\"
        specs = [_zsh_argument(each) for each in arguments]
        yield from (f"                    {spec} \\" for spec in specs[:-1])
        yield f"                    {specs[-1]} ;;"
    yield from (
        "            esac ;;",
        "    esac",
        "}",
        "# The file may be loaded as a function by compinit, or be evaluated.",
        'if [[ "${funcstack[1]}" == _kbatch ]]; then _kbatch "$@"; else compdef _kbatch kbatch; fi',
    )


def _zsh_argument(each: Argument) -> str:
    metavar = re.sub(r"[^\w.]+", " ", each.metavar).strip() or "value"
    values = f"({' '.join(each.choices)})" if each.choices else "_files" if each.is_file else " "
    if not each.flags:
        return _shell_quoted(f"{'*' if each.is_repeated else ''}:{metavar}:{values}")
    text = re.sub(r"([\[\]:\\])", r"\\\1", each.help)
    parts = []
    for flag in each.flags:
        others = "*" if each.is_repeated else "" if len(each.flags) == 1 else f"({' '.join(each.flags)})"
        value = f"{'=' if flag.startswith('--') else ''}" if each.takes_value else ""
        argument = f":{metavar}:{values}" if each.takes_value else ""
        parts.append(_shell_quoted(f"{others}{flag}{value}[{text}]{argument}"))
    return " ".join(parts)


def _shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish


def _fish(options: list[Argument], commands: dict[str, tuple[str, list[Argument]]]) -> Iterator[str]:
    yield "# Completion of kbatch for fish; printed by `kbatch completion fish`."
    yield "complete -c kbatch -f"
    for each in options:
        yield f"complete -c kbatch -n __fish_use_subcommand {_fish_option(each)}"
    for name, (help, arguments) in commands.items():
        yield f"complete -c kbatch -n __fish_use_subcommand -a {name} -d {_fish_quoted(help)}"
        condition = f"complete -c kbatch -n '__fish_seen_subcommand_from {name}'"
        for each in arguments:
            if each.flags:
                yield f"{condition} {_fish_option(each)}"
            elif each.choices:
                yield f"{condition} -a {_fish_quoted(' '.join(each.choices))}"
        if any(each.is_file for each in arguments if not each.flags):
            yield f"{condition} -F"


def _fish_option(each: Argument) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in each.flags]
    if each.is_file:
        names.append("-r -F")
    elif each.takes_value:
        names.append("-x" + (f" -a {_fish_quoted(' '.join(each.choices))}" if each.choices else ""))
    return f"{' '.join(names)} -d {_fish_quoted(each.help)}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
