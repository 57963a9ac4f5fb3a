"""Tables of text that fit the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

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

    Returns
    -------
    list of str
        If the lines would be wider than the terminal, each row becomes a block of lines, one per column. No cell is
        shortened.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = width_of(sys.stdout)
    if width is not None and len(indent) + sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return list(_blocks(rows, indent, width, losses))
    lines: list[str] = []
    for number, row in enumerate(rows):
        aligned = [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        line = (indent + _GAP.join(aligned)).rstrip()
        if number == 0:
            lines.append(Styled(line, [StyledSpan(len(indent), len(line), "heading")]))
            continue
        starts = [len(indent) + sum(widths[:i]) + len(_GAP) * i for i in range(len(row))]
        spans = [StyledSpan(starts[i], starts[i] + widths[i], "error") for i in sorted(losses) if _is_loss(row[i])]
        lines.append(Styled(line, spans))
    return lines


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
