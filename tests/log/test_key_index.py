"""Reads by key with an index: they return what reads without it return, whatever the index files contain."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from generated_kinds import batches_of_every_kind
from golden_logs import LOGS
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import segment_path, write_segment
from scanned_logs import KEYS, ScannedLogs, scanned_logs
from transaction_logs import COMMIT, marker

import kbatch
from kbatch.cli import main
from kbatch.log.files import key_index
from kbatch.log.files.key_index import KeyIndexFile, write_key_index
from kbatch.log.store.local_files import bytes_read
from kbatch.log.write import indexing
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_tables

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
Rows = list[tuple[Any, ...]]
SEEDS = 6


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks of one or two batches, in the small segments of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "BLOCK_BYTES", 150)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[ScannedLogs, Path]]:
    """Directories of logs with transactions, gaps and codecs, each with its index."""
    found = []
    for seed in range(SEEDS):
        root = tmp_path_factory.mktemp("logs")
        logs = scanned_logs(root / "logs", seed)
        done = kbatch.index_logs(logs.root, root / "index")
        assert sum(each.written for each in done) == 8
        assert not any(each.refused for each in done)
        found.append((logs, root / "index"))
    return found


def of_tables(tables: Iterator[Any]) -> Rows:
    rows: Rows = []
    for table in tables:
        columns = [table.records[name].tolist() for name in ("offset", "timestamp")]
        rows += zip(*columns, table.keys(), table.values(), strict=True)
        rows += [("loss", loss.position, loss.length, loss.reason) for loss in table.losses]
    return rows


def of_log(log: kbatch.Log, key: bytes, index: Any, **options: Any) -> Rows:
    return of_tables(log.tables(key=key, index=index, **options))


def of_tasks(log: kbatch.Log, key: bytes, index: Any, **options: Any) -> Rows:
    options.setdefault("split_bytes", 600)
    reading = ReadOptions(key=key, index=index if index is False else str(index), **options)
    tasks = plan([log], reading, withheld=False)
    return of_tables(table for task in tasks for _, table in task_tables(task, reading))


def of_scan(log: kbatch.Log, key: bytes, index: Any, **options: Any) -> Rows:
    return kbatch.scan_logs(log, key=key, index=index, **options).to_arrow().to_pylist()


def of_filter(log: kbatch.Log, key: bytes, index: Any, **options: Any) -> Rows:
    return kbatch.scan_logs(log, index=index, **options).filter(pc.field("key") == key).to_arrow().to_pylist()


FRONTS = {"log": of_log, "tasks": of_tasks, "scan": of_scan, "filter": of_filter}


def options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "isolation": st.sampled_from(["read_uncommitted", "read_committed"]),
            "include_control": st.booleans(),
            "on_error": st.sampled_from(["raise", "skip", "stop"]),
            "crc": st.sampled_from(["verify", "mark", "skip"]),
        }
    )


@settings(max_examples=150)
@given(
    number=st.integers(0, SEEDS - 1),
    key=st.sampled_from([b"", b"a", b"b", b"\x00\xff", b"zz", b"\0\0\0\1"]),
    front=st.sampled_from(sorted(FRONTS)),
    given=options(),
)
def test_a_read_with_an_index_returns_what_one_without_it_returns(
    made: list[tuple[ScannedLogs, Path]], number: int, key: bytes, front: str, given: dict[str, Any]
) -> None:
    """Also the losses where offsets are missing between segments, null and empty keys, and the keys of markers."""
    logs, index = made[number]
    for log in kbatch.find_logs(logs.root):
        assert FRONTS[front](log, key, index, **given) == FRONTS[front](log, key, False, **given)


@settings(max_examples=100)
@given(
    number=st.integers(0, SEEDS - 1),
    key=st.sampled_from([b"", b"a", b"b"]),
    start=st.one_of(st.none(), st.integers(-20, 60)),
    end=st.one_of(st.none(), st.integers(-20, 60)),
    times=st.tuples(st.integers(-5, 60), st.integers(-5, 80)),
    last=st.one_of(st.none(), st.integers(0, 5)),
)
def test_bounds_and_last_records_are_the_same_with_an_index(
    made: list[tuple[ScannedLogs, Path]],
    number: int,
    key: bytes,
    start: int | None,
    end: int | None,
    times: tuple[int, int],
    last: int | None,
) -> None:
    logs, index = made[number]
    begin = 1_700_000_000_000
    chosen: dict[str, Any] = {"start_offset": start, "stop_offset": end, "last": last}
    if times[0] >= 0:
        chosen |= {"start_timestamp": begin + 1000 * times[0], "stop_timestamp": begin + 1000 * times[1]}
    for log in kbatch.find_logs(logs.root):
        assert of_log(log, key, index, **chosen) == of_log(log, key, False, **chosen)
        assert of_scan(log, key, index, **chosen) == of_scan(log, key, False, **chosen)


@pytest.mark.parametrize("seed", range(30))
def test_damage_after_the_index_was_made_loses_no_other_record(seed: int, tmp_path: Path) -> None:
    """Blocks that are not read have neither errors nor losses; in the others damage is the same as without an index."""
    logs, index = scanned_logs(tmp_path / "logs", seed), tmp_path / "index"
    kbatch.index_logs(logs.root, index)
    draw = random.Random(seed)
    for log in kbatch.find_logs(logs.root):
        for segment in log.segments:
            content = bytearray(Path(segment.path).read_bytes())
            (batches,) = segment.scan()
            for row in batches[batches["position"] > 0]:
                if draw.random() < 0.4:
                    # No checksum covers the base offset, which is the first field.
                    at = int(row["position"]) + draw.randrange(8, int(row["size"]) - 4)
                    content[at : at + 4] = bytes(each ^ draw.randrange(256) for each in content[at : at + 4])
            Path(segment.path).write_bytes(content)
    for log in kbatch.find_logs(logs.root):
        for key in KEYS[1:]:
            assert key is not None
            for include_control in (False, True):
                with_index = of_log(log, key, index, on_error="skip", include_control=include_control)
                without = of_log(log, key, False, on_error="skip", include_control=include_control)
                records = [row for row in without if row[0] != "loss"]
                assert [row for row in with_index if row[0] != "loss"] == records


def test_a_damaged_segment_has_no_index(tmp_path: Path) -> None:
    logs, index = scanned_logs(tmp_path / "logs", 3, damage=0.5), tmp_path / "index"
    done = kbatch.index_logs(logs.root, index)
    refused = [path for each in done for path, _ in each.refused]
    assert logs.is_damaged
    assert refused
    assert sum(each.written for each in done) + len(refused) == 8
    for log in kbatch.find_logs(logs.root):
        for key in (b"", b"a"):
            assert of_log(log, key, index, on_error="skip") == of_log(log, key, False, on_error="skip")


def batches(first: int, count: int, keys: int = 40, size: int = 100) -> list[bytes]:
    return [
        oracle.build_batch(
            [oracle.encode_record(0, 0, b"k%d" % (offset % keys), b"%d" % offset * size)], base_offset=offset
        )
        for offset in range(first, first + count)
    ]


@pytest.fixture
def large(tmp_path: Path) -> kbatch.Log:
    """Two closed segments of half a megabyte with one key in ten batches, and one that is open."""
    for segment in range(3):
        made = batches(100 * segment, 100, keys=100, size=2000)
        write_segment(tmp_path / "t-0", 100 * segment, made if segment < 2 else made[:1], indexes=True)
    log = kbatch.Log(tmp_path / "t-0")
    kbatch.index_logs(log, tmp_path / "index")
    return log


@pytest.fixture
def log(tmp_path: Path) -> kbatch.Log:
    """Two closed segments and one that is open."""
    for segment in range(3):
        write_segment(tmp_path / "t-0", 100 * segment, batches(100 * segment, 100), indexes=True)
    return kbatch.Log(tmp_path / "t-0")


@pytest.fixture
def index(log: kbatch.Log, tmp_path: Path) -> Path:
    kbatch.index_logs(log, tmp_path / "index")
    return tmp_path / "index"


def index_files(index: Path) -> list[Path]:
    return sorted(index.rglob("*.parquet"))


def is_used(log: kbatch.Log, index: Path | None, key: bytes = b"k7") -> bool:
    """Whether a read uses an index for a closed segment; its result is the same in any case."""
    scan = kbatch.scan_logs(log, key=key, index=index)
    assert scan.to_arrow().equals(kbatch.scan_logs(log, key=key, index=False).to_arrow())
    return "\nkey index: of " in scan.explain()


@pytest.mark.parametrize("front", sorted(FRONTS))
@pytest.mark.parametrize("key", [b"missing", b"k7"])
def test_blocks_without_the_key_are_not_read(front: str, key: bytes, large: kbatch.Log, tmp_path: Path) -> None:
    rest = {"split_bytes": 1 << 20} if front == "tasks" else {}
    before = bytes_read()
    found = FRONTS[front](large, key, tmp_path / "index", **rest)
    assert len(found) == (2 if key == b"k7" else 0)
    assert bytes_read() - before < 0.5 * large.size
    assert found == FRONTS[front](large, key, False, **rest)
    assert bytes_read() - before > large.size


def test_explain_counts_the_segments_with_an_index(log: kbatch.Log, index: Path) -> None:
    text = kbatch.scan_logs(log, key="k7", index=index).explain()
    assert "\nkey index: of 2 segments, only the blocks that may have the key are read" in text
    assert "key index" not in kbatch.scan_logs(log, key="k7", index=False).explain()
    assert "key index" not in kbatch.scan_logs(log, index=index).explain()


def test_times_exclude_blocks_with_the_key(tmp_path: Path) -> None:
    made = [
        oracle.build_batch([oracle.encode_record(0, 0, b"k", b"v" * 9000)], base_offset=n, base_timestamp=1000 * n)
        for n in range(50)
    ]
    write_segment(tmp_path / "t-0", 0, made)
    write_segment(tmp_path / "t-0", 50, [])
    log = kbatch.Log(tmp_path / "t-0")
    kbatch.index_logs(log, tmp_path / "index")
    before = bytes_read()
    found = log.to_arrow(key="k", index=tmp_path / "index", start_timestamp=1000, stop_timestamp=3000)
    assert found["offset"].to_pylist() == [1, 2]
    assert bytes_read() - before < 0.5 * log.size


@pytest.mark.parametrize("magic", ["magic 0", "magic 1", "magic 2"])
def test_keys_of_every_magic_and_codec_are_found(magic: str, tmp_path: Path) -> None:
    kinds = [data for name, data in batches_of_every_kind() if name.startswith(magic)]
    for number, data in enumerate(kinds):
        directory = tmp_path / "logs" / f"t-{number}"
        write_segment(directory, 0, [])
        segment_path(directory, 0).write_bytes(data)
        write_segment(directory, 1000, [])
    done = kbatch.index_logs(tmp_path / "logs", tmp_path / "index")
    assert [each.written for each in done] == [1] * len(kinds)
    for log in kbatch.find_logs(tmp_path / "logs"):
        assert of_log(log, b"k", tmp_path / "index") == of_log(log, b"k", False) != []
        assert of_log(log, b"", tmp_path / "index") == of_log(log, b"", False)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_an_index_serves_compressed_message_sets(magic: int, codec: str, tmp_path: Path) -> None:
    sets = [
        oracle.build_message_set(
            [(b"k%d" % (n % 7), b"v" * 20), (b"", b"x"), (None, b"")], magic=magic, codec=codec, base_offset=3 * n
        )
        for n in range(30)
    ]
    (tmp_path / "t-0").mkdir()
    segment_path(tmp_path / "t-0", 0).write_bytes(b"".join(sets))
    write_segment(tmp_path / "t-0", 90, [])
    log = kbatch.Log(tmp_path / "t-0")
    (done,) = kbatch.index_logs(log, tmp_path / "index")
    assert (done.written, done.refused) == (1, [])
    assert [is_used(log, tmp_path / "index", key) for key in (b"k3", b"", b"missing")] == [True] * 3


def test_an_index_serves_compacted_logs(tmp_path: Path) -> None:
    assert main(["compact", str(LOGS / "compact-src-0"), str(tmp_path / "t-0"), "--include-active"]) == 0
    write_segment(tmp_path / "t-0", 10**6, batches(10**6, 1))
    log = kbatch.Log(tmp_path / "t-0")
    kbatch.index_logs(log, tmp_path / "index")
    for key in set(log.to_arrow(columns=["key"])["key"].to_pylist()) - {None}:
        assert of_log(log, key, tmp_path / "index", on_error="skip") == of_log(log, key, False, on_error="skip")


# -- an index that does not fit


def truncated(log: kbatch.Log) -> None:
    path = Path(log.segments[0].path)
    path.write_bytes(b"".join(batches(0, 99)))


def replaced(log: kbatch.Log) -> None:
    write_segment(Path(log.path), 0, batches(0, 100, keys=3))


def recompressed(log: kbatch.Log) -> None:
    copy = Path(log.path).with_name("copy-0")
    assert main(["recompress", log.path, str(copy), "--codec", "gzip"]) == 0
    for path in copy.glob("*.log"):
        shutil.copy(path, log.path)


def other_last_batch(log: kbatch.Log) -> None:
    write_segment(Path(log.path), 0, [*batches(0, 99), *batches(99, 1, keys=41)])


@pytest.mark.parametrize("change", [truncated, replaced, recompressed, other_last_batch])
def test_the_index_of_another_content_is_not_used(
    change: Callable[[kbatch.Log], None], log: kbatch.Log, index: Path
) -> None:
    assert is_used(log, index)
    index_files(index)[1].unlink()
    change(log)
    changed = kbatch.Log(log.path)
    assert not is_used(changed, index)


def test_no_damage_of_an_index_changes_a_result(log: kbatch.Log, index: Path) -> None:
    """Every byte, and every length."""
    path = index_files(index)[0]
    content = path.read_bytes()
    expected = of_log(log, b"k7", False)
    used = 0
    for at in range(0, len(content), 3):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert of_log(log, b"k7", index) == expected, at
        path.write_bytes(content[:at])
        assert of_log(log, b"k7", index) == expected, at
        used += 1
    assert used > 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: path.write_bytes(b"PAR1" + bytes(100) + (2**31 - 1).to_bytes(4, "little") + b"PAR1"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_a_foreign_file_in_place_of_an_index_is_ignored(
    make: Callable[[Path], None], log: kbatch.Log, index: Path
) -> None:
    for path in index_files(index):
        path.unlink()
        make(path)
    assert not is_used(log, index)


def test_the_index_of_another_segment_is_ignored(log: kbatch.Log, index: Path) -> None:
    first, second = index_files(index)
    # The checksum in the name is right, but the base offset is that of the other segment.
    checksum = second.name.partition("-")[2]
    second.rename(first.with_name(f"{0:020}-{checksum}"))
    first.unlink()
    assert not is_used(log, index)


def rewritten(path: Path, **changes: Any) -> None:
    """Replace an index file by one with right checksums and other contents."""
    with KeyIndexFile(os.fspath(path)) as file:
        header, blocks = file.header, file.blocks()
    table = pq.ParquetFile(path).read(columns=["hash", "block"])
    rest = table.slice(len(blocks))
    contents = {"hashes": rest["hash"].to_numpy(), "numbers": rest["block"].to_numpy(), "blocks": blocks}
    contents |= {name: change(contents[name].copy()) for name, change in changes.items()}
    path.unlink()
    pairs = contents["hashes"].astype(np.uint64) << np.uint64(32) | contents["numbers"].astype(np.uint64)
    write_key_index(os.fspath(path.parent), header, contents["blocks"], pairs)


def moved(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    blocks["position"][1:] += 1
    return blocks


def of_other_offsets(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    blocks["last_offset"] = -1
    return blocks


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": moved},
        {"blocks": of_other_offsets},
        {"blocks": lambda blocks: blocks[:0]},
        {"blocks": lambda blocks: blocks[::-1]},
        {"blocks": lambda blocks: blocks[1:]},
        {"numbers": lambda numbers: numbers + np.uint32(10**6)},
    ],
)
def test_an_index_whose_blocks_are_not_those_of_the_segment_is_ignored(
    changes: dict[str, Any], log: kbatch.Log, index: Path
) -> None:
    for path in index_files(index):
        rewritten(path, **changes)
    assert not is_used(log, index)


def test_an_index_with_more_rows_than_kbatch_writes_takes_no_memory(
    log: kbatch.Log, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(key_index, "_GROUP_ROWS", 1 << 20)
        for path in index_files(index):
            rewritten(
                path,
                hashes=lambda hashes: np.full(1 << 18, hashes[0]),
                numbers=lambda numbers: np.zeros(1 << 18, np.uint32),
            )
    for path in index_files(index):
        with (
            KeyIndexFile(os.fspath(path)) as file,
            pytest.raises(ValueError, match="has 262144 rows, expected at most 65536"),
        ):
            file.numbers(b"k%d" % n for n in range(40))


def test_the_segment_may_be_a_copy_in_another_directory_of_the_same_topic(log: kbatch.Log, tmp_path: Path) -> None:
    identified = "version: 0\ntopic_id: MWJ6FHTfRYy67jzwZdeqSQ\n"
    (Path(log.path) / "partition.metadata").write_text(identified)
    kbatch.index_logs(log, tmp_path / "index")
    copy = tmp_path / "backup" / "t-0"
    shutil.copytree(log.path, copy)
    assert is_used(kbatch.Log(copy), tmp_path / "index")
    (copy / "partition.metadata").unlink()
    assert not is_used(kbatch.Log(copy), tmp_path / "index")


# -- where the index is


def test_the_default_index_is_in_the_cache_of_the_user(
    log: kbatch.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = {path: path.stat().st_mtime_ns for path in Path(log.path).iterdir()}
    assert not is_used(log, None)
    assert not (tmp_path / "cache").exists()
    (done,) = kbatch.index_logs(log)
    assert Path(done.path).parent == tmp_path / "cache" / "kbatch" / "key-index"
    assert Path(done.path).parent.stat().st_mode & 0o77 == 0
    assert is_used(log, None)
    assert before == {path: path.stat().st_mtime_ns for path in Path(log.path).iterdir()}


def test_a_relative_cache_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbatch.log.key_lookup import default_index_directory

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_index_directory() == str(tmp_path / ".cache" / "kbatch" / "key-index")
    monkeypatch.setenv("HOME", "relative")
    assert default_index_directory() is None


@pytest.mark.parametrize(("given", "error"), [(5, TypeError), ("", ValueError), (b"x", TypeError)])
def test_an_index_that_is_no_path_is_refused(given: Any, error: type[Exception], log: kbatch.Log) -> None:
    with pytest.raises(error, match="index"):
        log.to_arrow(key="k7", index=given)


def test_the_key_of_a_transaction_marker_is_found(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [*batches(0, 20), marker(20, 5, COMMIT), *batches(21, 20)])
    write_segment(tmp_path / "t-0", 41, [])
    log = kbatch.Log(tmp_path / "t-0")
    kbatch.index_logs(log, tmp_path / "index")
    key = b"\0\0\0\1"
    found = of_log(log, key, tmp_path / "index", include_control=True)
    assert found == of_log(log, key, False, include_control=True)
    assert [row[0] for row in found] == [20]


def test_dump_uses_the_index(large: kbatch.Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for flags in (["--index", str(tmp_path / "index")], ["--no-index"]):
        for rest in (["--records"], ["--tail", "2"], ["--records", "--offsets", "30:170"]):
            before = bytes_read()
            assert main(["dump", *rest, "--key", "k7", *flags, large.path]) == 0
            printed.append((capsys.readouterr(), bytes_read() - before))
    for (text, read), (expected, whole) in zip(printed[:3], printed[3:], strict=True):
        assert text == expected
        assert '"k7"' in text.out
        assert read < 0.5 * whole
