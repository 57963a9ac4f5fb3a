"""One small batch or message set of each magic and codec."""

from __future__ import annotations

from collections.abc import Iterator

import oracle


def batches_of_every_kind() -> Iterator[tuple[str, bytes]]:
    """Small batches with keys, headers and nulls, in each magic and codec."""
    records = [
        oracle.encode_record(0, 0, b"k", b"value " * 3, [(b"h", b"1"), (b"", None)]),
        oracle.encode_record(1, -70, None, b"value " * 2),
        oracle.encode_record(200, 5, b"", None),
    ]
    contents: list[tuple[bytes | None, bytes | None]] = [(b"k", b"value " * 3), (None, b"value"), (b"", None)]
    for codec in oracle.CODECS:
        yield f"magic 2, {codec}", oracle.build_batch(records, codec=codec, base_offset=100, last_offset_delta=200)
        if codec == "none":
            for magic in (0, 1):
                yield f"magic {magic}, {codec}", oracle.build_message(b"k", b"value", magic=magic, offset=100)
        elif codec != "zstd":
            for magic in (0, 1):
                made = oracle.build_message_set(contents, magic=magic, codec=codec, base_offset=100)
                yield f"magic {magic}, {codec}", made


KINDS = dict(batches_of_every_kind())
