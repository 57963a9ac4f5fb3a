"""The documentation site: `sphinx-build -W --keep-going -b html docs build/site` (docs/contributing.md)."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
# `kbatch` is the checkout's, also if another one is installed.
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
_PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]

project = "kbatch"
author = "The kbatch contributors"
copyright = author
version = release = _PROJECT["version"]
language = "en"

# The pages of the site. Each section is a page, with its name in the navigation, its line on the front page, and the
# pages below it: names, or patterns whose pages follow in alphabetical order. Names without a page are ignored; a page
# that no section lists fails the build. Files stay in docs/ whatever their section is.
site_sections = {
    "tutorial": ("Tutorial", "From a log directory to a chart in ten minutes.", ["notebooks/*"]),
    "how-to": ("How-to", "One task on each page, with code that runs and its output.", ["how-to/*"]),
    "guide": (
        "Guide",
        "What kbatch does, by subject: reading, scans, live topics, exports, Spark.",
        [
            "install",
            "reading",
            "log-directories",
            "values",
            "registry",
            "scans",
            "writing",
            "report",
            "live",
            "live-settings",
            "live-faults",
            "groups",
            "live-commands",
            "protocol",
            "export",
            "export-continue",
            "spark",
            "spark-streams",
            "spark-live",
            "spark-versions",
            "command-line",
            "export-commands",
            "log-commands",
            "rewriting-commands",
            "json-output",
        ],
    ),
    "reference": (
        "Reference",
        "Every function, option, command and message, generated from the code.",
        [
            "reference/python/index",
            "reference/commands/index",
            "options",
            "reference/protocol/index",
            "dependencies",
            "reference/changelog",
            "reference/security",
        ],
    ),
    "explanation": (
        "Explanation",
        "The record format, what happens at a fault, and how kbatch is built.",
        ["format", "transactions-and-damage", "faults", "architecture", "contributing"],
    ),
    "compatibility": (
        "Compatibility",
        "The rules of the format and the KIPs that kbatch supports, with their tests.",
        ["format-rules", "kips"],
    ),
    "coming-from": (
        "Coming from",
        "The same tasks in kbatch and in other clients and tools.",
        ["coming-from/*", "client-settings"],
    ),
    "benchmarks": (
        "Benchmarks",
        "What was compared, how to repeat it, and where kbatch is slower.",
        ["reference/running-benchmarks"],
    ),
}

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "kbatch_site",
]
# Generated pages in Markdown end in .markdown, so that tools find only pages that people write as .md.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".markdown": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
templates_path: list[str] = []
# A reference without a target is a warning, and with -W an error. Single backticks in docstrings name parameters too.
nitpicky = True
nitpick_ignore_regex = [("py:obj", ".*")]
default_role = "py:obj"
# Blocks without a language are commands, files and output.
highlight_language = "text"
# Flags such as --json keep their two hyphens.
smartquotes = False
toc_object_entries_show_parents = "hide"
suppress_warnings = ["toc.empty_glob", "config.cache"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
# The anchors of headings are those of GitHub.
myst_heading_anchors = 6
myst_links_external_new_tab = False

# Each build runs the notebooks. An error in a cell fails it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = f"kbatch {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
# Where the site is published; with it, pages have canonical addresses and llms.txt has absolute ones.
html_baseurl = os.environ.get("KBATCH_SITE_URL", "")
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "kbatch"},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_depth": 3,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# `sphinx-build -b linkcheck`: a server that is slow, or limits requests, is not a wrong link.
linkcheck_timeout = 20
linkcheck_retries = 3
linkcheck_rate_limit_timeout = 60
linkcheck_report_timeouts_as_broken = False
linkcheck_workers = 4
# Addresses on this machine, and of examples.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|\[::1\]|[\w.-]*\.?example(\.\w+)?)\b"]
# GitHub shows lines and headings with JavaScript.
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]
