"""batches --codecs--> payload --> records: the whole decode, beside decompressing the same payloads alone.

"Alone" is a plain loop over the payloads that does nothing with the results. Each library is called in every way that
is fast for some size of payload; the report takes the fastest of them, which is the hardest to come near to: it writes
to the same few warm kilobytes again and again. "Kept" holds on to all plain payloads, as a table does, and takes turns
with kbatch: what memory the other one has left behind makes a third of the difference for such loops.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard

import kbatch
from bench.conftest import InTurns, Measure, contests
from bench.corpora import CODECS, KIB, MIB, Sums, corpus, payloads
from bench.peers import Peer

NAMES = [f"medium-{size}-{codec}" for codec in CODECS if codec != "none" for size in ("16k", "1m")]

# Made once: a context for each batch would cost more than a small batch's data.
zstd_context = zstandard.ZstdDecompressor()
# Memory that was touched before, as large as the largest payload.
room = memoryview(bytearray(2 * MIB))


def xerial_blocks(payload: bytes) -> list[tuple[int, int]]:
    """Return where the blocks of a xerial stream are, behind its 16-byte header."""
    blocks = []
    at = 16
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "big")
        blocks.append((at + 4, at + 4 + size))
        at += 4 + size
    return blocks


def zstd_stream(payload: bytes) -> int:
    return zstd_context.stream_reader(payload).readinto(room)


def xerial_python_snappy(payload: bytes) -> int:
    return sum(len(snappy.uncompress(payload[start:end])) for start, end in xerial_blocks(payload))


def xerial_cramjam(payload: bytes) -> int:
    view = memoryview(payload)
    size = 0
    for start, end in xerial_blocks(payload):
        size += cramjam.snappy.decompress_raw_into(view[start:end], room[size:])
    return size


def lz4_blocks(payload: bytes) -> int:
    """Go over the blocks of a frame behind the seven bytes that the corpora's frames begin with."""
    view = memoryview(payload)
    at, size = 7, 0
    while length := int.from_bytes(payload[at : at + 4], "little"):
        block = view[at + 4 : at + 4 + (length & 0x7FFFFFFF)]
        if length >> 31:  # stored as it was
            room[size : size + len(block)] = block
            size += len(block)
        else:
            size += cramjam.lz4.decompress_block_into(block, room[size:], 64 * KIB)
        at += 4 + len(block)
    return size


# By codec: the library, the call, and a function that gives the decompressed size. Which of the libraries kbatch uses,
# and is held to, stands in `report.LIBRARIES`.
ALONE: dict[str, list[tuple[str, str, Callable[[bytes], int]]]] = {
    "gzip": [
        ("zlib", "decompress", lambda payload: len(zlib.decompress(payload, 31))),
        ("zlib", "decompressobj", lambda payload: len(zlib.decompressobj(31).decompress(payload))),
        ("cramjam", "decompress_into", lambda payload: cramjam.gzip.decompress_into(payload, room)),
    ],
    "snappy": [
        ("cramjam", "decompress_raw_into", xerial_cramjam),
        ("python-snappy", "uncompress", xerial_python_snappy),
    ],
    "snappy-raw": [
        ("cramjam", "decompress_raw", lambda payload: len(cramjam.snappy.decompress_raw(payload))),
        ("cramjam", "decompress_raw_into", lambda payload: cramjam.snappy.decompress_raw_into(payload, room)),
        ("python-snappy", "uncompress", lambda payload: len(snappy.uncompress(payload))),
    ],
    "lz4": [
        ("lz4", "frame.decompress", lambda payload: len(lz4.frame.decompress(payload))),
        ("cramjam", "decompress_into", lambda payload: cramjam.lz4.decompress_into(payload, room)),
        ("cramjam", "decompress_block_into", lz4_blocks),
    ],
    "zstd": [
        ("zstandard", "decompressobj", lambda payload: len(zstd_context.decompressobj().decompress(payload))),
        ("zstandard", "stream_reader", zstd_stream),
        ("cramjam", "decompress_into", lambda payload: cramjam.zstd.decompress_into(payload, room)),
    ],
}


def alone_params() -> list[object]:
    return [
        pytest.param(name, library, call, function, id=f"{name}-{library}-{call}")
        for name in NAMES
        for library, call, function in ALONE[name.split("-", 2)[2]]
    ]


@pytest.mark.parametrize(("name", "library", "call", "function"), alone_params())
def test_alone(name: str, library: str, call: str, function: Callable[[bytes], int], measure: Measure) -> None:
    what = corpus(name)
    stored = payloads(what.data)

    def run() -> int:
        size = 0
        for payload in stored:
            size += function(payload)
        return size

    assert measure("compressed", what, f"{library} {call}", run) == what.payload_bytes


def xerial_kept(payload: bytes) -> bytes:
    return b"".join([snappy.uncompress(payload[start:end]) for start, end in xerial_blocks(payload)])


KEPT: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda payload: zlib.decompress(payload, 31),
    "snappy": xerial_kept,
    "snappy-raw": snappy.uncompress,
    "lz4": lz4.frame.decompress,
    "zstd": lambda payload: zstd_context.decompressobj().decompress(payload),
}


@pytest.mark.parametrize("name", NAMES)
def test_in_turns_with_kept(name: str, in_turns: InTurns) -> None:
    what = corpus(name)
    stored = payloads(what.data)
    function = KEPT[name.split("-", 2)[2]]

    def keep() -> list[bytes]:
        return [function(payload) for payload in stored]

    table = in_turns("compressed", what, "kbatch, in turns", lambda: kbatch.decode(what.data), "kept", keep)
    assert Sums.of_table(table) == what.sums
    assert sum(map(len, keep())) == what.payload_bytes


@pytest.mark.parametrize("name", NAMES)
def test_kbatch(name: str, measure: Measure) -> None:
    what = corpus(name)
    table = measure("compressed", what, "kbatch", lambda: kbatch.decode(what.data))
    assert Sums.of_table(table) == what.sums


@pytest.mark.parametrize(("name", "peer"), contests(NAMES, [name for name in NAMES if "-16k-" in name]))
def test_peer(name: str, peer: Peer, measure: Measure) -> None:
    what = corpus(name)
    measure("compressed", what, peer.name, lambda: peer.iterate(what.data))
    assert peer.sums(what.data) == what.sums
