"""The reference of the protocol: a page for each subject, with the messages of its APIs, generated from schemas."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from typing import Any

import kbatch.protocol.schemas
from kbatch.protocol import ApiKey
from kbatch.protocol.schema import PROTOCOL_MESSAGES, FieldSchema, MessageSchema, message_schemas
from kbatch_site.pages import escaped, heading, list_table, toctree

__all__ = ["generate", "subjects", "versions_text"]

_OPEN_END = 1 << 15


def subjects() -> dict[str, tuple[str, list[MessageSchema]]]:
    """Return the title and the messages of each schema module, by module name."""
    schemas = message_schemas()
    found = {}
    for each in pkgutil.iter_modules(kbatch.protocol.schemas.__path__):
        module = importlib.import_module(f"kbatch.protocol.schemas.{each.name}")
        title = (inspect.getdoc(module) or each.name).split("\n")[0].partition(". `")[0]
        tables = "\n".join(value for name, value in vars(module).items() if name.endswith("_TABLES"))
        names = re.findall(r"^(\w+): .*versions ", tables, re.MULTILINE)
        found[each.name] = (title, [schemas[name] for name in names])
    return found


def versions_text(versions: range, of: range) -> str:
    """Return versions in Kafka's notation, such as 3+, limited to the versions of the message."""
    last = min(versions.stop, of.stop) - 1
    if not versions or versions.start > last:
        return ""
    if versions.start <= of.start and last == of.stop - 1:
        return "all"
    if versions.stop == _OPEN_END:
        return f"{versions.start}+"
    return str(last) if versions.start == last else f"{versions.start}-{last}"


def generate() -> dict[str, str]:
    """Return the texts of all pages."""
    found = subjects()
    texts = {f"reference/protocol/{name}": _page(title, messages) for name, (title, messages) in found.items()}
    return {"reference/protocol/index": _index(found), **texts}


def _anchor(message: MessageSchema) -> str:
    return f"message-{message.name.lower()}"


def _index(found: dict[str, tuple[str, list[MessageSchema]]]) -> str:
    rows = []
    for key in ApiKey:
        schemas = message_schemas()
        request = schemas.get(f"{key.title}Request")
        if request is None or request.api_key != key:
            rows.append((str(int(key)), key.title, "", ""))
            continue
        response = schemas[f"{key.title}Response"]
        links = f":ref:`request <{_anchor(request)}>`, :ref:`response <{_anchor(response)}>`"
        rows.append((str(int(key)), key.title, _number_range(request.versions), links))
    stored = [
        (title.replace("`", ""), name) for name, (title, messages) in found.items() if messages[0].api_key is None
    ]
    text = (
        "The messages that :mod:`kbatch.protocol` reads and writes: their versions and fields. APIs without versions "
    )
    text += "are known by name only, such as those between brokers. :doc:`/protocol` shows how messages are read and "
    text += "written.\n\n"
    text += list_table(("key", "API", "versions", "messages"), rows, widths="10 50 15 25")
    text += heading("Stored records", "-") + "Keys and values that brokers and clients store in logs, as "
    text += ":doc:`functions of kbatch.log </reference/python/kbatch.log>` return them.\n\n"
    text += list_table(("page",), [(f":doc:`{title} <{name}>`",) for title, name in stored])
    return heading("Protocol messages") + text + toctree(found)


def _number_range(versions: range) -> str:
    last = versions.stop - 1
    return str(last) if versions.start == last else f"{versions.start}-{last}"


def _page(title: str, messages: list[MessageSchema]) -> str:
    text = "".join(f".. role:: level{level}(literal)\n   :class: level-{level}\n\n" for level in range(1, 7))
    text += heading(title.replace("`", ""))
    return text + "".join(part for message in messages for part in _message(message))


def _message(message: MessageSchema) -> Iterator[str]:
    yield f".. _{_anchor(message)}:\n\n" + heading(message.name, "-")
    is_public = message.name in PROTOCOL_MESSAGES
    facts = []
    if message.api_key is not None:
        facts.append(f"{'API key' if is_public else 'record type'} {message.api_key}")
    facts.append(f"versions {_number_range(message.versions)}")
    flexible = versions_text(message.flexible, message.versions)
    facts.append(f"flexible {'in no version' if not flexible else 'in all' if flexible == 'all' else flexible}")
    if is_public:
        yield f".. py:class:: kbatch.protocol.{message.name}\n   :no-contents-entry:\n\n   "
    line = ", ".join(facts)
    yield f"{line[0].upper()}{line[1:]}.\n\n"
    if message.fields:
        rows = [_field(*each, message) for each in _flattened(message.fields)]
        yield list_table(("field", "type", "versions", "meaning"), rows, widths="25 20 12 43", kind="fields")
    else:
        yield "The message has no fields.\n\n"


def _flattened(fields: Iterable[FieldSchema], level: int = 0) -> Iterator[tuple[FieldSchema, int]]:
    for field in fields:
        yield field, level
        yield from _flattened(field.fields, level + 1)


def _field(field: FieldSchema, level: int, message: MessageSchema) -> list[str]:
    # Long names may be broken between words.
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "\N{ZERO WIDTH SPACE}", field.type)
    return [
        f":level{level}:`{field.name}`" if level else f"``{field.name}``",
        f"``{kind}``",
        versions_text(field.versions, message.versions),
        " ".join([escaped(field.meaning), *_properties(field, message)]),
    ]


def _properties(field: FieldSchema, message: MessageSchema) -> Iterator[str]:
    """Yield sentences about null, the tag and the default of a field."""
    nullable = versions_text(field.nullable, message.versions)
    if nullable:
        yield (
            "Can be null."
            if nullable in ("all", versions_text(field.versions, message.versions))
            else (f"Can be null in versions {nullable}.")
        )
    if field.tag is not None:
        yield f"Tagged field {field.tag}."
    value: Any = field.default
    if value is None:
        yield "Default null."
    elif value is not ... and value and getattr(value, "int", 1):
        yield f"Default ``{str(value).lower() if isinstance(value, bool) else value}``."
