"""Where the search after damage finds the next entry: at any byte, and with an offset that may follow."""

from __future__ import annotations

import pytest
from oracle import build_batch, build_message, encode_record
from tables import lost

import kbatch

BATCH = build_batch([encode_record(value=b"v")])


@pytest.mark.parametrize(
    "good",
    [BATCH, build_message(b"k", b"v", offset=1), build_message(b"k", b"v", magic=0, offset=1)],
    ids=["magic 2", "magic 1", "magic 0"],
)
@pytest.mark.parametrize("junk", [b"\xff", b"\0"], ids=["ones", "zeros"])
def test_an_entry_after_damage_is_found_at_every_byte(good: bytes, junk: bytes) -> None:
    """The search advances by one byte, within the blocks that it skips as a whole and between them."""
    for length in [*range(1, 70), 1000, 1001]:
        table = kbatch.decode(good + junk * length + good[:8].replace(b"\x01", b"\x02") + good[8:], on_error="skip")
        assert lost(table) == [(len(good), len(good) + length)]
        assert len(table) == 2


def crafted(offset: int) -> bytes:
    """Build a message whose bytes look like the header of another message one byte earlier.

    Its magic, 0, is the last byte of this message's checksum; its length, 32, is the upper part of this one's length.
    """
    for number in range(100_000):
        value = b"%08d" % number
        message = build_message(None, value.ljust(32 * 256 - 22, b"x"), offset=offset, timestamp=0)
        assert message[8:12] == (32 * 256).to_bytes(4, "big")
        if message[15] == 0:
            return message
    raise AssertionError


def test_an_entry_one_byte_after_a_plausible_header_is_found() -> None:
    """A header that is plausible, but whose checksum does not match, is not the end of the search."""
    first, second = build_message(b"k", b"v", offset=1), crafted(256)
    table = kbatch.decode(first + b"\0" * 5 + second, on_error="skip")
    assert lost(table) == [(len(first), len(first) + 5)]
    assert table.records["offset"].tolist() == [1, 256]


@pytest.mark.parametrize(
    ("offset", "found"),
    [(4, False), (5, False), (6, True), (5 + 2**31, True), (6 + 2**31, False)],
)
def test_the_offset_of_a_message_after_damage_exceeds_the_last_one_frm_r12(offset: int, found: bool) -> None:
    """The checksum of a message does not cover its offset: it must be higher, by at most the range of a segment."""
    first, second = build_message(b"k", b"v", offset=5), build_message(b"k", b"w", offset=offset)
    table = kbatch.decode(first + b"\xff" * 20 + second, on_error="skip")
    assert len(table) == 1 + found
    assert lost(table) == [(len(first), len(first) + 20 + (0 if found else len(second)))]
