"""The number of records of a read, from headers or by decoding, equals the number of rows that the read gives."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_logs import generated
from golden_logs import LOGS
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import NOW, batch, write_segment

import kbatch
from kbatch.log import LogList, LogWriter
from kbatch.log.store.local_files import bytes_read


def rows_of(source: kbatch.Log | LogList, **options: Any) -> int:
    return sum(map(len, source.tables(**options)))


def count_of(source: kbatch.Log | LogList, **options: Any) -> int:
    with warnings.catch_warnings():
        # Losses, and bounds after the end.
        warnings.simplefilter("ignore", RuntimeWarning)
        return source.count(**options)


def damaged(log: kbatch.Log, directory: Path, seed: int) -> kbatch.Log:
    """Copy a log with a few flipped bits, and sometimes with an end that is cut off."""
    rng = np.random.default_rng(seed)
    out = directory / Path(log.path).name
    shutil.copytree(log.path, out)
    for path in sorted(out.glob("*.log")):
        data = bytearray(path.read_bytes())
        for at in rng.integers(len(data), size=int(rng.integers(0, 3))).tolist() if data else ():
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data[: len(data) - (40 if data and rng.random() < 0.2 else 0)]))
    return kbatch.Log(out)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[kbatch.Log]:
    root = tmp_path_factory.mktemp("sound")
    append_time = root / "append-time-0"
    with LogWriter(append_time) as writer:
        for i in range(20):
            times: dict[str, Any] = (
                {"timestamp_type": "log_append_time", "append_time": NOW + 1000 * i}
                if i % 3
                else {"timestamps": [NOW + 1000 * i + step for step in (0, -1500, 700)]}
            )
            writer.append(kbatch.encode([b"v"] * 3, keys=[b"key-%d" % (i % 4)] * 3, base_offset=3 * i, **times))
    made = [generated(root / f"generated-{seed}", seed) for seed in range(4)]
    return [*kbatch.find_logs(LOGS), *made, kbatch.Log(append_time)]


@pytest.fixture(scope="module")
def broken(sound: list[kbatch.Log], tmp_path_factory: pytest.TempPathFactory) -> list[kbatch.Log]:
    root = tmp_path_factory.mktemp("broken")
    return [
        damaged(log, root / str(seed), 100 * number + seed) for number, log in enumerate(sound) for seed in range(3)
    ]


def offset_near(log: kbatch.Log) -> st.SearchStrategy[int]:
    end = log.end_offset
    return st.integers(-end - 2, end + 2) | st.sampled_from([0, 1, end - 1, end])


def time_near(log: kbatch.Log) -> st.SearchStrategy[Any]:
    rows = log.tables(on_error="skip", include_control=True, crc="mark")
    times = sorted({int(each) for table in rows for each in table.records["timestamp"]}) or [0]
    near = st.sampled_from(times).flatmap(lambda time: st.integers(time - 1, time + 1))
    return near.map(lambda time: np.datetime64(time, "ms")) | st.sampled_from(["end-1s", "end-5s", "end-0ms", "end-1d"])


def bound_near(log: kbatch.Log) -> st.SearchStrategy[Any]:
    points = st.one_of(offset_near(log), time_near(log), st.sampled_from(["earliest", "latest", "-1h"]), st.none())
    return points | points.map(lambda point: {0: point if point is not None else 0})


@st.composite
def arguments(draw: st.DrawFn, log: kbatch.Log) -> dict[str, Any]:
    options: dict[str, Any] = {
        "isolation": draw(st.sampled_from(["read_uncommitted", "read_committed"])),
        "include_control": draw(st.booleans()),
        "crc": draw(st.sampled_from(["verify", "mark", "skip"])),
        "start": draw(bound_near(log)),
        "end": draw(bound_near(log)),
    }
    if draw(st.integers(0, 3)) == 0:
        options |= {"key": draw(st.sampled_from(["key-1", b"key-8", b"k3", b"", "absent"]))}
    if draw(st.integers(0, 3)) == 0:
        options |= {"last": draw(st.integers(0, 40))}
    if draw(st.integers(0, 4)) == 0:
        options |= {"max_bytes": draw(st.sampled_from([1, 5000, "16m"]))}
    if draw(st.integers(0, 4)) == 0:
        options |= {"limits": kbatch.Limits(max_batch_bytes=draw(st.integers(100, 5000)))}
    if log.partition is None or log.partition != 0:
        options |= {name: 0 for name in ("start", "end") if isinstance(options[name], dict)}
    return options


@settings(max_examples=max(200, settings.default.max_examples))
@given(data=st.data())
def test_the_count_of_a_sound_log_is_the_number_of_rows(sound: list[kbatch.Log], data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(sound))
    options = data.draw(arguments(log)) | {"on_error": data.draw(st.sampled_from(["raise", "stop", "skip"]))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            expected = rows_of(log, **options)
        except kbatch.LimitExceededError:
            with pytest.raises(kbatch.LimitExceededError):
                log.count(**options)
            return
    assert count_of(log, **options) == expected


@settings(max_examples=max(200, settings.default.max_examples))
@given(data=st.data())
def test_the_count_of_a_damaged_log_is_the_number_of_rows(broken: list[kbatch.Log], data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(broken))
    options = data.draw(arguments(log)) | {"on_error": data.draw(st.sampled_from(["raise", "stop", "skip"]))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            expected = rows_of(log, **options)
        except kbatch.KbatchError:
            # Headers do not show every damage.
            return
    assert count_of(log, **options) == expected


def test_the_count_of_logs_is_the_sum_and_their_length_their_number(sound: list[kbatch.Log]) -> None:
    logs = LogList(sound)
    assert len(logs) == len(sound)
    assert logs.count() == sum(log.count() for log in sound) == rows_of(logs)
    assert logs.count(last=10) == rows_of(logs, last=10) == sum(log.count(last=10) for log in sound)
    assert logs.count(start="end-5s", isolation="read_committed") == rows_of(
        logs, start="end-5s", isolation="read_committed"
    )
    assert LogList().count() == 0


def test_a_count_with_raise_reads_only_headers(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "large-0") as writer:
        for number in range(200):
            values = [bytes(1000)] * 100
            writer.append(kbatch.encode(values, base_offset=100 * number, timestamps=NOW + number))
    log = kbatch.Log(tmp_path / "large-0")
    assert log.size > 20_000_000
    before = bytes_read()
    assert log.count() == 20_000
    assert log.count(start=150, end=-150) == 19_700
    assert log.count(end=np.datetime64(NOW + 200, "ms")) == 20_000
    # Two batches are cut by offsets.
    assert bytes_read() - before < 2_000_000


def test_damage_between_batches_is_an_error_of_a_count(sound: list[kbatch.Log], tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "t-0", 0, [batch(0, [NOW] * 3), batch(3, [NOW] * 3)])
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 + 16] = 9
    segment.write_bytes(data)
    with pytest.raises(kbatch.KbatchError) as counted:
        kbatch.Log(tmp_path / "t-0").count()
    with pytest.raises(kbatch.KbatchError) as read:
        rows_of(kbatch.Log(tmp_path / "t-0"))
    assert str(counted.value) == str(read.value)


def test_overlapping_segments_are_an_error_of_a_count(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW] * 3)])
    write_segment(tmp_path / "t-0", 2, [batch(2, [NOW] * 3)])
    with pytest.raises(kbatch.LogDirectoryError, match="overlap"):
        kbatch.Log(tmp_path / "t-0").count()


def test_losses_that_a_count_leaves_out_are_a_warning(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "t-0", 0, [batch(0, [NOW] * 3), batch(3, [NOW] * 3)])
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    log = kbatch.Log(tmp_path / "t-0")
    with pytest.warns(RuntimeWarning, match="1 loss of"):
        assert log.count(on_error="skip") == 3
    # As documented: no payload is read.
    assert log.count() == 6


def tables_alive() -> Iterator[object]:
    import gc

    return (each for each in gc.get_objects() if isinstance(each, kbatch.RecordTable))


def test_a_count_keeps_no_table(sound: list[kbatch.Log]) -> None:
    log = sound[0]
    before = sum(1 for _ in tables_alive())
    assert log.count(on_error="skip", max_bytes=1) == log.count()
    assert sum(1 for _ in tables_alive()) == before
