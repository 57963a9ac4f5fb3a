"""Deflate streams (RFC 1951) to plain bytes, without the GIL.

It takes a stream if and only if zlib does, which is what Kafka's reader decompresses with (GZ-R1). Libraries as fast
take more: ISA-L codes that are incomplete, libdeflate also symbols that are none, miniz distances that reach
before the first byte. Payloads of 1 MiB take 0.37 of zlib 1.2's time, those of 16 KiB 0.42: within a tenth of ISA-L.

The ways are those of libdeflate: 64 bits are read at a time, which last for a whole match or three literals; an entry
of a table tells all about a symbol, that is how many bits it and its extra bits take, and their base; codes longer than
a table's index go on in a table behind it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kbatch.kernels.spans cimport Span

cdef extern from *:
    """
    #if defined(_MSC_VER)
      #include <intrin.h>
      static unsigned kb_top_bit(unsigned x) { unsigned long i; _BitScanReverse(&i, x); return (unsigned)i; }
    #else
      #define kb_top_bit(x) (31u - (unsigned)__builtin_clz(x))
    #endif
#include <stdint.h>
    #include <string.h>
    #if defined(__GNUC__)
      #define KB_ALWAYS static inline __attribute__((always_inline))
      #define kb_rare(x) __builtin_expect(!!(x), 0)
    #else
      #define KB_ALWAYS static inline
      #define kb_rare(x) (x)
    #endif
    #define KB_END 0x2000u
    #define KB_BEHIND 0x4000u
    #define KB_SPECIAL 0x8000u
    #define KB_LITERAL 0x10000000u
    #define KB_LITERAL_BITS 11
    #define KB_DISTANCE_BITS 8
    #define KB_FAST_INPUT 32
    #define KB_FAST_OUTPUT (3 + 258 + 40)

    typedef struct {
        const uint8_t *p, *end;
        uint64_t bits, left;  /* bits that were read and are left; above them there may be the next ones */
    } kb_input;

    static inline uint64_t kb_load64(const uint8_t *p) {
        uint64_t x;
        memcpy(&x, p, 8);
        return x;
    }
    static inline void kb_copy8(uint8_t *to, const uint8_t *from) {
        uint64_t x;
        memcpy(&x, from, 8);
        memcpy(to, &x, 8);
    }
    #define KB_REFILL() \
        do { \
            bits |= kb_load64(p) << (uint8_t)left; \
            p += (63 - (uint8_t)left) >> 3; \
            left |= 56; \
        } while (0)
    #define KB_LOW(x, n) ((x) & (((uint64_t)1 << (uint8_t)(n)) - 1))

    /* Symbols while there is input and room for any. 1 at the end of the block, -1 if anything is wrong. */
    KB_ALWAYS int kb_symbols(kb_input *source, const uint32_t *literals, const uint32_t *distances,
                             const uint8_t *start, uint8_t **out_at, uint8_t *out_end) {
        const uint8_t *p = source->p, *p_last, *match;
        uint8_t *out = *out_at, *out_last, *to;
        uint64_t bits = source->bits, saved;
        /* Only the lowest byte counts: so a whole entry can be taken from it. */
        uint32_t left = (uint32_t)source->left, entry, length, distance;
        int result = 0;
        if (source->end - p < KB_FAST_INPUT || out_end - out < KB_FAST_OUTPUT)
            return 0;
        p_last = source->end - KB_FAST_INPUT;
        out_last = out_end - KB_FAST_OUTPUT;
        KB_REFILL();
        entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
        do {
            saved = bits;
            bits >>= (uint8_t)entry;
            left -= entry;
            if (entry & KB_LITERAL) {
                uint8_t literal = (uint8_t)(entry >> 16);
                entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
                saved = bits;
                bits >>= (uint8_t)entry;
                left -= entry;
                *out++ = literal;
                if (entry & KB_LITERAL) {
                    literal = (uint8_t)(entry >> 16);
                    entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
                    saved = bits;
                    bits >>= (uint8_t)entry;
                    left -= entry;
                    *out++ = literal;
                    if (entry & KB_LITERAL) {
                        *out++ = (uint8_t)(entry >> 16);
                        KB_REFILL();
                        entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
                        continue;
                    }
                }
            }
            if (kb_rare(entry & KB_SPECIAL)) {
                if (entry & KB_BEHIND) {
                    entry = literals[(entry >> 16) + KB_LOW(bits, entry >> 8 & 15)];
                    saved = bits;
                    bits >>= (uint8_t)entry;
                    left -= entry;
                    if (entry & KB_LITERAL) {
                        *out++ = (uint8_t)(entry >> 16);
                        KB_REFILL();
                        entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
                        continue;
                    }
                }
                if (entry & KB_SPECIAL) {
                    result = entry & KB_END ? 1 : -1;
                    break;
                }
            }
            length = (entry >> 16) + (uint32_t)(KB_LOW(saved, entry) >> (uint8_t)(entry >> 8));
            /* A distance takes 28 bits at most. */
            if ((uint8_t)left < 28)
                KB_REFILL();
            entry = distances[KB_LOW(bits, KB_DISTANCE_BITS)];
            if (kb_rare(entry & KB_SPECIAL)) {
                if (entry & KB_BEHIND) {
                    bits >>= KB_DISTANCE_BITS;
                    left -= KB_DISTANCE_BITS;
                    entry = distances[(entry >> 16) + KB_LOW(bits, entry >> 8 & 15)];
                }
                if (entry & KB_SPECIAL) {
                    result = -1;
                    break;
                }
            }
            distance = (entry >> 16) + (uint32_t)(KB_LOW(bits, entry) >> (uint8_t)(entry >> 8));
            bits >>= (uint8_t)entry;
            left -= entry;
            if (kb_rare(distance > (uint64_t)(out - start))) {
                result = -1;
                break;
            }
            match = out - distance;
            to = out;
            out += length;
            /* The next entry comes from memory while the match is copied. */
            KB_REFILL();
            entry = literals[KB_LOW(bits, KB_LITERAL_BITS)];
            if (distance >= 8) {
                kb_copy8(to, match);
                kb_copy8(to + 8, match + 8);
                kb_copy8(to + 16, match + 16);
                to += 24;
                match += 24;
                while (to < out) {
                    kb_copy8(to, match);
                    kb_copy8(to + 8, match + 8);
                    to += 16;
                    match += 16;
                }
            } else if (distance == 1) {
                memset(to, *match, length);
            } else {
                /* Every step repeats `distance` bytes more than are there. */
                do {
                    kb_copy8(to, match);
                    to += distance;
                    match += distance;
                } while (to < out);
            }
        } while (p <= p_last && out <= out_last);
        source->p = p;
        source->bits = bits;
        source->left = (uint8_t)left;
        *out_at = out;
        return result;
    }
    static int kb_symbols_plain(kb_input *source, const uint32_t *literals, const uint32_t *distances,
                                const uint8_t *start, uint8_t **out_at, uint8_t *out_end) {
        return kb_symbols(source, literals, distances, start, out_at, out_end);
    }
    #if defined(__x86_64__) && defined(__GNUC__)
      __attribute__((target("bmi,bmi2")))
      static int kb_symbols_bmi2(kb_input *source, const uint32_t *literals, const uint32_t *distances,
                                 const uint8_t *start, uint8_t **out_at, uint8_t *out_end) {
          return kb_symbols(source, literals, distances, start, out_at, out_end);
      }
      #define KB_BMI2() (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
    #else
      #define kb_symbols_bmi2 kb_symbols_plain
      #define KB_BMI2() 0
    #endif
    typedef int (*kb_symbols_t)(kb_input *, const uint32_t *, const uint32_t *, const uint8_t *, uint8_t **, uint8_t *);
    /* Shifts by a register without its detour take a twelfth less time. */
    static kb_symbols_t kb_best_symbols(void) { return KB_BMI2() ? kb_symbols_bmi2 : kb_symbols_plain; }
    """
    uint32_t kb_top_bit(uint32_t x) noexcept nogil
    ctypedef struct Input "kb_input":
        const uint8_t* p
        const uint8_t* end
        uint64_t bits
        uint64_t left
    ctypedef int (*Symbols "kb_symbols_t")(Input* source, const uint32_t* literals, const uint32_t* distances,
                                           const uint8_t* start, uint8_t** out, uint8_t* out_end) noexcept nogil
    Symbols kb_best_symbols() noexcept nogil

cdef Symbols symbols = kb_best_symbols()

cdef enum:
    LITERALS = 288
    DISTANCES = 32
    CODE_LENGTHS = 19
    MAX_BITS = 15
    # Bits that index the tables, and entries in the worst case, tables behind them included: as zlib's `enough` counts.
    LITERAL_BITS = 11
    LITERAL_ENTRIES = 2342
    DISTANCE_BITS = 8
    DISTANCE_ENTRIES = 402
    CODE_LENGTH_BITS = 7

# An entry: bits 0 to 7 are the bits to drop, extra bits included; bits 8 to 11 those of the code alone; bits 16 up the
# literal, or the base of the length or distance, or for a table behind this one where it begins, with its index bits in
# place of those of the code.
cdef enum:
    END = 0x2000
    BEHIND = 0x4000
    SPECIAL = 0x8000  # END, BEHIND, or no symbol
    LITERAL = 0x10000000

cdef uint32_t[LITERALS] literal_entries
cdef uint32_t[DISTANCES] distance_entries
cdef uint32_t[CODE_LENGTHS] code_length_entries
cdef uint8_t[CODE_LENGTHS] code_length_order

cdef struct Tables:
    uint32_t[LITERAL_ENTRIES] literals
    uint32_t[DISTANCE_ENTRIES] distances
    uint32_t[1 << CODE_LENGTH_BITS] code_lengths
    # Of all symbols, those of the distances right behind the others.
    uint8_t[LITERALS + DISTANCES] lengths


cdef void fill_entries():
    """The symbols of RFC 1951, section 3.2.5."""
    cdef uint32_t base = 3
    cdef uint32_t extra
    cdef int i
    for i in range(256):
        literal_entries[i] = LITERAL | <uint32_t>i << 16
    literal_entries[256] = SPECIAL | END
    for i in range(28):
        extra = 0 if i < 8 else i // 4 - 1
        literal_entries[257 + i] = base << 16 | extra
        base += 1 << extra
    literal_entries[285] = 258 << 16
    literal_entries[286] = literal_entries[287] = SPECIAL
    base = 1
    for i in range(30):
        extra = 0 if i < 4 else i // 2 - 1
        distance_entries[i] = base << 16 | extra
        base += 1 << extra
    distance_entries[30] = distance_entries[31] = SPECIAL
    for i in range(CODE_LENGTHS):
        code_length_entries[i] = <uint32_t>i << 16
    for i, place in enumerate((16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)):
        code_length_order[i] = place


fill_entries()


cdef bint build(uint32_t* table, uint32_t table_bits, const uint8_t* lengths, int count, const uint32_t* entries,
                bint one_will_do) noexcept nogil:
    """Make the table of a code from the lengths of its symbols.

    False if there are too many codes, or too few: zlib wants all, but that lengths and distances may be of a single
    symbol with one bit, and distances of none.
    """
    cdef uint16_t[MAX_BITS + 1] counts
    cdef uint16_t[MAX_BITS + 2] starts
    cdef uint16_t[LITERALS] symbols
    cdef uint32_t bits
    cdef uint32_t code = 0  # bits reversed, as they come
    cdef uint32_t filled
    cdef uint32_t entry
    cdef uint32_t at
    cdef uint32_t bit
    cdef uint32_t start = 0
    cdef uint32_t behind = 1 << table_bits
    cdef uint32_t prefix = 0xFFFFFFFF
    cdef uint32_t behind_bits
    cdef int space = 1
    cdef int i
    memset(counts, 0, sizeof(counts))
    for i in range(count):
        counts[lengths[i]] += 1
    starts[1] = 0
    for bits in range(1, MAX_BITS + 1):
        space = (space << 1) - counts[bits]
        if space < 0:
            return False
        starts[bits + 1] = starts[bits] + counts[bits]
    if space > 0 and not (one_will_do and starts[MAX_BITS + 1] == counts[1]):
        return False
    for i in range(count):
        if lengths[i]:
            symbols[starts[lengths[i]]] = <uint16_t>i
            starts[lengths[i]] += 1
    if space > 0:
        for at in range(1 << table_bits):
            table[at] = SPECIAL if at & 1 or not counts[1] else entries[symbols[0]] + 0x0101
        return True

    bits = 1
    filled = 2
    i = 0
    while bits <= table_bits:
        # All codes of `bits` bits, in a table of that many; then twice as large, and so on.
        while counts[bits]:
            counts[bits] -= 1
            table[code] = entries[symbols[i]] + (bits << 8 | bits)
            i += 1
            if code == filled - 1:
                while bits < table_bits:
                    memcpy(table + filled, table, filled * sizeof(uint32_t))
                    filled *= 2
                    bits += 1
                return True
            bit = 1 << kb_top_bit(code ^ (filled - 1))
            code = (code & (bit - 1)) | bit
        if bits < table_bits:
            memcpy(table + filled, table, filled * sizeof(uint32_t))
        filled *= 2
        bits += 1
    while True:
        while not counts[bits]:
            bits += 1
        if code & ((1 << table_bits) - 1) != prefix:
            prefix = code & ((1 << table_bits) - 1)
            start = behind
            behind_bits = bits - table_bits
            at = counts[bits]
            while at < <uint32_t>1 << behind_bits:
                behind_bits += 1
                at = (at << 1) + counts[table_bits + behind_bits]
            behind = start + (1 << behind_bits)
            table[prefix] = start << 16 | SPECIAL | BEHIND | behind_bits << 8 | table_bits
        counts[bits] -= 1
        entry = entries[symbols[i]] + ((bits - table_bits) << 8 | (bits - table_bits))
        i += 1
        at = start + (code >> table_bits)
        while at < behind:
            table[at] = entry
            at += 1 << (bits - table_bits)
        filled = (<uint32_t>1 << bits) - 1
        if code == filled:
            return True
        bit = 1 << kb_top_bit(code ^ filled)
        code = (code & (bit - 1)) | bit


cdef inline void fill(Input* source) noexcept nogil:
    while source.left <= 55 and source.p < source.end:
        source.bits |= <uint64_t>source.p[0] << source.left
        source.left += 8
        source.p += 1


cdef inline uint32_t take(Input* source, uint32_t count) noexcept nogil:
    cdef uint32_t bits = <uint32_t>source.bits & ((<uint32_t>1 << count) - 1)
    source.bits >>= count
    source.left -= count
    return bits


cdef bint read_codes(Input* source, Tables* tables) noexcept nogil:
    """The header of a block with codes of its own (RFC 1951, section 3.2.7)."""
    cdef uint8_t[CODE_LENGTHS] lengths
    cdef uint32_t entry
    cdef uint32_t literals
    cdef uint32_t count
    cdef uint32_t repeat
    cdef uint32_t symbol
    cdef uint32_t more
    cdef uint32_t i = 0
    fill(source)
    if source.left < 14:
        return False
    literals = 257 + take(source, 5)
    count = literals + 1 + take(source, 5)
    repeat = 4 + take(source, 4)
    if literals > 286 or count - literals > 30:
        return False
    memset(lengths, 0, sizeof(lengths))
    for i in range(repeat):
        fill(source)
        if source.left < 3:
            return False
        lengths[code_length_order[i]] = <uint8_t>take(source, 3)
    if not build(tables.code_lengths, CODE_LENGTH_BITS, lengths, CODE_LENGTHS, code_length_entries, False):
        return False
    i = 0
    while i < count:
        fill(source)
        entry = tables.code_lengths[source.bits & ((1 << CODE_LENGTH_BITS) - 1)]
        symbol = entry >> 16
        more = 0 if symbol < 16 else (2 if symbol == 16 else (3 if symbol == 17 else 7))
        if source.left < (entry & 0xFF) + more:
            return False
        take(source, entry & 0xFF)
        if symbol < 16:
            tables.lengths[i] = <uint8_t>symbol
            i += 1
            continue
        if symbol == 16:
            if i == 0:
                return False
            symbol = tables.lengths[i - 1]
            repeat = 3 + take(source, 2)
        elif symbol == 17:
            symbol = 0
            repeat = 3 + take(source, 3)
        else:
            symbol = 0
            repeat = 11 + take(source, 7)
        if repeat > count - i:
            return False
        memset(tables.lengths + i, <int>symbol, repeat)
        i += repeat
    return (
        tables.lengths[256]
        and build(tables.literals, LITERAL_BITS, tables.lengths, <int>literals, literal_entries, True)
        and build(tables.distances, DISTANCE_BITS, tables.lengths + literals, <int>(count - literals),
                  distance_entries, True)
    )


cdef bint fixed_codes(Tables* tables) noexcept nogil:
    memset(tables.lengths, 8, 144)
    memset(tables.lengths + 144, 9, 112)
    memset(tables.lengths + 256, 7, 24)
    memset(tables.lengths + 280, 8, 8)
    memset(tables.lengths + 288, 5, 32)
    return (build(tables.literals, LITERAL_BITS, tables.lengths, 288, literal_entries, False)
            and build(tables.distances, DISTANCE_BITS, tables.lengths + 288, 32, distance_entries, False))


cdef inline uint64_t mask(uint64_t count) noexcept nogil:
    return (<uint64_t>1 << count) - 1


cdef uint8_t* read_block(Input* source, Tables* tables, uint8_t* start, uint8_t* out, uint8_t* out_end) noexcept nogil:
    """Symbols until the end of the block; where the output goes on, NULL if anything is wrong."""
    cdef const uint32_t* literals = tables.literals
    cdef const uint32_t* distances = tables.distances
    cdef const uint8_t* match
    cdef uint8_t* match_end
    cdef uint64_t saved
    cdef uint64_t length
    cdef uint64_t distance
    cdef uint32_t entry
    cdef int done = symbols(source, literals, distances, start, &out, out_end)
    if done:
        return out if done > 0 else NULL
    while True:
        fill(source)
        entry = literals[source.bits & ((1 << LITERAL_BITS) - 1)]
        if entry & BEHIND:
            if source.left < LITERAL_BITS:
                return NULL
            take(source, LITERAL_BITS)
            entry = literals[(entry >> 16) + (source.bits & mask(entry >> 8 & 0x0F))]
        # What isn't there reads as zeros; so no symbol counts whose bits are more than are left.
        if source.left < (entry & 0xFF):
            return NULL
        saved = source.bits
        take(source, entry & 0xFF)
        if entry & LITERAL:
            if out == out_end:
                return NULL
            out[0] = <uint8_t>(entry >> 16)
            out += 1
            continue
        if entry & SPECIAL:
            return out if entry & END else NULL
        length = (entry >> 16) + ((saved & mask(entry & 0xFF)) >> (entry >> 8 & 0xFF))
        fill(source)
        entry = distances[source.bits & ((1 << DISTANCE_BITS) - 1)]
        if entry & BEHIND:
            if source.left < DISTANCE_BITS:
                return NULL
            take(source, DISTANCE_BITS)
            entry = distances[(entry >> 16) + (source.bits & mask(entry >> 8 & 0x0F))]
        if entry & SPECIAL or source.left < (entry & 0xFF):
            return NULL
        saved = source.bits
        take(source, entry & 0xFF)
        distance = (entry >> 16) + ((saved & mask(entry & 0xFF)) >> (entry >> 8 & 0xFF))
        if distance > <uint64_t>(out - start) or length > <uint64_t>(out_end - out):
            return NULL
        match = out - distance
        match_end = out + length
        while out < match_end:
            out[0] = match[0]
            out += 1
            match += 1


cdef int64_t inflate_raw(const uint8_t** begin, const uint8_t* end, uint8_t* out, int64_t room) noexcept nogil:
    cdef Tables tables
    cdef Input source
    cdef uint8_t* start = out
    cdef uint8_t* out_end = out + room
    cdef uint32_t last
    cdef uint32_t kind
    cdef uint32_t length
    source.p = begin[0]
    source.end = end
    source.bits = 0
    source.left = 0
    while True:
        fill(&source)
        if source.left < 3:
            return -1
        last = take(&source, 1)
        kind = take(&source, 2)
        if kind == 0:
            # Stored, from the next whole byte on.
            source.p -= source.left >> 3
            source.bits = 0
            source.left = 0
            if end - source.p < 4:
                return -1
            length = source.p[0] | <uint32_t>source.p[1] << 8
            if (source.p[2] | <uint32_t>source.p[3] << 8) != length ^ 0xFFFF:
                return -1
            source.p += 4
            if length > end - source.p or length > out_end - out:
                return -1
            memcpy(out, source.p, length)
            source.p += length
            out += length
        else:
            if kind == 3 or not (read_codes(&source, &tables) if kind == 2 else fixed_codes(&tables)):
                return -1
            out = read_block(&source, &tables, start, out, out_end)
            if out == NULL:
                return -1
        if last:
            begin[0] = source.p - (source.left >> 3)
            return out - start


def inflate(data not None, out not None):
    """Decompress a raw deflate stream from the front of `data` to `out`.

    Returns (bytes written, bytes read); None if the stream is malformed or cut, or `out` has no room for it.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span out_span = Span(out, 1, True)
    cdef const uint8_t* p = <const uint8_t*>data_span.items
    cdef int64_t written
    with nogil:
        written = inflate_raw(&p, <const uint8_t*>data_span.items + data_span.length, <uint8_t*>out_span.items,
                              out_span.length)
    return None if written < 0 else (written, p - <const uint8_t*>data_span.items)
