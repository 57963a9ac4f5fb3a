"""The public API as lines: one for each name, parameter, field, member, command and flag.

``tests/golden/public_api.txt`` has the lines of the last release. ``public_api_changes.txt`` next to it lists the
changes since then, grouped by reason. After an intended change, run

    python tests/support/public_api.py --accept "P0: the reason"

and after a release ``python tests/support/public_api.py --write``, which writes the lines of the current code.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest import mock

import numpy as np

from kbatch.protocol import Message

GOLDEN = Path(__file__).parents[1] / "golden"
SNAPSHOT = GOLDEN / "public_api.txt"
CHANGES = GOLDEN / "public_api_changes.txt"
MODULES = ["kbatch", "kbatch.live", "kbatch.log", "kbatch.values", "kbatch.protocol", "kbatch.spark"]


def _default(value: Any) -> str:
    """Return the representation of a default, or ``...`` if it contains an address."""
    return "..." if " at 0x" in repr(value) else repr(value)


def _parameters(name: str, function: Any) -> Iterator[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return
    for number, each in enumerate(parameters):
        if each.name in ("self", "cls"):
            continue
        place = "*" if each.kind is each.KEYWORD_ONLY else str(number)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        only = ", /" if each.kind is each.POSITIONAL_ONLY else ""
        default = "" if each.default is each.empty else f" = {_default(each.default)}"
        yield f"{name}({place}{only}: {star}{each.name}{default})"


def _is_public(base: type) -> bool:
    """Return whether users can import a class: from another package, or from a public module."""
    return not base.__module__.startswith("kbatch.") or any(
        getattr(importlib.import_module(module), base.__name__, None) is base for module in MODULES
    )


def _members(name: str, cls: type) -> Iterator[str]:
    """Yield the public members of a class, including inherited ones from other classes of kbatch."""
    bases = [base for base in cls.__mro__[1:] if base is not object and _is_public(base)]
    yield f"{name} is {', '.join(base.__name__ for base in bases)}"
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield f"{name}.{member.name} = {member.value!r}"
    elif not issubclass(cls, BaseException) or "__init__" in vars(cls):
        # The fields of a message are attributes, which have lines too.
        yield from _parameters(name, Message if issubclass(cls, Message) else cls)
    if hasattr(cls, "__total__"):
        for key in cls.__annotations__:
            yield f"{name}[{key!r}]"
    seen = set(getattr(cls, "__members__", ()))
    for owner in cls.__mro__:
        if not owner.__module__.startswith("kbatch"):
            continue
        for attribute, value in vars(owner).items():
            if attribute.startswith("_") or attribute in seen:
                continue
            seen.add(attribute)
            yield f"{name}.{attribute}"
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function):
                yield from _parameters(f"{name}.{attribute}", function)


def _names(module: str) -> Iterator[str]:
    yield f"{module} is public"
    package = importlib.import_module(module)
    for name in getattr(package, "__all__", ()):
        value = getattr(package, name)
        called = f"{module}.{name}"
        if isinstance(value, type):
            # The members of a class that two modules export are listed with the first module.
            home = next(each for each in MODULES if getattr(importlib.import_module(each), name, None) is value)
            if home == module:
                yield from _members(called, value)
            else:
                yield f"{called} is {home}.{name}"
        elif isinstance(value, np.dtype):
            for field in value.names or ():
                yield f"{called}[{field!r}] = {value[field].str}"
        elif get_origin(value) is Literal:
            yield f"{called} = {', '.join(map(repr, get_args(value)))}"
        else:
            yield called
            if callable(value):
                yield from _parameters(called, value)


def _output_of(arguments: list[str]) -> str:
    from kbatch.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), contextlib.suppress(SystemExit):
        main(arguments)
    return text.getvalue()


def _commands() -> Iterator[str]:
    with mock.patch.dict(os.environ, {"COLUMNS": "100000"}):
        choices = re.search(r"choose from (.*)\)", _output_of(["no such command"]))
        assert choices is not None
        for command in re.findall(r"[\w-]+", choices[1]):
            yield f"command {command}"
            usage = _output_of([command, "--help"]).split("\n\n")[0].split(f"kbatch {command}", 1)[1]
            for word in re.findall(r"\[(?:[^][]|\[[^]]*\])*\]|\S+(?: [A-Z]+\b)?", usage):
                yield f"command {command}: {word}"


def lines() -> list[str]:
    """Return the lines of the current code."""
    return sorted({line for module in MODULES for line in _names(module)} | set(_commands()))


def changes() -> dict[str, str]:
    """Return the reason for each listed change, which is written as ``- line`` or ``+ line``."""
    listed = {}
    reason = ""
    for line in CHANGES.read_text().splitlines() if CHANGES.exists() else ():
        if line.startswith("#"):
            reason = line[1:].strip()
        elif line:
            listed[line] = reason
    return listed


def difference() -> set[str]:
    """Return the changes since the last release."""
    before, now = set(SNAPSHOT.read_text().splitlines()), set(lines())
    return {f"- {line}" for line in before - now} | {f"+ {line}" for line in now - before}


def accept(reason: str) -> None:
    """List new changes under `reason`, and remove listed changes that were reverted."""
    listed, found = changes(), difference()
    kept = {line: old for line, old in listed.items() if line in found}
    kept |= dict.fromkeys(sorted(found - set(listed)), reason)
    text = ""
    for each in dict.fromkeys(kept.values()):
        text += f"# {each}\n" + "".join(f"{line}\n" for line, why in kept.items() if why == each)
    CHANGES.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--accept", metavar="REASON", help="list new changes under this reason")
    action.add_argument("--write", action="store_true", help="make the current names the snapshot of a release")
    options = parser.parse_args()
    if options.write:
        SNAPSHOT.write_text("".join(f"{line}\n" for line in lines()))
        CHANGES.write_text("")
    else:
        accept(options.accept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
