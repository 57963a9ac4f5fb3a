"""``kbatch completion SHELL``: a script that completes commands, options and values, generated from the parsers."""

from __future__ import annotations

import argparse
import re
from typing import Any

from kbatch.cli.command_parser import add_command
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


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    import shtab

    parser, commands = arguments.parsers
    for command in commands.values():
        # Shells show it next to the name, so it must be one line.
        command.description = command.summary
        for each in command._actions:
            if _FILES.fullmatch(str(each.metavar)):
                each.complete = shtab.FILE
    print_lines(*shtab.complete(parser, shell=arguments.shell).splitlines(), wraps=False)
    return 0
