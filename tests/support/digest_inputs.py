"""The small inputs of `digests`: batches of each magic and codec, and damage between them."""

from __future__ import annotations

import functools
import itertools
import json
import struct
from pathlib import Path

import oracle
import transaction_logs as logs


def write(path: Path) -> None:
    """Build the inputs. Compressed bytes depend on library versions, so the committed inputs are not rebuilt."""
    made: dict[str, list[bytes]] = {}
    pair = (b"k", b"value value value")
    for magic, codec in itertools.product((0, 1), ("none", "gzip", "snappy", "lz4")):
        build = functools.partial(oracle.build_message_set, magic=magic, codec=codec)
        message = functools.partial(oracle.build_message, magic=magic)
        if codec == "none":
            made[f"magic {magic} none"] = [
                message(b"k", b"one", offset=100),
                message(None, b"two", offset=101),
                message(b"k", None, offset=102),
                message(b"k", b"v" * 20, offset=103),
            ]
        else:
            made[f"magic {magic} {codec}"] = [
                build([pair] * 2, base_offset=100),
                message(b"k", b"v", offset=102),
                build([pair] * 3, base_offset=103),
            ]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        made[f"magic 2 {codec}"] = [
            logs.txn(100, 7, 2, codec=codec),
            logs.marker(102, 7, logs.ABORT),
            logs.txn(103, 8, 1, codec=codec),
        ]
    a, b, c, d = (oracle.three(offset) for offset in (0, 10, 20, 30))
    old = oracle.build_message(b"k", b"v", magic=0, offset=100)
    nested = oracle.build_batch([oracle.encode_record(value=oracle.three(70))], base_offset=10)
    damage = bytes(itertools.islice(itertools.cycle(b"\x91\x13\x5a\xee\x07\xc4"), 60))
    made["mixed magics"] = [
        oracle.three(100),
        message(b"k", b"v", offset=103),
        oracle.build_message_set([pair] * 2, magic=0, codec="gzip", base_offset=104),
        oracle.build_batch([oracle.encode_record(value=b"x" * 40)], base_offset=106),
        oracle.three(107, codec="lz4"),
    ]
    made["old message in damage"] = [a, damage[:30] + old + damage[30:], d]
    made["damage"] = [a, damage, c]
    made["bad checksum"] = [a, oracle.with_crc(b, 1), c, d]
    made["two bad checksums"] = [a, oracle.with_crc(b, 1), oracle.with_crc(c, 1), d]
    made["bad checksum at the end"] = [a, b, oracle.with_crc(c, 1)]
    made["length too long"] = [a, b[:8] + struct.pack(">i", len(b) + len(c) - 12) + b[12:], c, d]
    made["length of 60 MiB"] = [a, b[:8] + struct.pack(">i", 60 << 20) + b[12:], c, d]
    made["zeros"] = [a, bytes(100), c]
    made["zeros at the end"] = [a, c, bytes(100)]
    made["nested in a bad one"] = [a, oracle.with_crc(nested, 1), c]
    made["invalid records"] = [a, oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=10), c]
    made["invalid records at the end"] = [a, oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=10)]
    made["bad marker"] = [logs.txn(0, 7), logs.damaged(logs.marker(1, 7, logs.ABORT)), logs.txn(2, 8), c]
    # An aborted and an open transaction, as in the index of `digests.LogRoute`.
    made["transactions"] = [
        logs.txn(0, 7),
        logs.txn(1, 8),
        logs.marker(2, 7, logs.ABORT),
        logs.data(3),
        logs.marker(4, 8, logs.COMMIT),
        logs.txn(5, 7),
    ]
    with path.open("w") as file:
        json.dump({name: [entry.hex() for entry in entries] for name, entries in made.items()}, file, indent=1)
        file.write("\n")
