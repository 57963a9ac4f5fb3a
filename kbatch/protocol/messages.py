"""Messages as Python objects: one class per message and per structure in it, made from the schemas."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from kbatch.arguments import check_types
from kbatch.options import did_you_mean
from kbatch.protocol.schema import FieldSchema, MessageSchema, message_schemas
from kbatch.public_names import public_in

if TYPE_CHECKING:
    import inspect

__all__ = ["Message", "message_class", "require_message"]

# Elements of an array and characters of a value that `repr` shows.
_SHOWN_ELEMENTS = 3
_SHOWN_CHARACTERS = 60


class _Signature:
    """The signature of a message class for `help` and tab completion: its fields, made when it is asked for."""

    def __get__(self, message: Message | None, cls: type[Message]) -> inspect.Signature:
        import inspect

        defaults: dict[str, Any] = {
            name: [] if default == () else ... if isinstance(default, type) else default
            for name, default in cls._defaults.items()
        }
        return inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                for name, default in [*defaults.items(), ("unknown_tags", None)]
            ]
        )


@public_in("kbatch.protocol")
class Message:
    """A message, or a structure in one.

    Fields are attributes. A field that was not set has Kafka's default. Structures in a message are attributes of its
    class: ``FetchRequest.FetchTopic``.

    Attributes
    ----------
    schema : MessageSchema or FieldSchema
        The table that the class is made from; a class attribute.
    unknown_tags : dict of int to bytes
        Tagged fields that the schema does not have, by tag. They are kept, and written back.

    Raises
    ------
    TypeError
        On construction with a field that the schema does not have.

    Examples
    --------
    >>> from kbatch.protocol import MetadataRequest
    >>> request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")])
    >>> request
    MetadataRequest(topics=[MetadataRequestTopic(name='orders')])
    >>> request.allow_auto_topic_creation
    True
    >>> MetadataRequest(topic="orders")
    Traceback (most recent call last):
    ...
    TypeError: MetadataRequest has no field 'topic'
    """

    __slots__ = ("_unknown",)
    __hash__ = None  # type: ignore[assignment]

    schema: ClassVar[MessageSchema | FieldSchema]
    # By name, the default, or the class of the structure whose defaults are the default.
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *, unknown_tags: dict[int, bytes] | None = None, **fields: Any) -> None:
        if unknown_tags:
            self._unknown = unknown_tags
        for name, value in fields.items():
            if name not in self._defaults:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    if not TYPE_CHECKING:
        # Type checkers know the fields of each class from the stub, and refuse other names.

        def __getattr__(self, name: str) -> Any:
            # Python calls this only if the slot is empty.
            if name == "_unknown":
                return {}
            if name not in self._defaults:
                raise AttributeError(f"{type(self).__name__} has no field {name!r}")
            value = self._defaults[name]
            if value == () or isinstance(value, type):
                # The default is mutable, so this object gets its own.
                value = [] if value == () else value()
                setattr(self, name, value)
            return value

    @property
    def unknown_tags(self) -> dict[int, bytes]:
        """Tagged fields that the schema does not have, by tag."""
        found: dict[int, bytes] = self._unknown
        if not found:
            self._unknown = found
        return found

    @unknown_tags.setter
    def unknown_tags(self, value: dict[int, bytes]) -> None:
        self._unknown = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or self._defaults is not other._defaults:
            return NotImplemented
        return self._unknown == other._unknown and all(
            getattr(self, name) == getattr(other, name) for name in self._defaults
        )

    def __repr__(self) -> str:
        shown = [f"{name}={_shown_value(value)}" for name, value in self.to_dict(changed=True, deep=False).items()]
        if self._unknown:
            shown.append(f"unknown_tags={_shown_value(self._unknown)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self, *, version: int | None = None, changed: bool = False, deep: bool = True) -> dict[str, Any]:
        """Return the fields by name.

        Parameters
        ----------
        version : int, optional
            Leave out fields that this version does not have.
        changed : bool, optional
            Leave out fields with their default.
        deep : bool, optional
            Make dicts of structures too.
        """
        found = {}
        for field in self.schema.fields:
            if version is not None and version not in field.versions:
                continue
            value = getattr(self, field.name)
            if changed:
                default = self._defaults[field.name]
                default = list(default) if default == () else default() if isinstance(default, type) else default
                if value == default:
                    continue
            if deep and isinstance(value, Message):
                value = value.to_dict(version=version, changed=changed)
            elif deep and isinstance(value, list | tuple):
                value = [
                    each.to_dict(version=version, changed=changed) if isinstance(each, Message) else each
                    for each in value
                ]
            found[field.name] = value
        return found


def _shown_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        shown = [_shown_value(each) for each in value[:_SHOWN_ELEMENTS]]
        if len(value) > _SHOWN_ELEMENTS:
            shown.append(f"... {len(value) - _SHOWN_ELEMENTS} more")
        return f"[{', '.join(shown)}]"
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    if isinstance(value, bytes | bytearray) and len(value) > _SHOWN_CHARACTERS:
        return f"<{len(value)} bytes>"
    text = repr(value)
    long = not isinstance(value, Message) and len(text) > _SHOWN_CHARACTERS
    return f"{text[:_SHOWN_CHARACTERS]}..." if long else text


def _make_class(
    name: str,
    schema: MessageSchema | FieldSchema,
    owner: str,
    structures: dict[str, type[Message]],
) -> type[Message]:
    defaults: dict[str, Any] = {}
    for field in schema.fields:
        if field.fields and field.element not in structures:
            # Two fields of a message can have structures of the same type.
            structures[field.element] = _make_class(field.element, field, f"{owner}.{field.element}", structures)
        defaults[field.name] = structures[field.element] if field.default is ... else field.default
    fields = "\n".join(f"{field.name} : {field.type}\n    {field.meaning}" for field in schema.fields)
    return type(
        name,
        (Message,),
        {
            "__slots__": tuple(defaults),
            "__module__": "kbatch.protocol",
            "__qualname__": owner,
            "__doc__": f"Kafka's {owner}.\n\nAttributes\n----------\n{fields}\n",
            "schema": schema,
            "_defaults": defaults,
            "__signature__": _Signature(),
        },
    )


def require_message(name: str, value: object, expected: str) -> None:
    """Raise `TypeError` unless the argument `name` is a message, or a part of one, as `expected` describes it."""
    if not isinstance(value, Message):
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")


@public_in("kbatch.protocol")
def message_class(name: str) -> type[Message]:
    """Return the class of a message, such as ``FetchRequest``.

    Raises
    ------
    ValueError
        If there is no such message.
    """
    check_types(message_class, locals())
    schemas = message_schemas()
    if name not in schemas:
        raise ValueError(f"name must be the name of a message, got {name!r}{did_you_mean(name, schemas)}")
    return _made_class(name)


@functools.cache
def _made_class(name: str) -> type[Message]:
    structures: dict[str, type[Message]] = {}
    cls = _make_class(name, message_schemas()[name], name, structures)
    for each, structure in structures.items():
        setattr(cls, each, structure)
    return cls
