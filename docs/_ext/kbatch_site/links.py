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

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["external_names", "project_pages", "setup"]

ROOT = Path(__file__).parents[3]
# Files outside of docs/ that are pages of the site.
PROJECT_PAGES = {
    "CHANGELOG.md": "reference/changelog",
    "SECURITY.md": "reference/security",
    "bench/README.md": "reference/running-benchmarks",
}
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> None:
    """Register the handlers of links."""
    app.connect("source-read", _rewrite_links)
    app.connect("include-read", lambda app, path, name, text: _rewrite_links(app, name, text, Path(path)))
    app.connect("doctree-resolved", _link_code)
    app.connect("missing-reference", _external_link)
    app.connect("doctree-read", _adapt_images)


def project_pages() -> dict[str, str]:
    """Return pages that contain the files of the project's root."""
    return {
        name: f".. include:: ../../{file}\n   :parser: myst_parser.sphinx_\n" for file, name in PROJECT_PAGES.items()
    }


# -- links of Markdown


def _rewrite_links(app: Sphinx, name: str, source: list[str], path: Path | None = None) -> None:
    """Lead links from and to files outside of docs/ to pages of the site; a link to any other file becomes text."""
    path = path or Path(app.env.doc2path(name))
    docs = Path(app.srcdir)
    if path.suffix != ".md":
        return

    def rewritten(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if re.match(r"\w+:", target):
            return match[0]
        file = (ROOT / path.relative_to(docs.parent)).parent.joinpath(target).resolve()
        if file.is_relative_to(docs) and path.is_relative_to(docs):
            return match[0]
        page = PROJECT_PAGES.get(str(file.relative_to(ROOT)))
        if page is not None:
            return f"](/{page}.rst{anchor})"
        if file.is_relative_to(docs):
            return f"](/{file.relative_to(docs)}{anchor})"
        return match[0]

    parts = _FENCE.split(source[0])
    source[0] = "".join(part if number % 2 else _LINK.sub(rewritten, part) for number, part in enumerate(parts))


# -- names in code


def _link_code(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link code that is a public name, a command, or a page, where it is not a link already."""
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
            target = (f"reference/commands/{command[1]}", "")
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
    """Return page and anchor of the public names with their modules."""
    python = env.domains.python_domain
    return {name: (entry.docname, entry.node_id) for name, entry in python.objects.items() if name != "kbatch"}


# -- other packages


@cache
def external_names() -> dict[str, str]:
    """Return the addresses of names of other packages: docs/_ext/external_names.txt, so that builds need no network."""
    lines = (Path(__file__).parents[1] / "external_names.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: address.replace("NAME", name) for name, address in rows}


def _external_link(app: Sphinx, env: BuildEnvironment, node: Any, text: nodes.Node) -> nodes.reference | None:
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"]
    address = external_names().get(name)
    if address is None:
        return None
    return nodes.reference("", "", text, internal=False, refuri=address, reftitle=name)


# -- images


def _adapt_images(app: Sphinx, tree: nodes.document) -> None:
    """Mark drawings that adapt to light and dark by themselves; the theme gives others a light background."""
    for image in tree.findall(nodes.image):
        path = os.path.join(app.srcdir, image["uri"])
        if path.endswith(".svg") and os.path.exists(path) and "prefers-color-scheme" in Path(path).read_text():
            image["classes"].append("dark-light")


