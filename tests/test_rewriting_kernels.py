"""Messages to batches and back in one pass: what that writes, and what it leaves to the general way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch import conversion, recompression, rewriting
from kbatch.format import BATCH_DTYPE, RECORD_DTYPE
from kbatch.framing import scan_part
from kbatch.kernels import checksum, convert, encode

Bytes = npt.NDArray[np.uint8]


def array_of(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def messages(count: int, size: int = 20, **fields: Any) -> bytes:
    return kbatch.encode([b"v" * size] * count, **({"magic": 1, "timestamps": 1000} | fields))


# -- the same bytes

octets = (
    st.none()
    | st.binary(max_size=3)
    | st.integers(0, 300).map(lambda n: bytes(range(256)) * 2 if n > 299 else b"x" * n)
)
sources = st.lists(
    st.tuples(
        st.lists(
            st.tuples(octets, octets, st.integers(-1, 2**41), st.sampled_from([1, 1, 1, 2, 70, 9000, 2**31])),
            min_size=1,
            max_size=6,
        ),
        st.sampled_from([0, 1, 2]),
        st.sampled_from(["none", "none", "lz4"]),
        st.sampled_from([None, None, 77, 78]),
    ),
    min_size=1,
    max_size=5,
)


def encoded(stretches: Any) -> bytes:
    data, offset = b"", -1
    for rows, magic, codec, append_time in stretches:
        keys, values, times, steps = zip(*rows, strict=True)
        offsets = offset + np.cumsum(steps)
        offset = int(offsets[-1])
        fields: dict[str, Any] = {"timestamps": list(times)} if magic else {}
        if magic and append_time is not None:
            fields |= {"timestamp_type": "log_append_time", "append_time": append_time}
        data += kbatch.encode(
            list(values), keys=list(keys), offsets=offsets, magic=magic, codec=codec, batch_size=1000, **fields
        )
    return data


@given(sources, st.sampled_from([0, 1, 2]), st.sampled_from([None, "none"]), st.sampled_from([0, 60, 300, 16384]))
def test_one_pass_writes_what_the_general_way_writes(stretches: Any, magic: int, codec: Any, batch_size: int) -> None:
    """PRD-R8, PRD-R9."""
    data = encoded(stretches)

    def both() -> tuple[Any, ...]:
        report, other = kbatch.RewriteReport(), kbatch.RewriteReport()
        made = kbatch.convert(data, magic, codec=codec, lossy="drop", batch_size=batch_size, report=report)
        return made, report, kbatch.recompress(data, "none", batch_size=batch_size, report=other), other

    found = both()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(convert, "flatten", lambda *_: (-1, 0, 0, 0))
        patched.setattr(convert, "lower", lambda *_: (0, 0, 0, 0, 0, -1))
        patched.setattr(convert, "merge", lambda *_: (-1, 0))
        assert found == both()


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_every_length(magic: int) -> None:
    """CRC-R7: the checksum of every length, and contents at the end of the memory that they are read from."""
    data = random.Random(4).randbytes(5000)
    fields: dict[str, Any] = {"timestamps": 5} if magic else {}
    for length in [*range(600), 4095, 4096, 5000]:
        values, keys = [data[:length]], [data[: length // 3] if length % 4 else None]
        new = kbatch.encode(values, keys=keys, timestamps=5)
        old = kbatch.encode(values, keys=keys, magic=magic, **fields)
        assert kbatch.convert(new, magic, lossy="drop") == old, length
        assert kbatch.decode(kbatch.convert(old, 2)).values() == values, length


def test_pieces_of_a_large_input_are_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"%d" % i * (i % 50) for i in range(5000)]
    data = kbatch.encode(values, timestamps=1000, batch_size=500)
    old = kbatch.encode(values, timestamps=1000, magic=1)
    packed = kbatch.recompress(data, "lz4")
    assert kbatch.convert(data, 1) == old
    monkeypatch.setattr(rewriting, "BLOCK_BYTES", 900)
    monkeypatch.setattr(recompression, "BLOCK_BYTES", 900)
    monkeypatch.setattr(rewriting, "_RUN_BYTES", 3000)
    monkeypatch.setattr(rewriting, "_FEWEST_RECORDS", 1)
    monkeypatch.setattr(rewriting, "_MOST_ROWS", 90)
    assert kbatch.convert(data, 1) == old
    assert kbatch.recompress(packed, "none") == data
    assert kbatch.decode(kbatch.convert(old, 2)).values() == values
    # Damage in the middle of it.
    at = int(kbatch.scan(data)["position"][100])
    broken = bytearray(data)
    broken[at + 70] ^= 1
    report = kbatch.RewriteReport()
    end = int(kbatch.scan(data)["position"][101])
    assert kbatch.convert(bytes(broken), 1, on_error="skip", report=report) == (
        kbatch.convert(data[:at], 1) + kbatch.convert(data[end:], 1)
    )
    assert [(loss.position, loss.length) for loss in report.damage] == [(at, end - at)]


def test_offsets_rise_over_all_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEG-R13: also from one block of it to the next, of which the first has been written by then."""
    first, second = (kbatch.encode([b"v"] * 3, timestamps=1000, base_offset=offset) for offset in (7, 0))
    monkeypatch.setattr(rewriting, "BLOCK_BYTES", 1)
    with pytest.raises(kbatch.InvalidRecordError, match=f"byte {len(first)}, base offset 0: offsets don't rise"):
        kbatch.convert(first + second, 1)
    report = kbatch.RewriteReport()
    third = kbatch.encode([b"w"], timestamps=1000, base_offset=10)
    made = kbatch.convert(first + second + third, 1, on_error="skip", report=report)
    assert made == kbatch.convert(first + third, 1)
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(first), len(second))]


@pytest.mark.parametrize("most", [-1, 200])
def test_checksums_that_the_kernel_leaves_to_the_package(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRC-R1; processors without the instruction, and batches that the package is faster at."""
    data = messages(60, 30)
    wanted = kbatch.convert(data, 2, batch_size=400)
    packed = kbatch.recompress(wanted, "lz4")
    if most < 0 or checksum.AVAILABLE:
        monkeypatch.setattr(checksum, "MAX_SIZE", most)
    assert kbatch.convert(data, 2, batch_size=400) == wanted
    assert kbatch.recompress(packed, "none") == wanted


# -- what is not ordinary


def flatten(data: Bytes, rows: Any, batches: Any, *, magic: int = 1, after: int = -1, room: int = 10_000) -> Any:
    return convert.flatten(data, rows, batches, magic, after, memoryview(bytearray(room)))


def test_what_flatten_leaves_to_others() -> None:
    table = kbatch.decode(kbatch.encode([b"abc", None], keys=[None, b"k"], timestamps=[5, -1], base_offset=3))
    good = table.records.copy()
    # An empty key or value is nowhere, so that its position doesn't matter.
    good["key_pos"][0] = -5
    used, headers, times, last = flatten(table.data, good, table.batches)
    assert (used, headers, times, last) == (2 * 34 + 4, 0, 1, 4)
    assert flatten(table.data, good, table.batches, after=2)[0] == used
    assert flatten(table.data, good, table.batches, room=used)[0] == used
    assert flatten(table.data, good[:0], table.batches, after=7) == (0, 0, 0, 7)

    def refused(**changes: int) -> bool:
        rows = good.copy()
        for name, value in changes.items():
            rows[name][1 if name.startswith("key") else 0] = value
        return bool(flatten(table.data, rows, table.batches)[0] == -1)

    assert flatten(table.data, good, table.batches, after=3)[0] == -1
    assert flatten(table.data, good, table.batches, room=used - 1)[0] == -1
    assert flatten(table.data, good[::-1].copy(), table.batches)[0] == -1
    assert refused(offset=-1)
    assert refused(batch=1)
    assert refused(batch=-1)
    for name in ("key", "value"):
        assert refused(**{f"{name}_pos": len(table.data)})
        assert refused(**{f"{name}_pos": -1})
        assert refused(**{f"{name}_len": 2**31 - 1})
        assert refused(**{f"{name}_pos": 2**63 - 1})
    with pytest.raises(ValueError, match="magic 0 or 1, got 2"):
        flatten(table.data, good, table.batches, magic=2)


def lower(data: Bytes, batches: Any, *, after: int = -1, room: int = 10_000, rows: int = 100, **given: Any) -> Any:
    found = {"magic": 1, "drops": False, "check_crc": True, "max_crc": 1 << 20} | given
    return convert.lower(
        data, batches, 0, found["magic"], after, np.empty(rows, RECORD_DTYPE), memoryview(bytearray(room)),
        found["drops"], found["check_crc"], found["max_crc"]
    )  # fmt: skip


@pytest.mark.skipif(not checksum.AVAILABLE, reason="this processor has no CRC-32C instruction")
def test_what_lower_leaves_to_others() -> None:
    parts = [kbatch.encode([b"abc", None, b"d"], timestamps=5, base_offset=3 + i) for i in range(0, 12, 3)]
    data = array_of(b"".join(parts))
    batches = scan_part(data).batches
    assert len(batches) == 4
    size = 34 * 12 + 16
    assert lower(data, batches) == (4, size, 12, 0, 12, 14)
    assert lower(data, batches, after=2, room=size + 150, rows=3, max_crc=100)[:2] == (4, size)
    assert lower(data, batches[:0], after=7) == (0, 0, 0, 0, 0, 7)
    # As far as there is room for whatever a batch may become.
    for room in range(size):
        done, used, records, *_ = lower(data, batches, room=room)
        assert (used, records) == (34 * records + records // 3 * 4, 3 * done)
        assert used <= room
    assert lower(data, batches, rows=2)[0] == 0
    assert lower(data, batches, after=3)[0] == 0
    assert lower(data, batches[::-1].copy())[:2] == (1, size // 4)
    assert lower(data, batches, max_crc=50)[0] == 0
    assert lower(data, batches, magic=0)[0] == 0
    assert lower(data, batches, magic=0, drops=True)[::4] == (4, 12)
    bad = data.copy()
    bad[int(batches["position"][2]) + 70] ^= 1
    assert lower(bad, batches)[0] == 2
    assert lower(bad, batches, check_crc=False)[0] in (2, 4)  # as a record it may be good

    def refused(**changes: int) -> bool:
        rows = batches.copy()
        for name, value in changes.items():
            rows[name][1] = value
        return bool(lower(data, rows, check_crc=False)[0] == 1)

    assert refused(magic=1)
    for attributes in (1, 4, 7, 0x20):
        assert refused(attributes=attributes)
    for count in (0, -1, 2, 4, 2**31 - 1):
        assert refused(record_count=count)
    for position in (-1, len(data), 2**63 - 1):
        assert refused(position=position)
    for wrong in (-1, 0, 60, len(data), 2**63 - 1):
        assert refused(size=wrong)
    with_headers = array_of(kbatch.encode([b"a"], headers=[[("k", b"v")]], timestamps=5))
    rows = scan_part(with_headers).batches
    assert lower(with_headers, rows)[0] == 0
    assert lower(with_headers, rows, drops=True)[:4] == (1, 35, 1, 1)
    with pytest.raises(ValueError, match="magic 0 or 1, got 2"):
        lower(data, batches, magic=2)
    with pytest.raises(ValueError, match="RECORD_DTYPE"):
        convert.lower(
            data, batches, 0, 1, -1, np.empty(9, [("offset", "i8")]), memoryview(bytearray(9)), False, True, 0
        )


def test_one_run_by_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEG-R13, PRD-R9: what the one pass leaves goes on where it ended, wherever that is, and nothing counts twice."""
    plain = [kbatch.encode([b"v%d" % i] * 3, timestamps=1000, base_offset=3 * i) for i in range(6)]
    packed = [kbatch.recompress(part, "lz4") for part in plain]
    for number in range(1 << 6):
        parts = [packed[i] if number >> i & 1 else plain[i] for i in range(6)]
        report, other = kbatch.RewriteReport(), kbatch.RewriteReport()
        made = kbatch.convert(b"".join(parts), 1, codec="none", report=report)
        assert made == kbatch.convert(b"".join(plain), 1)
        with monkeypatch.context() as patched:
            patched.setattr(convert, "lower", lambda *_: (0, 0, 0, 0, 0, -1))
            assert kbatch.convert(b"".join(parts), 1, codec="none", report=other) == made
        assert report == other
    # Also where damage behind it has all that is left looked at once more.
    damaged = bytearray(plain[2])
    damaged[-3] ^= 1
    report = kbatch.RewriteReport()
    assert kbatch.convert(plain[1] + plain[0] + damaged, 1, on_error="skip", report=report) == kbatch.convert(
        plain[1], 1
    )
    assert sorted(loss.position for loss in report.damage) == [len(plain[1]), len(plain[1] + plain[0])]
    for i in range(1, 6):
        mixed = b"".join(plain[:i]) + packed[i - 1] + plain[i]
        with pytest.raises(kbatch.InvalidRecordError, match="offsets don't rise"):
            kbatch.convert(mixed, 1, codec="none")


def test_losses_of_batches_in_one_pass() -> None:
    """PRD-R9: each is counted once, or refused where it is."""
    plain = kbatch.encode([b"a"] * 3, timestamps=5)
    idempotent = kbatch.encode(
        [b"b"] * 3, timestamps=5, base_offset=3, producer_id=7, producer_epoch=0, base_sequence=0
    )
    with_headers = kbatch.encode([b"c"], headers=[[("k", b"v")]], timestamps=5, base_offset=6)
    for part, name in ((idempotent, "producer_batches"), (with_headers, "records_with_headers")):
        with pytest.raises(
            kbatch.ConversionLossError, match=f"byte {len(plain)}, base offset {3 if part is idempotent else 6}"
        ):
            kbatch.convert(plain + part, 1)
        report = kbatch.RewriteReport()
        assert kbatch.decode(kbatch.convert(plain + part, 1, lossy="drop", report=report)).values()[:3] == [b"a"] * 3
        assert report.lost == {name: 1}
        assert (report.batches, report.rewritten, report.bytes) == (2, 2, len(plain + part))


def merge(data: Bytes, rows: Any, *, room: int = 10_000, batches: int = 100, origin: int = 0) -> tuple[int, int]:
    out, made = memoryview(bytearray(room)), np.empty(batches, BATCH_DTYPE)
    return convert.merge(data, rows, origin, 16384, out, made, 1 << 20)


def test_what_merge_leaves_to_others() -> None:
    data = array_of(messages(5, keys=[b"k"] * 5, base_offset=3))
    good = scan_part(data).batches
    used, count = merge(data, good)
    assert (used, count) == (61 + 5 * (1 + 4 + 2 + 21), 1)
    assert merge(data, good[:0]) == (0, 0)
    # The length of a record has room for the longest.
    assert merge(data, good, room=used + 4)[0] == used

    def refused(found: Bytes = data, /, **changes: int) -> bool:
        rows = good.copy()
        for name, value in changes.items():
            rows[name][2] = value
        return merge(found, rows)[0] == -1

    def changed(at: int, found: bytes) -> Bytes:
        other = data.copy()
        start = int(good["position"][2]) + at
        other[start : start + len(found)] = array_of(found)
        return other

    assert merge(data, good, room=used - 1)[0] == -1
    assert merge(data, good, room=20)[0] == -1
    assert merge(data, good, batches=0)[0] == -1
    assert merge(data, good, origin=1)[0] == -1
    assert refused(magic=2)
    assert refused(attributes=kbatch.Codec.LZ4)
    assert refused(last_offset=4)
    assert refused(last_offset=-1)
    for name, values in {"position": [-1, len(data), 2**62], "size": [0, 33, len(data), 2**31, 2**62]}.items():
        for value in values:
            assert refused(**{name: value}), (name, value)
    # The length of the key, and that of the value behind it.
    for at, most in ((26, 21), (31, 20)):
        assert refused(changed(at, (most + 1).to_bytes(4, "big")))
        assert refused(changed(at, (2**31 - 1).to_bytes(4, "big")))
    assert not refused(changed(31, (19).to_bytes(4, "big")))
    assert not refused(changed(31, b"\xff\xff\xff\xfe"))


# -- output that grows


def test_bytes_that_grow() -> None:
    pieces = [bytes([i]) * (i * 1000) for i in range(100)]
    for expected in (0, 1, 10_000, 6_000_000):
        growing = encode.Growing()
        for piece in pieces:
            growing.append(piece, expected)
        assert growing.used == sum(map(len, pieces))
        assert growing.take() == b"".join(pieces)
        with pytest.raises(ValueError, match="have been taken"):
            growing.take()
        with pytest.raises(ValueError, match="have been taken"):
            growing.append(b"", 0)
    assert encode.Growing().take() == b""
    growing = encode.Growing()
    with pytest.raises(OverflowError):
        growing.append(b"a", 2**63 - 1)
    with pytest.raises(ValueError, match="have been taken"):
        growing.append(b"a", 1)


def test_bytes_that_are_written_where_they_belong() -> None:
    growing = encode.Growing()
    assert growing.spare(1) is None
    growing.append(b"first", 100)
    assert growing.spare(-1) is None
    assert growing.spare(96) is None
    spare = growing.spare(95)
    assert spare is not None
    assert len(spare) == 95
    spare[:6] = b"second"
    growing.append(spare[:6], 100)
    assert growing.used == 11
    growing.append(b"third", 0)
    growing.reserve(10_000)
    spare = growing.spare(10_000)
    assert spare is not None
    spare[:] = b"x" * 10_000
    growing.append(spare, 0)
    del spare
    assert growing.take() == b"firstsecondthird" + b"x" * 10_000
    assert growing.spare(0) is None
    with pytest.raises(ValueError, match="have been taken"):
        growing.reserve(1)


def test_headers_around_payloads() -> None:
    data = bytearray(
        kbatch.encode([b"v"] * 9, timestamps=1000, batch_size=100, producer_id=3, producer_epoch=0, base_sequence=0)
    )
    wanted = bytes(data)
    rows = kbatch.scan(wanted).copy()
    for row in rows:
        start = int(row["position"])
        data[start : start + 61] = bytes(61)
    encode.frame(rows, memoryview(data), checksum.MAX_SIZE)
    assert data == wanted or not checksum.AVAILABLE
    with pytest.raises(ValueError, match="1 bytes before their memory"):
        encode.frame(rows, memoryview(data + b"\0"), 1 << 20)
    for name, value in (("size", 60), ("size", 2**31)):
        bad = rows.copy()
        bad[name][-1] = value
        with pytest.raises(ValueError, match=f"batch {len(rows) - 1} has no payload there"):
            encode.frame(bad, memoryview(data), 1 << 20)


def test_rows_are_those_of_the_table() -> None:
    """The rows that blocks are decoded to are used again, and never anything that a caller keeps."""
    data = kbatch.encode([b"v"] * 10, timestamps=1000)
    rewriter = conversion.Conversion(1)
    rows = scan_part(array_of(data)).batches
    before = rows.copy()
    kept = list(rewriter.pieces(array_of(data), rows)) + list(rewriter.pieces(array_of(data), rows))
    assert (rows == before).all()
    assert [bytes(piece) for piece in kept] == [kbatch.convert(data, 1)] * 2
    assert rewriter._rows.dtype == RECORD_DTYPE


def test_flatten_leaves_records_too_large_for_a_message_to_others() -> None:
    """A message tells its size as an int32; the general way looks at that."""
    data = np.empty((1 << 30) + 100, np.uint8)  # nobody reads or writes it: it takes no memory
    table = kbatch.decode(kbatch.encode([b"v"], timestamps=5))
    rows = table.records.copy()
    rows["value_pos"], rows["value_len"] = 0, 1 << 30
    out = memoryview(np.empty((1 << 30) + 200, np.uint8))
    assert convert.flatten(data, rows, table.batches, 1, -1, out)[0] == -1


def test_first_bytes_unlike_the_rest_make_no_large_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first batches become may be a thousand times their size."""
    demands: list[int] = []

    class Growing(encode.Growing):
        def append(self, piece: Any, expected: int) -> None:
            demands.append(expected)
            super().append(piece, expected)

    monkeypatch.setattr(encode, "Growing", Growing)
    monkeypatch.setattr(rewriting, "_RUN_BYTES", 4000)
    dense = kbatch.encode([bytes(1 << 20)], timestamps=5, codec="gzip")
    noise = kbatch.encode([random.Random(1).randbytes(100_000)], timestamps=5, codec="gzip", base_offset=1)
    made = kbatch.recompress(dense + noise, "none")
    assert max(demands) < 2 * len(made)
    assert made == kbatch.encode([bytes(1 << 20)], timestamps=5) + kbatch.encode(
        [random.Random(1).randbytes(100_000)], timestamps=5, base_offset=1
    )
