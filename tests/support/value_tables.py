"""Tables and logs with given keys and values, for the tests of ``kbatch.values``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import oracle
from log_batches import write_segment

import kbatch

Values = Sequence[bytes | None]


def batch_of(values: Values, keys: Values | None = None, base_offset: int = 0) -> bytes:
    keys = [None] * len(values) if keys is None else keys
    records = [oracle.encode_record(i, i, key, value) for i, (key, value) in enumerate(zip(keys, values, strict=True))]
    return oracle.build_batch(records, base_offset=base_offset, max_timestamp=1000 + max(0, len(values) - 1))


def table_of(values: Values, keys: Values | None = None) -> kbatch.RecordTable:
    return kbatch.decode(batch_of(values, keys))


def write_log(root: Path, topic: str, values: Values, keys: Values | None = None, partition: int = 0) -> str:
    write_segment(root / f"{topic}-{partition}", 0, [batch_of(values, keys)])
    return str(root)
