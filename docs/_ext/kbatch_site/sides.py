"""Shows the code for two tools side by side, on pages that compare them.

In Markdown, one follows the other. A side is a paragraph that begins with the name of a tool in bold, and the code
blocks after it; two consecutive sides are shown in two columns, or in one column in narrow windows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["pair_sides", "setup"]

# Pages outside of this folder are not changed.
_FOLDER = "coming-from/"
_OURS = "kbatch"
# The languages of code blocks that tests run; `py` is Python code for the other tool.
_SAME = {"py": "python"}


class _Side(NamedTuple):
    name: str
    head: nodes.paragraph
    code: list[nodes.literal_block]
    outputs: list[nodes.literal_block]


def setup(app: Sphinx) -> None:
    """Register the handler of pages."""
    # After the handler that removes lists of headings.
    app.connect("doctree-read", _pair_sides_of_page, priority=600)


def _pair_sides_of_page(app: Sphinx, tree: nodes.document) -> None:
    if app.env.docname.startswith(_FOLDER):
        pair_sides(tree)
        _add_contents(tree)


def _add_contents(tree: nodes.document) -> None:
    """List the headings above the first one, because the columns need the space of the list next to the page."""
    page = next(tree.findall(nodes.section))
    sections = [node for node in page.children if isinstance(node, nodes.section)]
    links = [nodes.reference("", node[0].astext(), internal=True, refid=node["ids"][0]) for node in sections]
    items = [nodes.list_item("", nodes.paragraph("", "", link)) for link in links]
    page.insert(page.index(sections[0]), nodes.bullet_list("", *items, classes=["sides-contents"]))


def pair_sides(tree: nodes.document) -> None:
    """Put each side of another tool, and the following side of kbatch, into one container."""
    for section in list(tree.findall(nodes.section)):
        sides = [side for node in section.children if (side := _side_at(node)) is not None]
        for left, right in pairwise(sides):
            if left.name != _OURS and right.name == _OURS and _is_followed(left, right):
                _pair(left, right)


def _is_followed(left: _Side, right: _Side) -> bool:
    siblings = left.head.parent
    return siblings.index(right.head) == siblings.index(left.head) + len(_nodes(left))


def _nodes(side: _Side) -> list[nodes.Element]:
    """Return the nodes of a side in page order."""
    return sorted([side.head, *side.code, *side.outputs], key=side.head.parent.index)


def _side_at(node: nodes.Node) -> _Side | None:
    """Return the side that begins at a node, or None."""
    if not isinstance(node, nodes.paragraph):
        return None
    # MyST begins such a paragraph with an empty text node.
    first = next(child for child in node.children if child.astext())
    if not isinstance(first, nodes.strong):
        return None
    side = _Side(first.astext(), node, [], [])
    siblings = node.parent.children
    for after in siblings[siblings.index(node) + 1 :]:
        if not isinstance(after, nodes.literal_block):
            break
        (side.outputs if after.get("language") == "text" and side.code else side.code).append(after)
    return side


def _kinds(side: _Side) -> list[str]:
    return [_SAME.get(each.get("language", ""), each.get("language", "")) for each in side.code]


def _pair(left: _Side, right: _Side) -> None:
    """Replace two sides by a container; an output that both tools print goes below both."""
    parent = left.head.parent
    pair = nodes.container(classes=["sides"])
    parent.insert(parent.index(left.head), pair)
    is_shared = not left.outputs and len(right.outputs) == 1 and _kinds(left) == _kinds(right)
    for side in (left, right):
        parts = _nodes(side)
        for part in parts:
            parent.remove(part)
        below = side.outputs if side is right and is_shared else []
        body = nodes.container("", *[part for part in parts[1:] if part not in below], classes=["side-code"])
        pair += nodes.container("", side.head, body, classes=["side"])
        pair += [nodes.container("", each, classes=["side-output"]) for each in below]
