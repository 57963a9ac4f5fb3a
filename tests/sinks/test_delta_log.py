"""The positions of a Delta table are read from its log at once, whatever the log consists of."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kbatch.errors import LogDirectoryError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
deltalake = pytest.importorskip("deltalake")

from deltalake.table import TableFeatures  # noqa: E402
from deltalake.transaction import CommitProperties, Transaction  # noqa: E402

from kbatch.plan.positions import Position  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks import delta, delta_log  # noqa: E402
from kbatch.sinks.commits import Commit, LogName, OutputState  # noqa: E402
from kbatch.sinks.delta import DeltaTable  # noqa: E402
from kbatch.sinks.outputs import OutputPlace  # noqa: E402
from kbatch.sinks.task import output_schema  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

# V2 checkpoints have such names.
UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
# Bytes of Python's memory for each position, of which 400 are measured: 100,000 positions are read in 500 MB.
MAX_BYTES = 1100
# In a commit, where a list of identifiers would take 160.
MAX_COMMITTED = 30


def write(place: OutputPlace, offsets: Mapping[int, int], topic: str = "txn", *, replace: bool = False) -> DeltaTable:
    """Commit positions of the partitions of a topic; return the table, to load them."""
    table = DeltaTable(place, False)
    schema = output_schema(ReadOptions(), WriteOptions(format="delta"), None)
    positions = {(topic, number): Position(offset, offset % 5, None) for number, offset in offsets.items()}
    table.load([LogName(topic, number, None) for number in offsets])
    run = f"{sum(1 for name in place.files('_delta_log') if name.endswith('.json')):08x}"
    table.commit(run, Commit(replace, [], [], schema, positions, {"records": 0}))
    return DeltaTable(place, False)


def load(place: OutputPlace, count: int, topic: str = "txn") -> dict[int, int]:
    state = DeltaTable(place, False).load([LogName(topic, number, None) for number in range(count)])
    assert state.positions is not None
    for position in state.positions.values():
        assert position.leader_epoch == position.next_offset % 5
    return {number: position.next_offset for (_, number), position in state.positions.items()}


@pytest.fixture
def place(tmp_path: Path) -> OutputPlace:
    made = OutputPlace(str(tmp_path / "out"))
    made.make()
    return made


def test_the_scans_of_the_log_do_not_grow_with_the_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[str] = []
    actions: Callable[..., Any] = delta_log._actions
    look_up: Callable[..., Any] = deltalake.DeltaTable.transaction_version
    monkeypatch.setattr(delta_log, "_actions", lambda log, name: scans.append(name) or actions(log, name))
    monkeypatch.setattr(
        deltalake.DeltaTable, "transaction_version", lambda self, name: scans.append(name) or look_up(self, name)
    )
    counts = []
    for count in (1, 10, 1000):
        place = OutputPlace(str(tmp_path / str(count)))
        place.make()
        write(place, dict.fromkeys(range(count), 7))
        write(place, dict.fromkeys(range(count), 8))
        scans.clear()
        assert load(place, count) == dict.fromkeys(range(count), 8)
        counts.append(len(scans))
    # Two identifiers of the table, and two commits.
    assert counts == [4, 4, 4]


def test_a_run_opens_the_table_once_to_check_it_and_to_load_positions(
    place: OutputPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it reads the whole log. A commit in between is seen."""
    write(place, {0: 3, 1: 4})
    opened: list[str] = []
    original: Callable[..., Any] = deltalake.DeltaTable
    table = DeltaTable(place, False)

    class Counted(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append(arguments[0])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(deltalake, "DeltaTable", Counted)
    table.check_partitions()
    assert table.exists()
    assert len(opened) == 1
    write(place, {1: 5})
    opened.clear()
    state = table.load([LogName("txn", 0, None), LogName("txn", 1, None)])
    assert state.positions == {("txn", 0): Position(3, 3, None), ("txn", 1): Position(5, 0, None)}
    schema = output_schema(ReadOptions(), WriteOptions(format="delta"), None)
    assert table.check_columns(schema, replace=False) == []
    assert opened == []


def test_the_memory_of_a_position_is_bounded(tmp_path: Path) -> None:
    peaks = []
    for count in (4000, 8000):
        place = OutputPlace(str(tmp_path / str(count)))
        place.make()
        write(place, dict.fromkeys(range(count), 7))
        logs = [LogName("txn", number, None) for number in range(count)]
        DeltaTable(place, False).load(logs[:1])
        tracemalloc.start()
        try:
            state = DeltaTable(place, False).load(logs)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert state.positions is not None
        assert len(state.positions) == count
    assert peaks[1] - peaks[0] < MAX_BYTES * 4000


def test_a_commit_creates_each_identifier_when_the_library_copies_it(tmp_path: Path) -> None:
    """A list of them would take 16 MB of Python's memory for 100,000 positions, besides the library's."""
    schema = output_schema(ReadOptions(), WriteOptions(format="delta"), None)
    peaks = []
    for count in (100, 2000, 4000):
        place = OutputPlace(str(tmp_path / str(count)))
        place.make()
        table = DeltaTable(place, False)
        table.load([])
        commit = Commit(False, [], [], schema, {("t", number): Position(7) for number in range(count)}, {"records": 0})
        tracemalloc.start()
        try:
            table.commit("0a1b2c3d", commit)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert table.has_run("0a1b2c3d")
    assert peaks[2] - peaks[1] < MAX_COMMITTED * 2000


def test_a_position_has_two_identifiers(place: OutputPlace) -> None:
    """A commit of 100,000 positions takes 65 MB of memory for each identifier of a position."""
    counts = []
    for count in (3, 10):
        write(place, dict.fromkeys(range(count), count), f"t{count}")
        lines = Path(place.url, "_delta_log", f"{len(counts):020d}.json").read_text().splitlines()
        counts.append(sum('"txn"' in line for line in lines))
    assert counts[1] - counts[0] + 1 == 2 * 7


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("topic_id", [None, "MkTRaEFLQI2yvlIYfPNx0w"])
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ((5, None, None, None), (5, None, None, None)),
        ((5, 0, None, None), (5, 0, None, None)),
        ((LARGEST, 32_766, 0xFFFF_FFFF, 0xFF_FFFF), (LARGEST, 32_766, 0xFF_FFFF, 0xFF_FFFF)),
        ((LARGEST, 32_767, 0x1234_5678, None), (LARGEST, None, 0x34_5678, None)),
        ((0, None, 0x7700_0000, 0x12_3456), (0, None, 1, 0x12_3456)),
    ],
)
def test_a_table_keeps_15_bits_of_a_leader_epoch_and_24_of_a_checksum(
    topic_id: str | None, written: tuple[Any, ...], expected: tuple[Any, ...], place: OutputPlace
) -> None:
    """A leader epoch that needs more is unknown. The bits of a known checksum are never 0."""
    made, read = (Position(each[0], each[1], topic_id, *each[2:]) for each in (written, expected))
    table = DeltaTable(place, False)
    table.load([])
    schema = output_schema(ReadOptions(), WriteOptions(format="delta"), None)
    table.commit("0a1b2c3d", Commit(False, [], [], schema, {("t", 0): made}, {"records": 0}))
    assert DeltaTable(place, False).load([LogName("t", 0, topic_id)]).positions == {("t", 0): read}


def split_checkpoint(log: Path, version: int, parts: int) -> list[Path]:
    """Replace a checkpoint by one of several parts."""
    single = log / f"{version:020d}.checkpoint.parquet"
    rows = pq.read_table(single)
    bounds = [rows.num_rows * part // parts for part in range(parts + 1)]
    paths = []
    for part in range(parts):
        path = log / f"{version:020d}.checkpoint.{part + 1:010d}.{parts:010d}.parquet"
        pq.write_table(rows.slice(bounds[part], bounds[part + 1] - bounds[part]), path)
        paths.append(path)
    single.unlink()
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": rows.num_rows, "parts": parts}))
    return paths


def uuid_checkpoint(log: Path, version: int, kind: str) -> None:
    """Replace a V2 checkpoint by one with a UUID in its name, and file actions in a sidecar if it is JSON."""
    single = log / f"{version:020d}.checkpoint.parquet"
    named = log / f"{version:020d}.checkpoint.{UUID}.{kind}"
    if kind == "parquet":
        single.rename(named)
    else:
        rows = pq.read_table(single).to_pylist()
        actions = [{name: _present(value) for name, value in row.items() if value is not None} for row in rows]
        named.write_text("".join(json.dumps(each, default=str) + "\n" for each in actions))
        single.unlink()
    (log / "_last_checkpoint").unlink()


def _present(action: Any) -> Any:
    """Return an action of a Parquet checkpoint as in JSON: maps are objects, and null fields are absent."""
    if isinstance(action, dict):
        return {name: _present(value) for name, value in action.items() if value is not None}
    if isinstance(action, list) and all(isinstance(each, tuple) for each in action):
        return dict(action)
    return action


KINDS = ["V1", "V1 of 2 parts", "V1 of 3 parts", "V2", "V2 parquet", "V2 json"]


def make_checkpoint(place: OutputPlace, kind: str) -> int:
    table = deltalake.DeltaTable(place.url)
    if kind.startswith("V2") and not (table.protocol().reader_features or []):
        table.alter.add_feature(TableFeatures.V2Checkpoint, allow_protocol_versions_increase=True)
        table = deltalake.DeltaTable(place.url)
    table.create_checkpoint()
    log, version = Path(place.url, "_delta_log"), table.version()
    if "parts" in kind:
        split_checkpoint(log, version, int(kind.split()[2]))
    elif kind in ("V2 parquet", "V2 json"):
        uuid_checkpoint(log, version, kind.split()[1])
    return int(version)


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("cleaned", [False, True], ids=["all commits", "cleaned up"])
@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_in_checkpoints_and_in_the_commits_after_them(
    kind: str, cleaned: bool, after: int, place: OutputPlace
) -> None:
    count = 40
    expected = {number: 10 + number for number in range(count)}
    write(place, expected)
    expected |= dict.fromkeys(range(0, count, 3), 100)
    write(place, dict.fromkeys(range(0, count, 3), 100))
    version = make_checkpoint(place, kind)
    if cleaned:
        for number in range(version):
            Path(place.url, "_delta_log", f"{number:020d}.json").unlink()
    for number in range(after):
        changed = dict.fromkeys(range(number, count, 7), 200 - number)
        write(place, changed)
        expected |= changed
    assert load(place, count) == expected


def test_a_checkpoint_that_lacks_a_part_is_ignored(place: OutputPlace) -> None:
    write(place, {0: 10, 1: 11})
    make_checkpoint(place, "V1")
    write(place, {1: 12})
    make_checkpoint(place, "V1 of 3 parts")
    log = Path(place.url, "_delta_log")
    (log / "_last_checkpoint").unlink()
    next(log.glob("*.0000000002.0000000003.parquet")).unlink()
    assert load(place, 2) == {0: 10, 1: 12}
    assert delta_log.log_files(place.at("_delta_log").entries(), 1, place.url) == [
        f"{0:020d}.checkpoint.parquet",
        f"{1:020d}.json",
    ]


def test_positions_of_an_earlier_base_do_not_count(place: OutputPlace) -> None:
    write(place, {0: 10, 1: 11})
    write(place, {1: 5}, replace=True)
    assert load(place, 3) == {1: 5}


def test_a_missing_commit_is_an_error(place: OutputPlace) -> None:
    for offset in (1, 2, 3):
        write(place, {0: offset})
    names = place.at("_delta_log").entries()
    names.remove(f"{1:020d}.json")
    with pytest.raises(LogDirectoryError, match=rf"{1:020d}\.json: missing"):
        delta_log.log_files(names, 2, place.url)


def test_a_table_whose_first_export_ended_after_creating_it_counts_as_none(
    place: OutputPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_MANY_FILES", 0)
    with monkeypatch.context() as patched:
        patched.setattr(deltalake.DeltaTable, "create_write_transaction", lambda *_, **__: pytest.fail("the run ends"))
        with pytest.raises(pytest.fail.Exception):
            write(place, {0: 1})
    left = DeltaTable(place, False)
    assert left.exists()
    assert left.load([]) == OutputState(False, {})
    assert not left.has_run(f"{0:08x}")
    write(place, {0: 5})
    assert deltalake.DeltaTable(place.url).version() == 1
    assert DeltaTable(place, False).load([LogName("txn", 0, None)]).exists
    assert load(place, 1) == {0: 5}


def test_an_empty_table_of_another_program_exists(place: OutputPlace) -> None:
    deltalake.DeltaTable.create(place.url, pa.schema([("value", pa.int64())]))
    assert DeltaTable(place, False).load([]) == OutputState(True, {})


@pytest.mark.parametrize("name", [f"{0:020d}.json", f"{0:020d}.checkpoint.parquet"])
def test_a_damaged_file_is_an_error_with_its_name(name: str, place: OutputPlace) -> None:
    write(place, {0: 1})
    make_checkpoint(place, "V1")
    if name.endswith(".json"):
        Path(place.url, "_delta_log", f"{0:020d}.checkpoint.parquet").unlink()
    Path(place.url, "_delta_log", name).write_bytes(b'{"txn":{"appId":"kbatch.1:t-0","version":\n')
    with pytest.raises(LogDirectoryError, match=name):
        delta_log.read_identifiers(place, 0, ["kbatch"])


@pytest.mark.parametrize("seed", range(6))
def test_identifiers_are_those_that_deltalake_returns_one_by_one(seed: int, place: OutputPlace) -> None:
    """The reference is slow and complete; names need escapes in JSON, and versions go up and down."""
    draw = random.Random(seed)
    write(place, {0: 1})
    names = ["k", 'k"txn"', "k\\", "kä€😀", "k\n\t", "k" * 100_000, "other", *(f"k{number}" for number in range(30))]
    for _ in range(draw.randrange(3, 9)):
        table = deltalake.DeltaTable(place.url)
        chosen = draw.sample(names, draw.randrange(len(names)))
        changed = [Transaction(name, draw.randrange(-(1 << 63), 1 << 63)) for name in chosen]
        table.create_write_transaction([], "append", table.schema(), [], commit_properties=CommitProperties(
            app_transactions=changed, custom_metadata={"txn": "{\"txn\": 1}" * draw.randrange(9)}
        ))  # fmt: skip
        if draw.random() < 0.4:
            make_checkpoint(place, draw.choice(KINDS))
    table = deltalake.DeltaTable(place.url)
    expected = {name: table.transaction_version(name) for name in names if name.startswith("k")}
    found = delta_log.read_identifiers(place, table.version(), ["k"])
    present = {name: version for name, version in expected.items() if version is not None}
    assert {name: version for name, version in found.items() if not name.startswith("kbatch")} == present
