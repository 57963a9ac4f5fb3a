"""The reference of the Python API: one page for each public name, and one for each public module."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from kbatch_site.dtype_fields import FIELDS, PURPOSES
from kbatch_site.pages import escaped, first_sentence, heading, list_table, toctree

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["MODULES", "generate", "homes", "public_names", "setup"]

# tests/support/public_api.py has the same list.
MODULES = ["kbatch", "kbatch.live", "kbatch.log", "kbatch.values", "kbatch.protocol", "kbatch.spark"]
_KINDS = ("Functions", "Classes", "Enumerations", "Data types", "Constants", "Errors")


def setup(app: Sphinx) -> None:
    """Omit members that the text of a class lists, and read prefixes such as value_ as text."""
    app.connect("autodoc-skip-member", _is_listed)
    app.connect("autodoc-process-docstring", _escape_prefixes, priority=900)


def public_names(module: str) -> dict[str, Any]:
    """Return the public names of a module, without protocol messages, which have their own pages."""
    package = importlib.import_module(module)
    messages: set[str] = set()
    if module == "kbatch.protocol":
        from kbatch.protocol.schema import PROTOCOL_MESSAGES

        messages = set(PROTOCOL_MESSAGES)
    return {name: getattr(package, name) for name in package.__all__ if name not in messages and name[0] != "_"}


def homes() -> dict[str, tuple[str, Any]]:
    """Return each public name with the name of its page; if two modules have a name, the first one documents it."""
    found: dict[str, tuple[str, Any]] = {}
    pages: dict[int, str] = {}
    taken = set(MODULES)
    for module in MODULES:
        for name, value in public_names(module).items():
            page = pages.get(id(value))
            if page is None:
                page = f"{module}.{name}"
                # Some file systems do not distinguish kbatch.scan from kbatch.Scan, and kbatch.log from kbatch.Log.
                page += "-class" if page.lower() in taken or _is_shadowed(module, name) else ""
                taken.add(page.lower())
                pages[id(value)] = page
            found[f"{module}.{name}"] = (page, value)
    return found


def _is_shadowed(module: str, name: str) -> bool:
    others = [each for each in public_names(module) if each != name and each.lower() == name.lower()]
    return bool(others) and name[0].isupper()


def _kind(value: Any) -> str:
    if isinstance(value, np.dtype):
        return "Data types"
    if not inspect.isclass(value):
        return "Functions" if callable(value) else "Constants"
    if issubclass(value, BaseException):
        return "Errors"
    return "Enumerations" if hasattr(value, "__members__") else "Classes"


def _first_sentence(value: Any) -> str:
    return first_sentence((inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " "))


def generate() -> dict[str, str]:
    """Return the texts of all pages."""
    found = homes()
    texts = {"reference/python/index": _index()}
    for module in MODULES:
        names = [name for name in public_names(module) if name != "__version__"]
        texts[f"reference/python/{module}"] = _module(module, names, found)
        for name in names:
            page, value = found[f"{module}.{name}"]
            texts.setdefault(f"reference/python/{page}", _page(module, name, value))
    return texts


def _index() -> str:
    rows = [(f":doc:`{module} <{module}>`", _first_sentence(importlib.import_module(module))) for module in MODULES]
    text = "Import names from these modules only. The paths of other modules may change.\n\n"
    return heading("Python") + text + list_table(("module", "contents"), rows) + toctree(MODULES)


def _module(module: str, names: list[str], found: dict[str, tuple[str, Any]]) -> str:
    package = importlib.import_module(module)
    text = f".. py:module:: {module}\n\n" + heading(module) + f"{inspect.getdoc(package) or ''}\n\n"
    if module == "kbatch.protocol":
        text += "The classes of the messages are on the pages of :doc:`/reference/protocol/index`.\n\n"
    for kind in _KINDS:
        listed = sorted((name for name in names if _kind(found[f"{module}.{name}"][1]) == kind), key=str.lower)
        rows = []
        for name in listed:
            page, value = found[f"{module}.{name}"]
            meaning = PURPOSES[name] if kind == "Data types" else _summary(value)
            rows.append((f":doc:`{name} <{page}>`", meaning))
        if rows:
            text += heading(kind, "-") + list_table(("name", "purpose"), rows, widths="30 70")
    own = [found[f"{module}.{name}"][0] for name in names]
    own = [f"{page.removesuffix('-class').rpartition('.')[2]} <{page}>" for page in own if _module_of(page) == module]
    return text + toctree(sorted(own, key=str.lower))


def _summary(value: Any) -> str:
    return _first_sentence(value) or escaped(f"{type(value).__name__}: {value!r}")


def _module_of(page: str) -> str:
    return page.rpartition(".")[0]


def _page(module: str, name: str, value: Any) -> str:
    called = f"{module}.{name}"
    text = heading(called) + f".. currentmodule:: {module}\n\n"
    if isinstance(value, np.dtype):
        return text + _dtype(called, value)
    if not inspect.isclass(value):
        return text + f".. auto{'function' if callable(value) else 'data'}:: {called}\n"
    text += f".. autoclass:: {called}\n"
    if issubclass(value, BaseException):
        return text + "   :show-inheritance:\n   :members:\n"
    text += "   :members:\n   :inherited-members: " + ", ".join(_foreign_bases(value)) + "\n\n"
    return text + (_members(value) if hasattr(value, "__members__") else "")


def _foreign_bases(cls: type) -> list[str]:
    """Return the bases from Python and other packages, whose members are documented elsewhere."""
    return [base.__name__ for base in cls.__mro__ if not base.__module__.startswith("kbatch")]


def _dtype(called: str, dtype: np.dtype[Any]) -> str:
    name = called.rpartition(".")[2]
    rows = [(f"``{field}``", f"``{kind}``", FIELDS[name][field]) for field, (kind, *_) in (dtype.fields or {}).items()]
    text = f"{PURPOSES[name]} A row has {dtype.itemsize} bytes.\n\n"
    body = textwrap.indent(text + list_table(("field", "type", "meaning"), rows, widths="25 15 60"), "   ")
    return f".. py:data:: {called}\n   :type: numpy.dtype\n\n{body}"


def _members(cls: Any) -> str:
    rows = [(f"``{member.name}``", f"``{member.value!r}``") for member in cls]
    return heading("Members", "-") + list_table(("name", "value"), rows)


def _is_listed(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Skip fields without a docstring: the section Attributes in the docstring of their class describes them."""
    if skip or inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod):
        return None
    text = inspect.getdoc(member) or ""
    has_text = type(member).__module__.startswith("kbatch") and text
    return None if has_text and text != inspect.getdoc(type(member)) else True


def _escape_prefixes(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape the underscore at the end of words outside of code, which is a link in reStructuredText."""
    lines[:] = [re.sub(r"(?<![\w`:])([A-Za-z]+)_(?=[\s.,;)]|$)", r"\1\\_", line) for line in lines]
