"""The stream reader at faults of the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from stream_query import Query, Writer

import kbatch
from kbatch.log.store.local_files import LocalFile


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_batch_with_a_read_error_is_read_again(
    on_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read error is not damage: nothing is skipped, and the restarted query returns the same records."""
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest", onError=on_error)
    assert query.plan()

    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(LocalFile, "window", fail)
        with pytest.raises(kbatch.LogDirectoryError, match=f"{writer.file}: .*Input/output error"):
            query.batch()
    query.restart()
    assert query.batch() == [0, 1, 2]
