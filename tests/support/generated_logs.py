"""Logs of several segments with random transactions, and the snapshots that a broker writes for them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from crc32c import crc32c
from log_batches import segment_path
from oracle import three
from transaction_logs import ABORT, COMMIT, marker, txn

import kbatch


def snapshot(directory: Path, base_offset: int, producers: dict[int, tuple[int, int]]) -> None:
    """Write a ``.snapshot``: each producer's last offset, and the first offset of its open transaction or -1."""
    body = struct.pack(">i", len(producers)) + b"".join(
        struct.pack(">qhiqiqiq", pid, 0, 0, last, 0, 1000, 0, first) for pid, (last, first) in producers.items()
    )
    path = segment_path(directory, base_offset, ".snapshot")
    path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)


def generated(directory: Path, seed: int, *, segments: int = 6, producers: int = 4) -> kbatch.Log:
    """Write a log of several segments, with the snapshots that a broker writes when it rolls them."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    offset = 0
    state: dict[int, tuple[int, int]] = {}
    for number in range(segments):
        if number:
            snapshot(directory, offset, state)
        base, batches, entries = offset, [], []
        for _ in range(int(rng.integers(3, 12))):
            pid = int(rng.integers(producers))
            last, first = state.get(pid, (-1, -1))
            if pid == 0:
                batches.append(three(offset))
                offset += 3
            elif first >= 0 and rng.random() < 0.4:
                kind = ABORT if rng.random() < 0.5 else COMMIT
                batches.append(marker(offset, pid, kind))
                state[pid] = (last, -1)
                if kind == ABORT:
                    stable = min((each for _, each in state.values() if each >= 0), default=offset + 1)
                    entries.append(struct.pack(">hqqqq", 0, pid, first, offset, stable))
                offset += 1
            else:
                n = int(rng.integers(1, 4))
                batches.append(txn(offset, pid, n))
                state[pid] = (offset + n - 1, offset if first < 0 else first)
                offset += n
        segment_path(directory, base).write_bytes(b"".join(batches))
        if entries:
            segment_path(directory, base, ".txnindex").write_bytes(b"".join(entries))
    return kbatch.Log(directory)
