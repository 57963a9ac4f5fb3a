"""JSON texts of any shape -> texts that fit a schema, with a list of the fields that do not.

Fields that the schema lacks are left out, and values of another type become ``null``, or a string of their JSON text
where the schema has a text. A text that is not valid JSON is copied unchanged, for the parser to refuse.

Fields may be hidden: they are checked like the others and left out of the result. A text is *doubtful* if a parser that
gets the result may not decide as it would about the whole text.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

import numpy as np

from kbatch.kernels.json_syntax cimport (
    KB_MAX_DEPTH,
    kb_skip_digits,
    kb_skip_space,
    kb_skip_string,
    kb_skip_value,
    kb_unescape,
)

# Kinds of nodes; the twin is `NodeShape` in `kbatch.values.json_fields`.
cdef enum Shape:
    STRUCT = 0
    LIST = 1
    BOOLEAN = 2
    INTEGER = 3  # with limits
    DIGITS = 4  # an integer with a maximum number of digits
    DOUBLE = 5  # a number; an integer must have an exact double
    NUMBER = 6
    STRING = 7
    TEXT = 8  # a string, or the JSON text of another value

# Kinds of values; the names are in `kbatch.values.json_fields`.
cdef enum JsonValueKind:
    OBJECT = 0
    ARRAY = 1
    STRING_VALUE = 2
    NUMBER_VALUE = 3
    BOOLEAN_VALUE = 4

# Kinds of findings; the twin is `FindingKind` in `kbatch.values.json_fields`.
cdef enum Kind:
    UNKNOWN = 0
    CONFLICT = 1
    AS_TEXT = 2

cdef enum:
    LISTED = 128  # distinct findings of a call; further ones are counted by kind only
    SLOTS = 512

# The columns of findings: kind, node, kind of value or position of the name, length of the name, count, first row.
FINDING_COLUMNS = 6
FINDINGS = LISTED + 3


cdef enum:
    # A longer number, or one with an exponent of three digits, may exceed a double.
    SAFE_NUMBER = 100


cdef struct JsonNode:
    int32_t shape
    int32_t item  # of a list
    int64_t hidden  # whether the node, with all nodes below, is left out
    uint64_t least  # the magnitude of the smallest integer
    uint64_t most  # the largest integer, or the maximum number of digits


cdef struct NamedField:
    int32_t parent
    int32_t child
    int64_t position  # of the name
    int64_t length


cdef struct FitState:
    const uint8_t* content
    const uint8_t* p
    const uint8_t* end
    uint8_t* out
    int64_t row
    int32_t first  # the first finding of this row that loses data, or -1
    int64_t* findings
    int32_t listed
    int16_t* slots
    bint finds_doubts
    bint has_escapes  # whether this row has a backslash
    bint is_doubtful
    int32_t doubted  # bits of the kinds of findings that make a text doubtful
    int64_t objects  # the number of objects so far
    int64_t* seen  # of each node, the last object that had the field


cdef inline uint64_t hash_name(const uint8_t* name, int64_t length, uint64_t seed) noexcept nogil:
    cdef uint64_t value = <uint64_t> 0xCBF29CE484222325 ^ (seed * <uint64_t> 0x9E3779B97F4A7C15)
    cdef int64_t i
    for i in range(length):
        value = (value ^ name[i]) * <uint64_t> 0x100000001B3
    return value ^ (value >> 29)


cdef inline JsonValueKind found_kind(uint8_t c) noexcept nogil:
    if c == 0x7B:
        return OBJECT
    if c == 0x5B:
        return ARRAY
    if c == 0x22:
        return STRING_VALUE
    if c == 0x74 or c == 0x66:
        return BOOLEAN_VALUE
    return NUMBER_VALUE


cdef bint number_fits(const JsonNode* node, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Whether the number from `p` to `end` has the shape of a node of numbers."""
    cdef const uint8_t* at
    cdef uint64_t value = 0
    cdef uint8_t digit
    cdef bint negative = p[0] == 0x2D
    if node.shape == NUMBER:
        return True
    p += negative
    at = kb_skip_digits(p, end)
    if at != end:
        return node.shape == DOUBLE
    if node.shape == DIGITS:
        return end - p <= <int64_t> node.most
    for i in range(end - p):
        digit = p[i] - 0x30
        if value > (<uint64_t> 0xFFFFFFFFFFFFFFFF - digit) // 10:
            return False
        value = value * 10 + digit
    if node.shape == INTEGER:
        return value <= (node.least if negative else node.most)
    while value and not value & 1:
        value >>= 1
    return value < <uint64_t> 1 << 53


cdef inline bint fits_node(
    const JsonNode* node, JsonValueKind found, const uint8_t* p, const uint8_t* end
) noexcept nogil:
    if node.shape == BOOLEAN:
        return found == BOOLEAN_VALUE
    if node.shape == STRING or node.shape == TEXT:
        return found == STRING_VALUE
    return found == NUMBER_VALUE and INTEGER <= node.shape <= NUMBER and number_fits(node, p, end)


cdef bint may_be_refused(FitState* w, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Whether a parser may refuse valid JSON from `p` to `end`: an unpaired surrogate, or a number beyond a double."""
    cdef const uint8_t* number
    while p < end:
        if p[0] == 0x22:
            p += 1
            if not w.has_escapes:
                p = <const uint8_t*> memchr(p, 0x22, end - p)
            while p[0] != 0x22:
                if p[0] == 0x5C and p[1] == 0x75 and (p[2] | 0x20) == 0x64 and p[3] >= 0x38:
                    return True
                p += 2 if p[0] == 0x5C else 1
            p += 1
        elif 0x30 <= p[0] <= 0x39:
            number = p
            while p < end and (0x30 <= p[0] <= 0x39 or p[0] == 0x2E):
                p += 1
            if p - number > SAFE_NUMBER:
                return True
            if p < end and (p[0] | 0x20) == 0x65:
                number = p + 2 if end - p > 1 and (p[1] == 0x2B or p[1] == 0x2D) else p + 1
                p = kb_skip_digits(number, end)
                if p - number > 2:
                    return True
        elif p[0] == 0x4E or p[0] == 0x49:
            return True
        else:
            p += 1
    return False


cdef void note(FitState* w, Kind kind, int32_t node, int64_t detail, int64_t length) noexcept nogil:
    """Count a finding. The table is bounded: when it is full, new ones share an entry for their kind."""
    cdef const uint8_t* name = w.content + detail
    cdef int64_t named = length if kind == UNKNOWN else 0
    cdef uint64_t seed = <uint64_t> node * 16 + <uint64_t> kind + (0 if kind == UNKNOWN else 3 * <uint64_t> detail + 3)
    cdef uint64_t slot = hash_name(name, named, seed) % SLOTS
    cdef int32_t index
    cdef int64_t* entry
    w.is_doubtful |= w.doubted >> kind & 1
    while w.slots[slot] >= 0:
        entry = w.findings + w.slots[slot] * 6
        if entry[0] == kind and entry[1] == node and entry[3] == length and (
            memcmp(w.content + entry[2], name, length) == 0 if kind == UNKNOWN else entry[2] == detail
        ):
            break
        slot = (slot + 1) % SLOTS
    index = w.slots[slot]
    if index < 0:
        if w.listed < LISTED:
            index = w.listed
            w.listed += 1
            w.slots[slot] = <int16_t> index
        else:
            index = LISTED + <int32_t> kind
        entry = w.findings + index * 6
        if entry[4] == 0:
            entry[0] = kind
            entry[1] = node
            entry[2] = detail
            entry[3] = length
            entry[5] = w.row
    entry = w.findings + index * 6
    entry[4] += 1
    if w.first < 0 and kind != AS_TEXT:
        w.first = index


cdef void copy(FitState* w, const uint8_t* start, const uint8_t* end) noexcept nogil:
    memcpy(w.out, start, end - start)
    w.out += end - start


cdef void put(FitState* w, uint8_t c) noexcept nogil:
    w.out[0] = c
    w.out += 1


cdef void put_as_text(FitState* w, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Write a value's JSON text as a JSON string. Line breaks and tabs are between its tokens."""
    put(w, 0x22)
    while p < end:
        if p[0] == 0x22 or p[0] == 0x5C:
            put(w, 0x5C)
        put(w, p[0] if p[0] >= 0x20 else 0x20)
        p += 1
    put(w, 0x22)


cdef class FieldTree:
    """A schema that was compiled to a table of nodes.

    Parameters
    ----------
    shapes : ndarray of int32, shape (n, 2)
        Of each node its `Shape`, and the node of a list's items. JsonNode 0 is the whole value.
    limits : ndarray of uint64, shape (n, 2)
        Of each integer the magnitude of the smallest and the largest; of digits their maximum number as the latter.
    fields : ndarray of int32, shape (m, 2)
        The nodes of a struct and of its field.
    names : list of bytes, of length m
    hidden : ndarray of bool, shape (n,), optional
        The nodes that are left out. All nodes below such a node must be hidden too.
    """

    cdef JsonNode[:] nodes
    cdef NamedField[:] fields
    cdef const uint8_t[:] names
    cdef int32_t[:] slots
    cdef int64_t longest

    def __init__(self, shapes, limits, fields, names, hidden=None):
        cdef Py_ssize_t i
        columns = [("shape", "i4"), ("item", "i4"), ("hidden", "i8"), ("least", "u8"), ("most", "u8")]
        nodes = np.zeros(len(shapes), np.dtype(columns, align=True))
        if hidden is not None:
            nodes["hidden"] = hidden
        nodes["shape"], nodes["item"] = shapes.T
        nodes["least"], nodes["most"] = limits.T
        field_type = np.dtype([("parent", "i4"), ("child", "i4"), ("position", "i8"), ("length", "i8")], align=True)
        rows = np.zeros(len(names), field_type)
        rows["parent"], rows["child"] = fields.T
        lengths = np.array([len(name) for name in names], np.int64)
        rows["length"] = lengths
        rows["position"] = np.cumsum(lengths) - lengths
        count = len(nodes)
        if not count or len(rows) != len(fields):
            raise ValueError("a schema has at least one node, and a name for each field")
        if (rows["parent"] >= count).any() or (rows["child"] >= count).any() or (nodes["item"] >= count).any():
            raise IndexError("a node is not in the table")
        if (rows["parent"] < 0).any() or (rows["child"] < 0).any() or (nodes["item"] < 0).any():
            raise IndexError("a node is not in the table")
        self.nodes = nodes
        self.fields = rows
        self.names = b"".join(names) + b"\0"
        self.longest = max(lengths.max(initial=0), 0)
        self.slots = np.full(1 << (2 * len(rows) + 1).bit_length(), -1, np.int32)
        for i in range(self.fields.shape[0]):
            self._insert(<int32_t> i)

    cdef void _insert(self, int32_t number) noexcept:
        cdef NamedField* field = &self.fields[number]
        cdef uint64_t mask = self.slots.shape[0] - 1
        cdef uint64_t slot = hash_name(&self.names[field.position], field.length, field.parent) & mask
        while self.slots[slot] >= 0:
            slot = (slot + 1) & mask
        self.slots[slot] = number

    cdef int32_t child(self, int32_t parent, const uint8_t* name, int64_t length) noexcept nogil:
        """Return the node of a field, or -1."""
        cdef uint64_t mask = self.slots.shape[0] - 1
        cdef uint64_t slot = hash_name(name, length, parent) & mask
        cdef NamedField* field
        while self.slots[slot] >= 0:
            field = &self.fields[self.slots[slot]]
            if field.parent == parent and field.length == length and (
                memcmp(&self.names[field.position], name, length) == 0
            ):
                return field.child
            slot = (slot + 1) & mask
        return -1

    cdef int32_t named(self, int32_t parent, const uint8_t* start, const uint8_t* end, uint8_t* memory) noexcept nogil:
        """Return the node of the field whose name is the string from `start` to `end`, or -1."""
        cdef int64_t i, length = end - start
        for i in range(length):
            if start[i] == 0x5C:
                length = kb_unescape(start, end, memory, self.longest + 4)
                return -1 if length < 0 else self.child(parent, memory, length)
        return self.child(parent, start, length)

    cdef bint value(self, FitState* w, int32_t number, uint8_t* memory, int depth) noexcept nogil:
        """Write the value at `w.p` as the node has it; return whether it is valid JSON."""
        cdef const uint8_t* start = w.p
        cdef const JsonNode* node = &self.nodes[number]
        cdef JsonValueKind found
        if start >= w.end or depth > KB_MAX_DEPTH:
            return False
        found = found_kind(start[0])
        if node.shape == STRUCT and found == OBJECT:
            return self.object(w, number, memory, depth)
        if node.shape == LIST and found == ARRAY:
            return self.array(w, number, memory, depth)
        w.p = kb_skip_value(start, w.end, depth)
        if w.p == NULL:
            return False
        if start[0] == 0x6E or fits_node(node, found, start, w.p):
            copy(w, start, w.p)
        elif node.shape == TEXT:
            note(w, AS_TEXT, number, found, 0)
            put_as_text(w, start, w.p)
        else:
            note(w, CONFLICT, number, found, 0)
            memcpy(w.out, <const char*> b"null", 4)
            w.out += 4
        return True

    cdef bint object(self, FitState* w, int32_t number, uint8_t* memory, int depth) noexcept nogil:
        cdef const uint8_t* key
        cdef const uint8_t* key_end
        cdef const uint8_t* start
        cdef int32_t child
        cdef bint any_written = False
        cdef uint8_t* began
        cdef int64_t serial
        w.objects += 1
        serial = w.objects
        put(w, 0x7B)
        w.p = kb_skip_space(w.p + 1, w.end)
        if w.p < w.end and w.p[0] == 0x7D:
            w.p += 1
            put(w, 0x7D)
            return True
        while True:
            if w.p >= w.end or w.p[0] != 0x22:
                return False
            key = w.p
            key_end = kb_skip_string(key, w.end)
            if key_end == NULL:
                return False
            w.p = kb_skip_space(key_end, w.end)
            if w.p >= w.end or w.p[0] != 0x3A:
                return False
            w.p = kb_skip_space(w.p + 1, w.end)
            child = self.named(number, key + 1, key_end - 1, memory)
            if child >= 0:
                began = w.out
                start = w.p
                if w.finds_doubts:
                    w.is_doubtful |= w.seen[child] == serial
                    w.seen[child] = serial
                if any_written:
                    put(w, 0x2C)
                copy(w, key, key_end)
                put(w, 0x3A)
                if not self.value(w, child, memory, depth + 1):
                    return False
                if not self.nodes[child].hidden:
                    any_written = True
                else:
                    w.out = began
                    if not self.nodes[number].hidden:
                        w.is_doubtful |= may_be_refused(w, start, w.p)
            else:
                start = w.p
                # A null has no data that would be lost.
                if w.p < w.end and w.p[0] != 0x6E:
                    note(w, UNKNOWN, number, key + 1 - w.content, key_end - key - 2)
                w.p = kb_skip_value(w.p, w.end, depth + 1)
                if w.p == NULL:
                    return False
                # What is left out here is not left out of the whole text.
                if w.doubted & 1 << UNKNOWN:
                    w.is_doubtful = True
                elif w.doubted and not self.nodes[number].hidden:
                    w.is_doubtful |= may_be_refused(w, key, key_end) or may_be_refused(w, start, w.p)
            w.p = kb_skip_space(w.p, w.end)
            if w.p >= w.end or (w.p[0] != 0x2C and w.p[0] != 0x7D):
                return False
            w.p += 1
            if (w.p - 1)[0] == 0x7D:
                put(w, 0x7D)
                return True
            w.p = kb_skip_space(w.p, w.end)

    cdef bint array(self, FitState* w, int32_t number, uint8_t* memory, int depth) noexcept nogil:
        put(w, 0x5B)
        w.p = kb_skip_space(w.p + 1, w.end)
        if w.p < w.end and w.p[0] == 0x5D:
            w.p += 1
            put(w, 0x5D)
            return True
        while True:
            if not self.value(w, self.nodes[number].item, memory, depth + 1):
                return False
            w.p = kb_skip_space(w.p, w.end)
            if w.p >= w.end or (w.p[0] != 0x2C and w.p[0] != 0x5D):
                return False
            w.p += 1
            put(w, (w.p - 1)[0])
            if (w.p - 1)[0] == 0x5D:
                return True
            w.p = kb_skip_space(w.p, w.end)

    def fit(
        self,
        const int32_t[::1] offsets not None,
        const uint8_t[::1] content not None,
        const int64_t[::1] rows not None,
        uint8_t[::1] out not None,
        int32_t[::1] out_offsets not None,
        int32_t[::1] marks not None,
        int64_t[:, ::1] findings not None,
        uint8_t[::1] doubts=None,
        int32_t doubted=0,
    ):
        """Write texts that fit the schema.

        Parameters
        ----------
        offsets : ndarray of int32, shape (n + 1,)
            Arrow offsets of the texts in `content`.
        content : ndarray of uint8
        rows : ndarray of int64, shape (m,)
            Indices of the texts, which `kbatch.kernels.jsontext.check_texts` has accepted.
        out : ndarray of uint8
            Memory for the result. Four times the texts are always enough; with less, a text that may not fit is copied
            unchanged, so it needs at least the size of the texts.
        out_offsets : ndarray of int32, shape (m + 1,)
            Gets the offsets of the results in `out`.
        marks : ndarray of int32, shape (m,)
            Gets the number of the first finding of a text that loses data, or -1.
        findings : ndarray of int64, shape (FINDINGS, FINDING_COLUMNS)
            Zeros; gets the findings. The last three count the unlisted ones, by kind.
        doubts : ndarray of uint8, shape (m,), optional
            Gets 1 for each doubtful text: it is not valid, repeats a field, or has something that is left out and that
            a parser may refuse.
        doubted : int
            Bits of the kinds of findings that make a text doubtful. With any of them, unknown fields too must be such
            that every parser takes them.

        Raises
        ------
        IndexError
            If a row isn't the index of a text, a text isn't within `content`, or memory is too small.
        """
        cdef int64_t slack, total = 0, size = content.shape[0], length
        cdef Py_ssize_t i, m = rows.shape[0]
        cdef int64_t row
        cdef int16_t[SLOTS] slots
        cdef FitState w
        cdef bint valid
        cdef const uint8_t* start
        cdef uint8_t* began
        cdef uint8_t[::1] memory = np.empty(self.longest + 4, np.uint8)
        cdef int64_t[::1] seen = np.zeros(self.nodes.shape[0], np.int64)
        for i in range(m):
            row = rows[i]
            if not (0 <= row < offsets.shape[0] - 1 and 0 <= offsets[row] <= offsets[row + 1] <= size):
                raise IndexError(f"text {row} isn't within the data")
            total += offsets[row + 1] - offsets[row]
        slack = min(<int64_t> out.shape[0], <int64_t> INT32_MAX) - total
        if slack < 0 or out_offsets.shape[0] != m + 1 or marks.shape[0] != m:
            raise IndexError("the memory for the result is too small")
        if findings.shape[0] != FINDINGS or findings.shape[1] != FINDING_COLUMNS:
            raise IndexError("findings has another shape")
        if doubts is not None and doubts.shape[0] != m:
            raise IndexError("doubts has another shape")
        out_offsets[0] = 0
        if not total:
            marks[:] = -1
            out_offsets[:] = 0
            if doubts is not None:
                doubts[:] = 1
            return
        with nogil:
            memset(slots, 0xFF, sizeof(slots))
            w.content = &content[0]
            w.out = &out[0]
            w.findings = &findings[0, 0]
            w.slots = slots
            w.listed = 0
            w.finds_doubts = doubts is not None
            w.doubted = doubted
            w.objects = 0
            w.seen = &seen[0]
            w.has_escapes = True
            for i in range(m):
                start = w.content + offsets[rows[i]]
                length = offsets[rows[i] + 1] - offsets[rows[i]]
                began = w.out
                w.end = start + length
                w.p = kb_skip_space(start, w.end)
                w.row = rows[i]
                w.first = -1
                w.is_doubtful = False
                if w.finds_doubts:
                    w.has_escapes = memchr(start, 0x5C, length) != NULL
                # An escaped character has two bytes, and a null has four in place of a digit.
                valid = 3 * length <= slack and self.value(&w, 0, &memory[0], 0)
                if not valid or kb_skip_space(w.p, w.end) != w.end:
                    w.out = began
                    w.first = -1
                    w.is_doubtful = True
                    copy(&w, start, w.end)
                slack -= w.out - began - length
                marks[i] = w.first
                if w.finds_doubts:
                    doubts[i] = 1 if w.is_doubtful else 0
                out_offsets[i + 1] = <int32_t> (w.out - &out[0])
