"""Links: names in code to their pages, files outside of docs/, and other packages."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.nodes import make_refnode

from kbatch_site.command_pages import parsers
from kbatch_site.project_files import rewritten
from kbatch_site.python_pages import homes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["external_names", "setup", "type_names"]


def setup(app: Sphinx) -> None:
    """Register the handlers of links."""
    app.connect("source-read", _rewrite_links)
    app.connect("doctree-resolved", _link_code)
    app.connect("doctree-read", _mark_rules)
    app.connect("doctree-resolved", _link_rules)
    app.connect("missing-reference", _external_link)
    app.connect("doctree-read", _adapt_images)
    app.connect("doctree-read", _remove_contents)


# -- links of Markdown


def _rewrite_links(app: Sphinx, name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    if path.suffix == ".md":
        source[0] = rewritten(source[0], path, path, Path(app.srcdir))


# -- names in code


def _link_code(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link code that is a public name, a command or a page, unless it is already a link."""
    if app.builder.name == "linkcheck":
        return
    objects = _objects(app.env)
    commands = parsers()
    for node in list(tree.findall(nodes.literal)):
        if _is_linked(node):
            continue
        text = node.astext()
        target = objects.get(text.removesuffix("()"))
        command = re.fullmatch(r"kbatch (\w+)", text)
        file = re.fullmatch(r"docs/([\w/-]+)\.md", text)
        if command and command[1] in commands:
            target = (f"reference/commands/kbatch-{command[1]}", "")
        elif file and file[1] in app.env.found_docs:
            target = (file[1], "")
        if target is not None and target[0] != page:
            new = make_refnode(app.builder, page, target[0], target[1] or None, node.deepcopy())
            node.parent.replace(node, new)


def _is_linked(node: nodes.Node) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, nodes.reference | nodes.title | nodes.caption):
            return True
        parent = parent.parent
    return False


def _objects(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Return the page and anchor of each public name with its module."""
    python = env.domains.python_domain
    return {name: (entry.docname, entry.node_id) for name, entry in python.objects.items() if name != "kbatch"}


# -- rules of the format


_RULES_PAGE = "format-rules"
_RULE = re.compile(r"\b[A-Z]{2,}-R\d+\b")


def _mark_rules(app: Sphinx, tree: nodes.document) -> None:
    """Give each row of the page of rules an anchor."""
    if app.env.docname == _RULES_PAGE:
        for cell in tree.findall(nodes.entry):
            if _RULE.fullmatch(cell.astext()):
                cell["ids"].append(cell.astext().lower())


def _link_rules(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link the ids of rules, such as FRM-R3, to their rows."""
    if page == _RULES_PAGE or app.builder.name == "linkcheck":
        return
    known = _rules(Path(app.srcdir))
    for node in list(tree.findall(nodes.Text)):
        ids = [each for each in _RULE.findall(node) if each in known]
        if not ids or _is_linked(node) or isinstance(node.parent, nodes.literal | nodes.literal_block):
            continue
        parts: list[nodes.Node] = []
        rest = str(node)
        for each in ids:
            before, _, rest = rest.partition(each)
            link = make_refnode(app.builder, page, _RULES_PAGE, each.lower(), nodes.Text(each))
            parts += [nodes.Text(before), link]
        node.parent.replace(node, [*parts, nodes.Text(rest)])


@cache
def _rules(docs: Path) -> set[str]:
    page = docs / f"{_RULES_PAGE}.md"
    return set(re.findall(r"^\| ([A-Z]+-R\d+) \|", page.read_text(), re.MULTILINE)) if page.exists() else set()


# -- other packages


@cache
def external_names() -> dict[str, tuple[str, str]]:
    """Return the spelling in docstrings, and the address, of names of other packages."""
    lines = (Path(__file__).parents[1] / "external_names.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: (name if short == "-" else short, address.replace("NAME", name)) for name, short, address in rows}


def type_names() -> dict[str, str]:
    """Return the role of each linkable name in docstring types: names of kbatch and of other packages."""
    ours = {name.rpartition(".")[2]: name for name in homes()}
    full = {name: name for name in homes()}
    theirs = {short: name for name, (short, _) in external_names().items()}
    return {short: f":py:obj:`{short} <{name}>`" for short, name in {**theirs, **ours, **full}.items()}


def _external_link(app: Sphinx, env: BuildEnvironment, node: Any, text: nodes.Node) -> nodes.reference | None:
    found = external_names().get(node["reftarget"]) if node.get("refdomain") == "py" else None
    if found is None:
        return None
    return nodes.reference("", "", text, internal=False, refuri=found[1], reftitle=node["reftarget"])


# -- images


def _adapt_images(app: Sphinx, tree: nodes.document) -> None:
    """Mark drawings that adapt to light and dark themes; the theme gives other images a light background."""
    for image in tree.findall(nodes.image):
        path = os.path.join(app.srcdir, image["uri"])
        if path.endswith(".svg") and os.path.exists(path) and "prefers-color-scheme" in Path(path).read_text():
            image["classes"].append("dark-light")


# -- contents


# The parts of a list of links: line breaks, commas, and a word before several links.
_MAX_OTHER_TEXT = 100


def _remove_contents(app: Sphinx, tree: nodes.document) -> None:
    """Remove the list of headings, which only readers on GitHub need; the site shows it next to the page."""
    headings = {name for section in tree.findall(nodes.section) for name in section["ids"]}
    for found in list(tree.findall(nodes.bullet_list)):
        links = [node for node in found.findall(nodes.Element) if "reftarget" in node or "refid" in node]
        targets = [node.get("refid") or node["reftarget"].lstrip("#") for node in links]
        other = len(found.astext()) - sum(len(node.astext()) for node in links)
        if len(targets) > 1 and headings.issuperset(targets) and other < _MAX_OTHER_TEXT:
            found.parent.remove(found)
