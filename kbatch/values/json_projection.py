"""Parses some fields of JSON objects, with the result that a parse of all fields has for them.

`kbatch.kernels.jsonfields` checks all fields and leaves out those that are not requested, so that Arrow makes columns
only of the others. Where it cannot decide whether Arrow would refuse a whole text, Arrow parses the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.extras import require
from kbatch.quantities import SizeLike
from kbatch.values.deviations import DeviationKind
from kbatch.values.json import CheckedTexts, JsonParser, checked_texts
from kbatch.values.json_fields import FittedTexts, fit_texts
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget
from kbatch.values.parsed import Parsed, expand, selected_fields, slices_of
from kbatch.values.schema_limits import check_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JsonProjection"]

# By `JsonParser.unknown`, the deviations for which Arrow refuses a text.
_DOUBTED: dict[str, tuple[DeviationKind, ...]] = {
    "ignore": ("conflict", "text"),
    "bad": ("unknown", "conflict", "text"),
    # The texts are made to fit before Arrow parses them.
    "keep": (),
}


@dataclass(frozen=True)
class JsonProjection:
    """The parser of a part of a JSON parser's type; a `Parser`.

    Attributes
    ----------
    whole : JsonParser
        Decides which values are bad.
    type : pyarrow.DataType
        A struct with some fields of the type of `whole`.
    """

    whole: JsonParser
    type: pa.DataType

    def __post_init__(self) -> None:
        types = require("pyarrow", "arrow", "parsing values").types
        kept = _kept(types, self.whole.type, self.type)
        check_type(kept, "the JSON schema")
        object.__setattr__(self, "_kept", kept)
        object.__setattr__(self, "_inner", JsonParser(kept, "ignore"))

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        pa = require("pyarrow", "arrow", "parsing values")
        budget = MemoryBudget(max_bytes)
        keeps = self.whole.unknown == "keep"
        texts = checked_texts(column, budget)
        inner: JsonParser = self._inner  # type: ignore[attr-defined]
        fitted = fit_texts(self.whole.type, texts.slices, texts.rows, inner.type, _DOUBTED[self.whole.unknown])
        incomplete = fitted.errors if keeps else {}
        budget.take_errors(len(incomplete))
        good, again = self._parse_fields(pa, texts, fitted, budget)
        whole, refused = self._parse_whole(pa, column, again, budget)
        parts = [(rows, selected_fields(values, self.type)) for rows, values in (*good, *whole)]
        places = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
        values = pa.concat_arrays([part for _, part in parts]) if parts else pa.nulls(0, self.type)
        bad = incomplete | texts.bad | refused
        order = sorted(bad)
        return Parsed(
            expand(values, places, len(column)),
            np.array(order, np.int64),
            [bad[row] for row in order],
            None,
            fitted.deviations if keeps else [],
        )

    def _parse_fields(
        self, pa: Any, texts: CheckedTexts, fitted: FittedTexts, budget: MemoryBudget
    ) -> tuple[list[tuple[npt.NDArray[np.int64], Any]], npt.NDArray[np.int64]]:
        """Return the values of texts without the other fields, and the rows whose whole texts have to be parsed."""
        inner: JsonParser = self._inner  # type: ignore[attr-defined]
        inner._check_memory(fitted.texts, budget)
        good: list[tuple[npt.NDArray[np.int64], Any]] = []
        refused: dict[int, str] = {}
        inner._parse(pa, fitted.texts, texts.rows[~fitted.doubtful], good, refused, budget)
        return good, np.union1d(texts.rows[fitted.doubtful], np.array(list(refused), np.int64))

    def _parse_whole(
        self, pa: Any, column: pa.Array, rows: npt.NDArray[np.int64], budget: MemoryBudget
    ) -> tuple[list[tuple[npt.NDArray[np.int64], Any]], dict[int, str]]:
        """Return the values of whole texts, and the errors of those that are refused."""
        if not len(rows):
            return [], {}
        slices = slices_of(column.take(pa.array(rows)))
        numbers = np.arange(len(rows), dtype=np.int64)
        if self.whole.unknown == "keep":
            slices = fit_texts(self.whole.type, slices, numbers).texts
        self.whole._check_memory(slices, budget)
        good: list[tuple[npt.NDArray[np.int64], Any]] = []
        bad: dict[int, str] = {}
        self.whole._parse(pa, slices, numbers, good, bad, budget)
        return [(rows[part], values) for part, values in good], {int(rows[row]): text for row, text in bad.items()}


def _kept(types: Any, kind: Any, wanted: Any | None) -> Any:
    """Return the part of a type that Arrow has to parse: what is requested, and what only Arrow can check; or None."""
    if types.is_struct(kind):
        parts = {} if wanted is None else {field.name: field.type for field in wanted}
        below = [(field, _kept(types, field.type, parts.get(field.name))) for field in kind]
        fields = [field.with_type(part) for field, part in below if part is not None]
        return None if wanted is None and not fields else require("pyarrow", "arrow", "parsing values").struct(fields)
    return None if wanted is None and _is_checked(types, kind) else kind


def _is_checked(types: Any, kind: Any) -> bool:
    """Whether the kernel decides as Arrow does which values have a type."""
    if types.is_struct(kind):
        return all(_is_checked(types, field.type) for field in kind)
    if types.is_list(kind):
        return _is_checked(types, kind.value_type)
    return bool(
        types.is_boolean(kind)
        or types.is_signed_integer(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or types.is_null(kind)
        or (types.is_decimal128(kind) and kind.scale == 0)
    )
