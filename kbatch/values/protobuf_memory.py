"""The memory of Protobuf messages as objects and columns, by their bytes, before they are parsed."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["MessageMemory"]

# The memory of a field, in bytes: in a message of the `protobuf` package, and in a column.
_FIELD_BYTES = 24
# The memory of a message and of another object, in a list of Python and in the package.
_MESSAGE_BYTES = 128
_ITEM_BYTES = 32
# The wire types.
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
# All bytes of a varint but the last one.
_CONTINUED = bytes(range(128, 256))


class MessageMemory(NamedTuple):
    """The memory of a message, in bytes, and the fields that have items or contain such fields.

    Attributes
    ----------
    row : int
        Of a message without the items of its repeated fields, and without the contents of strings.
    most : int
        An upper bound of the memory of items for each byte of a message.
    fields : dict of int to FieldMemory
        By field number.
    """

    row: int
    most: int
    fields: dict[int, FieldMemory]

    @classmethod
    def of(cls, descriptor: Any, longest_names: dict[str, int] | None = None) -> MessageMemory:
        """Return the memory of a message that does not contain itself.

        `longest_names` collects the bytes of the longest name of each enum, by full name.
        """
        longest_names = {} if longest_names is None else longest_names
        row, most, fields = _MESSAGE_BYTES, 0, {}
        for field in descriptor.fields:
            below = None if field.message_type is None else cls.of(field.message_type, longest_names)
            one = _FIELD_BYTES if below is None else _FIELD_BYTES + below.row
            if field.enum_type is not None:
                enum = field.enum_type.full_name
                if enum not in longest_names:
                    longest_names[enum] = max(len(name.encode()) for name in field.enum_type.values_by_name)
                one += longest_names[enum]
            if field.is_repeated:
                # An item has at least one byte, a message at least two.
                item = _ITEM_BYTES + one
                most = max(most, item if below is None else (item + 1) // 2)
                fields[field.number] = FieldMemory(item, _is_packable(field), below)
                row += _FIELD_BYTES
            else:
                row += one
                if below is not None and below.fields:
                    fields[field.number] = FieldMemory(0, False, below)
            if below is not None:
                most = max(most, below.most)
        return cls(row, most, fields)

    def of_items(self, data: bytes) -> int:
        """Return the memory of the items of all repeated fields in a message, up to where it is damaged."""
        size, position, open_groups = 0, 0, [self]
        while position < len(data):
            tag, position = _varint_at(data, position)
            number, wire = tag >> 3, tag & 7
            field = open_groups[-1].fields.get(number)
            start = position
            if wire == _VARINT:
                _, position = _varint_at(data, position)
            elif wire == _BYTES:
                length, start = _varint_at(data, position)
                position = start + length
            elif wire == _GROUP:
                open_groups.append(_NO_FIELDS if field is None or field.below is None else field.below)
            elif wire == _END_GROUP and len(open_groups) > 1:
                open_groups.pop()
            elif wire in (_FIXED64, _FIXED32):
                position += 8 if wire == _FIXED64 else 4
            else:
                break
            if field is not None:
                size += field.memory_of(data[start:position] if wire == _BYTES else None)
        return size


class FieldMemory(NamedTuple):
    """The memory of a field with items, or with a message that has some.

    Attributes
    ----------
    item : int
        Of an item, in bytes; 0 if the field is not repeated.
    is_packed : bool
        Whether a field of wire type 2 has many items: numbers without tags.
    below : MessageMemory or None
        Of the message that the field contains.
    """

    item: int
    is_packed: bool
    below: MessageMemory | None

    def memory_of(self, content: bytes | None) -> int:
        """Return the memory of the items in one occurrence of the field; `content` if it has a length."""
        if content is None:
            return self.item
        if self.is_packed:
            # Fixed numbers have more bytes than that.
            return self.item * len(content.translate(None, _CONTINUED))
        return self.item + (0 if self.below is None else self.below.of_items(content))


_NO_FIELDS = MessageMemory(0, 0, {})


def _is_packable(field: Any) -> bool:
    return field.message_type is None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES)


def _varint_at(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint; one that is cut or too long ends the message."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, len(data)
