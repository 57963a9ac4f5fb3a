"""The benchmark of live topics: floors compare kbatch with the right clients, and fail if they were not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import live, live_floors
from bench.consumers import ARROW, BYTES, CONSUMERS, COUNT, FORMS, OBJECTS, PARTS, TABLES, TENTH, WHOLE, WHOLE_TABLE
from bench.foreign import CannotRun
from bench.live_floors import FLOORS, GOAL, MEMORY
from bench.report import LIVE, live_table

TOPIC = "small, 4 partitions"


def figures(**rates: dict[str, float]) -> dict[str, Any]:
    """Return the figures of a run of chosen clients on one topic; underscores stand for other characters."""
    names = {one.name.replace(".", "_").replace("-", "_"): one.name for one in CONSUMERS}
    found = {names[who]: forms for who, forms in rates.items()}
    return {
        "rounds": 1, "size": 500_000_000, "seconds": 60.0, "machine": "a machine", "versions": {}, "other_work": 0.0,
        "topics": {TOPIC: {"corpus": "small", "partitions": 4}},
        "parts": {TOPIC: {one.name: dict(one.parts) for one in CONSUMERS if one.name in found}},
        "records_per_second": {TOPIC: found},
        "cpu_seconds_per_million": {TOPIC: found},
        "page_faults_per_million": {TOPIC: found},
        "memory": {},
        "forms": [*FORMS, MEMORY],
        "clients": list(found),
        "absent": {TOPIC: {}},
        "failures": {TOPIC: {}},
        "runs": {},
    }  # fmt: skip


def found_floors(document: dict[str, Any], part: float = 1.0) -> dict[tuple[str, str], tuple[float, float | None]]:
    """Return bound and measured ratio by contestant and form, without goals."""
    found = live_floors.live_floors(document, part)
    required = (one for one in found if one.needs != GOAL)
    return {(one.note, one.text.split(", ")[2].split(":")[0]): (one.bound, one.measured) for one in required}


def test_kbatch_is_compared_with_the_best_python_client_of_each_kind() -> None:
    document = figures(
        kbatch_consume={COUNT: 30e6, TABLES: 20e6, WHOLE_TABLE: 10e6},
        confluent_kafka={COUNT: 1e6, TABLES: 0.5e6, WHOLE_TABLE: 0.5e6},
        aiokafka={COUNT: 0.5e6, TABLES: 1e6, WHOLE_TABLE: 0.4e6},
        kafkarrow={COUNT: 2e6, TABLES: 2e6, WHOLE_TABLE: 5e6},
    )
    assert found_floors(document) == {
        ("confluent-kafka", COUNT): (25, 30),
        ("aiokafka", TABLES): (15, 20),
        ("confluent-kafka", WHOLE_TABLE): (12, 20),
        ("kafkarrow", TABLES): (4, 10),
        ("kafkarrow", WHOLE_TABLE): (4, 2),
    }


def test_the_raw_probe_bounds_a_count() -> None:
    name = next(one.name for one in CONSUMERS if one.gives == BYTES)
    document = figures(kbatch_consume={COUNT: 30e6})
    document["records_per_second"][TOPIC][name] = {COUNT: 40e6}
    document["clients"].append(name)
    assert found_floors(document) == {(name, COUNT): (0.85, 0.75)}


def test_clients_in_other_languages_are_a_goal_and_no_floor() -> None:
    document = figures(kbatch_consume={COUNT: 30e6})
    name = next(one.name for one in CONSUMERS if one.program is not None)
    document["records_per_second"][TOPIC][name] = {COUNT: 20e6}
    document["clients"].append(name)
    (goal,) = live_floors.live_floors(document)
    assert (goal.needs, goal.note, goal.bound, goal.measured) == (GOAL, name, 2, 1.5)


def test_a_client_that_was_chosen_and_not_measured_leaves_its_floor_unmet() -> None:
    document = figures(kbatch_consume={COUNT: 30e6}, confluent_kafka={})
    found = [one for one in live_floors.live_floors(document) if one.needs != GOAL]
    assert len(found) == 3
    assert not any(one.met for one in found)


@pytest.mark.parametrize("change", [{"clients": [LIVE]}, {"absent": {TOPIC: {"kafkarrow": "no zstd"}}}])
def test_clients_that_are_absent_or_not_chosen_have_no_floors(change: dict[str, Any]) -> None:
    document = figures(kbatch_consume={TABLES: 30e6}, kafkarrow={}) | change
    assert live_floors.live_floors(document) == []


def test_only_chosen_forms_have_floors() -> None:
    document = figures(kbatch_consume={COUNT: 30e6}, confluent_kafka={COUNT: 1e6}) | {"forms": [COUNT]}
    assert list(found_floors(document)) == [("confluent-kafka", COUNT)]
    assert live_floors.live_floors(document | {"clients": ["confluent-kafka"]}) == []


def test_a_part_of_the_floors_can_be_required() -> None:
    document = figures(kbatch_consume={COUNT: 10e6}, confluent_kafka={COUNT: 1e6}) | {"forms": [COUNT]}
    assert found_floors(document, 0.2) == {("confluent-kafka", COUNT): (5, 10)}


def test_memory_may_grow_by_twice_its_limit() -> None:
    grown = [{"max_bytes": 8 << 20, "before": 0, "growth": growth << 20} for growth in (16, 17)]
    document = figures(kbatch_consume={}) | {"memory": {TOPIC: grown}}
    found = live_floors.live_floors(document)
    assert [one.met for one in found] == [True, False]
    assert "max_bytes=8 MiB" in found[0].text


def test_every_corpus_has_floors_for_counts_and_tables() -> None:
    for name in live.NAMES:
        forms = {(one.form, one.against) for one in FLOORS if name in one.corpora}
        assert forms >= {(COUNT, OBJECTS), (TABLES, OBJECTS), (TABLES, ARROW), (WHOLE_TABLE, ARROW)}, name


def test_every_client_reads_a_known_part_into_its_forms() -> None:
    assert len({one.name for one in CONSUMERS}) == len(CONSUMERS)
    for one in CONSUMERS:
        assert one.forms
        assert set(one.forms) <= set(FORMS)
        for name in live.NAMES:
            assert {one.part(form, name) for form in one.forms} <= set(PARTS)
        assert one.program is None or (one.turns == 1 and one.forms == [COUNT])


def test_a_program_that_cannot_be_built_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: object) -> None:
        raise CannotRun("go build failed:\nno network")

    monkeypatch.setattr("bench.consumers.command_of", fail)
    reasons = {one.missing("small") for one in CONSUMERS if one.program is not None}
    assert reasons == {"no network"}


def test_rates_are_shown_with_the_ratio_of_kbatch() -> None:
    rates = {TOPIC: {LIVE: {COUNT: 30e6, TABLES: 9e6}, "aiokafka": {COUNT: 0.5e6}}}
    assert live_table(rates).splitlines()[4:] == [
        f"| {TOPIC} | {LIVE} | 30.00 | 9.00 |",
        f"| {TOPIC} | aiokafka | 0.50 (60) |  |",
    ]


def test_topics_that_are_smaller_are_named() -> None:
    parts = {
        "small, 1 partition": {"a": {COUNT: WHOLE, TABLES: TENTH}, "b": {COUNT: TENTH}},
        "small-lz4, 1 partition": {"a": {COUNT: TENTH, TABLES: TENTH}},
    }
    sizes = {WHOLE: "500 MB", TENTH: "50 MB"}
    assert list(live.smaller_topics(parts, sizes)) == [
        "- a: 50 MB (arrow tables, count of compressed topics)",
        "- b: 50 MB (count)",
    ]


@pytest.mark.parametrize(("rate", "options", "status"), [
    (30e6, ["--check"], 0),
    (20e6, ["--check"], 1),
    (20e6, ["--check", "0.5"], 0),
    (20e6, [], 0),
])  # fmt: skip
def test_the_exit_status_names_missed_floors(
    rate: float, options: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = figures(kbatch_consume={COUNT: rate}, confluent_kafka={COUNT: 1e6}) | {"forms": [COUNT]}
    given = tmp_path / "given.json"
    given.write_text(json.dumps(document))
    assert live.main(["--from", str(given), "--json", str(tmp_path / "new.json"), *options]) == status
    printed = capsys.readouterr().out
    assert "confluent-kafka: 50 MB (arrow tables, pandas, polars)" in printed
    text = "floor missed: small, 4 partitions, count: kbatch / the best client that gives objects: 20, expected >= 25"
    assert (text in printed) == bool(status)
    assert json.loads((tmp_path / "new.json").read_text())["floors"]


def test_a_client_that_failed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = figures(kbatch_consume={COUNT: 30e6}) | {"failures": {TOPIC: {"aiokafka": "it broke"}}}
    given = tmp_path / "given.json"
    given.write_text(json.dumps(document))
    assert live.main(["--from", str(given)]) == 1
    assert "- aiokafka: it broke" in capsys.readouterr().out
