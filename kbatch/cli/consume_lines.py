"""The lines of ``kbatch consume``, and the rate and lag that a terminal shows meanwhile."""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Self

from kbatch.cli.jsonlines import place_of, record_lines, value_lines
from kbatch.cli.terminal import ProgressLine, counted, print_errors, write_lines, write_values
from kbatch.escaping import escaped_json
from kbatch.unfinished import forget_unfinished, register_unfinished

if TYPE_CHECKING:
    from kbatch.cli.decoded_values import DecodedValues
    from kbatch.live.consumer import Consumer
    from kbatch.table import RecordTable

__all__ = ["ConsumeLines"]


class ConsumeLines:
    """Writes the records of a consumer.

    Parameters
    ----------
    values_only : bool
    decoded : DecodedValues or None
    max_shown : int or None
        The most bytes of a key, a value or a header's value in JSON.
    remaining : int or None
        The number of records that may still be written.

    Attributes
    ----------
    damaged : bool
    """

    def __init__(
        self, *, values_only: bool, decoded: DecodedValues | None, max_shown: int | None, remaining: int | None
    ) -> None:
        self._values_only = values_only
        self._decoded = decoded
        self._max_shown = max_shown
        self._remaining = remaining
        self.damaged = False

    def write(self, consumer: Consumer, *, follows: bool, is_member: bool) -> None:
        """Write the records up to the last one."""
        if is_member:
            # So that Ctrl-C raises an exception: the member leaves the group.
            register_unfinished(self, lambda: None)
        try:
            with ReadRate(consumer, follows=follows) as rate:
                while self._remaining != 0 and (table := next(consumer, None)) is not None:
                    self._report_losses(table)
                    self._write(table)
                    rate.records += len(table)
                    # Frees the table before the next one is decoded.
                    del table
        finally:
            forget_unfinished(self)

    def _write(self, table: RecordTable) -> None:
        if self._remaining is not None:
            table = table[: self._remaining]
            self._remaining -= len(table)
        if self._values_only:
            write_values(value_lines(table, self._decoded))
        else:
            place = place_of(table.topic, table.partition, None)
            lines = record_lines(table, place, self._max_shown, self._decoded, in_file=False)
            write_lines(lines, escaped_json)

    def _report_losses(self, table: RecordTable) -> None:
        for loss in table.losses:
            offset = "" if loss.base_offset is None else f"base offset {loss.base_offset}: "
            print_errors(
                f"kbatch consume: {table.topic}-{table.partition}: {offset}{loss.reason} "
                f"({counted(loss.length, 'byte')})",
                style="error",
            )
            self.damaged = True


class ReadRate:
    """The number of records, their rate and the lag, on a line of the terminal.

    Nothing is shown if the records go to the terminal, or to a pipe, whose reader may write to the terminal too.
    """

    def __init__(self, consumer: Consumer, *, follows: bool) -> None:
        first = "waiting for records ..." if follows else "connecting ..."
        self._line = ProgressLine(first, is_wanted=_is_redirected(), text=self._text)
        self._consumer = consumer
        self._follows = follows
        # The number of records that were written.
        self.records = 0
        self._before, self._then = 0, time.monotonic()

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.__exit__(*exception)

    def _text(self) -> str:
        records, now = self.records, time.monotonic()
        rate = round((records - self._before) / (now - self._then))
        self._before, self._then = records, now
        if not records and self._follows:
            return "waiting for records ..."
        return f"{counted(records, 'record')}, {rate:,}/s{self._left()}"

    def _left(self) -> str:
        try:
            if self._follows:
                return f", {counted(sum(self._consumer.lag.values()), 'offset')} behind"
            positions, ranges = self._consumer.positions, self._consumer.ranges
        except (KeyError, RuntimeError):
            # The reader has changed the partitions meanwhile.
            return ""
        offsets = sum(max((stop or 0) - positions.get(key, 0), 0) for key, (_, stop) in ranges.items())
        return f", {counted(offsets, 'offset')} left"


def _is_redirected() -> bool:
    """Whether standard output is neither a terminal nor a pipe."""
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISFIFO(mode) and not sys.stdout.isatty()
