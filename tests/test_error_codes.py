"""Error codes: descriptions and unknown codes; `test_protocol_peers` compares their numbers with Kafka."""

from __future__ import annotations

import pickle

import pytest

import kbatch


def test_every_code_has_a_description() -> None:
    assert len(kbatch.ErrorCode) == 138
    assert len({code.description for code in kbatch.ErrorCode}) == 138
    assert all(code.description.endswith(".") for code in kbatch.ErrorCode)


def test_retriable_errors_equal_kafkas() -> None:
    assert kbatch.ErrorCode.LEADER_NOT_AVAILABLE.retriable
    assert not kbatch.ErrorCode.MESSAGE_TOO_LARGE.retriable


def test_unknown_codes_are_kept() -> None:
    code = kbatch.ErrorCode(4711)
    assert (code, code.name, code.retriable) == (4711, "UNKNOWN_4711", False)
    assert pickle.loads(pickle.dumps(code)) == code
    assert code == kbatch.ErrorCode(4711)
    assert 4711 not in list(kbatch.ErrorCode)
    with pytest.raises(ValueError, match="'x'"):
        kbatch.ErrorCode("x")
