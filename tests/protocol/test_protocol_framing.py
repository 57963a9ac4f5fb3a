"""Messages of a stream: in one buffer, and in chunks of any size."""

from __future__ import annotations

import random

import pytest

import kbatch
from kbatch.protocol import MessageSplitter, ProtocolError, UnknownMessage, decode_request, split_messages


def stream(sizes: list[int]) -> tuple[bytes, list[bytes]]:
    messages = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    return b"".join(len(each).to_bytes(4, "big") + each for each in messages), messages


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, 0, 0, 200, 5], [70_000, 1, 70_000]])
def test_any_chunks_return_the_same_messages(sizes: list[int]) -> None:
    data, messages = stream(sizes)
    assert [bytes(each) for each in split_messages(data)] == messages
    rng = random.Random(3)
    for largest in (1, 2, 5, 64, 100_000):
        if largest < 5 and len(data) > 10_000:
            continue
        splitter = MessageSplitter()
        found, position = [], 0
        while position < len(data):
            end = position + rng.randint(1, largest)
            found += [bytes(each) for each in splitter.feed(data[position:end])]
            position = end
        splitter.finish()
        assert found == messages


def test_complete_messages_are_views() -> None:
    data, messages = stream([5, 7, 100])
    splitter = MessageSplitter()
    found = list(splitter.feed(data[:-1]))
    assert [each.obj for each in found] == [data[:-1]] * 2
    assert splitter.pending == 103
    (last,) = splitter.feed(data[-1:])
    assert last == messages[2]
    assert splitter.pending == 0


def test_every_truncation_is_reported_after_the_complete_messages() -> None:
    data, messages = stream([2, 3])
    for end in range(1, len(data)):
        if end == 6:
            continue
        found = split_messages(data[:end])
        if end > 6:
            assert next(found) == messages[0]
        with pytest.raises(ProtocolError, match=f"byte {0 if end < 6 else 6}: stream ends within a message"):
            next(found)


def test_lengths_are_checked_before_bytes_are_kept() -> None:
    with pytest.raises(ProtocolError, match="byte 5: length of a message is -2"):
        list(split_messages(b"\0\0\0\1x\xff\xff\xff\xfe"))
    with pytest.raises(
        kbatch.LimitExceededError, match="byte 0: length of a message is 2147483647, the limit is 104857"
    ):
        list(split_messages(b"\x7f\xff\xff\xff"))
    splitter = MessageSplitter(max_size=3)
    assert list(splitter.feed(b"\0\0")) == []
    with pytest.raises(kbatch.LimitExceededError, match="length of a message is 4, the limit is 3"):
        list(splitter.feed(b"\0\4"))


def test_the_message_of_an_unknown_request_is_an_error_with_api_and_version() -> None:
    unknown = decode_request(bytes.fromhex("03e8 0007 00000009 ffff 00"))
    assert isinstance(unknown, UnknownMessage)
    assert not hasattr(unknown, "message")
    with pytest.raises(AttributeError, match=r"Unknown1000 \(1000\) in version 7 is not known"):
        _ = unknown.message
