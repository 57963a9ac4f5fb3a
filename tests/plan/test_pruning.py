"""What a condition excludes: never a record for which it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbatch.bounds import Domain, Pruning
from kbatch.log.pruning import Expression, domains_of, pruning_of
from kbatch.log.selection import choose_logs
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.plan.tasks import task_tables

COMPARISONS = {
    "EqualTo": lambda a, b: a == b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
}
TOPICS = ["a", "b", "c"]


def column(name: str) -> Expression:
    return Expression("Column", value=name)


def constant(value: object) -> Expression:
    return Expression("Constant", value=value)


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(["topic", "offset", "partition"]))
    values = st.sampled_from(TOPICS) if name == "topic" else st.integers(-2, 8)
    if draw(st.booleans()):
        members = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=3))
        return Expression("In", (column(name), *map(constant, members)))
    operator = "EqualTo" if name == "topic" else draw(st.sampled_from(sorted(COMPARISONS)))
    pair = (column(name), constant(draw(st.one_of(st.none(), values))))
    return Expression(operator, pair if draw(st.booleans()) else pair[::-1])


def combined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        st.builds(Expression, st.sampled_from(["And", "Or"]), pairs),
        st.builds(Expression, st.just("Not"), st.tuples(inner)),
    )


CONDITIONS = st.recursive(comparisons(), combined, max_leaves=6)


def is_true(condition: Expression, row: dict[str, Any]) -> bool | None:
    """Evaluate a condition as SQL does, with null as None."""
    values = [is_true(each, row) if each.operands else None for each in condition.operands]
    if condition.operator == "Not":
        return None if values[0] is None else not values[0]
    if condition.operator == "And":
        return False if False in values else None if None in values else True
    if condition.operator == "Or":
        return True if True in values else None if None in values else False
    left, *others = (row[each.value] if each.operator == "Column" else each.value for each in condition.operands)
    if condition.operator == "In":
        return True if left in others else None if None in others else False
    return None if left is None or others[0] is None else COMPARISONS[condition.operator](left, others[0])


@given(CONDITIONS)
def test_domains_have_all_rows_for_which_the_condition_is_true(condition: Expression) -> None:
    pruning = Pruning.from_json(pruning_of(domains_of(condition)).to_json())
    for topic in TOPICS:
        for partition in range(3):
            for offset in range(7):
                if is_true(condition, {"topic": topic, "partition": partition, "offset": offset}):
                    assert not pruning.excludes(topic, partition)
                    assert offset in Domain(pruning.offset.low, pruning.offset.high)


@pytest.mark.parametrize(
    ("operator", "microseconds", "since"),
    [
        ("GreaterThan", 1_000_000, 1001),
        ("GreaterThan", 1_000_999, 1001),
        ("GreaterThanOrEqual", 1_000_000, 1000),
        ("GreaterThanOrEqual", 1_000_001, 1001),
        ("EqualTo", 5000, 5),
        ("GreaterThanOrEqual", -1500, -1),
        ("LessThan", 1_000_000, None),
    ],
)
def test_only_lower_bounds_of_timestamps_exclude_records(operator: str, microseconds: int, since: int | None) -> None:
    """Later records can have smaller timestamps."""
    found = domains_of(Expression(operator, (column("timestamp"), constant(microseconds))))
    assert pruning_of(found).since == since


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1 << 70, None, Domain((1 << 63) - 1)),
        (None, 1 << 70, Domain()),
        (-5, -5, Domain(None, -1)),
        (0, None, Domain()),
    ],
)
def test_bounds_outside_of_int64_are_clamped(low: int | None, high: int | None, expected: Domain) -> None:
    assert pruning_of({"offset": Domain(low, high)}).offset == expected


@pytest.mark.parametrize("text", ["", "[]", "{", '{"nosuch": [1, 2, null]}', '{"offset": 3}', '"x"'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^prune must be made by kbatch.spark.read_logs, got "):
        parse_options({"path": "/data", "prune": text})


def rows(root: Path, pruning: Pruning, **options: Any) -> tuple[set[tuple[str | None, int]], int]:
    """Return the topics and offsets that a pruned read returns, and the bytes that it reads."""
    chosen = ReadOptions(prune=pruning, **options)
    tasks = plan(choose_logs([str(root)], chosen.selection), chosen)
    found = {
        (table.topic, int(offset))
        for task in tasks
        for _, table in task_tables(task, chosen)
        for offset in table.records["offset"]
    }
    return found, sum(split.end - split.start for task in tasks for split in task)


@pytest.mark.parametrize(
    "pruning",
    [
        Pruning(topic=Domain(members=frozenset(("codec-lz4", "absent")))),
        Pruning(offset=Domain(3000, None)),
        Pruning(offset=Domain(None, 20)),
        Pruning(offset=Domain(100, 120)),
        Pruning(offset=Domain(120, 100)),
        Pruning(offset=Domain(1 << 40, None)),
        Pruning(offset=Domain(None, -1)),
        Pruning(partition=Domain(1, None)),
        Pruning(since=1_700_000_010_000),
        Pruning(since=1 << 50),
        Pruning(since=5),
    ],
)
def test_a_pruned_read_skips_bytes_and_no_record(golden: Path, pruning: Pruning) -> None:
    """Offsets and topics that do not exist are no errors, unlike in the options that name them."""
    every, whole = rows(golden / "logs", Pruning())
    found, size = rows(golden / "logs", pruning)
    low, high = pruning.offset.low or 0, pruning.offset.high
    expected = {
        (topic, offset)
        for topic, offset in every
        if topic in pruning.topic and 0 in pruning.partition and low <= offset and (high is None or offset <= high)
    }
    if pruning.since is None:
        assert found == expected
    else:
        late = {
            (log.topic, int(offset))
            for log in choose_logs([str(golden / "logs")], ReadOptions().selection)
            for table in log.tables()
            for offset in table.records["offset"][table.records["timestamp"] >= pruning.since]
        }
        assert late <= found <= expected
    assert size < whole or pruning.since == 5
    # With a start behind damage, the read would not see the damage at which it must stop.
    stopped, _ = rows(golden / "logs", pruning, on_error="stop")
    assert found <= stopped
