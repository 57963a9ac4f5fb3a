"""Records of the tests of views, and the batches and tables that contain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import oracle

import kbatch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Header: TypeAlias = tuple[bytes, bytes | None]
BINARY = ("binary", "large_binary", "binary_view")


@dataclass
class Record:
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: tuple[Header, ...] = ()


def encode(records: Sequence[Record], *, attributes: int = 0) -> bytes:
    """Build one batch of magic 2, with base offset and base timestamp of its first record."""
    first = records[0]
    return oracle.build_batch(
        [
            oracle.encode_record(r.offset - first.offset, r.timestamp - first.timestamp, r.key, r.value, r.headers)
            for r in records
        ],
        attributes=attributes,
        base_offset=first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max(r.timestamp for r in records),
        last_offset_delta=records[-1].offset - first.offset,
    )


RECORDS = [
    Record(5, b"k", b"v"),
    Record(6, None, None, -1),
    Record(7, b"", b"", 0),
    Record(9, b"exactly 12 b", b"thirteen byte", -2),
    Record(10, b"key" * 40, b"v" * 999, headers=((b"h", b"1"), (b"h", b"2"), (b"", b"x"), (b"n", None), (b"e", b""))),
    Record(11, None, b"\0\xff", headers=((b"\xff\xfe", b"bad"), (b"caf\xe9", b"?"), (b"\xed\xa0\x80", b"surrogate"))),
    *(
        Record(20 + i, b"k%d" % i, b"x" * i, headers=((b"a key of more than 12", b"v"),) if i % 5 == 0 else ())
        for i in range(70)
    ),
]


def make(
    records: Sequence[Record] = RECORDS, *, size: int = 10, topic: str | None = None, attributes: Sequence[int] = (0,)
) -> kbatch.RecordTable:
    batches = [records[i : i + size] for i in range(0, len(records), size)]
    table = kbatch.decode(
        b"".join(encode(b, attributes=attributes[i % len(attributes)]) for i, b in enumerate(batches))
    )
    assert len(table) == len(records)
    return table._with(topic=topic, partition=None if topic is None else 3)


def time(ms: int) -> datetime | None:
    return None if ms == -1 else EPOCH + timedelta(milliseconds=ms)


def expected(records: Sequence[Record]) -> list[dict[str, object]]:
    return [
        {
            "offset": r.offset,
            "timestamp": time(r.timestamp),
            "timestampType": 0,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": key, "value": value} for key, value in r.headers],
        }
        for r in records
    ]
