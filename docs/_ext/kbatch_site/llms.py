"""``llms.txt`` and ``llms-full.txt`` (llmstxt.org) at the root of the site, and the text of each page next to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

from kbatch_site.pages import first_sentence
from kbatch_site.tree import entries

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["index_lines", "setup"]


def setup(app: Sphinx) -> None:
    """Register the files."""
    app.connect("build-finished", _write)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name not in ("html", "dirhtml"):
        return
    out = Path(app.outdir)
    (out / "llms.txt").write_text("\n".join(index_lines(app)) + "\n")
    texts = []
    for page in _pages(app):
        path = Path(app.env.doc2path(page))
        if path.suffix == ".md":
            shutil.copy(path, out / f"{page}.md")
            texts.append(path.read_text().strip())
    (out / "llms-full.txt").write_text("\n\n".join(texts) + "\n")


def _pages(app: Sphinx) -> Iterator[str]:
    """Yield all pages in the order of the sections, without duplicates."""
    seen: set[str] = set()
    queue = ["index"]
    while queue:
        page = queue.pop(0)
        if page not in seen:
            seen.add(page)
            yield page
            queue = [*app.env.toctree_includes.get(page, ()), *queue]


def index_lines(app: Sphinx) -> Iterator[str]:
    """Yield the lines of ``llms.txt``."""
    yield f"# {app.config.project}"
    yield ""
    yield f"> {_description(app, 'index')}"
    yield ""
    yield "Pages in .md are written by people, the others are generated from the code. llms-full.txt has all .md pages."
    sections, pages = app.config.site_sections, set(app.env.found_docs)
    for name, (title, text, _) in sections.items():
        below = entries(name, sections, pages)
        if not below and name not in pages:
            continue
        yield ""
        yield f"## {title}"
        yield ""
        if name in pages:
            yield _line(app, name, text)
        for page in below:
            yield _line(app, page, _description(app, page))


def _line(app: Sphinx, page: str, text: str) -> str:
    base = f"{app.config.html_baseurl.rstrip('/')}/" if app.config.html_baseurl else ""
    suffix = "md" if str(app.env.doc2path(page)).endswith(".md") else "html"
    title = app.env.titles[page].astext()
    return f"- [{title}]({base}{page}.{suffix}){f': {text}' if text else ''}"


def _description(app: Sphinx, page: str) -> str:
    """Return the first sentence of a page."""
    for node in app.env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(node.parent, nodes.section):
            text = " ".join(node.astext().split())
            return first_sentence(text)
    return ""
