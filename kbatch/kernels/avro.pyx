"""Avro datums -> columns, by a schema that was compiled to a table of nodes.

Each datum is a separate slice of bytes, so that an invalid one cannot affect the next: it becomes a null and gets a
verdict. Counts and lengths are compared with the remaining bytes. The number of items that take no bytes (null, an
empty record) is limited by the size of the datum plus a constant. A datum may still take far more memory than it has
bytes, because every item of a list has a row in each column below it: the memory of all columns is limited.
"""

from typing import NamedTuple

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import numpy as np

from kbatch.kernels.utf8 cimport kb_is_utf8

# Kinds of nodes; the twin is `NodeKind` in `kbatch.values.avro_schema`.
cdef enum AvroKind:
    K_NULL = 0
    K_BOOLEAN = 1
    K_INT = 2
    K_LONG = 3
    K_FLOAT = 4
    K_DOUBLE = 5
    K_BYTES = 6
    K_STRING = 7
    K_FIXED = 8
    K_ENUM = 9
    K_DECIMAL = 10  # in bytes, to 16 bytes little-endian
    K_DECIMAL_FIXED = 11
    K_ARRAY = 12
    K_MAP = 13
    K_RECORD = 14
    K_UNION = 15  # a struct with a member for each branch that isn't null
    K_NULLABLE = 16  # a union of null and one other type, which has the column

# Why a datum is invalid; the messages are in `kbatch.values.avro`.
cdef enum AvroVerdict:
    V_FINE = 0
    V_CUT = 1
    V_VARINT = 2
    V_RANGE = 3
    V_BOOLEAN = 4
    V_LENGTH = 5
    V_UTF8 = 6
    V_ENUM = 7
    V_BRANCH = 8
    V_COUNT = 9
    V_DECIMAL = 10
    V_REST = 11
    V_MEMORY = 12

cdef enum:
    # The columns below items without bytes may have this many rows for a datum, plus one per byte.
    FREE_ITEMS = 1024


cdef struct Node:
    int32_t kind
    int32_t size  # bytes of a fixed; number of an enum's symbols, or of a union's or nullable's branches
    int32_t first  # its `count` children start here in the table of children
    int32_t count
    int32_t least  # minimum size of a datum in bytes
    int32_t null_branch  # of a union, or -1
    int32_t nodes  # of the node and all nodes below it
    int32_t hidden  # whether its data are checked but not kept, with all nodes below it
    uint64_t limit_low  # exclusive upper bound of a decimal (10 ** precision) or of a time of day
    uint64_t limit_high
    # The rows decoded so far.
    int64_t rows
    uint8_t* valid  # one byte per row
    int64_t valid_capacity
    uint8_t* data
    int64_t used
    int64_t data_capacity
    int32_t* offsets  # the end of each row of bytes (a null fixed has none) or of a list
    int64_t offsets_capacity
    int64_t* free_bytes  # the memory that all columns may still take; negative if they need more


cdef struct Cursor:
    const uint8_t* p
    const uint8_t* end
    int64_t free_items


cdef bint reserve(Node* node, void** memory, int64_t* capacity, int64_t needed) noexcept nogil:
    cdef int64_t size = capacity[0]
    cdef void* larger
    if needed <= size:
        return True
    size = size * 2 if size * 2 > needed else needed
    if size < 1024:
        size = 1024
    if size - capacity[0] > node.free_bytes[0]:
        node.free_bytes[0] = -1
        return False
    larger = realloc(memory[0], size)
    if larger == NULL:
        return False
    node.free_bytes[0] -= size - capacity[0]
    memory[0] = larger
    capacity[0] = size
    return True


cdef inline bint push_valid(Node* node, uint8_t valid) noexcept nogil:
    if node.hidden:
        return True
    if node.rows >= node.valid_capacity and not reserve(
        node, <void**> &node.valid, &node.valid_capacity, node.rows + 1
    ):
        return False
    node.valid[node.rows] = valid
    node.rows += 1
    return True


cdef inline bint push_data(Node* node, const void* source, int64_t size) noexcept nogil:
    if size == 0 or node.hidden:
        return True
    if size > node.data_capacity - node.used and not reserve(
        node, <void**> &node.data, &node.data_capacity, node.used + size
    ):
        return False
    memcpy(node.data + node.used, source, size)
    node.used += size
    return True


cdef inline bint push_offset(Node* node, int64_t end) noexcept nogil:
    # Called before `push_valid`, which counts the row.
    if node.hidden:
        return True
    if 4 * (node.rows + 1) > node.offsets_capacity and not reserve(
        node, <void**> &node.offsets, &node.offsets_capacity, 4 * (node.rows + 1)
    ):
        return False
    if end > INT32_MAX:
        node.free_bytes[0] = -1
        return False
    node.offsets[node.rows] = <int32_t> end
    return True


cdef inline AvroVerdict read_long(Cursor* c, int64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if c.p >= c.end:
            return V_CUT
        byte = c.p[0]
        c.p += 1
        if shift == 63 and byte > 1:
            return V_VARINT
        value |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    out[0] = <int64_t> (value >> 1) ^ -<int64_t> (value & 1)
    return V_FINE


cdef inline AvroVerdict read_length(Cursor* c, int64_t* out) noexcept nogil:
    cdef AvroVerdict verdict = read_long(c, out)
    if verdict == V_FINE and (out[0] < 0 or out[0] > c.end - c.p):
        return V_LENGTH
    return verdict


cdef inline int width(int32_t kind) noexcept nogil:
    if kind == K_BOOLEAN:
        return 1
    if kind == K_INT or kind == K_FLOAT or kind == K_ENUM:
        return 4
    if kind == K_LONG or kind == K_DOUBLE:
        return 8
    return 16 if kind == K_DECIMAL or kind == K_DECIMAL_FIXED else 0


cdef AvroVerdict push_null(Node* nodes, const int32_t* children, int32_t number) noexcept nogil:
    """Append a null to a node, and to the members of a record or union."""
    cdef Node* node = &nodes[number]
    cdef uint8_t nothing[16]
    cdef int32_t i
    cdef AvroVerdict verdict
    memset(nothing, 0, 16)
    if node.hidden:
        return V_FINE
    if node.kind == K_NULLABLE:
        return push_null(nodes, children, children[node.first])
    if node.kind == K_RECORD or node.kind == K_UNION:
        for i in range(node.count):
            verdict = push_null(nodes, children, children[node.first + i])
            if verdict != V_FINE:
                return verdict
    elif node.kind == K_BYTES or node.kind == K_STRING or node.kind == K_FIXED:
        if not push_offset(node, node.used):
            return V_MEMORY
    elif node.kind == K_ARRAY or node.kind == K_MAP:
        if not push_offset(node, nodes[item_of(nodes, children, children[node.first])].rows):
            return V_MEMORY
    elif node.kind != K_NULL:
        if not push_data(node, nothing, width(node.kind)):
            return V_MEMORY
    return V_FINE if push_valid(node, 0) else V_MEMORY


cdef inline int32_t item_of(Node* nodes, const int32_t* children, int32_t number) noexcept nogil:
    """Return the node that holds the column: for a nullable, its child."""
    while nodes[number].kind == K_NULLABLE:
        number = children[nodes[number].first]
    return number


cdef AvroVerdict read_decimal(Node* node, Cursor* c, int64_t length) noexcept nogil:
    cdef uint8_t out[16]
    cdef uint64_t low = 0, high = 0
    cdef uint8_t sign
    cdef int64_t i
    cdef bint negative
    if length < 1:
        return V_DECIMAL
    negative = (c.p[0] & 0x80) != 0
    sign = 0xFF if negative else 0
    for i in range(length - 16):
        if c.p[i] != sign:
            return V_DECIMAL
    if length > 16 and (c.p[length - 16] & 0x80) != (sign & 0x80):
        return V_DECIMAL
    memset(out, sign, 16)
    for i in range(length if length < 16 else 16):
        out[i] = c.p[length - 1 - i]
    c.p += length
    for i in range(8):
        low |= <uint64_t> out[i] << (8 * i)
        high |= <uint64_t> out[8 + i] << (8 * i)
    if negative:
        low = ~low + 1
        high = ~high + (1 if low == 0 else 0)
    if high > node.limit_high or (high == node.limit_high and low >= node.limit_low):
        return V_DECIMAL
    return V_FINE if push_data(node, out, 16) else V_MEMORY


cdef AvroVerdict read_items(Node* nodes, const int32_t* children, Node* node, Cursor* c) noexcept nogil:
    cdef int64_t count, size, _i
    cdef AvroVerdict verdict
    cdef int32_t k
    cdef int32_t least = 0
    for k in range(node.count):
        least += nodes[children[node.first + k]].least
    while True:
        verdict = read_long(c, &count)
        if verdict != V_FINE:
            return verdict
        if count == 0:
            return V_FINE
        if count < 0:
            # The size of the block in bytes follows, for readers that skip it.
            if count == -INT64_MAX - 1:
                return V_COUNT
            count = -count
            verdict = read_length(c, &size)
            if verdict != V_FINE:
                return verdict
        if least:
            if count > (c.end - c.p) // least:
                return V_COUNT
        else:
            if count > c.free_items // (node.nodes - 1):
                return V_COUNT
            c.free_items -= count * (node.nodes - 1)
        for _i in range(count):
            for k in range(node.count):
                verdict = read(nodes, children, children[node.first + k], c)
                if verdict != V_FINE:
                    return verdict


cdef AvroVerdict read_branch(Node* nodes, const int32_t* children, int32_t number, Cursor* c) noexcept nogil:
    """Append a datum of a union or a nullable; a nullable has no column of its own."""
    cdef Node* node = &nodes[number]
    cdef int64_t n
    cdef int32_t i
    cdef AvroVerdict verdict = read_long(c, &n)
    if verdict != V_FINE:
        return verdict
    if n < 0 or n >= node.size:
        return V_BRANCH
    if n == node.null_branch:
        return push_null(nodes, children, number)
    if node.null_branch >= 0 and n > node.null_branch:
        n -= 1
    if node.kind == K_NULLABLE:
        return read(nodes, children, children[node.first], c)
    for i in range(node.count):
        if i == n:
            verdict = read(nodes, children, children[node.first + i], c)
        else:
            verdict = push_null(nodes, children, children[node.first + i])
        if verdict != V_FINE:
            return verdict
    return V_FINE if push_valid(node, 1) else V_MEMORY


cdef inline AvroVerdict read_integer(Node* node, Cursor* c) noexcept nogil:
    """Append the datum of a long, an int or an enum, but not its validity."""
    cdef int64_t n
    cdef int32_t small
    cdef AvroVerdict verdict = read_long(c, &n)
    if verdict != V_FINE:
        return verdict
    if node.limit_low and (n < 0 or <uint64_t> n >= node.limit_low):
        return V_RANGE
    if node.kind == K_LONG:
        return V_FINE if push_data(node, &n, 8) else V_MEMORY
    small = <int32_t> n
    if small != n:
        return V_RANGE
    if node.kind == K_ENUM and (n < 0 or n >= node.size):
        return V_ENUM
    return V_FINE if push_data(node, &small, 4) else V_MEMORY


cdef AvroVerdict read(Node* nodes, const int32_t* children, int32_t number, Cursor* c) noexcept nogil:
    """Append one datum of a node; after any verdict but V_FINE the columns must be cut back."""
    cdef Node* node = &nodes[number]
    cdef int32_t kind = node.kind
    cdef int64_t n
    cdef int32_t i
    cdef AvroVerdict verdict = V_FINE
    if kind == K_NULLABLE or kind == K_UNION:
        return read_branch(nodes, children, number, c)
    if kind == K_RECORD:
        for i in range(node.count):
            verdict = read(nodes, children, children[node.first + i], c)
            if verdict != V_FINE:
                return verdict
    elif kind == K_LONG or kind == K_INT or kind == K_ENUM:
        verdict = read_integer(node, c)
    elif kind == K_BYTES or kind == K_STRING:
        verdict = read_length(c, &n)
        if verdict != V_FINE:
            return verdict
        if kind == K_STRING and not kb_is_utf8(c.p, c.p + n):
            return V_UTF8
        if not push_data(node, c.p, n) or not push_offset(node, node.used):
            return V_MEMORY
        c.p += n
    elif kind == K_FLOAT or kind == K_DOUBLE or kind == K_FIXED or kind == K_BOOLEAN:
        n = node.size if kind == K_FIXED else width(kind)
        if n > c.end - c.p:
            return V_CUT
        if kind == K_BOOLEAN and c.p[0] > 1:
            return V_BOOLEAN
        # Numbers are little-endian in Avro and, as `wire.pxd` assumes, on this machine.
        if not push_data(node, c.p, n) or (kind == K_FIXED and not push_offset(node, node.used)):
            return V_MEMORY
        c.p += n
    elif kind == K_DECIMAL:
        verdict = read_length(c, &n)
        if verdict == V_FINE:
            verdict = read_decimal(node, c, n)
    elif kind == K_DECIMAL_FIXED:
        if node.size > c.end - c.p:
            return V_CUT
        verdict = read_decimal(node, c, node.size)
    elif kind == K_ARRAY or kind == K_MAP:
        verdict = read_items(nodes, children, node, c)
        if verdict != V_FINE:
            return verdict
        if not push_offset(node, nodes[item_of(nodes, children, children[node.first])].rows):
            return V_MEMORY
    if verdict != V_FINE:
        return verdict
    return V_FINE if push_valid(node, 0 if kind == K_NULL else 1) else V_MEMORY


cdef void cut_back(Node* nodes, const int32_t* children, int32_t number, int64_t rows) noexcept nogil:
    """Truncate a node to `rows` rows, and its children to the items of those rows."""
    cdef Node* node = &nodes[number]
    cdef int32_t i
    cdef int64_t items
    if node.hidden:
        return
    if node.kind == K_NULLABLE:
        cut_back(nodes, children, children[node.first], rows)
        return
    if node.kind == K_RECORD or node.kind == K_UNION:
        for i in range(node.count):
            cut_back(nodes, children, children[node.first + i], rows)
    elif node.kind == K_BYTES or node.kind == K_STRING or node.kind == K_FIXED:
        node.used = node.offsets[rows - 1] if rows else 0
    elif node.kind == K_ARRAY or node.kind == K_MAP:
        items = node.offsets[rows - 1] if rows else 0
        for i in range(node.count):
            cut_back(nodes, children, children[node.first + i], items)
    else:
        node.used = rows * width(node.kind)
    node.rows = rows


class Contents(NamedTuple):
    """The column of a node: row count, validity, bytes, and the offset of each row in the bytes or items.

    Offsets are zeros unless the node is of bytes, a string, a fixed, an array or a map.
    """

    rows: int
    valid: np.ndarray
    data: np.ndarray
    offsets: np.ndarray


cdef class Columns:
    """The columns of a schema, which datums are appended to.

    Parameters
    ----------
    nodes : ndarray of int32, shape (n, 7)
        kind, size, first, count, least, null_branch and hidden of each node; a node precedes its children. The data
        of a hidden node, and of all nodes below it, are checked; they have no columns.
    limits : ndarray of uint64, shape (n, 2)
        Low and high half of the exclusive upper bound of a decimal (10 ** precision) or a time of day; 0 is none.
    children : ndarray of int32
        Indices of nodes; the children of a node are `count` entries from `first` on.
    max_bytes : int
        The memory that the columns may take.
    """

    cdef Node* nodes
    cdef int32_t count
    cdef int64_t _free_bytes
    cdef int32_t[::1] _children

    def __cinit__(
        self,
        const int32_t[:, ::1] nodes not None,
        const uint64_t[:, ::1] limits not None,
        const int32_t[::1] children not None,
        int64_t max_bytes,
    ):
        cdef Py_ssize_t i, k
        cdef Py_ssize_t n = nodes.shape[0]
        if n < 1 or nodes.shape[1] != 7 or limits.shape[0] != n or limits.shape[1] != 2:
            raise ValueError("nodes and limits must be of shapes (n, 7) and (n, 2)")
        for i in range(n):
            if nodes[i, 1] < 0 or nodes[i, 2] < 0 or nodes[i, 3] < 0 or nodes[i, 4] < 0:
                raise ValueError(f"node {i}: a negative number")
            if nodes[i, 3] > children.shape[0] - nodes[i, 2]:
                raise ValueError(f"node {i}: its children aren't in the table")
            if nodes[i, 3] < (1 if nodes[i, 0] in (K_ARRAY, K_NULLABLE) else 2 if nodes[i, 0] == K_MAP else 0):
                raise ValueError(f"node {i}: too few children")
            for k in range(nodes[i, 3]):
                # Children follow their node, so that the tree has no cycles.
                if not i < children[nodes[i, 2] + k] < n:
                    raise ValueError(f"node {i}: a child that doesn't follow it")
        self.nodes = <Node*> realloc(NULL, n * sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        memset(self.nodes, 0, n * sizeof(Node))
        self.count = <int32_t> n
        self._free_bytes = max_bytes
        self._children = np.array(children, np.int32) if children.shape[0] else np.zeros(1, np.int32)
        for i in range(n):
            self.nodes[i].kind = nodes[i, 0]
            self.nodes[i].size = nodes[i, 1]
            self.nodes[i].first = nodes[i, 2]
            self.nodes[i].count = nodes[i, 3]
            self.nodes[i].least = nodes[i, 4]
            self.nodes[i].null_branch = nodes[i, 5]
            self.nodes[i].hidden |= nodes[i, 6] != 0
            for k in range(nodes[i, 3]):
                self.nodes[children[nodes[i, 2] + k]].hidden |= self.nodes[i].hidden
            self.nodes[i].limit_low = limits[i, 0]
            self.nodes[i].limit_high = limits[i, 1]
            self.nodes[i].free_bytes = &self._free_bytes
        for i in range(n - 1, -1, -1):
            self.nodes[i].nodes = 1
            for k in range(nodes[i, 3]):
                self.nodes[i].nodes += self.nodes[children[nodes[i, 2] + k]].nodes

    def __dealloc__(self):
        if self.nodes == NULL:
            return
        for i in range(self.count):
            free(self.nodes[i].valid)
            free(self.nodes[i].data)
            free(self.nodes[i].offsets)
        free(self.nodes)

    def decode(
        self,
        const int32_t[::1] offsets not None,
        const uint8_t[::1] content not None,
        const uint8_t[::1] selected not None,
        int64_t skip,
        uint8_t[::1] verdicts not None,
        int32_t[::1] places not None,
    ):
        """Append a row for each of `n` datums.

        Parameters
        ----------
        offsets : ndarray of int32, shape (n + 1,)
            Arrow offsets of the data in `content`.
        content : ndarray of uint8
        selected : ndarray of uint8, shape (n,)
            0 for data that are not decoded and become null.
        skip : int
            Bytes to skip before each datum.
        verdicts : ndarray of uint8, shape (n,)
            0 for a valid datum, or one not selected; otherwise an `AvroVerdict`, and the row is null.
        places : ndarray of int32, shape (n,)
            Number of bytes of the datum that were read, not counting those skipped.

        Returns
        -------
        bool
            False if the columns need more memory than `max_bytes`, or one of them exceeds 2 GiB.

        Raises
        ------
        IndexError
            If a datum isn't within `content`.
        MemoryError
        """
        cdef Py_ssize_t i, bad = -1
        cdef Py_ssize_t n = offsets.shape[0] - 1
        cdef int64_t size = content.shape[0]
        cdef int64_t start, stop, rows
        cdef const uint8_t* data = &content[0] if size else NULL
        cdef const int32_t* children = &self._children[0]
        cdef Cursor c
        cdef AvroVerdict verdict
        cdef bint memory = True
        if n < 0 or selected.shape[0] != n or verdicts.shape[0] != n or places.shape[0] != n or skip < 0:
            raise ValueError("all arrays must have one item per datum")
        with nogil:
            for i in range(n):
                verdicts[i] = V_FINE
                places[i] = 0
                start = offsets[i]
                stop = offsets[i + 1]
                if start < 0 or stop < start or stop > size:
                    bad = i
                    break
                verdict = V_FINE
                # Rows of the root's column.
                rows = self.nodes[item_of(self.nodes, children, 0)].rows
                if selected[i]:
                    if skip > stop - start:
                        verdict = V_CUT
                    else:
                        c.p = data + start + skip
                        c.end = data + stop
                        c.free_items = FREE_ITEMS + (stop - start)
                        verdict = read(self.nodes, children, 0, &c)
                        places[i] = <int32_t> (c.p - (data + start + skip))
                        if verdict == V_FINE and c.p < c.end:
                            verdict = V_REST
                    if verdict == V_MEMORY:
                        memory = False
                        break
                    if verdict == V_FINE:
                        continue
                    verdicts[i] = verdict
                    cut_back(self.nodes, children, 0, rows)
                if push_null(self.nodes, children, 0) != V_FINE:
                    memory = False
                    break
        if bad >= 0:
            raise IndexError(f"datum {bad} isn't within the data")
        if not memory and self._free_bytes >= 0:
            raise MemoryError("no memory for the columns of these datums")
        return memory

    def column(self, int32_t number):
        """Return a copy of a node's column as `Contents`."""
        if not 0 <= number < self.count:
            raise IndexError(f"no node {number}")
        cdef Node* node = &self.nodes[number]
        valid = np.zeros(node.rows, np.uint8)
        data = np.empty(node.used, np.uint8)
        offsets = np.zeros(node.rows + 1 if node.offsets != NULL else 1, np.int32)
        cdef uint8_t[::1] to_valid = valid
        cdef uint8_t[::1] to_data = data
        cdef int32_t[::1] to_offsets = offsets
        if node.rows:
            memcpy(&to_valid[0], node.valid, node.rows)
        if node.used:
            memcpy(&to_data[0], node.data, node.used)
        if node.offsets != NULL and node.rows:
            memcpy(&to_offsets[1], node.offsets, 4 * node.rows)
        return Contents(node.rows, valid.view(np.bool_), data, offsets)
