"""Functions with ``**options`` list each option in their signature and docstring: type, default and meaning."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any, TypedDict

import pytest
from public_api import MODULES

import kbatch
import kbatch.log
from kbatch.arguments import suggests_names
from kbatch.exporting import ExportOptions
from kbatch.keywords import describes, keywords_of
from kbatch.live.client_arguments import ClientArguments
from kbatch.live.consumer import ConsumeOptions
from kbatch.live.settings import ClientSettings
from kbatch.log.read_arguments import TableOptions, ViewOptions
from kbatch.options import options_of
from kbatch.plan.read_options import ReadOptions
from kbatch.sinks.write_options import WriteOptions

pytest.importorskip("pyspark")


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions and methods of the public API, by name."""
    for module in MODULES:
        package = importlib.import_module(module)
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isfunction(value):
                yield f"{module}.{name}", value
            elif isinstance(value, type) and value.__module__.startswith("kbatch"):
                for attribute in dir(value):
                    if not attribute.startswith("_") and (
                        inspect.isfunction(function := getattr(value, attribute)) or inspect.ismethod(function)
                    ):
                        yield f"{module}.{name}.{attribute}", function


FUNCTIONS = dict(public_functions())


def test_no_public_function_hides_its_options() -> None:
    hidden = [
        name
        for name, function in FUNCTIONS.items()
        if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())
    ]
    assert hidden == []
    entry = re.compile(r"^ *\*\*\w+$", re.MULTILINE)
    assert [name for name, function in FUNCTIONS.items() if entry.search(function.__doc__ or "")] == []


WITH_OPTIONS = {
    "kbatch.export": ExportOptions,
    "kbatch.follow": ExportOptions,
    "kbatch.consume": ConsumeOptions,
    "kbatch.scan_logs": ViewOptions,
    "kbatch.Log.to_arrow": ViewOptions,
    "kbatch.Log.reader": ViewOptions,
    "kbatch.Log.head": ViewOptions,
    "kbatch.Log.tail": ViewOptions,
    "kbatch.Log.to_pandas": ViewOptions,
    "kbatch.Log.to_polars": ViewOptions,
    "kbatch.Log.count": TableOptions,
    "kbatch.log.LogList.tables": TableOptions,
    "kbatch.log.compare_logs": TableOptions,
    "kbatch.live.ClientSettings.of": ClientArguments,
}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_help_lists_each_option_with_type_default_and_meaning(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(FUNCTIONS[name]))
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    for option in WITH_OPTIONS[name].__annotations__:
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option].default is not ...
        entry = re.search(rf"^ +(?:\w+, )*{option}(?:, \w+)* : (.+)\n +(\S.*)$", text, re.MULTILINE)
        assert entry is not None, option
        assert len(entry[2].split()) >= 2


@pytest.mark.parametrize("options", [ExportOptions, ConsumeOptions, ViewOptions, TableOptions, ClientArguments])
def test_every_option_is_described(options: type) -> None:
    described = keywords_of(options)
    assert [*described] == [*options.__annotations__]
    for each in described.values():
        assert each.meaning.endswith((".", ")")), each
        assert each.meaning[0].isupper() or each.meaning.startswith("`"), each
        assert "None" not in each.type_text.split(" | ")[:1]


def test_the_described_defaults_are_those_that_apply() -> None:
    # The export sets it, see `_split_options`.
    others = {"latest_if_no_timestamp"}
    described = keywords_of(ExportOptions)
    for each in (*options_of(ReadOptions), *options_of(WriteOptions)):
        if each.name in described and each.name not in others:
            assert described[each.name].default == each.default, each.name
    tables = inspect.signature(kbatch.Log.tables).parameters
    assert {name: each.default for name, each in keywords_of(TableOptions).items()} == {
        name: each.default for name, each in tables.items() if name not in ("self", "columns")
    }
    of_clients = {each.name: each.default for each in fields(ClientSettings) if each.default is not MISSING}
    settings = keywords_of(ClientArguments)
    assert {name: settings[name].default for name in of_clients} == of_clients


def test_an_own_description_of_a_function_takes_precedence() -> None:
    parameters = inspect.signature(kbatch.scan_logs).parameters
    assert parameters["threads"].default == 0
    assert (kbatch.scan_logs.__doc__ or "").count("threads : ") == 1
    assert inspect.signature(kbatch.Log.count).parameters["threads"].default == 1


@describes()
class Sizes(TypedDict, total=False):
    """Sizes.

    Attributes
    ----------
    rows : int, default 5
        The number of rows.
    name : str, optional
        The name of the table,
        in two lines.
    """

    rows: int
    name: str | None


def test_the_options_replace_the_entry_of_the_docstring() -> None:
    from typing_extensions import Unpack

    def make(path: str, **options: Unpack[Sizes]) -> None:
        """Make a table.

        Parameters
        ----------
        path : str
            Where.
        **options
            Sizes.

        Returns
        -------
        None
        """

    make.__globals__["Sizes"] = Sizes
    made = suggests_names({})(make)
    assert str(inspect.signature(made)) == "(path: 'str', *, rows: 'int' = 5, name: 'str | None' = None) -> 'None'"
    assert inspect.cleandoc(made.__doc__ or "").splitlines()[2:14] == [
        "Parameters",
        "----------",
        "path : str",
        "    Where.",
        "rows : int, default 5",
        "    The number of rows.",
        "name : str, default None",
        "    The name of the table, in two lines.",
        "",
        "Returns",
        "-------",
        "None",
    ]


def test_signatures_have_the_options_without_docstrings_too() -> None:
    code = "import inspect, kbatch; print(*inspect.signature(kbatch.export).parameters)"
    shown = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True).stdout
    assert {*ExportOptions.__annotations__} <= {*shown.split()}
