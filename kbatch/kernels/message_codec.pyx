"""Kafka's messages: bytes to Python objects and back, along the plans that `kbatch.protocol.codec` makes of a schema.

A plan is a `Structure` with its `Field` objects in wire order, for one version of one message. The loops hold the GIL
because they create Python objects. They load and store fields in the slots of these objects directly, at the offset of
the member descriptor; an empty slot is a field with its default.
"""

from uuid import UUID

from kbatch.errors import LimitExceededError, ProtocolError

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLong
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t count)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    # Structures within structures; the deepest of Kafka's has 6.
    MAX_DEPTH = 16
    MAX_STRING = 32767
    # Record batches up to this size are copied: an entry of `sendmsg` costs more than the copy.
    MAX_COPIED = 2048
    # Bytes of each object, without characters, elements and slots; a list has an eighth more elements than it needs.
    GC_SIZE = 16, INT_SIZE = 32, FLOAT_SIZE = 32, UUID_SIZE = 112, TEXT_SIZE = 64, BYTES_SIZE = 48, VIEW_SIZE = 192
    LIST_SIZE = 72, ELEMENT_SIZE = 9, DICT_SIZE = 240, ITEM_SIZE = 64

cdef enum WireKind:
    BOOL, INT8, INT16, UINT16, INT32, UINT32, INT64, FLOAT64, UUID_, STRING, BYTES, RECORDS, STRUCT, ARRAY

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "uint32": UINT32, "int64": INT64,
    "float64": FLOAT64, "uuid": UUID_, "string": STRING, "bytes": BYTES, "records": RECORDS, "struct": STRUCT,
    "array": ARRAY,
}
DEPTH_LIMIT = MAX_DEPTH

cdef int64_t[7] LOWEST = [0, -128, -32768, 0, -2147483648, 0, INT64_MIN]
cdef int64_t[7] HIGHEST = [1, 127, 32767, 65535, 2147483647, 4294967295, 0x7FFFFFFFFFFFFFFF]
cdef int[9] SIZES = [1, 1, 2, 2, 4, 4, 8, 8, 16]
cdef bytes NO_UUID = bytes(16)


cdef Py_ssize_t slot_of(type cls, str name) except -1:
    cdef object descriptor = cls.__dict__[name]
    if type(descriptor).__name__ != "member_descriptor":
        raise TypeError(f"{cls.__name__}.{name} is not a slot")
    return (<PyMemberDescrObject*> <PyObject*> descriptor).d_member.offset


cdef class Field:
    """A field in one version.

    `kind` is a value of `KINDS`; `compact` means that its length is an unsigned varint; `tag` is -1 for a field that is
    not tagged. `default` is an immutable value, ``()`` for an empty array, and ``...`` for a structure of defaults. An
    array has an `element`. `min_size` is the fewest bytes that the field takes.
    """

    cdef readonly str name
    cdef readonly int kind
    cdef readonly int64_t tag
    cdef readonly Py_ssize_t min_size
    cdef bint compact, nullable
    cdef object default
    cdef Structure structure
    cdef Field element
    cdef Py_ssize_t slot

    def __init__(self, str name, int kind, bint compact, bint nullable, int64_t tag, default, structure, element,
                 Py_ssize_t min_size):
        self.name, self.kind, self.compact, self.nullable, self.tag = name, kind, compact, nullable, tag
        self.default, self.structure, self.element, self.min_size = default, structure, element, min_size
        self.slot = 0


cdef class Structure:
    """A structure in one version, in wire order.

    `cls` is the class of its objects. It has a slot for each field, and its base has the slot ``_unknown`` for
    unknown tagged fields. `fields` are not tagged, `tagged` are sorted by tag, and `absent` are not in this version
    but must not be dropped. If it is `flexible`, tagged fields end the structure.
    """

    cdef readonly type cls
    cdef readonly tuple fields, tagged
    cdef tuple absent
    cdef bint flexible
    cdef Py_ssize_t unknown
    cdef readonly int version

    def __init__(self, type cls, tuple fields, tuple tagged, tuple absent, bint flexible, int version):
        cdef Field field
        self.cls, self.fields, self.tagged, self.absent = cls, fields, tagged, absent
        self.flexible, self.version = flexible, version
        for field in (*fields, *tagged, *absent):
            field.slot = slot_of(cls, field.name)
        self.unknown = slot_of(cls.__base__, "_unknown")


cdef inline PyObject** slot_at(object each, Py_ssize_t slot) noexcept:
    return <PyObject**> (<char*> <PyObject*> each + slot)


cdef inline void store(object each, Py_ssize_t slot, object value) noexcept:
    # Only for an empty slot of an object that nobody else has seen yet.
    Py_INCREF(value)
    slot_at(each, slot)[0] = <PyObject*> value


cdef class FieldPath:
    """Which field is being read or written, for messages of errors."""

    cdef PyObject* fields[MAX_DEPTH]
    cdef Py_ssize_t indexes[MAX_DEPTH]
    cdef int depth

    cdef inline void enter(self, Field field) noexcept:
        self.fields[self.depth] = <PyObject*> field
        self.indexes[self.depth] = -1

    cdef str text(self):
        cdef int level
        cdef str found = ""
        for level in range(self.depth + 1):
            if self.fields[level] == NULL:
                break
            found += ("." if found else "") + (<Field> self.fields[level]).name
            if self.indexes[level] >= 0:
                found += f"[{self.indexes[level]}]"
        return found


cdef class Decoder(FieldPath):
    cdef const uint8_t* start
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef object view
    # Bytes of the objects so far, and how many there may be.
    cdef Py_ssize_t built, limit

    cdef inline int count(self, Py_ssize_t size) except -1:
        """Count `size` bytes of an object, before it is built if it may be large."""
        self.built += size
        if self.built > self.limit:
            raise LimitExceededError(
                f"byte {self.at - self.start}, {self.text() or 'message'}: the objects of the message take more than "
                f"{self.limit} bytes; raise limits=kbatch.Limits(max_table_bytes=...)")
        return 0

    cdef object error(self, str text, Py_ssize_t back=0):
        return ProtocolError(text, position=self.at - back - self.start, field=self.text() or None)

    cdef int need(self, Py_ssize_t size) except -1:
        if size > self.end - self.at:
            raise self.error(f"needs {size} bytes, {self.end - self.at} remain")
        return 0

    cdef int64_t integer(self, int kind) except? -2:
        cdef const uint8_t* at = self.at
        cdef int i
        cdef uint64_t value = 0
        self.need(SIZES[kind])
        for i in range(SIZES[kind]):
            value = value << 8 | at[i]
        self.at += SIZES[kind]
        if kind == INT32:
            return <int32_t> value
        if kind == INT16:
            return <int16_t> value
        if kind == INT8:
            return <signed char> value
        return <int64_t> value

    cdef int64_t uvarint(self) except -1:
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        if self.at < self.end and self.at[0] < 0x80:
            self.at += 1
            return (self.at - 1)[0]
        cdef const uint8_t* at = self.at
        while True:
            if at == self.end:
                raise self.error("variable-length integer is cut")
            byte = at[0]
            at += 1
            value |= <uint64_t> (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise self.error("variable-length integer has more than 32 bits")
        if value >> 32:
            raise self.error("variable-length integer has more than 32 bits")
        self.at = at
        return <int64_t> value

    cdef Py_ssize_t length(self, Field field) except -2:
        """Read a length or count, check it against the remaining bytes, and return it; -1 for null."""
        cdef const uint8_t* before = self.at
        cdef int64_t size, limit = self.end - self.at
        if field.compact:
            size = self.uvarint() - 1
        else:
            size = self.integer(INT16 if field.kind == STRING else INT32)
        if size == -1:
            if not field.nullable:
                raise self.error("null, but the field is not nullable", self.at - before)
            return -1
        limit = self.end - self.at
        if field.kind == ARRAY:
            limit //= field.element.min_size
            if size < 0 or size > limit:
                raise self.error(
                    f"array of {size} elements, but the remaining {self.end - self.at} bytes hold at most {limit}",
                    self.at - before,
                )
        elif size < 0 or size > limit:
            raise self.error(f"length is {size}, but {limit} bytes remain", self.at - before)
        elif field.kind == STRING and size > MAX_STRING:
            raise self.error(f"string of {size} bytes, the limit is {MAX_STRING}", self.at - before)
        return size

    cdef object value(self, Field field):
        cdef int kind = field.kind
        cdef Py_ssize_t size, i
        cdef int64_t number
        cdef uint64_t bits
        cdef double real
        cdef list elements
        if kind == BOOL:
            return self.integer(BOOL) != 0
        if kind < FLOAT64:
            number = self.integer(kind)
            if not -5 <= number <= 256:
                self.count(INT_SIZE)
            return number
        if kind == FLOAT64:
            self.count(FLOAT_SIZE)
            bits = <uint64_t> self.integer(INT64)
            memcpy(&real, &bits, 8)
            return real
        if kind == UUID_:
            self.need(16)
            self.count(UUID_SIZE)
            self.at += 16
            return UUID(bytes=PyBytes_FromStringAndSize(<const char*> self.at - 16, 16))
        if kind == STRUCT:
            if field.nullable:
                size = self.integer(INT8)
                if size < 0:
                    return None
            return self.structure(field.structure)
        size = self.length(field)
        if size < 0:
            return None
        if kind == ARRAY:
            self.count(LIST_SIZE + ELEMENT_SIZE * size)
            elements = []
            for i in range(size):
                self.indexes[self.depth] = i
                elements.append(self.value(field.element))
            self.indexes[self.depth] = -1
            return elements
        self.at += size
        if kind == STRING:
            text = PyUnicode_DecodeUTF8(<const char*> self.at - size, size, "replace")
            if size > 1:
                self.count(TEXT_SIZE + PyUnicode_KIND(text) * PyUnicode_GET_LENGTH(text))
            return text
        self.count(BYTES_SIZE + size if kind == BYTES else VIEW_SIZE)
        if kind == BYTES:
            return PyBytes_FromStringAndSize(<const char*> self.at - size, size)
        i = self.at - self.start
        return self.view[i - size:i]

    cdef object structure(self, Structure plan):
        self.count(GC_SIZE + (<PyTypeObject*> plan.cls).tp_basicsize)
        cdef object found = PyType_GenericAlloc(<PyTypeObject*> plan.cls, 0)
        cdef object each
        cdef Field field
        self.depth += 1
        for each in plan.fields:
            field = <Field> each
            self.enter(field)
            store(found, field.slot, self.value(field))
        self.fields[self.depth] = NULL
        if plan.flexible:
            if self.at < self.end and self.at[0] == 0:
                self.at += 1
            else:
                self.tags(plan, found)
        self.depth -= 1
        return found

    cdef int tags(self, Structure plan, object found) except -1:
        cdef int64_t tag, _, size, count = self.uvarint()
        cdef const uint8_t* end = self.end
        cdef const uint8_t* before
        cdef object each
        cdef Field field
        cdef dict unknown = {}
        # Each takes two bytes or more, so that a hostile count soon meets the end.
        for _ in range(count):
            before = self.at
            tag = self.uvarint()
            size = self.uvarint()
            self.need(size)
            for each in plan.tagged:
                field = <Field> each
                if field.tag == tag:
                    break
            else:
                if tag in unknown:
                    raise self.error(f"tag {tag} is repeated", self.at - before)
                self.count((0 if unknown else DICT_SIZE) + ITEM_SIZE + BYTES_SIZE + size)
                unknown[tag] = PyBytes_FromStringAndSize(<const char*> self.at, size)
                self.at += size
                continue
            self.enter(field)
            if slot_at(found, field.slot)[0] != NULL:
                raise self.error(f"tag {tag} is repeated", self.at - before)
            self.end = self.at + size
            store(found, field.slot, self.value(field))
            if self.at != self.end:
                raise self.error(f"{self.end - self.at} trailing bytes in the tagged field")
            self.end = end
            self.fields[self.depth] = NULL
        if unknown:
            store(found, plan.unknown, unknown)
        return 0


def decode_structure(Structure plan not None, view not None, Py_ssize_t position, bint whole, Py_ssize_t limit):
    """Read the structure at `position` of a view; it must take all bytes if it is `whole`.

    Return it, the position after it, and the bytes of memory that its objects take, at most `limit`.
    """
    cdef const uint8_t[::1] data = view
    cdef Decoder decoder = Decoder.__new__(Decoder)
    if not 0 <= position <= data.shape[0]:
        raise IndexError(f"position {position} of {data.shape[0]} bytes")
    decoder.start = &data[0] if data.shape[0] else NULL
    decoder.at = decoder.start + position
    decoder.end = decoder.start + data.shape[0]
    decoder.view = view
    decoder.depth = -1
    decoder.built, decoder.limit = 0, limit
    found = decoder.structure(plan)
    if whole and decoder.at != decoder.end:
        decoder.depth = 0
        raise decoder.error(f"{decoder.end - decoder.at} trailing bytes after the message")
    return found, decoder.at - decoder.start, decoder.built


cdef class Encoder(FieldPath):
    cdef uint8_t* data
    cdef Py_ssize_t size, capacity
    # Bytes in `parts`.
    cdef Py_ssize_t total
    cdef list parts

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t* reserve(self, Py_ssize_t size) except NULL:
        """Return where `size` more bytes go; they count as written."""
        cdef uint8_t* grown
        cdef Py_ssize_t capacity
        if size > self.capacity - self.size:
            capacity = max(self.capacity * 2, self.size + size, 512)
            grown = <uint8_t*> PyMem_Realloc(self.data, capacity)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.capacity = capacity
        self.size += size
        return self.data + self.size - size

    cdef int flush(self) except -1:
        if self.size:
            self.parts.append(bytearray(self.data[:self.size]))
            self.total += self.size
            self.size = 0
        return 0

    cdef int integer(self, int kind, int64_t value) except -1:
        cdef int i
        cdef uint8_t* at = self.reserve(SIZES[kind])
        for i in range(SIZES[kind] - 1, -1, -1):
            at[i] = <uint8_t> value
            value >>= 8
        return 0

    cdef int uvarint(self, uint64_t value) except -1:
        while value >= 0x80:
            self.reserve(1)[0] = <uint8_t> (value | 0x80)
            value >>= 7
        self.reserve(1)[0] = <uint8_t> value
        return 0

    cdef int length(self, Field field, Py_ssize_t size) except -1:
        """Write a length or count; -1 for null."""
        if size > 0x7FFFFFFF:
            raise ValueError(f"length {size} is above the limit of {0x7FFFFFFF}")
        if field.compact:
            return self.uvarint(size + 1)
        return self.integer(INT16 if field.kind == STRING else INT32, size)

    cdef int value(self, Field field, object value) except -1:
        cdef int kind = field.kind
        cdef int64_t number
        cdef double real
        if value is None and kind != UUID_:
            if not field.nullable:
                raise ValueError("None, but the field is not nullable")
            return self.integer(INT8, -1) if kind == STRUCT else self.length(field, -1)
        if kind < FLOAT64:
            number = value is not False and value != 0 if kind == BOOL else PyLong_AsLongLong(value)
            if not LOWEST[kind] <= number <= HIGHEST[kind]:
                raise ValueError(f"{number} is not between {LOWEST[kind]} and {HIGHEST[kind]}")
            return self.integer(kind, number)
        if kind == FLOAT64:
            real = value
            if real != real:
                # Of the many NaNs the canonical one.
                return self.integer(INT64, 0x7FF8000000000000)
            memcpy(&number, &real, 8)
            return self.integer(INT64, number)
        if kind == UUID_:
            self.uuid(NO_UUID if value is None else value.bytes)
        elif kind == STRING:
            self.string(field, value)
        elif kind == ARRAY:
            self.array(field, value)
        elif kind == STRUCT:
            if field.nullable:
                self.integer(INT8, 1)
            self.structure(field.structure, value)
        else:
            self.buffer(field, value)
        return 0

    cdef int uuid(self, bytes data) except -1:
        if len(data) != 16:
            raise ValueError(f"a UUID has 16 bytes, not {len(data)}")
        memcpy(self.reserve(16), <const uint8_t*> data, 16)
        return 0

    cdef int string(self, Field field, object text) except -1:
        cdef Py_ssize_t size
        cdef const char* data
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        data = PyUnicode_AsUTF8AndSize(text, &size)
        if size > MAX_STRING:
            raise ValueError(f"string of {size} bytes, the limit is {MAX_STRING}")
        self.length(field, size)
        memcpy(self.reserve(size), data, size)
        return 0

    cdef int buffer(self, Field field, object value) except -1:
        view = memoryview(value).cast("B")
        cdef const uint8_t[::1] data = view
        cdef Py_ssize_t size = data.shape[0]
        self.length(field, size)
        if field.kind == RECORDS and size > MAX_COPIED:
            self.flush()
            self.parts.append(view)
            self.total += size
        elif size:
            memcpy(self.reserve(size), &data[0], size)
        return 0

    cdef int array(self, Field field, object values) except -1:
        cdef Py_ssize_t i = 0
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"expected a list, got {type(values).__name__}")
        self.length(field, len(values))
        for value in values:
            self.indexes[self.depth] = i
            self.value(field.element, value)
            i += 1
        self.indexes[self.depth] = -1
        return 0

    cdef int structure(self, Structure plan, object each) except -1:
        cdef object planned
        cdef Field field
        cdef PyObject* value
        if not isinstance(each, plan.cls):
            raise TypeError(f"expected {plan.cls.__qualname__}, got {type(each).__name__}")
        self.depth += 1
        for planned in plan.fields:
            field = <Field> planned
            self.enter(field)
            value = slot_at(each, field.slot)[0]
            if value != NULL:
                self.value(field, <object> value)
            elif field.default is ...:
                self.value(field, field.structure.cls())
            else:
                self.value(field, field.default)
        for planned in plan.absent:
            field = <Field> planned
            self.enter(field)
            value = slot_at(each, field.slot)[0]
            if value != NULL and not is_default(field, <object> value):
                raise ValueError(f"version {plan.version} does not have this field; leave it at its default")
        self.fields[self.depth] = NULL
        if plan.flexible:
            self.tags(plan, each)
        elif slot_at(each, plan.unknown)[0] != NULL and <object> slot_at(each, plan.unknown)[0]:
            raise ValueError(f"version {plan.version} has no tagged fields")
        self.depth -= 1
        return 0

    cdef int tags(self, Structure plan, object each) except -1:
        cdef PyObject* value
        cdef Field field
        cdef dict found = {}
        cdef object planned, tag
        cdef Py_ssize_t start
        cdef bytes data
        for planned in plan.tagged:
            field = <Field> planned
            value = slot_at(each, field.slot)[0]
            if value != NULL and not is_default(field, <object> value):
                # The size of a tagged field precedes it: it is encoded first, taken back, and written below.
                self.enter(field)
                start = self.size
                self.value(field, <object> value)
                found[field.tag] = <bytes> self.data[start:self.size]
                self.size = start
        self.fields[self.depth] = NULL
        value = slot_at(each, plan.unknown)[0]
        if value != NULL:
            for tag, data in (<dict?> <object> value).items():
                if any(tag == (<Field> planned).tag for planned in plan.tagged):
                    raise ValueError(f"tag {tag} is not unknown: set the field with this tag")
                found[tag] = data
        self.uvarint(len(found))
        for tag in sorted(found):
            # Kafka reads a tag as an unsigned varint of 32 bits, and keeps any that it does not know.
            if not 0 <= tag <= 0xFFFFFFFF:
                raise ValueError(f"tag {tag} is not between 0 and {0xFFFFFFFF}")
            data = found[tag]
            self.uvarint(tag)
            self.uvarint(len(data))
            memcpy(self.reserve(len(data)), <const uint8_t*> data, len(data))
        return 0


cdef bint is_default(Field field, object value):
    if field.default is ...:
        return value == field.structure.cls()
    if field.kind == ARRAY and field.default is not None:
        return value is not None and not len(value)
    return value == field.default if value is not None else field.default is None


def encode_structures(list planned not None, bint framed):
    """Write structures, one after the other; `framed` writes their size before them, as an int32.

    Return the buffers in order; record batches of more than 2 KiB are views of the caller's bytes. Raise `ValueError`
    with the field's path if a value has no place in its field.
    """
    cdef Encoder encoder = Encoder.__new__(Encoder)
    cdef Structure plan
    encoder.parts = []
    encoder.depth = -1
    if framed:
        encoder.integer(INT32, 0)
    try:
        for plan, each in planned:
            encoder.structure(plan, each)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"{encoder.text() or 'message'}: {error}") from None
    encoder.flush()
    if framed:
        if encoder.total - 4 > 0x7FFFFFFF:
            raise ValueError(f"a message has at most {0x7FFFFFFF} bytes, this one has {encoder.total - 4}")
        encoder.parts[0][:4] = (encoder.total - 4).to_bytes(4, "big")
    return encoder.parts
