"""Tables of text that fit the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from kbatch.cli.filling import filled_line, width_of
from kbatch.cli.styles import Style, Styled, StyledSpan, styled
from kbatch.escaping import printable

__all__ = ["labelled_lines", "table_lines"]

# Between the columns of a table.
_GAP = "  "


def table_lines(
    rows: Sequence[Sequence[str]],
    *,
    left: frozenset[int],
    indent: str = "  ",
    losses: frozenset[int] = frozenset(),
    short: Mapping[int, Sequence[str]] = MappingProxyType({}),
    optional: Sequence[int] = (),
) -> list[str]:
    """Format rows as lines of columns that fit the terminal or ``COLUMNS``; other output is as wide as its content.

    Parameters
    ----------
    rows : sequence of sequence of str
        The first row has the names of the columns, and the first column has the names of the rows.
    left : frozenset of int
        The columns that are left-aligned; the others, which hold numbers, are right-aligned.
    indent : str
    losses : frozenset of int
        The columns whose cells, except ``-``, have the style of errors.
    short : mapping of int to sequence of str
        Shorter cells of columns, names included, for lines that would be wider than the terminal.
    optional : sequence of int
        The columns that are left out, in this order, as long as the lines would still be wider; a last line names them.

    Returns
    -------
    list of str
        If the lines would be wider even so, each row becomes a block of lines, one per column. Blocks have all columns,
        and no cell is shortened.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    width = width_of(sys.stdout)
    shown: Sequence[int] = range(len(rows[0]))
    if width is not None and _line_width(rows, shown, indent) > width:
        fitting = _narrower(rows, indent, width, short, optional)
        if fitting is None:
            return list(_blocks(rows, indent, width, losses))
        rows, shown = fitting
    lines = list(_lines_of_columns(rows, shown, indent, left, losses))
    omitted = [name for column, name in enumerate(rows[0]) if column not in shown]
    return [*lines, f"{indent}{width} columns are too few for: {', '.join(omitted)}"] if omitted else lines


def _line_width(rows: Sequence[Sequence[str]], shown: Sequence[int], indent: str) -> int:
    return len(indent) + sum(max(len(row[i]) for row in rows) for i in shown) + len(_GAP) * (len(shown) - 1)


def _narrower(
    rows: Sequence[Sequence[str]],
    indent: str,
    width: int,
    short: Mapping[int, Sequence[str]],
    optional: Sequence[int],
) -> tuple[list[list[str]], Sequence[int]] | None:
    """Return rows with short cells, and the columns of them that fit; None if too many would be left out."""
    columns = [list(map(printable, short.get(i, column))) for i, column in enumerate(zip(*rows, strict=True))]
    narrow = [list(row) for row in zip(*columns, strict=True)]
    for count in range(len(optional) + 1):
        shown = [i for i in range(len(columns)) if i not in optional[:count]]
        if _line_width(narrow, shown, indent) <= width:
            return narrow, shown
    return None


def _lines_of_columns(
    rows: Sequence[Sequence[str]], shown: Sequence[int], indent: str, left: frozenset[int], losses: frozenset[int]
) -> Iterator[str]:
    """Yield the lines of a table with some of its columns."""
    widths = {i: max(len(row[i]) for row in rows) for i in shown}
    for number, row in enumerate(rows):
        aligned = [row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in shown]
        line = (indent + _GAP.join(aligned)).rstrip()
        spans: list[StyledSpan] = []
        if number == 0:
            spans.append(StyledSpan(len(indent), len(line), "heading"))
        start = len(indent)
        for i in shown:
            if number and i in losses and _is_loss(row[i]):
                spans.append(StyledSpan(start, start + widths[i], "error"))
            start += widths[i] + len(_GAP)
        yield Styled(line, spans)


def _is_loss(cell: str) -> bool:
    return cell not in ("", "-")


def _blocks(rows: Sequence[Sequence[str]], indent: str, width: int, losses: frozenset[int]) -> Iterator[str]:
    """Yield a block of lines for each row: its name, then the names and cells of the other columns that it has."""
    (_, *labels), *rest = rows
    label_width = max(map(len, labels))
    for name, *cells in rest:
        yield styled(indent + name, "heading")
        for i, (label, cell) in enumerate(zip(labels, cells, strict=True), 1):
            if cell:
                style: Style | None = "error" if i in losses and _is_loss(cell) else None
                yield from labelled_lines(label, cell, label_width, indent=indent + "  ", width=width, style=style)


def labelled_lines(
    label: str, text: str, label_width: int, *, indent: str = "  ", width: int | None = None, style: Style | None = None
) -> list[str]:
    """Return the lines of a label and its text, which is wrapped between words if it is wider than the terminal."""
    width = width_of(sys.stdout) if width is None else width
    line = f"{indent}{label:<{label_width}}{_GAP}{printable(text)}"
    lines = [line] if width is None else filled_line(line, width, len(line) - len(printable(text)))
    return [each if style is None else styled(each, style) for each in lines]
