"""Policies of single topics in exports: damage, gaps, missing offsets."""

from __future__ import annotations

import argparse
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import log_batches
import pytest
from log_batches import NOW

import kbatch
from kbatch.cli import export, main
from kbatch.cli.command_parser import CommandParser
from kbatch.options import OptionError
from kbatch.plan import planner
from kbatch.plan.read_options import Bound, ReadOptions, split_policies

pytest.importorskip("pyarrow")
from export_outputs import batches
from local_export import export as export_local

TOPICS = ("a", "b", "c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three topics with a damaged batch in the first of two segments, and offsets missing between these."""
    for topic in TOPICS:
        segment = log_batches.write_segment(tmp_path / "logs" / f"{topic}-0", 0, batches(0, 10))
        size = segment.stat().st_size // 10
        data = bytearray(segment.read_bytes())
        data[5 * size - 1] ^= 1
        segment.write_bytes(data)
        log_batches.write_segment(tmp_path / "logs" / f"{topic}-0", 30, batches(30, 10))
    return tmp_path / "logs"


def run(root: Path, out: Path, **options: Any) -> dict[str, tuple[int, int, int]]:
    """Export; return for each topic the records, the lost bytes and the offsets in gaps."""
    summary = kbatch.export(root, out, engine="local", **options)
    return {part.topic: (part.records, part.lost_bytes, part.gap_offsets) for part in summary.partitions}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("by_topic", [{"a": "skip", "*": "stop"}, {"a": "skip", "b": "stop", "c": "skip"}])
def test_each_topic_is_read_as_with_its_policy_for_all(
    root: Path, tmp_path: Path, by_topic: dict[str, Any], isolation: Any
) -> None:
    together = run(root, tmp_path / "out", on_error=by_topic, isolation=isolation)
    assert together["a"] != together["b"]
    for topic in TOPICS:
        policy = by_topic.get(topic, by_topic.get("*"))
        alone = run(root, tmp_path / topic, topics=topic, on_error=policy, isolation=isolation)
        assert together[topic] == alone[topic]


@pytest.mark.parametrize("by_topic", [{"a": "skip", "c": "skip"}, {"*": "skip", "b": "raise"}])
def test_damage_is_an_error_in_the_topics_whose_policy_says_so(root: Path, tmp_path: Path, by_topic: Any) -> None:
    with pytest.raises(kbatch.CrcMismatchError, match="b-0"):
        run(root, tmp_path / "out", on_error=by_topic)
    assert not (tmp_path / "out").exists()


def test_the_first_batch_of_a_topic_is_checked_as_its_policy_says(root: Path, tmp_path: Path) -> None:
    for topic in "a", "b":
        path = log_batches.segment_path(root / f"{topic}-0", 0)
        path.write_bytes(b"\xff" * 200 + path.read_bytes())
    found = run(root, tmp_path / "out", on_error={"*": "skip", "c": "skip"})
    assert found["a"][0] == found["c"][0]
    with pytest.raises(kbatch.KbatchError, match="b-0"):
        run(root, tmp_path / "other", on_error={"*": "skip", "b": "raise"})


def test_a_gap_is_an_error_in_the_topics_whose_policy_says_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match="b-0: offsets 20 to 29 are missing"):
        run(root, tmp_path / "out", on_error="skip", on_gap={"b": "raise"})
    with pytest.raises(kbatch.LogDirectoryError, match=r"[ac]-0: offsets 20 to 29 are missing"):
        run(root, tmp_path / "out", on_error="skip", on_gap={"*": "raise", "b": "report"})
    found = run(root, tmp_path / "out", on_error="skip", on_gap={"*": "raise", **dict.fromkeys(TOPICS, "report")})
    assert {gap for _, _, gap in found.values()} == {10}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_missing_offsets_are_allowed_in_the_topics_whose_policy_says_so(
    root: Path, tmp_path: Path, isolation: Any
) -> None:
    def missing(**ends: int) -> Callable[[str], Any]:
        ending = Bound(offsets={topic: {0: ends.get(topic, -1)} for topic in TOPICS})
        given = {"on_error": "skip", "fail_on_data_loss": {"a": False}, "isolation": isolation}
        return lambda name: export_local(root, tmp_path / name, ReadOptions(**split_policies(given), ending=ending))

    summary = missing(a=99)("out")
    assert [each["topic"] for each in summary.missing_offsets] == ["a"]
    with pytest.raises(kbatch.LogDirectoryError, match="b-0: the read asks for offsets below 99"):
        missing(b=99)("other")


@pytest.mark.parametrize(("changed", "fails"), [("a", False), ("b", True)])
def test_a_changed_log_is_an_error_in_the_topics_whose_policy_says_so(
    root: Path, tmp_path: Path, changed: str, fails: bool
) -> None:
    allowing = {"on_error": "skip", "fail_on_data_loss": {"a": False}}
    run(root, tmp_path / "out", **allowing)
    shutil.rmtree(root / f"{changed}-0")
    log_batches.write_segment(root / f"{changed}-0", 0, [log_batches.batch(0, [NOW + 1])])
    if fails:
        with pytest.raises(kbatch.LogDirectoryError, match="b-0"):
            run(root, tmp_path / "out", **allowing)
    else:
        summary = kbatch.export(root, tmp_path / "out", engine="local", **allowing)
        assert [(each["topic"], each["kind"]) for each in summary.changes] == [("a", "truncated")]


@pytest.mark.parametrize("option", ["on_error", "on_gap", "fail_on_data_loss"])
def test_a_policy_of_an_unknown_topic_is_an_error_that_names_the_topics(
    root: Path, tmp_path: Path, option: str
) -> None:
    value = {"on_error": "skip", "on_gap": "report", "fail_on_data_loss": False}[option]
    (root / "a-0").rename(root / "orders-0")
    message = r"policy for topic 'ordesr', but no log of it, did you mean 'orders'\? The topics are b, c, orders$"
    with pytest.raises(ValueError, match=message):
        run(root, tmp_path / "out", **{option: {"ordesr": value, "*": value}})
    # A topic that the selection leaves out exists.
    others: dict[str, Any] = {"on_error": {"b": "skip"}} | {option: {"b": value, "orders": value}}
    assert run(root, tmp_path / "out", topics="b", **others)["b"][0] == 38


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("on_error", "skp", "^on_error must be one of 'raise', 'stop', 'skip', got 'skp', did you mean 'skip'\\? for"),
        ("on_gap", "stop", "^on_gap must be one of 'report', 'raise', got 'stop'.* for topic 'a'$"),
    ],
)
def test_an_invalid_policy_is_an_error_that_names_the_topic(option: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ReadOptions(**split_policies({option: {"a": value}}))


def test_only_policies_may_be_of_a_topic() -> None:
    with pytest.raises(OptionError, match=r"^policies of topic 'a' may have on_error, .*, got crc$"):
        ReadOptions(policies={"a": {"crc": "skip"}})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="fail_on_data_loss must be a bool"):
        ReadOptions(policies={"a": {"fail_on_data_loss": "no"}})  # type: ignore[typeddict-item]


def test_options_are_resolved_once_and_pickled_without_the_results() -> None:
    options = ReadOptions(on_error="stop", policies={"a": {"on_gap": "raise"}, "b": {"on_error": "skip"}})
    size = len(pickle.dumps(options))
    assert [options._for_topic(topic).on_error for topic in ("a", "b", "c", None)] == ["stop", "skip", "stop", "stop"]
    assert [options._for_topic(topic).on_gap for topic in ("a", "b", None)] == ["raise", "report", "report"]
    assert options._for_topic("a") is options._for_topic("a")
    assert options._for_topic("c") is options._for_topic(None)
    assert len(pickle.dumps(options)) == size
    assert pickle.loads(pickle.dumps(options)) == options
    plain = ReadOptions()
    assert plain._for_topic("a") is plain


def test_a_job_that_follows_segments_has_the_policies(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage may hide markers, so that it is an error or not before the tasks run."""
    monkeypatch.setattr(planner, "FOLLOW_JOB_BYTES", 0)
    logs = kbatch.find_logs(root)
    jobs: list[int] = []

    def mapper(function: Any, items: Any) -> list[Any]:
        jobs.append(len(items))
        return [pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(item))) for item in items]

    by_topic = ReadOptions(**split_policies({"on_error": {"a": "skip", "*": "stop"}, "isolation": "read_committed"}))
    found = planner.plan_reads(logs, by_topic, [None] * 3, mapper=mapper)
    for log, read in zip(logs, found, strict=True):
        policy: Any = "skip" if log.topic == "a" else "stop"
        alone = ReadOptions(on_error=policy, isolation="read_committed")
        assert repr(planner.plan_reads([log], alone, [None])) == repr([read])
    assert jobs == [6]


class RaisingParser(CommandParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def parsed(*flags: str) -> argparse.Namespace:
    parser = RaisingParser()
    export.add_parser(parser.add_subparsers())
    return parser.parse_args(["export", *flags])


@pytest.mark.parametrize("places", ["before", "after"])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {}),
        (["--on-error", "skip"], {"on_error": "skip"}),
        (["--on-error", "orders=skip"], {"policies": {"orders": {"on_error": "skip"}}}),
        (
            ["--on-error=stop", "--on-error", "a=skip", "--on-error=b-1.c=RAISE", "--gaps", "a=raise"],
            {
                "on_error": "stop",
                "policies": {"a": {"on_error": "skip", "on_gap": "raise"}, "b-1.c": {"on_error": "raise"}},
            },
        ),
        (["--on-error", "skip", "--on-error", "raise"], {}),
        (["--allow-missing-offsets"], {"fail_on_data_loss": False}),
        (["--allow-miss"], {"fail_on_data_loss": False}),
        (["--allow-missing-offsets", "a=true"], {"policies": {"a": {"fail_on_data_loss": False}}}),
        (["--allow-missing-offsets=a=true"], {"policies": {"a": {"fail_on_data_loss": False}}}),
        (
            ["--allow-missing-offsets", "a=false", "--allow-missing-offsets"],
            {"fail_on_data_loss": False, "policies": {"a": {"fail_on_data_loss": True}}},
        ),
    ],
)
def test_flags_take_a_value_for_all_topics_and_for_single_ones(
    flags: list[str], expected: dict[str, Any], places: str
) -> None:
    """A switch before a positional argument does not take it for its value."""
    arguments = parsed(*flags, "logs", "out") if places == "before" else parsed("logs", "out", *flags)
    assert (arguments.logdirs, arguments.out) == (["logs"], "out")
    assert export.read_options(arguments) == ReadOptions(latest_if_no_timestamp=True, **expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--on-error", "a=skp"], "'raise', 'stop', 'skip', got 'skp', did you mean 'skip'\\? for topic 'a'"),
        (["--on-error", "=skip"], "must be TOPIC={raise,stop,skip}, got '=skip'"),
        (["--gaps", "a="], "must be one of 'report', 'raise', got '' for topic 'a'"),
        (["--allow-missing-offsets", "a=skip"], "must be true or false, got 'skip' for topic 'a'"),
    ],
)
def test_flags_refuse_other_values_by_topic(flags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed("logs", "out", *flags)


def test_the_command_line_continues_after_damage_in_one_topic(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(root), str(tmp_path / "out"), "--engine", "local"]
    assert main([*command, "--on-error", "a=skip", "--on-error", "b=skip"]) == 1
    assert "c-0" in (text := capsys.readouterr().err)
    assert "--on-error skip continues after it" in text
    assert main([*command, *(word for topic in TOPICS for word in ("--on-error", f"{topic}=skip"))]) == 3
    assert main([*command, "--gaps", "d=raise"]) == 1
    assert "The topics are a, b, c" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_tasks_on_spark_have_the_policies(root: Path, tmp_path: Path, spark: Any) -> None:
    options: Any = {"on_error": {"a": "skip", "*": "stop"}, "on_gap": {"b": "raise"}, "isolation": "read_committed"}
    counts = {}
    for engine in "local", "spark":
        summary = kbatch.export(root, tmp_path / engine, engine=engine, **options)
        counts[engine] = [(part.topic, part.records, part.lost_bytes) for part in summary.partitions]
    assert counts["local"] == counts["spark"]
