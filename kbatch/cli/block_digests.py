"""``kbatch dump --digests``: digests of blocks of offsets, which show where two sites differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kbatch.cli.flags import UsageError
from kbatch.records.equality import RecordDigest, record_hashes
from kbatch.table import RecordTable

__all__ = ["BlockDigests"]

# The number of blocks whose digests are kept, in about 300 MiB.
MAX_BLOCKS = 1 << 20


class _Block(NamedTuple):
    """The place of a block; `file` is empty for a log whose topic is known."""

    topic: str
    partition: int
    file: str
    offset: int


class BlockDigests:
    """Digests of the records at offsets 0 to `size` (exclusive), `size` to twice `size`, and so on, of each log."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: dict[_Block, RecordDigest] = {}

    def add(self, topic: str | None, partition: int | None, path: str, table: RecordTable) -> None:
        """Add records, in any order."""
        if not len(table):
            return
        blocks = table.records["offset"] // self._size
        starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 1))
        for number, hashes in zip(blocks[starts].tolist(), np.split(record_hashes(table), starts[1:]), strict=True):
            file = path if topic is None or partition is None else ""
            block = _Block(topic or "", -1 if partition is None else partition, file, number * self._size)
            if block not in self._blocks:
                if len(self._blocks) == MAX_BLOCKS:
                    raise UsageError(
                        f"more than {MAX_BLOCKS:,} blocks of {self._size:,} offsets; choose a larger --digests, or "
                        "--offsets of a part"
                    )
                self._blocks[block] = RecordDigest()
            self._blocks[block].add(hashes)

    def lines(self) -> Iterator[str]:
        """Yield the blocks that have records as JSON, by topic, partition and offset."""
        for block, digest in sorted(self._blocks.items(), key=lambda item: item[0]):
            found = {
                "topic": None if block.file else block.topic,
                "partition": None if block.file else block.partition,
                "file": block.file or None,
                "offset": block.offset,
                "records": digest.records,
                "digest": digest.hexdigest(),
            }
            yield json.dumps(found, ensure_ascii=False)
