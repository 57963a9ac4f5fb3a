"""The complete result of a decode, and random batches to decode."""

from __future__ import annotations

import numpy as np

import kbatch


def outcome(function, *args, **options):
    """Return every byte of the result, or the error."""
    try:
        table = function(*args, **options)
    except kbatch.KbatchError as error:
        return type(error), str(error)
    return seen(table)


def seen(table):
    return (
        table.records.dtype,
        table.records.tolist(),
        table.batches.tolist(),
        table.data.tobytes(),
        table.losses,
        table.consumed,
        table.headers.tolist() if "headers" in table.columns else None,
        table.pending,
        table.last_stable_offset,
    )


def batches(rng, count, *, size=40, codecs=("none",), magic=2, max_records=8):
    """Encode `count` batches of random records, one after the other."""
    parts = []
    offset = 0
    for i in range(count):
        records = int(rng.integers(1, max_records + 1))
        values = [rng.bytes(int(rng.integers(0, size))) * 3 for _ in range(records)]
        headers = [[("k", value[:5])] for value in values] if magic == 2 and i % 3 == 0 else None
        parts.append(
            kbatch.encode(
                values,
                keys=[None if len(value) % 2 else value[:4] for value in values],
                timestamps=np.arange(records) + 1_700_000_000_000 if magic else None,
                headers=headers,
                codec=codecs[i % len(codecs)],
                base_offset=offset,
                magic=magic,
            )
        )
        offset += records + int(rng.integers(0, 3))
    return parts
