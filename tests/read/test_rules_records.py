"""Catalogue section 3: records, variable-length integers and record headers of magic 2."""

from __future__ import annotations

import oracle
import pytest
from oracle import INT32_MAX, build_batch, encode_record, overlong, zigzag
from tables import lost, records_of

import kbatch

INT32_MIN = -(2**31)
CODECS = ["none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"]
codecs = pytest.mark.parametrize("codec", CODECS)


def one(record: bytes, codec: str = "none") -> oracle.Record:
    """Decode a batch with this record between others: the state of one record must not affect the next."""
    batch = build_batch([record, encode_record(1, 0, b"next", b"one", [(b"h", b"v")])], codec=codec)
    first, second = records_of(kbatch.decode(batch))
    assert second == oracle.Record(1, 1000, -1, b"next", b"one", ((b"h", b"v"),))
    assert first == oracle.decode(batch).batches[0].records[0]
    return first


def assert_invalid(record: bytes, codec: str = "none") -> None:
    """Check that the record, alone or among good ones, invalidates its batch, and that the error has its number."""
    good = [encode_record(i, key=b"key", value=b"value") for i in range(3)]
    for records, number in (([record], 0), ([good[0], record, good[2]], 1), ([*good, record], 3)):
        batch = build_batch(records, base_offset=70, codec=codec)
        data = oracle.three(0) + batch + oracle.three(90)
        assert isinstance(oracle.decode(batch).error, oracle.Invalid)
        with pytest.raises(kbatch.InvalidRecordError) as caught:
            kbatch.decode(data)
        assert (caught.value.position, caught.value.base_offset) == (88, 70)
        # If a length includes the start of the next record, the error is in that next record at the latest.
        assert caught.value.record is not None
        assert number <= caught.value.record <= number + 1
        table = kbatch.decode(data, on_error="skip")
        assert table.records["offset"].tolist() == [0, 1, 2, 90, 91, 92]
        assert lost(table) == [(88, 88 + len(batch))]


# -- 3.1 records


@codecs
@pytest.mark.parametrize("length", [-1, -2, -77, INT32_MIN])
def test_rec_r1_any_negative_length_is_null(codec: str, length: int) -> None:
    record = one(encode_record(key_length=length, value_length=length), codec)
    assert (record.key, record.value) == (None, None)


@codecs
def test_rec_r1_empty_is_not_null(codec: str) -> None:
    for key in (None, b"", b"k"):
        for value in (None, b"", b"v"):
            record = one(encode_record(0, 0, key, value), codec)
            assert (record.key, record.value) == (key, value)


@codecs
@pytest.mark.parametrize("size", [1, 63, 64, 8191, 8192, 100_000])
def test_rec_r1_keys_and_values_may_have_lengths_of_any_width(codec: str, size: int) -> None:
    """The lengths are varints of one, two and three bytes, at the limits of each width."""
    value = bytes(range(256)) * (size // 256 + 1)
    record = one(encode_record(0, 0, value[:size], value[1 : size + 1], [(value[:size], value[:size])]), codec)
    assert record.key == value[:size]
    assert record.value == value[1 : size + 1]
    assert record.headers == ((value[:size], value[:size]),)


@codecs
@pytest.mark.parametrize("extra", [b"\0", b"\0\0", b"\x80", b"more than one byte"])
def test_rec_r2_bytes_after_the_last_field_are_invalid(codec: str, extra: bytes) -> None:
    assert_invalid(encode_record(0, 0, b"k", b"v", extra=extra), codec)


@codecs
@pytest.mark.parametrize("length", [0, 1, 3, 5, 6])
def test_rec_r2_a_length_shorter_than_the_fields_is_invalid(codec: str, length: int) -> None:
    assert_invalid(encode_record(0, 0, b"k", b"v", length=length), codec)


@codecs
@pytest.mark.parametrize("length", [-1, -2, INT32_MIN, 100, 5000, INT32_MAX])
def test_rec_r3_a_length_negative_or_beyond_the_batch_is_invalid(codec: str, length: int) -> None:
    assert_invalid(encode_record(0, 0, b"k", b"v", length=length), codec)


@codecs
def test_rec_r3_a_record_truncated_by_the_end_is_invalid(codec: str) -> None:
    record = encode_record(0, 0, b"key", b"value", [(b"h", b"v")])
    for cut in range(len(record)):
        batch = build_batch([record, record[:cut]], codec=codec)
        with pytest.raises(kbatch.InvalidRecordError):
            kbatch.decode(batch)


@codecs
@pytest.mark.parametrize("length", [2, 3, 50, INT32_MAX])
def test_rec_r4_fields_beyond_the_record_are_invalid(codec: str, length: int) -> None:
    assert_invalid(encode_record(0, 0, b"k", b"v", value_length=length), codec)
    assert_invalid(encode_record(0, 0, b"k", None, key_length=length + 5), codec)


def test_rec_r4_a_field_may_not_reach_into_the_next_record() -> None:
    assert_invalid(encode_record(0, 0, None, b"v", value_length=4))


@codecs
@pytest.mark.parametrize("attributes", [0xFF, 0x7F, 0x80, 0x08, 0x01])
def test_rec_r5_record_attributes_are_one_ignored_byte(codec: str, attributes: int) -> None:
    assert one(encode_record(0, 5, b"k", b"v", attributes=attributes), codec) == (0, 1005, -1, b"k", b"v", ())


def test_rec_r6_lengths_are_checked_even_if_no_record_is_returned() -> None:
    """A batch without selected records may still be parsed; if so, with the same checks."""
    bad = build_batch([encode_record(), encode_record(1, length=100)], base_offset=10, last_offset_delta=5)
    for options in ({"start_offset": 13}, {"stop_offset": 11}):
        with pytest.raises(kbatch.InvalidRecordError):
            kbatch.decode(bad, **options)  # type: ignore[arg-type]


@codecs
@pytest.mark.parametrize("stray", [b"\0", b"\x01", b"\xff", b"\x80"])
def test_rec_r7_a_stray_byte_between_records_is_invalid(codec: str, stray: bytes) -> None:
    records = [encode_record(0, 0, b"k", b"v"), stray + encode_record(1, 0, b"k", b"v")]
    with pytest.raises(kbatch.InvalidRecordError) as caught:
        kbatch.decode(build_batch(records, codec=codec))
    assert caught.value.record == 1


# -- 3.2 variable-length integers


@codecs
@pytest.mark.parametrize(
    "record",
    [
        encode_record(offset_delta=overlong(0, 6)),
        encode_record(offset_delta=b"\xff" * 5 + b"\x01"),
        encode_record(timestamp_delta=overlong(0, 11)),
        encode_record(timestamp_delta=b"\xff" * 10 + b"\x01"),
        encode_record(key_length=overlong(-1, 6)),
        encode_record(value_length=overlong(-1, 6)),
        encode_record(header_count=overlong(0, 6)),
        encode_record(length=overlong(6, 6)),
        encode_record(header_count=1, extra=overlong(0, 6) + b"\1"),
        encode_record(header_count=1, extra=b"\0" + overlong(-1, 6)),
    ],
    ids=["offset", "offset-ff", "timestamp", "timestamp-ff", "key", "value", "headers", "record", "header", "header2"],
)
def test_var_r1_more_than_five_or_ten_bytes_are_invalid(codec: str, record: bytes) -> None:
    """VAR-02, VAR-04, VAR-08: the same in every field."""
    assert_invalid(record, codec)


@pytest.mark.parametrize(
    ("raw", "delta"),
    [
        (b"\xff\xff\xff\xff\x7f", INT32_MIN),  # VAR-05
        (b"\x80\x80\x80\x80\x10", 0),  # VAR-11: bit 32 only
        (b"\x82\x80\x80\x80\x70", 1),
        (b"\xfe\xff\xff\xff\x0f", INT32_MAX),
    ],
)
@codecs
def test_var_r2_bits_beyond_32_are_dropped(codec: str, raw: bytes, delta: int) -> None:
    assert one(encode_record(offset_delta=raw), codec).offset == delta


@pytest.mark.parametrize(("last", "delta"), [(b"\x01", -(2**63)), (b"\x7f", -(2**63)), (b"\x7e", 0)])
def test_var_r2_bits_beyond_64_are_dropped(last: bytes, delta: int) -> None:
    """VAR-07: only one bit of the tenth byte is used."""
    first = b"\xff" * 9 if delta else b"\x80" * 9
    batch = build_batch([encode_record(timestamp_delta=first + last)], base_timestamp=0)
    assert records_of(kbatch.decode(batch))[0].timestamp == delta


@codecs
@pytest.mark.parametrize("size", range(2, 6))
def test_var_r3_overlong_forms_are_accepted(codec: str, size: int) -> None:
    """VAR-01, VAR-03, VAR-12, VAR-13: in every field, including the record length."""
    fields = {
        "offset_delta": overlong(0, size),
        "timestamp_delta": overlong(3, size),
        "key_length": overlong(1, size),
        "value_length": overlong(1, size),
        "header_count": overlong(1, size),
        "extra": overlong(1, size) + b"h" + overlong(-1, size),
    }
    inner = encode_record(key=b"k", value=b"v", **fields)  # type: ignore[arg-type]
    whole = encode_record(key=b"k", value=b"v", length=overlong(len(inner) - 1, size), **fields)  # type: ignore[arg-type]
    assert one(whole, codec) == (0, 1003, -1, b"k", b"v", ((b"h", None),))


def test_var_r3_an_overlong_timestamp_of_ten_bytes_is_accepted() -> None:
    for size in range(6, 11):
        assert one(encode_record(timestamp_delta=overlong(-1, size))).timestamp == 999


@pytest.mark.parametrize("number", [0, 1, 63, 64, 2**13, 2**20, 2**27, 2**34, 2**41, 2**48, 2**55, 2**62, 2**63 - 1])
def test_var_r4_r6_extremes_and_width_limits_are_decoded(number: int) -> None:
    """Zigzag numbers at the limits of every width, of both signs."""
    for delta in {number - 1, number, -number, -number - 1}:
        record = encode_record(timestamp_delta=delta)
        batch = build_batch([record], base_timestamp=0)
        assert records_of(kbatch.decode(batch))[0].timestamp == delta
        if INT32_MIN <= delta <= INT32_MAX:
            assert records_of(kbatch.decode(build_batch([encode_record(delta)])))[0].offset == delta


def test_var_r4_int32_extremes_are_decoded() -> None:
    for delta in (INT32_MIN, INT32_MIN + 1, INT32_MAX, INT32_MAX - 1):
        assert one(encode_record(delta)).offset == delta


@codecs
def test_var_r5_a_varint_truncated_by_the_end_of_the_batch_is_invalid(codec: str) -> None:
    for tail in (b"\x80", b"\xff" * 4, b"\xff" * 5, b"\xff" * 12):
        with pytest.raises(kbatch.InvalidRecordError):
            kbatch.decode(build_batch([encode_record(), tail], codec=codec))


def test_var_r5_a_varint_truncated_by_the_end_of_the_record_is_invalid() -> None:
    """A varint may not extend into the bytes of the next record."""
    assert_invalid(encode_record(header_count=b"\x80"))


def test_var_r6_the_oracle_encodes_zigzag() -> None:
    encoded = {0: "00", -1: "01", 1: "02", -2: "03", INT32_MAX: "feffffff0f", INT32_MIN: "ffffffff0f"}
    assert {number: zigzag(number).hex() for number in encoded} == encoded


@pytest.mark.parametrize("attributes", [0, oracle.LOG_APPEND_TIME])
def test_var_r1_deltas_of_every_pair_of_sizes_are_decoded(attributes: int) -> None:
    """The kernel reads two deltas of equal size at once: smallest and largest values of each size, of both signs."""
    edges = [0, 1, 63, 64, 65, 127, 128, 4096, 8190, 8191, 8192, 8193, 16383, 16384, 1 << 19, (1 << 20) - 1, 1 << 20]
    deltas = [*edges, *(-edge for edge in edges[1:])]
    records = [encode_record(o, t, b"key", b"value") for t in deltas for o in deltas]
    records += [encode_record(o, t) for t in edges for o in edges]
    batch = build_batch(records, base_offset=1 << 40, base_timestamp=1 << 41, attributes=attributes)
    assert tuple(records_of(kbatch.decode(batch))) == oracle.decode(batch).batches[0].records


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("key", [b"key", b"\0", b"\2\0"])
def test_var_r1_every_bit_of_two_deltas_of_equal_size_is_decoded(size: int, key: bytes) -> None:
    """The kernel reads both at once, with masks for their bits. A key may look like the lengths that follow."""
    bits = [(1 << n) | (1 << (7 * size - 8)) for n in range(7 * size - 1)]
    mask = (1 << (7 * size - 1)) - 1
    deltas = [(t, o) for t in bits for o in bits] + [(0x55555 & mask, 0xAAAAA & mask), (0xAAAAA & mask, 0x55555 & mask)]
    records = [encode_record(o, t, key, b"value") for t, o in deltas]
    batch = build_batch(records, base_offset=1 << 40, base_timestamp=1 << 41)
    assert tuple(records_of(kbatch.decode(batch))) == oracle.decode(batch).batches[0].records


@pytest.mark.parametrize("key", [b"key", b"\0", b"\2\0"])
def test_var_r1_every_bit_of_a_timestamp_delta_of_four_bytes_is_decoded(key: bytes) -> None:
    """Before offset deltas of each size that the fast path reads."""
    times = [(1 << n) | (1 << 20) for n in range(27)] + [0, 100, 0x5555555, 0x2AAAAAA]
    records = [encode_record(o, t, key, b"value") for t in times for o in (1, 63, 64, 200, 8191, 8192, 9001, 0xAAAAA)]
    batch = build_batch(records, base_offset=1 << 40, base_timestamp=1 << 41)
    assert tuple(records_of(kbatch.decode(batch))) == oracle.decode(batch).batches[0].records


def test_var_r1_a_negative_offset_delta_before_bytes_that_look_like_fields() -> None:
    """Key and value would be valid as the headers of a record that begins two bytes earlier."""
    records = [encode_record(-1, 0, b"\2", b"\4\0"), *(encode_record(n, 0, value=b"v" * 50) for n in range(5))]
    first = records_of(kbatch.decode(build_batch(records, base_offset=10)))[0]
    assert (first.key, first.value, first.headers) == (b"\2", b"\4\0", ())


@pytest.mark.parametrize(
    ("timestamp", "offset", "key", "value"), [(1 << 28, 0, b"k", b"\0"), (0, 1 << 21, b"\2", b"\2\0")]
)
def test_var_r1_deltas_too_long_for_the_fast_path_are_decoded(
    timestamp: int, offset: int, key: bytes, value: bytes
) -> None:
    """The last byte of the delta, key and value would be valid as other fields."""
    records = [encode_record(offset, timestamp, key, value), *(encode_record(n, 0, value=b"v" * 50) for n in range(5))]
    first = records_of(kbatch.decode(build_batch(records)))[0]
    assert (first.offset, first.timestamp - 1000) == (offset, timestamp)
    assert (first.key, first.value, first.headers) == (key, value, ())


def test_var_r5_a_number_at_the_end_of_the_record_is_not_read_from_the_next_one() -> None:
    """The record has no header count. The next byte would be a valid one, but does not belong to the record."""
    data = build_batch([encode_record(header_count=b""), encode_record(1, 0, value=b"v" * 20)])
    with pytest.raises(kbatch.InvalidRecordError, match=r"record 0, .* extends beyond the end of its record"):
        kbatch.decode(data)


# -- 3.3 record headers


@codecs
@pytest.mark.parametrize("count", [-1, INT32_MIN, 1, 5, 100, INT32_MAX])
def test_hdr_r1_a_header_count_negative_or_above_the_bytes_is_invalid(codec: str, count: int) -> None:
    assert_invalid(encode_record(0, 0, b"k", b"v", header_count=count), codec)


@codecs
@pytest.mark.parametrize("length", [-1, -2, INT32_MIN])
def test_hdr_r2_header_key_is_never_null(codec: str, length: int) -> None:
    assert_invalid(encode_record(header_count=1, extra=zigzag(length) + b"\x02v"), codec)


@pytest.mark.parametrize("count", [-2, -3])
def test_hdr_r1_a_negative_header_count_is_invalid_even_if_headers_follow(count: int) -> None:
    """The zigzag form of -2 is 3, and of -3 is 5: without the sign bit, one header and two."""
    bad = encode_record(header_count=count, extra=b"\x02h\x02v" * (-count - 1))
    records = [bad, *(encode_record(n, 0, value=b"v" * 50) for n in range(1, 6))]
    with pytest.raises(kbatch.InvalidRecordError, match="header"):
        kbatch.decode(build_batch(records))


@codecs
def test_hdr_r2_header_key_may_be_empty(codec: str) -> None:
    assert one(encode_record(headers=[(b"", b"v")]), codec).headers == ((b"", b"v"),)


@codecs
@pytest.mark.parametrize("key", [b"", b"k", b"k" * 100])
@pytest.mark.parametrize("value", [None, b"", b"v", b"v" * 100])
def test_hdr_r2_r3_lengths_of_one_and_two_bytes_are_checked_alike(codec: str, key: bytes, value: bytes | None) -> None:
    assert one(encode_record(headers=[(key, value), (b"h", b"1")]), codec).headers == ((key, value), (b"h", b"1"))


@codecs
@pytest.mark.parametrize("length", [-1, -2, -3, -17, INT32_MIN])
def test_hdr_r3_any_negative_value_length_is_null(codec: str, length: int) -> None:
    record = encode_record(header_count=2, extra=b"\x02h" + zigzag(length) + b"\x02h\x00")
    assert one(record, codec).headers == ((b"h", None), (b"h", b""))
    table = kbatch.decode(build_batch([record], codec=codec))
    assert table.headers["value_len"].tolist() == [-1, 0]


@codecs
@pytest.mark.parametrize("key", [b"\xff\xfe", b"\xed\xa0\x80", b"caf\xe9", b"a\0b", "ключ".encode()])
def test_hdr_r4_header_keys_are_bytes(codec: str, key: bytes) -> None:
    assert one(encode_record(headers=[(key, key)]), codec).headers == ((key, key),)


@codecs
def test_hdr_r5_order_and_duplicates_survive(codec: str) -> None:
    headers = (
        (b"h", b"1"),
        (b"a", b"2"),
        (b"h", b"1"),
        (b"", b""),
        (b"n", None),
        *((b"h", b"%d" % i) for i in range(99)),
    )
    assert one(encode_record(headers=headers), codec).headers == headers


@codecs
@pytest.mark.parametrize("header", [b"\xc8\x01h\x00", b"\x02h\xc8\x01v", b"\x02h", b"\x02", b"\x04h", b"\x02h\x04v"])
def test_hdr_r6_a_header_beyond_the_record_is_invalid(codec: str, header: bytes) -> None:
    """The key or the value is too long, or the value is missing, even if bytes of another record follow."""
    assert_invalid(encode_record(header_count=1, extra=header), codec)


def test_hdr_rows_belong_to_their_records() -> None:
    """COL-R6: headers are one ragged column; offset bounds, slices and masks keep the headers of each record."""
    records = [encode_record(i, headers=[(b"n", b"%d-%d" % (i, j)) for j in range(i % 4)]) for i in range(12)]
    data = build_batch(records) + build_batch(records, base_offset=12, codec="lz4")
    expected = [record for batch in oracle.decode(data).batches for record in batch.records]
    assert records_of(kbatch.decode(data)) == expected
    assert records_of(kbatch.decode(data, start_offset=5, stop_offset=20)) == expected[5:20]
    table = kbatch.decode(data)
    assert records_of(table[3:17:2]) == expected[3:17:2]
    assert records_of(table[table.records["offset"] % 3 == 0]) == expected[::3]
