"""``kbatch recompress PATH OUT``: compress logs with another codec."""

from __future__ import annotations

import argparse

from kbatch.cli.rewrite import run_rewriter
from kbatch.cli.usage import usage
from kbatch.rewrite.recompression import Recompression

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    with usage():
        rewriter = Recompression(arguments.codec, batch_size=arguments.batch_size, on_error=arguments.on_error)
    return run_rewriter(arguments, rewriter)
