"""`kbatch.log.compact_log`, compared with Kafka's cleaner and with an oracle; errors, files and the command."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compaction import EXPIRATION, NOW, RETENTION, check, clean, random_log, write_log
from golden_logs import LOGS
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import decode as oracle_decode

import kbatch
from kbatch.cli import main
from kbatch.kernels.keymap import KeyOffsets, siphash
from kbatch.log import Compaction, compact_log

FIRST = f"{0:020d}.log"
# A log has too many choices for Hypothesis to shrink; a seed is enough to reproduce a failure.
SEEDS = st.integers(0, 2**32 - 1)


def run(log: Path, out: Path, **options: Any) -> Compaction:
    options = {
        "now": NOW,
        "delete_retention_ms": RETENTION,
        "producer_expiration_ms": EXPIRATION,
        "segment_bytes": 1,
        **options,
    }
    return compact_log(log, out, **options)


def contents(data: bytes) -> list[tuple[Any, ...]]:
    """Return the fields and records of each batch, without its compressed bytes."""
    found = oracle_decode(data)
    assert found.error is None
    assert not found.unread
    return [
        batch._replace(position=0, **({"size": 0, "crc": 0} if batch.attributes & 7 else {})) for batch in found.batches
    ]


# -- Kafka's own output


def test_two_compactions_give_the_log_of_kafkas_cleaner(golden: Path, tmp_path: Path) -> None:
    """The fixture's marker has a delete horizon, as after two compactions at the same time."""
    source, theirs = golden / "logs" / "compact-src-0", golden / "logs" / "compact-pass1-0" / FIRST
    options = {
        "now": 1_700_000_190_600,
        "delete_retention_ms": 1000,
        "producer_expiration_ms": 0,
        "include_active": True,
    }
    first = compact_log(source, tmp_path / "once-0", **options)
    assert (first.records_in, first.aborted, first.markers, first.tombstones_removed) == (99, 3, 1, 0)
    once, expected = contents((tmp_path / "once-0" / FIRST).read_bytes()), contents(theirs.read_bytes())
    # The marker is the exception: it is unchanged while the log has records of its transaction.
    assert once[:-1] == expected[:-1]
    assert once[-1].records == expected[-1].records
    second = compact_log(tmp_path / "once-0", tmp_path / "twice-0", **options)
    assert contents((tmp_path / "twice-0" / FIRST).read_bytes()) == expected
    assert (second.batches_in, second.batches_out, second.batches_rewritten) == (8, 8, 1)


def test_tombstones_and_markers_are_removed_at_the_horizon(golden: Path, tmp_path: Path) -> None:
    """CMP-R5, CMP-R6: at the horizon tombstones and markers are removed; the last batch stays, for the last offset."""
    source = golden / "logs" / "compact-pass1-0"
    options: dict[str, Any] = {"producer_expiration_ms": 0, "include_active": True}
    before = compact_log(source, tmp_path / "before-0", now=1_700_000_191_599, **options)
    assert (tmp_path / "before-0" / FIRST).read_bytes() == (source / FIRST).read_bytes()
    assert before.batches_rewritten == before.tombstones_removed == 0
    after = compact_log(source, tmp_path / "after-0", now=1_700_000_191_600, **options)
    table = kbatch.decode((tmp_path / "after-0" / FIRST).read_bytes(), include_control=True)
    assert after.tombstones_removed == before.tombstones > 0
    assert None not in table.values()
    assert after.markers_removed == 1
    last = table.batches[-1]
    assert (last["base_offset"], last["record_count"], last["size"], last["attributes"]) == (99, 0, 61, 0x30)


# -- the rules


@given(seed=SEEDS, active=st.booleans(), dirty=st.booleans(), count=st.integers(1, 4))
def test_random_logs_are_compacted_by_the_rules(
    seed: int, active: bool, dirty: bool, count: int, tmp_path_factory: Any
) -> None:
    """CMP-R1 to CMP-R6, CMP-R8, CMP-R9: a random log gives the batches of the cleaner in `compaction`."""
    rng = random.Random(seed)
    log = random_log(rng, segments=count)
    modified = [NOW - 20_000 + 4_000 * i for i in range(count)]
    where = tmp_path_factory.mktemp("rules")
    source = write_log(where / "in-0", log, modified=modified)
    first_dirty = rng.choice([*log, max(log) + 2, min(log) + 1]) if dirty else None
    done = run(source, where / "out-0", include_active=active, first_dirty_offset=first_dirty)
    expected, aborted = clean(log, include_active=active, first_dirty=first_dirty, modified=modified)
    check(where / "out-0", expected)
    after = kbatch.Log(where / "out-0")
    found = [tuple(row)[:3] for segment in after.segments for row in segment.transaction_index().tolist()]
    assert found == sorted(aborted, key=lambda entry: entry[2])
    kept = [kept for batches in expected.values() for kept in batches]
    assert (done.batches_out, done.batches_rewritten) == (len(kept), sum(each.same is None for each in kept))
    assert done.bytes_in == sum(map(len, log.values()))
    assert not done.tail_bytes
    assert done.bytes_out == sum(segment.size for segment in after.segments)
    read = kbatch.decode(b"".join(log.values()), include_control=True)
    assert done.records_in + done.control_records_in == len(read)
    times = [os.stat(segment.path).st_mtime_ns // 1_000_000 for segment in after.segments]
    assert times == modified


@pytest.mark.parametrize("path", sorted(LOGS.iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("active", [False, True])
def test_golden_logs(path: Path, active: bool, tmp_path: Path) -> None:
    """Every golden log of Kafka is cleaned by the rules, and `kbatch verify` accepts the index files."""
    log = {segment.base_offset: Path(segment.path).read_bytes() for segment in kbatch.Log(path).segments}
    tail = kbatch.Log(path).incomplete_tail
    log[max(log)] = log[max(log)][: tail.position]
    done = run(path, tmp_path / "out-0", include_active=active)
    check(tmp_path / "out-0", clean(log, include_active=active)[0])
    assert done.tail_bytes == tail.size
    assert main(["verify", str(tmp_path / "out-0")]) == 0


@given(seed=SEEDS)
@settings(max_examples=30)
def test_a_compacted_log_is_compacted_again_by_the_rules(seed: int, tmp_path_factory: Any) -> None:
    """The output of a compaction can be compacted again, later."""
    where = tmp_path_factory.mktemp("again")
    log = random_log(random.Random(seed), segments=2, entries=20)
    source = write_log(where / "in-0", log)
    run(source, where / "one-0", include_active=True)
    middle = {base: (where / "one-0" / f"{base:020d}.log").read_bytes() for base in log}
    run(where / "one-0", where / "two-0", include_active=True, now=NOW + RETENTION)
    check(where / "two-0", clean(middle, include_active=True, now=NOW + RETENTION)[0])


@given(seed=SEEDS)
@settings(max_examples=30)
def test_a_committed_reader_gets_the_same_values_after_compaction(seed: int, tmp_path_factory: Any) -> None:
    """CMP-R7: a read_committed reader gets the same last value of every key, also from joined segments."""
    where = tmp_path_factory.mktemp("read")
    source = write_log(where / "in-0", random_log(random.Random(seed)))
    run(source, where / "out-0", include_active=True, segment_bytes=1 << 20, max_bytes=1000)

    def state(path: Path) -> dict[bytes, bytes]:
        found: dict[bytes, bytes | None] = {}
        for table in kbatch.Log(path).tables(isolation="read_committed"):
            found |= {key: value for key, value in zip(table.keys(), table.values(), strict=True) if key is not None}
        return {key: value for key, value in found.items() if value is not None}

    assert state(where / "out-0") == state(source)
    assert kbatch.Log(where / "out-0").end_offset == kbatch.Log(source).end_offset


def test_the_table_size_does_not_change_the_output(tmp_path: Path) -> None:
    log = random_log(random.Random(4), segments=3, entries=60)
    source = write_log(tmp_path / "in-0", log)
    run(source, tmp_path / "large-0")
    run(source, tmp_path / "small-0", max_bytes=1)
    for base in log:
        name = f"{base:020d}.log"
        assert (tmp_path / "small-0" / name).read_bytes() == (tmp_path / "large-0" / name).read_bytes()


def test_adjacent_segments_are_joined_up_to_the_segment_size(tmp_path: Path) -> None:
    """``groupSegmentsBySize``: a group of adjacent segments is at most as large as one segment before cleaning."""
    one = [kbatch.encode([b"v" * 100], keys=[b"%d" % i], base_offset=10 * i, timestamps=NOW) for i in range(6)]
    size = len(one[0])
    source = write_log(tmp_path / "in-0", {10 * i: data for i, data in enumerate(one)})
    done = run(source, tmp_path / "out-0", segment_bytes=2 * size)
    assert [segment.base_offset for segment in kbatch.Log(tmp_path / "out-0").segments] == [0, 20, 40, 50]
    assert (done.segments_in, done.segments_out, done.end_offset) == (6, 4, 50)
    (source / f"{20:020d}.index").write_bytes(bytes(24))
    run(source, tmp_path / "indexed-0", segment_bytes=2 * size, segment_index_bytes=24, include_active=True)
    assert [segment.base_offset for segment in kbatch.Log(tmp_path / "indexed-0").segments] == [0, 20, 40]


def test_segments_within_the_compaction_lag_are_not_cleaned(tmp_path: Path) -> None:
    one = [kbatch.encode([b"v"], keys=[b"k"], base_offset=i, timestamps=NOW - 3000 + 1000 * i) for i in range(4)]
    source = write_log(tmp_path / "in-0", dict(enumerate(one)))
    done = run(source, tmp_path / "out-0", min_compaction_lag_ms=2000)
    assert done.end_offset == 2
    assert [len(segment.window(0, 100)) > 0 for segment in kbatch.Log(tmp_path / "out-0").segments] == [
        False, True, True, True
    ]  # fmt: skip


def test_records_from_an_open_transaction_on_are_not_cleaned(tmp_path: Path) -> None:
    """An open transaction may be aborted, so earlier records stay. Kafka uses all keys of the segment instead."""
    old = kbatch.encode([b"old"], keys=[b"k"], timestamps=NOW)
    begun = kbatch.encode(
        [b"new"], keys=[b"k"], base_offset=1, timestamps=NOW, producer_id=1, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    source = write_log(tmp_path / "in-0", {0: old + begun, 2: b""})
    done = run(source, tmp_path / "out-0")
    assert done.end_offset == 1
    assert (tmp_path / "out-0" / FIRST).read_bytes() == old + begun


def test_the_last_batch_of_an_old_magic_becomes_an_empty_batch(tmp_path: Path) -> None:
    """Kafka's cleaner fails for this log. The last offset must not be lost."""
    old = kbatch.encode([b"v"], keys=[None], magic=1, base_offset=7, timestamps=NOW)
    run(write_log(tmp_path / "in-0", {0: old}), tmp_path / "out-0", include_active=True)
    assert kbatch.Log(tmp_path / "out-0").end_offset == 8
    assert kbatch.scan((tmp_path / "out-0" / FIRST).read_bytes())["size"].tolist() == [61]


def test_a_full_key_table_is_an_error(tmp_path: Path) -> None:
    keys = [b"%d" % i for i in range(1000)]
    source = write_log(tmp_path / "in-0", {0: kbatch.encode(keys, keys=keys, timestamps=NOW)})
    with pytest.raises(kbatch.LimitExceededError, match=r"at most 900 different keys.* dedupe_buffer_bytes"):
        run(source, tmp_path / "out-0", include_active=True, dedupe_buffer_bytes=24_000)
    assert os.listdir(tmp_path) == ["in-0"]
    done = run(source, tmp_path / "out-0", include_active=True, dedupe_buffer_bytes=27_000)
    assert done.keys == done.records_out == 1000


@pytest.mark.parametrize("name", ["in-0", "in-0/" + FIRST])
def test_damage_stops_compaction_and_leaves_no_output(tmp_path: Path, name: str) -> None:
    good = kbatch.encode([b"a", b"b"], keys=[b"k", b"k"], timestamps=NOW)
    bad = bytearray(kbatch.encode([b"a"], keys=[b"k"], base_offset=2, timestamps=NOW))
    bad[-3] ^= 1
    write_log(tmp_path / "in-0", {0: good + bad})
    out = tmp_path / ("out-0" if name == "in-0" else "out.log")
    for active in (True, False):
        with pytest.raises(kbatch.CrcMismatchError, match=rf"{FIRST}, byte {len(good)}"):
            run(tmp_path / name, out, include_active=active)
    assert os.listdir(tmp_path) == ["in-0"]


def test_a_wrong_inner_checksum_is_an_error(golden: Path, tmp_path: Path) -> None:
    from oracle import build_message, build_wrapper

    inner = build_message(b"k", b"v", crc=1)
    source = write_log(tmp_path / "in-0", {0: build_wrapper(inner, codec="gzip")})
    with pytest.raises(kbatch.CrcMismatchError, match="byte 0"):
        run(source, tmp_path / "out-0", include_active=True)


def test_overlapping_segments_and_wrong_names_are_refused(tmp_path: Path) -> None:
    one = kbatch.encode([b"a", b"b"], keys=[b"k", b"k"], timestamps=NOW)
    source = write_log(tmp_path / "in-0", {0: one, 1: b""})
    with pytest.raises(kbatch.LogDirectoryError, match="overlap"):
        run(source, tmp_path / "out-0")
    (tmp_path / "some.log").write_bytes(one)
    with pytest.raises(kbatch.LogDirectoryError, match="base offset"):
        run(tmp_path / "some.log", tmp_path / "out.log")
    with pytest.raises(kbatch.LogDirectoryError, match="exists already"):
        run(source.parent / "in-0" / FIRST, tmp_path / "in-0")


def test_unusable_outputs_are_refused(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "logs/txn-0"
    shutil.copytree(golden / "logs/txn-0", source)
    before = sorted(tmp_path.rglob("*"))
    for out, message in (
        (tmp_path / "out.log", "has 3 segments and can't be written to one file; give a directory"),
        (source / "out-0", "; choose another output"),
    ):
        with pytest.raises(kbatch.LogDirectoryError, match=message):
            run(source, out)
    assert main(["compact", str(source.parent), str(source.parent / "out")]) == 1
    assert "; choose another output" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_single_file_is_compacted_without_its_partial_batch(tmp_path: Path) -> None:
    one = kbatch.encode([b"a", b"b"], keys=[b"k", b"k"], timestamps=NOW)
    write_log(tmp_path / "in-0", {0: one + one[:30]})
    done = run(tmp_path / "in-0" / FIRST, tmp_path / "out.log", include_active=True)
    assert (done.tail_bytes, done.records_out) == (30, 1)
    assert kbatch.decode((tmp_path / "out.log").read_bytes()).values() == [b"b"]
    assert sorted(os.listdir(tmp_path)) == ["in-0", "out.log"]


def test_auxiliary_files_are_copied(golden: Path, tmp_path: Path) -> None:
    source = golden / "logs" / "codec-none-0"
    compact_log(source, tmp_path / "codec-none-0", include_active=True)
    snapshots = {path.name for path in source.glob("*.snapshot")}
    copied = {path.name for path in (tmp_path / "codec-none-0").glob("*.snapshot")}
    assert max(snapshots) in copied
    assert copied <= snapshots


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    source = write_log(tmp_path / "in-0", {0: b""})
    for name, value in (("delete_retention_ms", -1), ("delete_retention_ms", 2**63 - 1), ("max_bytes", 0), ("now", -1)):
        with pytest.raises(ValueError, match=name):
            run(source, tmp_path / "out-0", **{name: value})
    with pytest.raises(TypeError, match="first_dirty_offset"):
        run(source, tmp_path / "out-0", first_dirty_offset="0")


# -- the table of keys


def test_siphash_matches_the_vectors_of_its_authors() -> None:
    """The vectors of SipHash's authors (``vectors_sip128``)."""
    secret = bytes(range(16))
    assert siphash(secret, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(secret, bytes([0])).hex() == "da87c1d86b99af44347659119b22fc45"
    assert siphash(secret, bytes(range(63))).hex() == "5150d1772f50834a503e069a973fbd7c"


@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=20), st.integers(0, 300).map(lambda i: b"%d" % i))),
    size=st.sampled_from([24 * 4, 24 * 40, 24 * 100_000]),
)
def test_key_offsets_keep_the_last_offset_of_each_key(keys: list[bytes | None], size: int) -> None:
    table, expected = KeyOffsets(size), {}
    data = np.frombuffer(b"".join(key or b"" for key in keys), np.uint8)
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int32)
    positions = np.cumsum(np.maximum(lengths, 0), dtype=np.int64) - np.maximum(lengths, 0)
    offsets = np.arange(len(keys), dtype=np.int64)
    taken = table.add(offsets, positions, lengths, data)
    for i, key in enumerate(keys[:taken]):
        if key is not None:
            expected[key] = i
    assert len(table) == len(expected)
    if taken < len(keys):
        assert len(table) == table.most_keys
        assert keys[taken] not in expected
    out = np.empty(len(keys), np.uint8)
    table.latest(offsets, positions, lengths, data, out)
    assert out.tolist() == [key is not None and i >= expected.get(key, -1) for i, key in enumerate(keys)]


def test_the_table_of_keys_grows() -> None:
    count = 200_000
    data = np.arange(count, dtype="<i8").view(np.uint8)
    offsets = np.arange(count, dtype=np.int64)
    lengths = np.full(count, 8, np.int32)
    table = KeyOffsets(24 * count * 2)
    assert table.add(offsets, offsets * 8, lengths, data) == count == len(table)
    assert table.add(offsets + count, offsets * 8, lengths, data) == count == len(table)
    out = np.empty(count, np.uint8)
    table.latest(offsets, offsets * 8, lengths, data, out)
    assert not out.any()
    table.latest(offsets + count, offsets * 8, lengths, data, out)
    assert out.all()


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 5), (4, 1), (2**62, 1)])
def test_key_offsets_stay_in_bounds(position: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        KeyOffsets(1000).add(
            np.zeros(1, np.int64), np.array([position], np.int64), np.array([length], np.int32), np.zeros(4, np.uint8)
        )


@pytest.mark.parametrize("size", [0, 15, 17])
def test_the_secret_of_a_table_of_keys_has_16_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a secret has 16 bytes, got {size}"):
        KeyOffsets(1000, bytes(size))


def test_records_before_the_first_dirty_offset_are_kept_whatever_their_offset(tmp_path: Path) -> None:
    """The checksum does not cover the base offset; a record at offset -1 precedes every offset to clean."""
    data = bytearray(kbatch.encode([b"1", b"2"], keys=[b"k", b"k"], timestamps=NOW))
    data[:8] = (-1).to_bytes(8, "big", signed=True)
    write_log(tmp_path / "t-0", {0: bytes(data)})
    done = run(tmp_path / "t-0", tmp_path / "out-0", include_active=True)
    assert (done.keys, done.records_in) == (1, 2)


# -- the command


def test_the_compact_command_reports_counts(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = os.fspath(golden / "logs" / "compact-src-0")
    options = ["--now", "2023-11-14T22:16:30.600Z", "--delete-retention-ms", "1000", "--producer-expiration-ms", "0"]
    assert main(["compact", source, str(tmp_path / "out-0"), "--include-active", *options]) == 0
    text = capsys.readouterr().out
    assert "99 records" in text
    assert "-> 19 (" in text
    assert "3 records of aborted transactions" in text
    assert main(["verify", str(tmp_path / "out-0")]) == 0
    capsys.readouterr()
    assert main(["compact", source, str(tmp_path / "json-0"), "--include-active", "--json", *options]) == 0
    (done,) = json.loads(capsys.readouterr().out)["logs"]
    assert (done["records_out"], done["keys"]) == (19, 19)
    assert main(["compact", source, str(tmp_path / "none-0")]) == 0
    assert "nothing was cleaned" in capsys.readouterr().out
    assert main(["compact", source, str(tmp_path / "out-0")]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["compact", str(tmp_path / "missing-0"), str(tmp_path / "x-0")]) == 1
    with pytest.raises(SystemExit) as stopped:
        main(["compact", source, str(tmp_path / "x-0"), "--now", "yesterday"])
    assert stopped.value.code == 2


def test_the_compact_command_compacts_every_log_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    for name in ("a-0", "b-1"):
        write_log(logs / name, {0: kbatch.encode([b"1", b"2"], keys=[b"k", b"k"], timestamps=NOW)})
    assert main(["compact", str(logs), str(tmp_path / "out"), "--include-active"]) == 0
    assert capsys.readouterr().out.count("2 records") == 2
    assert [len(log.batches()) for log in kbatch.find_logs(tmp_path / "out")] == [1, 1]
    (logs / "b-1" / FIRST).write_bytes(b"damage" * 20)
    assert main(["compact", str(logs), str(tmp_path / "again"), "--include-active"]) == 1
    assert sorted(os.listdir(tmp_path)) == ["logs", "out"]


def test_an_interrupted_command_leaves_no_output(tmp_path: Path) -> None:
    one = kbatch.encode([b"v" * 20] * 200_000, keys=[b"k"] * 200_000, timestamps=NOW, batch_size=200)
    write_log(tmp_path / "in-0", {0: one})
    code = (
        "import os, signal, sys, kbatch.cli, kbatch.log.write.compaction as c\n"
        "plain = c.Cleaning.clean\n"
        "def clean(self, *a):\n"
        "    plain(self, *a)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "c.Cleaning.clean = clean\n"
        "sys.exit(kbatch.cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "compact", str(tmp_path / "in-0"), str(tmp_path / "out-0")]
    done = subprocess.run([*command, "--include-active"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "kbatch compact: interrupted\n")
    assert os.listdir(tmp_path) == ["in-0"]
