"""``kbatch convert PATH OUT``: convert logs to another magic."""

from __future__ import annotations

import argparse

from kbatch.cli.rewrite import run_rewriter
from kbatch.cli.usage import usage
from kbatch.rewrite.conversion import Conversion

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    with usage():
        rewriter = Conversion(
            arguments.magic,
            codec=arguments.codec,
            lossy=arguments.lossy,
            batch_size=arguments.batch_size,
            on_error=arguments.on_error,
        )
    return run_rewriter(arguments, rewriter)
