"""Open transactions as text: how many, whose, from which offset on, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kbatch.cli.styles import styled
from kbatch.cli.tables import table_lines
from kbatch.cli.terminal import counted, format_time

if TYPE_CHECKING:
    from kbatch.transactions import OpenTransaction

__all__ = ["open_text", "open_transaction_lines"]

# The number of open transactions that text lists; JSON lists all.
_LISTED = 20


def open_transaction_lines(logs: Iterable[tuple[str, Sequence[OpenTransaction], int]]) -> list[str]:
    """Return the table of the open transactions of logs, with its heading; nothing if there is none.

    Parameters
    ----------
    logs : iterable of (str, sequence of OpenTransaction, int)
        The name of each log, its first open transactions, and the number of all of them.
    """
    rows: list[tuple[str, ...]] = [("topic-partition", "producer", "first offset", "since (UTC)")]
    count = 0
    for name, transactions, number in logs:
        count += number
        # A slice of them, because a log may have millions.
        for each in transactions[: _LISTED - len(rows) + 1]:
            rows.append((name, str(each.producer_id), str(each.first_offset), _since(each)))
    if not count:
        return []
    listed = len(rows) - 1
    more = [f"  {count - listed:,} more: --json lists all"] if count > listed else []
    return [
        styled(f"{counted(count, 'open transaction')}:", "heading"),
        *table_lines(rows, left=frozenset((0, 3))),
        *more,
    ]


def open_text(transactions: Sequence[OpenTransaction], limit: int = 3) -> str:
    """Return a number of open transactions, with the first ones in parentheses.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.cli.open_transactions import open_text
    >>> open_text([kbatch.OpenTransaction(1002, 362, 1700000040000)])
    '1 open transaction (producer 1002 from offset 362 since 2023-11-14 22:14:00)'
    """
    parts = [
        f"producer {each.producer_id} from offset {each.first_offset}"
        + (f" since {_since(each)}" if each.first_timestamp >= 0 else "")
        for each in transactions[:limit]
    ]
    more = ["..."] if len(transactions) > limit else []
    return f"{counted(len(transactions), 'open transaction')} ({', '.join([*parts, *more])})"


def _since(each: OpenTransaction) -> str:
    return format_time(each.first_timestamp if each.first_timestamp >= 0 else None)
