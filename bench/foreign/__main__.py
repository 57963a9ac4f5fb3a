"""Let every program decode a file, and print its results."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from bench.foreign import PROGRAMS, CannotRun


def main() -> None:
    """Print one line per program: version, nanoseconds per record and sums, or the reason why it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m bench.foreign", description=main.__doc__)
    parser.add_argument("file", type=Path, help="record batches, as in bench/corpora/*.log")
    parser.add_argument("--rounds", type=int, default=11, help="default: 11")
    options = parser.parse_args()
    for program in PROGRAMS:
        try:
            with program.start(options.file) as running:
                running.warm_up(program.warm_up_seconds)
                rounds = [running.round() for _ in range(options.rounds)]
        except CannotRun as error:
            print(f"{program.name}: {error}")
            continue
        totals = rounds[0].totals
        nanoseconds = statistics.median(one.seconds for one in rounds) / max(totals.records, 1) * 1e9
        print(f"{program.name} {running.version}: {nanoseconds:.1f} ns per record; {totals}")


if __name__ == "__main__":
    main()
