"""Tables for asyncio: a thread waits for them, so that the event loop does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kbatch.table import RecordTable

__all__ = ["AsyncTables"]

CalledT = TypeVar("CalledT")


class AsyncTables:
    """Waits for tables without blocking the event loop.

    The threads are daemons, unlike those of an executor, so that a waiting read does not keep the process alive.

    Parameters
    ----------
    next_table : callable
        Returns a table, or None at the end.
    close : callable
        Ends the read, also while `next_table` waits in another thread.
    """

    def __init__(self, next_table: Callable[[], RecordTable | None], close: Callable[[], None]) -> None:
        self._next_table = next_table
        self._close = close
        self._pending: Future[RecordTable | None] | None = None
        self._is_awaited = False

    async def next_table(self) -> RecordTable:
        """Return the next table, or the table that a cancelled call was waiting for.

        Raises
        ------
        StopAsyncIteration
        RuntimeError
            If another task waits for a table.
        """
        if self._is_awaited:
            raise RuntimeError("another task waits for the next table of this consumer")
        if self._pending is None:
            self._pending = _in_thread(self._next_table)
        self._is_awaited = True
        try:
            # A cancellation does not end the thread; its table is for the next call.
            table = await asyncio.shield(asyncio.wrap_future(self._pending))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._pending = None
            raise
        finally:
            self._is_awaited = False
        self._pending = None
        if table is None:
            raise StopAsyncIteration
        return table

    async def leave(self, exit_block: Callable[[], None]) -> None:
        """Leave a block; a table that a thread is still waiting for is dropped."""
        pending, self._pending = self._pending, None
        if pending is not None:
            await asyncio.wrap_future(_in_thread(self._close))
        await asyncio.wrap_future(_in_thread(exit_block))


def _in_thread(function: Callable[[], CalledT]) -> Future[CalledT]:
    """Call a function in its own thread."""
    future: Future[CalledT] = Future()

    def run() -> None:
        # The thread is not cancelled when the task that waits for it is.
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kbatch-table", daemon=True).start()
    return future
