"""The Sphinx extension of this site: sections, pages generated from the code, links, and llms.txt.

Modules that generate text do not import Sphinx, so that the tests of the project check them without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

__all__ = ["setup"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    from kbatch_site import links, llms, python_pages, sections, sides, tables

    app.add_config_value("site_sections", {}, "env")
    # Before numpydoc reads it.
    app.connect("config-inited", add_type_names, priority=100)
    # Before Sphinx looks for pages.
    app.connect("builder-inited", write_pages)
    for part in (sections, python_pages, links, llms, sides, tables):
        part.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def add_type_names(app: Sphinx, config: Config) -> None:
    """Make numpydoc link only the names in types."""
    from numpydoc.xref import DEFAULT_LINKS

    from kbatch_site.links import type_names

    # numpydoc's own links need inventories.
    plain = {name: f":py:obj:`{name}`" for name in DEFAULT_LINKS}
    config.numpydoc_xref_aliases = {**plain, **type_names()}
    config.numpydoc_xref_ignore = "all"


def write_pages(app: Sphinx) -> None:
    """Write the pages that are generated from the code, and remove pages whose subject no longer exists."""
    from kbatch_site import command_pages, pages, project_files, protocol_pages, python_pages

    parts = (python_pages.generate, command_pages.generate, protocol_pages.generate, project_files.project_pages)
    pages.write(Path(app.srcdir), {name: text for generate in parts for name, text in generate().items()})
