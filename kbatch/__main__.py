"""``python -m kbatch``."""

import sys

from kbatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
