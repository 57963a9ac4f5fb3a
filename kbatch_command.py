"""Where the process of ``kbatch`` begins: what stands here runs before the package, NumPy and all, is imported."""

import os
import signal


def main() -> int:
    """Run `kbatch.cli.main`; an interrupt before it looks for them ends the process at once, without a traceback."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    import kbatch.cli

    return kbatch.cli.main()
