"""How many lines of Python run for damage."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import kbatch


def lines_run(good: bytes, damage: bytes, count: int, file: str, options: dict[str, Any]) -> int:
    """Decode `count` times a batch with damage after it; return the lines run in files with `file` in their paths."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if file in frame.f_code.co_filename else None

    data = (good + damage) * count + good
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert len(kbatch.decode(data, **options).losses) == count
    finally:
        sys.settrace(before)
    return lines
