"""The tree of the site: toctrees made from ``site_sections`` in conf.py, so that pages need none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kbatch_site.tree import entries

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["SectionCards", "setup"]

# Pages of these sections are listed on the section's page; the pages of the others list them in their text.
LISTED = ("reference",)


def setup(app: Sphinx) -> None:
    """Register the toctrees and the cards."""
    app.connect("source-read", _add_toctree)
    app.connect("env-get-outdated", _outdated)
    app.add_directive("section-cards", SectionCards)


def _add_toctree(app: Sphinx, name: str, source: list[str]) -> None:
    found = entries(name, app.config.site_sections, set(app.env.found_docs))
    if found:
        hidden = [] if name in LISTED else [":hidden:"]
        options = [":maxdepth: 1", *hidden]
        source[0] += "\n\n" + "\n".join(["```{toctree}", *options, "", *found, "```"]) + "\n"


def _outdated(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages whose toctrees may change, if the set of pages differs from the previous build."""
    listing = ("index", *app.config.site_sections)
    return [page for page in listing if page in env.found_docs] if added or removed else []


class SectionCards(SphinxDirective):
    """``{section-cards}``: a card for each section, with its name and description."""

    def run(self) -> list[nodes.Node]:
        """Return the cards."""
        lines = ["::::{grid} 1 2 2 2", ":gutter: 3", ""]
        for name, (title, text, _) in self.config.site_sections.items():
            if name in self.env.found_docs:
                lines += [f":::{{grid-item-card}} {title}", f":link: {name}", ":link-type: doc", "", text, ":::", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "::::"]))
