"""Run one target under libFuzzer: ``python fuzz_one.py TARGET [libFuzzer's arguments]``; `run` calls it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
# The checkout that contains this file, with its kernels built for libFuzzer.
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

# Kernels report their edges themselves; this adds the edges of kbatch's Python code.
with atheris.instrument_imports(include=["kbatch"]):
    from targets import TARGETS

import oracle  # noqa: E402
from crc32c import crc32c  # noqa: E402


def main() -> None:
    """Start libFuzzer with the function and the mutator of the target."""
    target = TARGETS[sys.argv.pop(1)]
    # The oracle's own checksum takes longer than all else; it is the same function.
    oracle.crc32c = lambda data: crc32c(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return target.mutate(data, max_size, seed, atheris.Mutate)

    # Overflow in NumPy, which gives wrong results, is only a warning.
    warnings.simplefilter("error", RuntimeWarning)
    warnings.filterwarnings("ignore", "decode: .* too few to recognize", RuntimeWarning)
    atheris.Setup(sys.argv, target.function, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
