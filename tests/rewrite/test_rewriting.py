"""convert and recompress: batches in another magic or with another codec, compared with Kafka's conversion."""

from __future__ import annotations

import dataclasses
import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch.format import ATTRIBUTE_CODEC

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
OLD_CODECS = CODECS[:-1]
# Header fields that a recompression changes.
CHANGED = {"position", "size", "crc", "attributes", "first_record"}
GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = sorted(GOLDEN.glob("logs/*/*.log"))
DOWN = sorted(path.stem for path in GOLDEN.glob("down-converted/*.bin") if "-magic" not in path.stem)

Row = tuple[int, int, int, bytes | None, bytes | None, list[Any]]


def rows_of(data: bytes, *, control: bool = False) -> list[Row]:
    table = kbatch.decode(data, include_control=control)
    types = kbatch.TimestampType.of(table.batches)[table.records["batch"]]
    headers: list[list[Any]] = [[] for _ in range(len(table))]
    for row in table.headers:
        key, size = int(row["key_pos"]), int(row["value_len"])
        value = None if size < 0 else table.data[int(row["value_pos"]) :][:size].tobytes()
        headers[row["record"]].append((table.data[key : key + int(row["key_len"])].tobytes(), value))
    columns = (table.records["offset"].tolist(), table.records["timestamp"].tolist(), types.tolist())
    return list(zip(*columns, table.keys(), table.values(), headers, strict=True))


def without_headers(rows: list[Row]) -> list[Row]:
    return [(*row[:5], []) for row in rows]


def without_times(rows: list[Row]) -> list[Row]:
    return [(row[0], -1, -1, *row[3:]) for row in rows]


def without_padding(path: Path) -> bytes:
    """The batches of a segment, without the zeros of a preallocated file."""
    data = path.read_bytes()
    batches = next(iter(kbatch.Log(path).tables(max_bytes=1 << 30))).batches
    return data[: int(batches["position"][-1] + batches["size"][-1])]


def as_magic(rows: list[Row], magic: int) -> list[Row]:
    """The rows that remain after a conversion; a missing timestamp is -1."""
    if magic == 0:
        return without_times(without_headers(rows))
    rows = [(row[0], row[1], max(row[2], 0), *row[3:]) for row in rows]
    return rows if magic == 2 else without_headers(rows)


@pytest.mark.parametrize("magic", [1, 0])
@pytest.mark.parametrize("name", DOWN)
def test_down_conversion_equals_kafkas(name: str, magic: int) -> None:
    """PRD-R9; the files were written by ``MemoryRecords.downConvert`` of kafka-clients 2.8.2."""
    expected = (GOLDEN / f"down-converted/{name}-magic{magic}.bin").read_bytes()
    report = kbatch.RewriteReport()
    made = kbatch.convert((GOLDEN / f"down-converted/{name}.bin").read_bytes(), magic, lossy="drop", report=report)
    found, kafkas = kbatch.scan(made), kbatch.scan(expected)
    for field in ("last_offset", "max_timestamp", "attributes", "magic", "record_count"):
        assert found[field].tolist() == kafkas[field].tolist(), field
    # Other implementations of a codec may produce other bytes.
    assert kbatch.recompress(made, "none") == kbatch.recompress(expected, "none")
    if name in ("none", "lz4", "snappy"):
        assert made == expected
    assert report.batches_written == len(kafkas)


@pytest.mark.parametrize("magic", [2, 1, 0])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{int(path.stem)}")
def test_golden_logs_survive_conversion_to_each_magic_and_back(path: Path, magic: int) -> None:
    data = without_padding(path)
    report = kbatch.RewriteReport()
    codec = "gzip" if (kbatch.scan(data)["attributes"] & ATTRIBUTE_CODEC == kbatch.Codec.ZSTD).any() else None
    made = kbatch.convert(data, magic, codec=codec if magic < 2 else None, lossy="drop", report=report)
    assert set(kbatch.scan(made)["magic"].tolist()) <= {magic}
    expected = as_magic(rows_of(data), magic)
    assert rows_of(made) == expected
    assert (report.bytes, report.bytes_written) == (len(data), len(made))
    before = kbatch.decode(data)
    if magic < 2:
        assert report.records_with_headers == int(np.count_nonzero(before.records["header_count"]))
        assert report.control_batches == int(np.count_nonzero(before.batches["attributes"] & 0x20))
    back = kbatch.convert(made, 2)
    assert rows_of(back) == [(row[0], row[1], max(row[2], 0), *row[3:]) for row in expected]
    # Converting to magic 2 again changes nothing.
    assert kbatch.convert(back, 2) == back


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{int(path.stem)}")
def test_recompression_keeps_all_other_fields_of_golden_logs(path: Path, codec: str) -> None:
    data = without_padding(path)
    before = kbatch.scan(data)
    if codec == "zstd" and (before["magic"] < 2).any():
        with pytest.raises(kbatch.ConversionLossError, match="does not support zstd; convert to magic 2 first"):
            kbatch.recompress(data, codec)
        data = kbatch.convert(data, 2)
        before = kbatch.scan(data)
    made = kbatch.recompress(data, codec)
    assert rows_of(made, control=True) == rows_of(data, control=True)
    after = kbatch.scan(made)
    current, now = before[before["magic"] == 2], after[after["magic"] == 2]
    for field in set(before.dtype.names or ()) - CHANGED:
        assert now[field].tolist() == current[field].tolist(), field
    untouched = (current["attributes"] & 0x20 != 0) | (current["record_count"] == 0)
    own = np.where(untouched, current["attributes"] & ATTRIBUTE_CODEC, kbatch.Codec[codec.upper()])
    assert now["attributes"].tolist() == (current["attributes"] & ~ATTRIBUTE_CODEC | own).tolist()
    assert kbatch.recompress(made, codec) == made
    if (before["magic"] == 2).all():
        assert kbatch.recompress(made, "none") == kbatch.recompress(data, "none")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("legacy-clients/*.bin")), ids=lambda path: path.stem)
def test_message_sets_of_old_clients_keep_their_records(path: Path) -> None:
    data = path.read_bytes()
    rows = rows_of(data)
    new = kbatch.convert(data, 2)
    assert rows_of(new) == [(row[0], row[1], max(row[2], 0), *row[3:]) for row in rows]
    for codec in OLD_CODECS:
        made = kbatch.recompress(data, codec)
        assert rows_of(made) == rows
        found = kbatch.scan(made)
        assert set((found["attributes"] & ATTRIBUTE_CODEC).tolist()) == {kbatch.Codec[codec.upper()]}
        assert kbatch.recompress(made, "none") == kbatch.recompress(data, "none")


# There is no zstd below magic 2, and aiokafka does not read lz4 in magic 0 (LEG-R20).
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(m, c) for m in (0, 1, 2) for c in CODECS if m == 2 or (c != "zstd" and (m, c) != (0, "lz4"))],
)
def test_other_clients_read_the_output(magic: int, codec: str) -> None:
    aiokafka = pytest.importorskip("aiokafka.record.memory_records")
    kafka = pytest.importorskip("kafka.record.memory_records")
    rows = [(b"k%d" % i if i % 3 else None, b"v" * i) for i in range(50)]
    source = kbatch.encode(
        [value for _, value in rows],
        keys=[key for key, _ in rows],
        timestamps=1000,
        base_offset=40,
        magic=1 if magic == 2 else 2,
        codec="snappy",
    )
    made = kbatch.convert(source, magic, codec=codec, lossy="drop")
    again = kbatch.recompress(made, f"{codec}:3" if codec in ("gzip", "zstd", "lz4") else codec)
    for module in (aiokafka, kafka):
        for data in (made, again):
            records = module.MemoryRecords(data)
            found = []
            while (batch := records.next_batch()) is not None:
                assert batch.validate_crc()
                found += [(record.offset, record.key, record.value) for record in batch]
            assert found == [(40 + i, key, value) for i, (key, value) in enumerate(rows)]


BATCH = kbatch.encode([b"v"], timestamps=1000, base_offset=5)
LOSSES: dict[str, tuple[bytes, str, int]] = {
    "headers": (kbatch.encode([b"v"], timestamps=1000, headers=[[("k", b"v")]]), "records_with_headers", 1),
    "producer": (
        kbatch.encode([b"v"], timestamps=1000, producer_id=7, producer_epoch=0, base_sequence=0),
        "producer_batches",
        1,
    ),
    "horizon": (kbatch.encode([b"v"], timestamps=1000, delete_horizon=9), "delete_horizons", 1),
    "marker": (kbatch.encode_marker("commit", producer_id=7, producer_epoch=0, timestamp=5), "control_batches", 1),
    "times": (BATCH, "timestamps", 0),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_raises_unless_lossy_is_drop(kind: str) -> None:
    data, name, magic = LOSSES[kind]
    good = kbatch.convert(BATCH, magic, lossy="drop")
    with pytest.raises(kbatch.ConversionLossError, match="lossy='drop'") as caught:
        kbatch.convert(good + data, magic)
    assert (caught.value.position, caught.value.base_offset) == (len(good), int(kbatch.scan(data)["base_offset"][0]))
    report = kbatch.RewriteReport()
    made = kbatch.convert(good + data, magic, lossy="drop", report=report)
    assert report.lost == {name: 1}
    assert rows_of(made) == rows_of(good) + as_magic(rows_of(data), magic)


def test_transactions_are_lost_below_magic_2() -> None:
    fields: Any = {"producer_id": 7, "producer_epoch": 0}
    data = kbatch.encode([b"v"], timestamps=1, base_sequence=0, transactional=True, leader_epoch=4, **fields)
    data += kbatch.encode_marker("abort", offset=1, timestamp=1, **fields)
    with pytest.raises(kbatch.ConversionLossError, match="does not support control batches, which end transactions"):
        kbatch.convert(data, 1)
    report = kbatch.RewriteReport()
    assert kbatch.decode(kbatch.convert(data, 1, lossy="drop", report=report)).values() == [b"v"]
    counts = {"control_batches": 1, "transactional_batches": 1, "producer_batches": 1, "leader_epochs": 1}
    assert report.lost == counts
    assert (report.batches, report.batches_written, report.rewritten, report.records) == (2, 1, 2, 1)


def test_the_error_names_the_first_batch_without_a_count() -> None:
    """The error is raised before the rest of the input is read, so the count is unknown."""
    uncompressed = [kbatch.encode([bytes(1000)] * 100, timestamps=1000, base_offset=100 * i) for i in range(6)]
    headers = [[("k", b"v")]] + [None] * 9
    bad = [kbatch.encode([b"v"] * 10, headers=headers, timestamps=1, base_offset=600 + 10 * i) for i in range(2)]
    with pytest.raises(kbatch.ConversionLossError) as caught:
        kbatch.convert(b"".join(uncompressed + bad), 1)
    assert (caught.value.position, caught.value.base_offset) == (sum(map(len, uncompressed)), 600)
    assert str(caught.value).endswith(
        "magic 1 does not support headers of records; this is the first batch with them, and "
        "lossy='drop' (--lossy drop) drops and counts them"
    )


def test_leader_epochs_and_empty_batches_are_dropped_without_an_error() -> None:
    data = kbatch.encode([b"v"], timestamps=1000, leader_epoch=3)
    data += kbatch.encode_empty(1, 4)
    report = kbatch.RewriteReport()
    assert kbatch.convert(data, 1, report=report) == kbatch.encode([b"v"], timestamps=1000, magic=1)
    assert report.lost == {"leader_epochs": 1, "empty_batches": 1}


def test_zstd_needs_another_codec_below_magic_2() -> None:
    data = kbatch.encode([b"v"] * 9, timestamps=1000, codec="zstd")
    with pytest.raises(kbatch.ConversionLossError, match=r"magic 1 does not support zstd.*codec="):
        kbatch.convert(data, 1, lossy="drop")
    made = kbatch.convert(data, 1, codec="lz4")
    assert kbatch.scan(made)["attributes"].tolist() == [kbatch.Codec.LZ4]
    with pytest.raises(ValueError, match="zstd needs magic 2"):
        kbatch.convert(data, 1, codec="zstd")


def test_uncompressed_messages_are_combined() -> None:
    """PRD-R8: one batch of many messages, up to a size."""
    data = kbatch.encode([b"x" * 100] * 100, timestamps=1000, magic=1)
    assert kbatch.scan(kbatch.convert(data, 2))["record_count"].tolist() == [100]
    cut = kbatch.scan(kbatch.convert(data, 2, batch_size=1200))
    assert cut["record_count"].tolist() == [10] * 10
    assert kbatch.scan(kbatch.convert(data, 2, batch_size=0))["record_count"].tolist() == [1] * 100
    compressed = kbatch.recompress(data, "gzip", batch_size=5000)
    assert kbatch.scan(compressed)["last_offset"].tolist() == [42, 85, 99]
    assert kbatch.recompress(compressed, "none") == data


def test_messages_that_need_several_batches_are_not_combined() -> None:
    def message(offset: int, **fields: Any) -> bytes:
        return kbatch.encode([b"v"], base_offset=offset, **({"magic": 1} | fields))

    appended: Any = {"timestamp_type": "log_append_time"}
    data = message(0, timestamps=5) + message(1, timestamps=4)
    data += message(2, magic=0) + message(3, append_time=7, **appended) + message(4, append_time=7, **appended)
    data += message(5, append_time=8, **appended) + message(6, timestamps=1, codec="gzip") + message(7, timestamps=1)
    data += message(8 + 2**31, timestamps=1)
    made = kbatch.convert(data, 2)
    found = kbatch.scan(made)
    assert found["record_count"].tolist() == [2, 1, 2, 1, 1, 1, 1]
    assert found["max_timestamp"].tolist() == [5, -1, 7, 8, 1, 1, 1]
    assert [row[:3] for row in rows_of(made)] == [(o, t, max(k, 0)) for o, t, k, *_ in rows_of(data)]


def test_damage_raises_or_is_skipped() -> None:
    good = kbatch.encode([b"a"], timestamps=1, base_offset=0, codec="gzip")
    bad = bytearray(kbatch.encode([b"b"], timestamps=1, base_offset=1, codec="gzip"))
    bad[-1] ^= 1
    data = good + bytes(bad) + kbatch.encode([b"c"], timestamps=1, base_offset=2, codec="gzip")
    for rewrite in (lambda **o: kbatch.convert(data, 1, **o), lambda **o: kbatch.recompress(data, "lz4", **o)):
        with pytest.raises(kbatch.CrcMismatchError) as caught:
            rewrite()
        assert caught.value.position == len(good)
        report = kbatch.RewriteReport()
        assert kbatch.decode(rewrite(on_error="skip", report=report)).values() == [b"a", b"c"]
        assert [(loss.position, loss.length) for loss in report.damage] == [(len(good), len(bad))]


def test_a_payload_that_does_not_decompress_is_damage() -> None:
    data = bytearray(kbatch.encode([b"a"] * 9, timestamps=1, codec="gzip"))
    data[61] ^= 0xFF
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    more = kbatch.encode([b"c"], timestamps=1, base_offset=20)
    for rewrite in (
        lambda **o: kbatch.convert(bytes(data) + more, 1, **o),
        lambda **o: kbatch.recompress(bytes(data) + more, "snappy", **o),
    ):
        with pytest.raises(kbatch.CodecError, match=r"byte 0, base offset 0: .*gzip"):
            rewrite()
        report = kbatch.RewriteReport()
        assert kbatch.decode(rewrite(on_error="skip", report=report)).values() == [b"c"]
        assert [(loss.position, loss.length, loss.base_offset) for loss in report.damage] == [(0, len(data), 0)]


def test_a_partial_batch_at_the_end_is_damage() -> None:
    data = BATCH + BATCH[:30]
    with pytest.raises(kbatch.TruncatedBatchError, match=f"byte {len(BATCH)}: the last 30 bytes"):
        kbatch.convert(data, 2)
    report = kbatch.RewriteReport()
    assert kbatch.recompress(data, "none", on_error="skip", report=report) == BATCH
    assert [(loss.position, loss.length) for loss in report.damage] == [(len(BATCH), 30)]


def test_non_increasing_offsets_are_damage() -> None:
    """LEG-R13: broken clients wrote them, and readers accept them, but they are not written again."""
    inner = b"".join(kbatch.encode([value], timestamps=1, magic=1) for value in (b"a", b"b"))
    payload = gzip.compress(inner)
    body = struct.pack(">bbqii", 1, kbatch.Codec.GZIP, 1, -1, len(payload)) + payload
    data = struct.pack(">qiI", 12, len(body) + 4, zlib.crc32(body)) + body
    assert [row[0] for row in rows_of(data)] == [12, 12]
    with pytest.raises(kbatch.InvalidRecordError, match="byte 0, base offset 12: offsets do not ascend"):
        kbatch.convert(data, 2)
    report = kbatch.RewriteReport()
    assert kbatch.convert(data + BATCH, 2, on_error="skip", report=report) == BATCH
    assert [(loss.position, loss.length) for loss in report.damage] == [(0, len(data))]
    # Recompression does not change them.
    assert rows_of(kbatch.recompress(data, "lz4")) == rows_of(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_many_batches_with_repeated_offsets_are_skipped(magic: int) -> None:
    """LEG-R13: part of a log is repeated; all of its batches are skipped in one pass."""
    once = kbatch.encode([b"value"] * 3000, timestamps=1000, codec="gzip", batch_size=0)
    assert len(kbatch.scan(once)) == 3000
    report = kbatch.RewriteReport()
    assert kbatch.convert(once + once, magic, lossy="drop", on_error="skip", report=report) == kbatch.convert(
        once, magic, lossy="drop"
    )
    assert sum(loss.length for loss in report.damage) == len(once)
    assert {loss.position for loss in report.damage} == {len(once) + p for p in kbatch.scan(once)["position"].tolist()}


def test_offsets_of_a_skipped_batch_are_ignored() -> None:
    """Offsets must increase only relative to the batches that are written."""
    made = [
        kbatch.encode([b"value"] * count, timestamps=1000, base_offset=first, codec="gzip")
        for first, count in ((1, 5), (3, 7), (8, 3), (10, 1), (11, 1))
    ]
    report = kbatch.RewriteReport()
    out = kbatch.convert(b"".join(made), 1, on_error="skip", report=report)
    assert kbatch.decode(out).records["offset"].tolist() == [1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert [loss.base_offset for loss in report.damage] == [3, 10]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_vectors_are_rewritten_or_raise_a_kbatch_error(on_error: Any) -> None:
    for path in sorted(GOLDEN.glob("vectors/*.bin")):
        data = path.read_bytes()
        for magic in (0, 1, 2):
            report = kbatch.RewriteReport()
            try:
                made = kbatch.convert(data, magic, codec="lz4", lossy="drop", on_error=on_error, report=report)
            except kbatch.KbatchError:
                assert on_error == "raise" or path.stem.startswith(("L4", "LEG", "ZS")), path
            else:
                # Batches that already have the magic are copied unchanged.
                if report.rewritten == report.batches:
                    kbatch.decode(made)
        for codec in CODECS:
            try:
                made = kbatch.recompress(data, codec, on_error=on_error)
            except kbatch.KbatchError:
                continue
            assert (kbatch.scan(made)["status"] == 0).all()


def test_the_decompression_limit_applies() -> None:
    data = kbatch.encode([bytes(100_000)], timestamps=1, codec="zstd")
    for rewrite in (lambda o: kbatch.convert(data, 1, codec="none", limits=o),
                    lambda o: kbatch.recompress(data, "none", limits=o)):  # fmt: skip
        with pytest.raises(kbatch.LimitExceededError):
            rewrite(kbatch.Limits(max_decompressed_bytes=99_999))


def test_compression_levels_are_used_and_checked() -> None:
    data = kbatch.encode([b"%d" % (i * i) for i in range(3000)], timestamps=1, codec="zstd")
    better = kbatch.recompress(data, "zstd:19")
    assert len(better) < len(data)
    assert rows_of(better) == rows_of(data)
    for codec in ("zstd:99", "snappy:1"):
        with pytest.raises(ValueError, match=f"codec must be none, gzip, .* got '{codec}'"):
            kbatch.recompress(data, codec)


def test_wrong_arguments_raise() -> None:
    with pytest.raises(ValueError, match="magic must be 0, 1 or 2"):
        kbatch.convert(b"", 3)
    with pytest.raises(ValueError, match="lossy must be"):
        kbatch.convert(b"", 1, lossy="keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error must be"):
        kbatch.convert(b"", 1, on_error="stop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="codec must be none, gzip"):
        kbatch.recompress(b"", "brotli")
    assert kbatch.convert(b"", 1) == kbatch.recompress(b"", "gzip") == b""


def test_reports_are_summed() -> None:
    one, other = kbatch.RewriteReport(), kbatch.RewriteReport()
    kbatch.convert(BATCH, 1, report=one)
    kbatch.convert(BATCH, 0, lossy="drop", report=one)
    kbatch.recompress(BATCH, "gzip", report=other)
    before = dataclasses.asdict(one)
    one.add(other)
    assert one.batches == 3
    assert one.lost == {"timestamps": 1}
    after, added = dataclasses.asdict(one), dataclasses.asdict(other)
    counts = [name for name, value in added.items() if isinstance(value, int)]
    assert set(added) - set(counts) == {"damage", "open_transactions"}
    assert [after[name] - before[name] for name in counts] == [added[name] for name in counts]


octets = st.none() | st.binary(max_size=40)
records = st.lists(
    st.tuples(octets, octets, st.integers(-1, 2**41), st.integers(1, 1000), st.lists(st.tuples(st.binary(), octets))),
    min_size=1,
    max_size=8,
)
parts = st.lists(
    st.tuples(records, st.sampled_from([0, 1, 2]), st.sampled_from(OLD_CODECS), st.booleans()), min_size=1, max_size=5
)


@given(parts, st.sampled_from([0, 1, 2]), st.sampled_from([None, *OLD_CODECS]), st.sampled_from(OLD_CODECS))
def test_generated_batches_keep_records(given_parts: list[Any], magic: int, codec: str | None, other: str) -> None:
    data, offset = b"", 0
    for rows, own, compressed, appended in given_parts:
        keys, values, times, steps, headers = zip(*rows, strict=True)
        offsets = offset + np.cumsum(steps)
        offset = int(offsets[-1])
        fields: dict[str, Any] = {"magic": own, "codec": compressed, "offsets": offsets}
        if own:
            fields["timestamps"] = list(times)
        if own == 2:
            fields["headers"] = list(headers)
        if own and appended:
            fields |= {"timestamp_type": "log_append_time", "append_time": 77}
        data += kbatch.encode(list(values), keys=list(keys), **fields)
    rows_before = rows_of(data)
    made = kbatch.convert(data, magic, codec=codec, lossy="drop", batch_size=200)
    assert set(kbatch.scan(made)["magic"].tolist()) == {magic}
    assert rows_of(made) == as_magic(rows_before, magic)
    again = kbatch.recompress(data, other, batch_size=200)
    assert rows_of(again) == rows_before
    assert set((kbatch.scan(again)["attributes"] & ATTRIBUTE_CODEC).tolist()) == {kbatch.Codec[other.upper()]}
