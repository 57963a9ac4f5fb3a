"""``python -m tests.broker.acceptance``: which readers can read the output of `kbatch.encode`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import markdown, readers, table


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kbatch-acceptance-") as directory:
        results = table(Path(directory))
    print(markdown(results))
    print()
    for name, what in readers().items():
        print(f"- {name}: {what}")
    return int(any(result != "ok" and not result.startswith("not read") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
