"""The kernel that decompresses deflate streams (`kbatch.kernels.inflate`), held against zlib, as Kafka's reader is."""

import random
import zlib

import pytest

from kbatch.kernels.inflate import inflate

GUARD = b"\xa5" * 64


def ours(data, room):
    memory = bytearray(room) + GUARD
    done = inflate(data, memoryview(memory)[:room])
    assert memory[room:] == GUARD
    return done and (bytes(memory[: done[0]]), done[1])


def by_zlib(data, room):
    stream = zlib.decompressobj(-15)
    try:
        plain = stream.decompress(data, room + 1)
    except zlib.error:
        return None
    return (plain, len(data) - len(stream.unused_data)) if stream.eof and len(plain) <= room else None


def texts(random):
    size = random.choice([0, 1, 5, 100, 1000, 5000, 70_000])
    words = [random.randbytes(random.randrange(1, 20)) for _ in range(50)]
    yield random.randbytes(size)
    yield bytes(size)
    yield bytes(random.choices(b"abcdefg", k=size))
    yield b"".join(random.choices(words, k=size // 10))
    yield bytes(min(255, int(random.expovariate(0.05))) for _ in range(size))


def streams(random):
    for text in texts(random):
        strategy = random.choice([0, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
        made = zlib.compressobj(random.randrange(10), zlib.DEFLATED, -15, random.choice([1, 8, 9]), strategy)
        flush = random.choice([zlib.Z_NO_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_SYNC_FLUSH])
        yield text + text[:300], made.compress(text) + made.flush(flush) + made.compress(text[:300]) + made.flush()


@pytest.mark.parametrize("seed", range(20))
def test_gz_r1_streams_are_read_to_their_end_and_no_further(seed):
    for text, stream in streams(random.Random(seed)):
        for room in (len(text), len(text) + 1, len(text) + 1000):
            assert ours(stream, room) == (text, len(stream))
            assert ours(stream + b"tail" * 10, room) == (text, len(stream))
        assert not text or ours(stream, len(text) - 1) is None


@pytest.mark.parametrize("seed", range(40))
def test_gz_r1_damaged_streams_are_taken_and_refused_as_by_zlib(seed):
    dice = random.Random(seed)
    for text, stream in streams(dice):
        room = len(text) + dice.choice([0, 300])
        for _ in range(20):
            damaged = bytearray(stream[: dice.choice([len(stream), len(stream), dice.randrange(len(stream) + 1)])])
            for _ in range(dice.choice([1, 1, 1, 2, 5])):
                # Headers of blocks are where most can go wrong.
                at = dice.randrange(min(len(stream), dice.choice([4, 30, 90, 1 << 20])))
                if at < len(damaged):
                    damaged[at] ^= 1 << dice.randrange(8)
            assert ours(bytes(damaged), room) == by_zlib(bytes(damaged), room)


def test_gz_r1_any_bytes_are_taken_and_refused_as_by_zlib():
    dice = random.Random(7)
    taken = 0
    for _ in range(20_000):
        data = bytes([dice.randrange(32) << 3 | dice.choice([1, 3, 4, 5, 5, 5])]) + dice.randbytes(dice.randrange(120))
        assert ours(data, 5000) == (expected := by_zlib(data, 5000))
        taken += expected is not None
    assert taken


class Bits:
    """A stream written bit by bit."""

    def __init__(self):
        self.value = self.size = 0

    def put(self, value, size):
        self.value |= value << self.size
        self.size += size

    def code(self, code, size):
        self.put(int(f"{code:0{size}b}"[::-1], 2), size)

    def bytes(self):
        return self.value.to_bytes(-(-self.size // 8), "little")


def fixed(*codes):
    """Return a block of the fixed code: (value, bits) that are codes, and 0 for the end."""
    bits = Bits()
    bits.put(0b011, 3)
    for value, size in codes:
        bits.code(value, size)
    bits.code(0, 7)
    return bits.bytes()


LITERAL_A = (0x30 + 65, 8)
LENGTH_3 = (1, 7)


@pytest.mark.parametrize(
    ("stream", "plain"),
    [
        (fixed(LITERAL_A, LENGTH_3, (0, 5)), b"AAAA"),
        (fixed(LENGTH_3, (0, 5)), None),  # a distance before the first byte
        (fixed(LITERAL_A, LENGTH_3, (1, 5)), None),
        (fixed(LITERAL_A, LENGTH_3, (30, 5)), None),  # no such distance
        (fixed(LITERAL_A, LENGTH_3, (31, 5)), None),
        (fixed(LITERAL_A, (0b11000110, 8), (0, 5)), None),  # no such length: symbols 286 and 287
        (fixed(LITERAL_A, (0b11000111, 8), (0, 5)), None),
        (b"\x07", None),  # no such kind of block
        (b"\x01\x01\x00\xfe\xffA", b"A"),
        (b"\x01\x01\x00\xff\xffA", None),  # the length's complement
        (b"\x01\xff\xff\x00\x00A", None),  # cut
        (b"", None),
    ],
)
@pytest.mark.parametrize("behind", [0, 400])
def test_gz_r1_what_is_no_symbol_is_refused(stream, plain, behind):
    # Both the loop that has input and room for any symbol, and the one that counts them.
    stream_and_more = stream + bytes(behind)
    found = ours(stream_and_more, 4 + behind)
    assert found == by_zlib(stream_and_more, 4 + behind)
    assert (found and found[0]) == plain


def dynamic(literals, distances, codes):
    """Return a block with codes of its own: lengths by symbol, all of them written with five bits; then the codes."""
    bits = Bits()
    bits.put(0b101, 3)
    bits.put(len(literals) - 257, 5)
    bits.put(len(distances) - 1, 5)
    bits.put(19 - 4, 4)
    # Lengths 0 to 15 have four bits each: a whole code.
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        bits.put(4 if symbol < 16 else 0, 3)
    for length in [*literals, *distances]:
        bits.code(length, 4)
    for value, size in codes:
        bits.code(value, size)
    return bits.bytes()


def lengths(count, **given):
    return [given.get(f"s{symbol}", 0) for symbol in range(count)]


@pytest.mark.parametrize(
    ("literals", "distances", "codes", "plain"),
    [
        (lengths(257, s65=1, s256=1), [0], [(0, 1), (0, 1), (1, 1)], b"AA"),
        # A code that isn't whole: what ISA-L takes.
        (lengths(257, s65=2, s256=2), [0], [(0, 2), (1, 2)], None),
        (lengths(257, s65=1, s256=2), [0], [(0, 1), (2, 2)], None),
        # The single codes that are allowed, and the half of them that is none.
        (lengths(257, s256=1), [0], [(0, 1)], b""),
        (lengths(257, s256=1), [0], [(1, 1)], None),
        (lengths(257, s256=2), [0], [(0, 2)], None),
        (lengths(258, s65=2, s256=2, s257=1), [1], [(2, 2), (0, 1), (0, 1), (3, 2)], b"AAAA"),
        (lengths(258, s65=2, s256=2, s257=1), [1], [(2, 2), (0, 1), (1, 1), (3, 2)], None),
        (lengths(258, s65=2, s256=2, s257=1), [2], [(2, 2), (0, 1), (0, 2), (3, 2)], None),
        (lengths(258, s65=2, s256=2, s257=1), [0], [(2, 2), (3, 2)], b"A"),
        (lengths(258, s65=2, s256=2, s257=1), [0], [(2, 2), (0, 1), (0, 1), (3, 2)], None),
        # Too many codes; no end of the block; more symbols than there are.
        (lengths(257, s65=1, s66=1, s256=1), [0], [(0, 1)], None),
        (lengths(257, s65=1, s66=1), [0], [(0, 1)], None),
        (lengths(287, s65=1, s256=1), [0], [(0, 1), (1, 1)], None),
        (lengths(257, s65=1, s256=1), [0] * 31, [(0, 1), (1, 1)], None),
    ],
)
def test_gz_r1_codes_that_are_not_whole_are_refused(literals, distances, codes, plain):
    for behind in (0, 400):
        stream = dynamic(literals, distances, codes) + bytes(behind)
        found = ours(stream, 4 + behind)
        assert found == by_zlib(stream, 4 + behind)
        assert (found and found[0]) == plain


def test_gz_r1_the_longest_codes():
    """Codes of 12 to 15 bits, which go on in a second table, for literals as for distances."""
    literals = lengths(258, s256=15, s257=15, **{f"s{i}": i + 1 for i in range(14)})
    distances = [*range(1, 15), 15, 15]
    symbols, code = {}, 0
    for size in range(1, 16):
        for symbol in (i for i, length in enumerate(literals) if length == size):
            symbols[symbol] = (code, size)
            code += 1
        code <<= 1
    text = bytes(random.Random(3).choices(range(14), k=3000))
    copies = [symbols[257], (0x7FFE, 15), *[(0, 1)] * 6, symbols[257], (0x7FFF, 15), *[(1, 1)] * 6]
    stream = dynamic(literals, distances, [symbols[i] for i in text] + copies + [symbols[256]])
    found = ours(stream, 4000)
    assert found == by_zlib(stream, 4000)
    assert found[0][:3000] == text
    assert len(found[0]) == 3006
