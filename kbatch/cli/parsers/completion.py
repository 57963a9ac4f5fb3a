"""``kbatch completion SHELL``: a script that completes commands, options and values."""

from __future__ import annotations

from typing import Any

from kbatch.cli.arguments import add_command

__all__ = ["add_parser"]

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
        help="print a completion script for a shell",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
