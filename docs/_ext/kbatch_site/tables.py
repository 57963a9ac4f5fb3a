"""Marks tables with long cells, so that phones show each row as a block of lines; other tables scroll."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["setup", "stack"]

# Cells with more characters make a table wider than a phone. In tables with few columns, shorter code is not wrapped.
_SHORT = 24
_FEW = 3


def setup(app: Sphinx) -> None:
    """Register the handler of pages."""
    app.connect("doctree-read", lambda app, tree: stack(tree))


def stack(tree: nodes.document) -> None:
    """Mark tables with long cells as stacked, and mark short code in cells.

    Each cell of a stacked table gets the name of its column, which only phones show.
    """
    for table in tree.findall(nodes.table):
        head, body = next(table.findall(nodes.thead), None), next(table.findall(nodes.tbody), None)
        if head is None or body is None or "fields" in table["classes"]:
            continue
        names = [cell.astext() for cell in head.findall(nodes.entry)]
        if len(names) <= _FEW:
            for code in body.findall(nodes.literal):
                if len(code.astext()) <= _SHORT:
                    code["classes"].append("short")
        if max((len(cell.astext()) for cell in body.findall(nodes.entry)), default=0) > _SHORT:
            table["classes"].append("stacked")
            # In tables with two columns, the second explains the first.
            for row in body.findall(nodes.row) if len(names) > 2 else ():
                _name_cells(row, names)


def _name_cells(row: nodes.row, names: list[str]) -> None:
    """Add column names to the cells of a row, except the first cell, which is the title of the block."""
    for cell, name in list(zip(row.children, names, strict=False))[1:]:
        if name and cell.astext() and isinstance(cell.children[0], nodes.paragraph):
            cell.children[0].insert(0, nodes.inline("", name, classes=["cell-name"]))
