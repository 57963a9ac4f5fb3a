"""The bounds of a plan in the forms of ``start`` and ``end``."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from log_batches import DAY, NOW, batch, write_segment

import kbatch
from kbatch.bounds import Bound, given_bounds
from kbatch.log import LogList
from kbatch.plan.planner import plan, plan_ranges
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_tables

HOUR = 3_600_000


@pytest.fixture
def logs(tmp_path: Path) -> LogList:
    for number, name in enumerate(("a-0", "a-1", "b-0")):
        times = [NOW + number * DAY + step * HOUR for step in range(10)]
        write_segment(tmp_path / name, 0, [batch(offset, [time]) for offset, time in enumerate(times)])
    return kbatch.find_logs(tmp_path)


def offsets_of(logs: LogList, options: ReadOptions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {f"{log.topic}-{log.partition}": [] for log in logs}
    for task in plan(list(logs), options):
        for split, table in task_tables(task, options):
            found[f"{split.topic}-{split.partition}"] += table.records["offset"].tolist()
    return found


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("latest", None),
        (None, "earliest"),
        ("earliest", "latest"),
        ("end-3h", None),
        (None, "end-3h"),
        ("end-30h", "end-1h"),
        ({0: 5}, {1: "earliest"}),
        ({"a": {1: "end-3h"}, "b": {0: 9}}, {"a": {0: -4}}),
        ({0: -3, 1: "latest"}, None),
        (7, -1),
    ],
)
def test_a_plan_reads_what_a_log_reads_between_the_same_bounds(logs: LogList, start: Any, end: Any) -> None:
    options = ReadOptions(starting=Bound.of(start), ending=Bound.of(end), latest_if_no_timestamp=True)
    expected: dict[str, list[int]] = {f"{log.topic}-{log.partition}": [] for log in logs}
    for table in logs.tables(start=start, end=end):
        expected[f"{table.topic}-{table.partition}"] += table.records["offset"].tolist()
    assert offsets_of(logs, options) == expected
    assert offsets_of(logs, pickle.loads(pickle.dumps(options))) == expected


def test_a_plan_refuses_partitions_that_it_does_not_read(logs: LogList) -> None:
    for bound in ({5: 1}, {"c": {0: 1}}):
        with pytest.raises(ValueError, match=r"starting names .*, which this read does not have"):
            plan_ranges(list(logs), ReadOptions(starting=Bound.of(bound)))
    pruned = ReadOptions(starting=Bound.of({"a": {7: 1}}), key=b"k", key_partitions=2)
    assert plan_ranges(list(logs), pruned)


def test_the_ends_of_a_log_per_partition_are_minus_two_and_minus_one(logs: LogList) -> None:
    earliest, latest = ({"a": {0: each, 1: each}, "b": {0: each}} for each in (-2, -1))
    full = offsets_of(logs, ReadOptions())
    assert offsets_of(logs, ReadOptions(starting=Bound(offsets=earliest), ending=Bound(offsets=latest))) == full
    assert not any(offsets_of(logs, ReadOptions(starting=Bound(offsets=latest))).values())
    assert not any(offsets_of(logs, ReadOptions(ending=Bound(offsets=earliest))).values())


@pytest.mark.parametrize(
    "fields",
    [
        {"log_end": "latest", "offset": 1},
        {"before_end": 5, "timestamp": NOW},
        {"partitions": {None: {0: Bound(offset=1)}}, "log_end": "latest"},
    ],
)
def test_fields_of_a_bound_that_contradict_each_other_are_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        Bound(**fields)
    with pytest.raises(ValueError, match="log_end must be 'earliest' or 'latest', got 'end'"):
        Bound(log_end="end")  # type: ignore[arg-type]


def test_a_bound_of_a_bound_is_itself_and_of_none_is_empty() -> None:
    bound = Bound.of("end-1h")
    assert Bound.of(bound) is bound
    assert Bound.of(None) == Bound() == given_bounds({})[0]
    assert Bound.of({0: bound}).partitions == {None: {0: bound}}
    assert [Bound.of(f"end-1{unit}").before_end for unit in ("ms", "s", "m", "min", "h", "d")] == [
        1, 1000, 60_000, 60_000, HOUR, DAY,
    ]  # fmt: skip
