"""The typed columns of values and keys of a scan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from kbatch.format import VIEW_COLUMNS
from kbatch.log.record_view import value_columns_of
from kbatch.options import On
from kbatch.value_options import ValueOptions
from kbatch.values.parsed import bad_types
from kbatch.values.typed_columns import ValueColumns

__all__ = ["TypedValues"]


class TypedValues:
    """The formats of a scan. Parsers are made when they are first needed, once for all scans that are derived from it.

    Parameters
    ----------
    formats : ValueOptions
    sample, topics : callable
        As for `value_columns_of`.
    """

    def __init__(
        self, formats: ValueOptions, sample: Callable[[On], list[bytes]], topics: Callable[[], Iterable[str]]
    ) -> None:
        self.formats = formats
        self._sample = sample
        self._topics = topics
        self._lock = threading.Lock()
        self._columns: ValueColumns | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of records, and those about bad values."""
        return (*VIEW_COLUMNS, *(f"{on}_{about}" for on in self.formats.parsed for about in bad_types()))

    @property
    def columns(self) -> ValueColumns | None:
        """The typed columns; None if neither side has a format.

        Raises
        ------
        TypeError, ValueError
            For an invalid schema.
        """
        with self._lock:
            if self._columns is None:
                self._columns = value_columns_of(self.formats, self._sample, self._topics)
            return self._columns
