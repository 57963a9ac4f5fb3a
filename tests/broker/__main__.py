"""``python -m tests.broker [DIRECTORY]``: run a broker until Ctrl-C; by default in a temporary directory."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from .server import Unavailable, running


def main() -> int:
    try:
        with running(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None) as broker:
            print(f"bootstrap  {broker.bootstrap}\nlogs       {broker.log_dir}\nCtrl-C stops it", flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
