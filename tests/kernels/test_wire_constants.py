"""The kernels and `kbatch.format` define the same wire constants."""

from __future__ import annotations

import pytest

from kbatch import format as wire_format
from kbatch.kernels.spans import wire_constants

CONSTANTS = wire_constants()
ENUMS = {"Codec": wire_format.Codec, "BatchStatus": wire_format.BatchStatus}


@pytest.mark.parametrize("name", sorted(CONSTANTS.keys() - ENUMS))
def test_kernels_and_format_define_the_same_constants(name: str) -> None:
    assert getattr(wire_format, name) == CONSTANTS[name]


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_members_of_enumerations_are_equal(name: str) -> None:
    members = CONSTANTS[name]
    assert isinstance(members, dict)
    assert {member: ENUMS[name][member] for member in members} == members
