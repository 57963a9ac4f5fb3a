"""A mutator that knows the format: it changes fields, records and codecs, and repairs lengths and checksums afterwards.

Random changes of bytes rarely pass a checksum, and changes of a compressed payload rarely decompress. This mutator
parses the entries of its input, changes one field, record or codec, compresses the payload again, and usually repairs
lengths and checksums, so that readers accept them and decode the changed part.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import oracle
from entries import FIELDS, is_entry, repaired

# Replaces random bytes by others: libFuzzer's own mutator in a fuzzer, see `mutate_bytes` for tests.
BytesMutator = Callable[[bytes, int], bytes]

POWERS = [sign << bits for bits in (7, 8, 15, 16, 31, 32, 62, 63) for sign in (1, -1)]
NUMBERS = sorted({0, 1, 2, 5, 14, 22, 49, 61} | {power + change for power in POWERS for change in (-1, 0, 1)})
CODECS = ("none", "gzip", "snappy", "snappy-raw", "lz4", "zstd")
MAX_PAYLOAD = 1 << 16


def mutate_bytes(data: bytes, max_size: int) -> bytes:
    """Replace one byte, for runs without libFuzzer; the same bytes give the same result."""
    out = bytearray(data or b"\0")
    rng = random.Random(bytes(out))
    out[rng.randrange(len(out))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(out[:max_size])


def split_entries(data: bytes) -> list[bytes]:
    """Split into complete entries; the rest is the last item."""
    entries = []
    at = 0
    while at < len(data):
        try:
            size = oracle.next_entry(data, at)
        except oracle.OracleError:
            size = 0
        if not size:
            entries.append(data[at:])
            break
        entries.append(data[at : at + size])
        at += size
    return entries


def payload_start(entry: bytes) -> int:
    """Return where the payload begins: after the header, in magic 0 and 1 at the bytes of the value."""
    if entry[16] == 2:
        return 61
    at = 26 if entry[16] == 1 else 18
    (key,) = struct.unpack_from(">i", entry, at)
    return min(at + 8 + max(key, 0), len(entry))


def codec_of(entry: bytes) -> int:
    return entry[22 if entry[16] == 2 else 17] & 7


def with_codec(entry: bytes, codec: int) -> bytes:
    at = 22 if entry[16] == 2 else 17
    return entry[:at] + bytes([entry[at] & ~7 | codec]) + entry[at + 1 :]


def with_payload(entry: bytes, payload: bytes) -> bytes:
    """Replace the payload, and in magic 0 and 1 the length of the value."""
    start = payload_start(entry)
    head = entry[:start] if entry[16] == 2 else entry[: start - 4] + struct.pack(">i", len(payload))
    return head + payload


def plain_payload(entry: bytes) -> bytes | None:
    """Decompress the payload; None if that fails or gives more than `MAX_PAYLOAD`."""
    payload = entry[payload_start(entry) :]
    if codec_of(entry) not in oracle.DECOMPRESS or len(payload) > MAX_PAYLOAD:
        return None
    try:
        if codec_of(entry) == 3:
            plain = oracle.unlz4(payload, any_header_checksum=entry[16] == 0)
        else:
            plain = oracle.DECOMPRESS[codec_of(entry)](payload)
    except (oracle.OracleError, MemoryError):
        return None
    return plain if len(plain) <= MAX_PAYLOAD else None


def compressed(codec: str, plain: bytes, magic: int) -> bytes:
    payload = oracle.compress(codec, plain)
    return oracle.with_lz4_header_checksum(payload, broken=True) if codec == "lz4" and magic == 0 else payload


def records_in(plain: bytes) -> list[bytes]:
    """Split a payload of magic 2 into records; the bytes after the first wrong length are the last item."""
    records = []
    cursor = oracle.Cursor(plain)
    while cursor.left():
        at = cursor.at
        try:
            cursor.take(cursor.zigzag(32))
        except oracle.OracleError:
            return [*records, plain[at:]]
        records.append(plain[at : cursor.at])
    return records


def some_varint(rng: random.Random) -> bytes:
    number = oracle.zigzag(rng.choice(NUMBERS))
    if rng.random() < 0.2:
        return bytes(byte | 0x80 for byte in number) + bytes([rng.choice([0, 1, 0x7F])])
    return number


def mutated_record(rng: random.Random, record: bytes, mutate: BytesMutator) -> bytes:
    """Change one varint or some bytes of a record; usually its length is repaired."""
    cursor = oracle.Cursor(record)
    try:
        cursor.zigzag(32)
    except oracle.OracleError:
        return mutate(record, len(record) + 16)
    head, body = record[: cursor.at], record[cursor.at :]
    if rng.random() < 0.5 and len(body) > 1:
        # The fields after the attributes are varints, and the lengths of keys, values and headers follow bytes.
        at = rng.choice([1, 2, 3, rng.randrange(1, len(body))])
        end = at + 1
        while end < len(body) and body[end - 1] & 0x80:
            end += 1
        body = body[:at] + some_varint(rng) + body[end:]
    else:
        body = mutate(body, len(body) + 16)
    return (oracle.zigzag(len(body)) if rng.random() < 0.8 else head) + body


def mutated_records(rng: random.Random, plain: bytes, mutate: BytesMutator) -> tuple[bytes, int]:
    """Change, repeat, remove or exchange records; return the payload and the number of records."""
    records = records_in(plain)
    if not records:
        return oracle.encode_record(rng.choice([0, 1]), 0, None, b"v"), 1
    i = rng.randrange(len(records))
    match rng.randrange(6):
        case 0:
            records.insert(i, records[i])
        case 1:
            del records[i]
        case 2:
            j = rng.randrange(len(records))
            records[i], records[j] = records[j], records[i]
        case _:
            records[i] = mutated_record(rng, records[i], mutate)
    return b"".join(records), len(records)


def mutated_payload(rng: random.Random, entry: bytes, mutate: BytesMutator, depth: int = 0) -> bytes:
    """Change the content of a payload, and compress it again, with the same codec or another."""
    plain = plain_payload(entry)
    if plain is None:
        return with_payload(entry, mutate(entry[payload_start(entry) :], len(entry) + 64))
    number, magic = codec_of(entry), entry[16]
    if rng.random() < 0.25:
        codec = rng.choice(CODECS)
    else:
        codec = {0: "none", 1: "gzip", 2: rng.choice(["snappy", "snappy-raw"]), 3: "lz4", 4: "zstd"}[number]
    if magic == 2:
        plain, count = mutated_records(rng, plain, mutate)
        if rng.random() < 0.8:
            entry = entry[:57] + struct.pack(">i", count) + entry[61:]
    elif number and depth == 0:
        plain = b"".join(mutated_entries(rng, split_entries(plain), mutate, depth=1))
    else:
        plain = mutate(plain, len(plain) + 32)
    payload = compressed(codec, plain, magic)
    if rng.random() < 0.1:
        payload = mutate(payload, len(payload) + 8)
    return with_payload(with_codec(entry, oracle.CODECS[codec]), payload)


def mutated_field(rng: random.Random, entry: bytes) -> bytes:
    """Set a field of a header to a number at a boundary, flip one of its bits, or change it by one."""
    at, size = rng.choice([field for field in FIELDS[entry[16]] if sum(field) <= len(entry)])
    mask = (1 << 8 * size) - 1
    number = int.from_bytes(entry[at : at + size], "big")
    match rng.randrange(3):
        case 0:
            number = rng.choice(NUMBERS) & mask
        case 1:
            number ^= 1 << rng.randrange(8 * size)
        case _:
            number = number + rng.choice([-1, 1]) & mask
    return entry[:at] + number.to_bytes(size, "big") + entry[at + size :]


def new_entry(rng: random.Random) -> bytes:
    """Build a valid entry: a batch or a message set with any codec, or a marker of a transaction."""
    offset = rng.choice([0, 5, 100, rng.choice(NUMBERS)])
    offset = max(min(offset, 2**63 - 1), -(2**63))
    codec = rng.choice(CODECS)
    producer = {"producer_id": rng.choice([1, 2]), "producer_epoch": 0}
    match rng.randrange(5):
        case 0:
            key = struct.pack(">hh", 0, rng.choice([0, 0, 1, 1, 2, 3, 9]))
            marker = oracle.encode_record(0, 0, key, struct.pack(">hi", 0, 0))
            return oracle.build_batch([marker], base_offset=offset, attributes=0x30, **producer)
        case 1:
            return oracle.three(offset, codec=codec, attributes=0x10, base_sequence=0, **producer)
        case 2 | 3 as magic:
            contents: list[tuple[bytes | None, bytes | None]] = [(None, b"a" * rng.choice([0, 9, 300])), (b"k", None)]
            codec = rng.choice(CODECS[:-1])
            return oracle.build_message_set(contents, magic=magic - 2, codec=codec, base_offset=min(offset, 1 << 62))
        case _:
            return oracle.three(offset, codec=codec)


def mutated_entries(rng: random.Random, entries: list[bytes], mutate: BytesMutator, *, depth: int = 0) -> list[bytes]:
    """Change one of the entries, or which entries there are."""
    choices = [i for i, entry in enumerate(entries) if is_entry(entry)]
    action = rng.randrange(10)
    if not choices or action == 0:
        entries.insert(rng.randrange(len(entries) + 1), new_entry(rng))
        return entries
    i = rng.choice(choices)
    match action:
        case 1:
            entries.insert(i, entries[i])
        case 2:
            del entries[i]
        case 3:
            j = rng.randrange(len(entries))
            entries[i], entries[j] = entries[j], entries[i]
        case 4 | 5 | 6:
            entry = mutated_field(rng, entries[i])
            keep = rng.random()
            entries[i] = entry if keep < 0.2 else repaired(entry, length=keep < 0.8)
        case _:
            entry = mutated_payload(rng, entries[i], mutate, depth)
            entries[i] = entry if rng.random() < 0.1 else repaired(entry)
    return entries


def mutate_batches(data: bytes, max_size: int, seed: int, mutate: BytesMutator = mutate_bytes) -> bytes:
    """Return a changed copy of consecutive entries, of at most `max_size` bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.15:
        return mutate(data, max_size)
    entries = split_entries(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        entries = mutated_entries(rng, entries, mutate)
    return b"".join(entries)[:max_size]
