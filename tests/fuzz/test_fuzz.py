"""Each target on its seeds and some changes of them, without a fuzzer; and the inputs of past findings."""

from __future__ import annotations

from pathlib import Path

import mutator
import pytest
from entries import repaired
from targets import TARGETS

REGRESSIONS = Path(__file__).parent / "regressions"


@pytest.mark.parametrize("name", TARGETS)
def test_target_accepts_its_seeds_and_changed_seeds(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds
    for number, seed in enumerate(seeds[:: max(len(seeds) // 25, 1)]):
        target.function(seed)
        target.function(target.mutate(seed, 4000, number, mutator.mutate_bytes))


@pytest.mark.parametrize("name", sorted(path.name for path in REGRESSIONS.iterdir()))
def test_past_findings_stay_fixed(name: str) -> None:
    paths = sorted((REGRESSIONS / name).iterdir())
    assert paths
    for path in paths:
        TARGETS[name].function(path.read_bytes())


def test_mutated_batches_usually_pass_the_checksum() -> None:
    """If a mutator leaves checksums wrong, only the checks of checksums are tested."""
    target = TARGETS["oracle"]
    seed = next(seed for seed in target.seeds() if len(mutator.split_entries(seed[6:])) > 1)
    changed = {target.mutate(seed, 4000, number, mutator.mutate_bytes)[6:] for number in range(200)}
    assert len(changed) > 100
    good = sum(all(map(_has_crc, mutator.split_entries(data))) for data in changed)
    assert good > len(changed) / 2


def _has_crc(entry: bytes) -> bool:
    return repaired(entry, length=False) == entry
