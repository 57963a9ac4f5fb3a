"""Which topics a read chooses: internal topics, patterns of Java, and options that only brokers know."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import log_batches
import pytest
from log_batches import NOW

import kbatch
from kbatch.cli import main
from kbatch.java_patterns import java_pattern
from kbatch.log.selection import choose_logs
from kbatch.log.store.names import INTERNAL_TOPICS
from kbatch.plan.read_options import parse_options, warn_ignored
from kbatch.plan.watching import WatchedLogs

ORDINARY = ("_schemas", "__other", "orders", "orders-eu")
Read = Callable[..., "set[str | None]"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A broker's log directory with all internal topics."""
    for topic in (*ORDINARY, *INTERNAL_TOPICS):
        log_batches.write_segment(tmp_path / "logs" / f"{topic}-0", 0, [log_batches.batch(0, [NOW])])
    return tmp_path / "logs"


def read_batch(*paths: Path, **options: str) -> set[str | None]:
    _, read = parse_options({"path": "x", **options})
    return {log.topic for log in choose_logs(map(str, paths), read.selection)}


def read_stream(*paths: Path, **options: str) -> set[str | None]:
    _, read = parse_options({"path": "x", **options})
    return {topic for topic, _ in WatchedLogs(map(str, paths), read).poll()}


def read_export(*paths: Path, subscribe: str | None = None, subscribePattern: str | None = None) -> set[str | None]:
    pytest.importorskip("pyarrow")
    out = paths[0].parent / f"{paths[0].name}-out"
    topics = None if subscribe is None else subscribe.split(",")
    summary = kbatch.export(paths, out, engine="local", topics=topics, topic_pattern=subscribePattern)
    return {part.topic for part in summary.partitions}


def read_scan(*paths: Path, subscribe: str | None = None) -> set[str | None]:
    pytest.importorskip("pyarrow")
    topics = None if subscribe is None else subscribe.split(",")
    scan = kbatch.scan_logs(paths, topics=topics, columns=["topic"])
    return set(scan.to_arrow().column("topic").to_pylist())


every_read = pytest.mark.parametrize("read", [read_batch, read_stream, read_export, read_scan])


@every_read
def test_internal_topics_are_read_only_if_they_are_named(root: Path, read: Read) -> None:
    assert read(root) == set(ORDINARY)


@every_read
@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_a_named_internal_topic_is_read_with_the_others_that_are_chosen(root: Path, read: Read, topic: str) -> None:
    assert read(root, subscribe=f"orders,{topic}") == {"orders", topic}


@every_read
@pytest.mark.parametrize("kind", ["directory", "with a slash", "file"])
def test_a_path_names_an_internal_topic(root: Path, read: Read, kind: str) -> None:
    directory = root / "__consumer_offsets-0"
    path = log_batches.segment_path(directory, 0) if kind == "file" else directory
    if kind == "file" and read is read_stream:
        with pytest.raises(kbatch.LogDirectoryError):
            read(path)
        return
    found = read(Path(f"{path}/") if kind == "with a slash" else path)
    assert found == {"__consumer_offsets"}


@every_read
def test_globs_do_not_name_internal_topics(root: Path, read: Read) -> None:
    assert read(root, subscribe="_*") == {"_schemas", "__other"}
    if read is not read_stream:
        with pytest.raises(
            ValueError, match=r"no log of topic '__c\*'.*; internal topics are read only if they are named"
        ):
            read(root, subscribe="__c*")


def test_an_assigned_internal_topic_is_named(root: Path) -> None:
    for read in read_batch, read_stream:
        found = read(root, assign='{"__consumer_offsets": [0], "orders": [0]}')
        assert found == {"__consumer_offsets", "orders"}


@pytest.mark.parametrize("read", [read_batch, read_export, read_scan])
def test_only_internal_topics_are_an_error_that_names_them(tmp_path: Path, read: Read) -> None:
    log_batches.write_segment(tmp_path / "logs" / "__consumer_offsets-0", 0, [log_batches.batch(0, [NOW])])
    with pytest.raises(ValueError, match=r"no topic is chosen; internal topics are .* named: __consumer_offsets$"):
        read(tmp_path / "logs")


def test_the_list_of_all_logs_and_commands_that_examine_logs_have_internal_topics(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = kbatch.find_logs(root)
    assert {log.topic for log in logs} == {*ORDINARY, *INTERNAL_TOPICS}
    assert main(["verify", str(root), "--partition", "0", "--json"]) == 0
    assert "__consumer_offsets-0" in capsys.readouterr().out
    pytest.importorskip("pyarrow")
    assert set(kbatch.scan_logs(logs, columns=["topic"]).to_arrow().column("topic").to_pylist()) > INTERNAL_TOPICS


# -- patterns


@pytest.mark.parametrize("read", [read_batch, read_stream, read_export])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", {"orders"}),
        (".*", set(ORDINARY)),
        ("(?i)ORDERS.+", {"orders-eu"}),
        (r" \Qorders-\E(?<region>eu|us)\z ", {"orders-eu"}),
        ("_.*", {"_schemas", "__other"}),
    ],
)
def test_a_pattern_matches_whole_names_of_topics_that_are_not_internal(
    root: Path, read: Read, pattern: str, expected: set[str | None]
) -> None:
    """Spark's Kafka source lists topics without the internal ones, and trims the pattern."""
    assert read(root, subscribePattern=pattern.strip() if read is read_export else pattern) == expected


@pytest.mark.parametrize("read", [read_batch, read_export])
@pytest.mark.parametrize("pattern", ["order", "ORDERS", "__consumer.*"])
def test_a_pattern_that_matches_nothing_is_an_error_that_names_the_topics(root: Path, read: Read, pattern: str) -> None:
    message = (
        f"no topic matches the pattern '{re.escape(pattern)}'; the topics are __other, _schemas, orders, orders-eu; "
    )
    with pytest.raises(ValueError, match=f"{message}internal topics are read only if they are named: __cluster_meta"):
        read(root, subscribePattern=pattern)


def test_a_stream_waits_for_topics_that_match_its_pattern(root: Path) -> None:
    watched = WatchedLogs([str(root)], parse_options({"path": "x", "subscribePattern": "later"})[1])
    assert watched.poll() == {}
    log_batches.write_segment(root / "later-0", 0, [log_batches.batch(0, [NOW])])
    assert [*watched.poll()] == [("later", 0)]


@pytest.mark.parametrize(
    ("pattern", "difference"),
    [
        ("[a-z&&[^b]]", "'&&' in a class of characters, which means an intersection in Java"),
        ("[a-c[x-z]]", "'[' in a class of characters, which means a union in Java"),
        ("[]a]", "a class of characters with ']', which has to be escaped"),
        ("[^]a]", "a class of characters with ']', which has to be escaped"),
        (r"\p{Alpha}+", r"\p, whose meaning differs"),
        (r"[\b]", r"\b, whose meaning differs"),
        (r"[\Qab\E]", r"has \Q in a class of characters"),
        (r"(a)\12", r"\1, whose meaning differs"),
        ("a{,3}", "'{' that does not begin a repetition"),
        ("a(?i)b", "(?i) that is not at its beginning"),
        ("(?x) a", "a group that begins with (?x)"),
        ("(?P<name>a)", "a group that begins with (?P<"),
        ("a\\", "has \\, whose meaning differs"),
    ],
)
def test_a_pattern_that_java_reads_otherwise_is_an_error_that_names_the_difference(
    pattern: str, difference: str
) -> None:
    message = f"subscribePattern must be a regular expression that Java and Python read alike, got {pattern!r}: it"
    with pytest.raises(ValueError, match=f"^{re.escape(message)} .*{re.escape(difference)}"):
        parse_options({"path": "x", "subscribePattern": pattern})


@pytest.mark.parametrize("pattern", ["(", "[a--b]", "[a-", r"\1", "*", "a**", "(?<=a*)b"])
def test_a_pattern_that_python_refuses_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a regular expression, got "):
        java_pattern(pattern)


# -- options of brokers


BROUGHT = {
    "kafka.bootstrap.servers": "host:9092",
    "Kafka.Group.Id": "g",
    "groupIdPrefix": "p",
    "fetchOffset.numRetries": "3",
    "kafkaConsumer.pollTimeoutMs": "100",
}
LIMITS = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1m", "maxBytesPerTrigger": "1m"}


def test_options_of_spark_s_kafka_source_are_accepted_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {"path": "x", "subscribe": "orders", **BROUGHT, **LIMITS, "kafka.isolation.level": "read_committed"}
    with caplog.at_level(logging.WARNING):
        paths, options = parse_options(given)
        assert not caplog.records
        warn_ignored(given)
    assert (paths, options.topics, options.isolation) == (["x"], ("orders",), "read_committed")
    (record,) = caplog.records
    assert record.getMessage() == (
        "these options of Spark's Kafka source mean nothing for a batch read of log directories, and are ignored: "
        + ", ".join(sorted([*BROUGHT, *LIMITS]))
    )


def test_a_read_without_such_options_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    warn_ignored({"path": "x", "subscribe": "orders", "kafka.isolation.level": "read_committed"})
    warn_ignored({"path": "x", **LIMITS}, is_stream=True)
    assert not caplog.records


@pytest.mark.parametrize("name", ["kafk.bootstrap.servers", "groupId", "fetchOffsets", "maxOffsetPerTrigger", "kafkaX"])
def test_similar_names_are_unknown_options(name: str) -> None:
    with pytest.raises(ValueError, match="unknown option"):
        parse_options({"path": "x", name: "1"})
