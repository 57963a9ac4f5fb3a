"""The result of a command as one JSON document, with the same outline for all commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kbatch.cli.terminal import counted, print_json

if TYPE_CHECKING:
    from kbatch.log.logs import Log
    from kbatch.records.loss_list import Loss

__all__ = ["LISTED_DAMAGE", "damage_lines", "log_dict", "loss_dicts", "print_summary"]

# The number of byte ranges that text lists; JSON lists all.
LISTED_DAMAGE = 20


def print_summary(command: str, status: int, logs: Sequence[dict[str, Any]], *, damaged: bool, **totals: Any) -> None:
    """Print the result of a command: ``command``, ``exit_status``, ``damaged``, its totals, and one entry per log."""
    print_json({"command": command, "exit_status": status, "damaged": damaged, **totals, "logs": logs})


def log_dict(log: Log | None, path: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a log: ``name``, ``path``, ``topic``, ``partition`` and the fields of the command."""
    topic, partition = (None, None) if log is None else (log.topic, log.partition)
    name = path if topic is None else f"{topic}-{partition}"
    return {"name": name, "path": path, "topic": topic, "partition": partition, **fields}


def loss_dicts(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """Return byte ranges without records as they appear in JSON."""
    return [loss._asdict() for loss in losses]


def damage_lines(prefix: str, losses: Sequence[Loss]) -> list[str]:
    """Return the first byte ranges without records as text, with their files, and the number of further ones."""
    lines = []
    for loss in losses[:LISTED_DAMAGE]:
        # A gap has no bytes.
        size = f", {counted(loss.length, 'byte')}" if loss.length else ""
        file = "" if loss.file is None else f"{loss.file}, "
        lines.append(f"{prefix}: {file}byte {loss.position}{size}: {loss.reason}")
    if len(losses) > LISTED_DAMAGE:
        lines.append(f"{prefix}: {len(losses) - LISTED_DAMAGE:,} more")
    return lines
