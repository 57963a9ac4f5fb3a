"""`kbatch consume` over a scripted broker: lines, selection, groups, damage, signals and the progress of a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import ScriptedCluster, ScriptedPartition
from scripted_groups import GroupCluster
from socket_broker import served

from kbatch.cli import main

QUICK = ["--setting", "fetch.max.wait.ms=10", "--setting", "default.api.timeout.ms=1000"]
SERVERS = ["--bootstrap-server", "localhost"]
SECONDS = 2.0


def partition(*batches: list[bytes], **options: Any) -> ScriptedPartition:
    made = ScriptedPartition()
    for values in batches:
        made.write(values, timestamps=[1000 * (made.end + i) for i in range(len(values))], **options)
    return made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    """A cluster that commands in this process read."""
    made = ScriptedCluster(
        orders=[
            partition([b'{"id": 0}', b'{"id": 1}'], [b'{"id": 2}'], keys=None),
            partition([b'{"id": 3}', b"\xff\x00"]),
        ],
        orders_eu=[partition([b"one", b"two\nlines"])],
    )
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def consume(cluster: ScriptedCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run(*arguments: str, servers: list[str] = SERVERS) -> tuple[int, str, str]:
        try:
            status = main(["consume", *servers, *QUICK, *arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsysbinary.readouterr()
        return status, captured.out.decode("utf-8", "surrogateescape"), captured.err.decode()

    return run


def offsets(text: str) -> list[tuple[int, int]]:
    return sorted((line["partition"], line["offset"]) for line in map(json.loads, text.splitlines()))


def test_lines_are_those_of_dump_without_file_and_position(consume: Run, tmp_path: Path, cluster: Any) -> None:
    status, out, err = consume("orders", "--partition", "1")
    assert (status, err) == (0, "")
    directory = tmp_path / "orders-1"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"".join(cluster.topics["orders"][1].batches))
    done = subprocess.run(
        [sys.executable, "-m", "kbatch", "dump", "--records", directory], capture_output=True, text=True, check=True
    )
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    for each in expected:
        del each["file"], each["position"]
    assert list(map(json.loads, out.splitlines())) == expected
    assert list(map(list, map(json.loads, out.splitlines()))) == list(map(list, expected))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["orders"], [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        (["orders", "--tail", "1"], [(0, 2), (1, 1)]),
        (["orders", "--offsets", "1:2"], [(0, 1), (1, 1)]),
        (["orders", "--offsets", "-1:"], [(0, 2), (1, 1)]),
        (["orders", "--partition", "0", "--max-records", "2"], [(0, 0), (0, 1)]),
        (["orders", "--max-records", "0"], []),
        (["orders*", "--offsets", "0"], [(0, 0), (0, 0), (1, 0)]),
        (["--topic-pattern", "orders-e."], [(0, 0), (0, 1)]),
        (["orders", "--times", "1970-01-01T00:00:02Z:"], [(0, 2)]),
    ],
    ids=lambda value: " ".join(map(str, value)) if value and isinstance(value[0], str) else None,
)
def test_flags_choose_records(consume: Run, arguments: list[str], expected: list[tuple[int, int]]) -> None:
    status, out, _ = consume(*arguments)
    assert (status, offsets(out)) == (0, expected)


def test_values_alone_are_their_bytes_with_a_line_break_each(consume: Run) -> None:
    assert consume("orders-eu", "--format", "value") == (0, "one\ntwo\nlines\n", "")
    status, out, _ = consume("orders", "--partition", "1", "--format", "value")
    assert (status, out.encode("utf-8", "surrogateescape")) == (0, b'{"id": 3}\n\xff\x00\n')
    status, out, _ = consume("orders", "--partition", "1", "--format", "value", "--values", "json")
    assert (status, out) == (0, '{"id": 3}\nnull\n')


def test_decoded_values_are_json(consume: Run) -> None:
    _, out, _ = consume("orders", "--values", "json", "--value-schema", "id bigint", "--offsets", "0")
    assert sorted(json.loads(line)["value"]["id"] for line in out.splitlines()) == [0, 3]
    _, out, _ = consume("orders", "--values", "json", "--partition", "1", "--offsets", "1")
    assert json.loads(out)["value_bad"] == {"base64": "/wA="}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TOPIC is missing: the name of a topic, or a glob; kbatch topics lists them"),
        (["kafka://localhost"], "the address of a cluster is not a TOPIC: --bootstrap-server takes it"),
        (["orders", "--follow", "--offsets", ":5"], "--follow has no end: --offsets A: and --times FROM: choose"),
        (["orders", "--key", "a", "--key", "b"], "--key may be given once"),
        (["orders", "--group", "g", "--offsets", "5:"], "--group begins at the committed offsets, so that --offsets"),
        (["orders", "--group", "g", "--max-records", "5"], "--group commits the offsets of whole batches"),
        (["orders", "--format", "value", "--keys", "json"], "--keys and --max-bytes-shown belong to --format json"),
        (["orders", "--setting", "sasl.password=secret"], "--setting sasl.password: other users can see command lines"),
        (["orders", "--setting", "ssl_key_password=secret"], "other users can see command lines"),
        (["orders", "--setting", "socks5.proxy=socks5://me:secret@proxy:1"], "other users can see command lines"),
        (["orders", "--setting", "group.id=g"], "--setting group.id: kbatch consume --group NAME joins a group"),
        (["orders", "--setting", "isolation.level=x"], "isolation.level: use --isolation"),
        (["orders", "--setting", "no.such=x"], "unknown setting 'no.such'"),
        (["orders", "--setting", "sasl.mechanism=PLAIN"], "sasl.mechanism needs security.protocol=SASL_SSL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_arguments_that_contradict_are_wrong_usage(consume: Run, arguments: list[str], message: str) -> None:
    status, out, err = consume(*arguments)
    assert (status, out) == (2, "")
    assert f"kbatch consume: error: {message}" in err or message in err.splitlines()[-1]
    assert "secret" not in err
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize("text", ["user:secret@host:9092", "a b"])
def test_an_address_with_a_password_is_refused_without_the_password(consume: Run, text: str) -> None:
    status, _, err = consume("orders", servers=["--bootstrap-server", text])
    assert (status, err.splitlines()[-1]) == (
        2,
        "kbatch consume: error: argument --bootstrap-server: must be HOST:PORT[,HOST:PORT]",
    )


def test_settings_come_from_a_file_and_flags_take_precedence(consume: Run, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=nowhere:1\nclient.id=of-file\ngroup.id=app\nauto.offset.reset=latest\n")
    status, out, err = consume("orders", "--config", str(config))
    assert (status, len(out.splitlines()), err) == (0, 5, "")
    config.write_text("bootstrap.servers=localhost\n")
    status, out, err = consume("orders", "--config", str(config), servers=[])
    assert (status, len(out.splitlines()), err) == (0, 5, "")
    status, out, err = consume("orders", "--config", str(tmp_path / "missing"))
    assert (status, out) == (1, "")
    assert "missing" in err
    status, _, err = consume("orders", servers=[])
    assert (status, "--bootstrap-server is missing" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ordrs"], "there is no topic 'ordrs', did you mean 'orders'?"),
        (["o*x"], "no log of topic 'o*x'"),
        (["--topic-pattern", "x.*"], "no topic matches 'x.*'"),
        (["orders", "--partition", "7"], "no chosen topic has partition 7"),
    ],
)
def test_a_topic_or_partition_that_does_not_exist_is_an_error_of_one_line(
    consume: Run, arguments: list[str], message: str
) -> None:
    status, out, err = consume(*arguments)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert message in err


def test_a_broker_that_cannot_be_reached_is_an_error_of_one_line(consume: Run) -> None:
    status, out, err = consume(
        "orders", "--setting", "socket.connection.setup.timeout.ms=50", servers=["--bootstrap-server", "nowhere:1"]
    )
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "broker nowhere:1: can't be reached: Connection refused" in err


def test_damage_is_an_error_or_is_skipped_and_listed(consume: Run, cluster: ScriptedCluster) -> None:
    batches = cluster.topics["orders"][0].batches
    batches[0] = batches[0][:-1] + b"\x02"
    status, _, err = consume("orders")
    assert (status, len(err.splitlines())) == (1, 1)
    assert "orders-0" in err
    assert "--on-error skip continues after it" in err
    status, out, err = consume("orders", "--on-error", "skip")
    assert (status, offsets(out)) == (3, [(0, 2), (1, 0), (1, 1)])
    assert err.startswith("kbatch consume: orders-0: base offset 0: ")
    assert len(err.splitlines()) == 1


# -- groups


@pytest.fixture
def coordinated(monkeypatch: pytest.MonkeyPatch) -> GroupCluster:
    made = GroupCluster(orders=[partition([b"0", b"1"], [b"2"]), partition([b"3"])])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    return made


GROUP = ("orders", "--group", "etl", "--format", "value")


def test_a_group_commits_what_is_written_and_resumes_after_it(consume: Run, coordinated: GroupCluster) -> None:
    status, out, err = consume(*GROUP)
    assert (status, sorted(out.splitlines()), err) == (0, ["0", "1", "2", "3"], "")
    assert coordinated.committed() == {("orders", 0): 3, ("orders", 1): 1}
    assert not coordinated.group().members
    coordinated.topics["orders"][1].write([b"4"])
    assert consume(*GROUP) == (0, "4\n", "")


def test_a_setting_leaves_the_offsets_of_a_group(consume: Run, coordinated: GroupCluster) -> None:
    for _ in range(2):
        status, out, _ = consume(*GROUP, "--setting", "enable.auto.commit=false")
        assert (status, len(out.splitlines())) == (0, 4)
    assert coordinated.committed() == {}


def test_partitions_are_committed_without_a_membership(consume: Run, coordinated: GroupCluster) -> None:
    assert consume(*GROUP, "--partition", "0", "--offsets", "1:2") == (0, "1\n", "")
    assert coordinated.committed() == {("orders", 0): 2}
    assert coordinated.group().made == 0


def test_lines_that_could_not_be_written_are_not_committed(
    consume: Run, coordinated: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kbatch.cli.consume_lines.write_values", fail)
    status, _, err = consume(*GROUP)
    assert (status, err) == (1, "kbatch consume: No space left on device\n")
    assert set(coordinated.committed().values()) == {0}


# -- other processes


@pytest.fixture
def address(cluster: ScriptedCluster) -> Iterator[str]:
    with served(cluster) as found:
        yield found


def start(address: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kbatch", "consume", "--bootstrap-server", address, *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_within_a_second_after_a_signal(
    address: str, cluster: ScriptedCluster, number: signal.Signals
) -> None:
    with start(address, "orders", "--partition", "0", "--follow", "--tail", "1", "--format", "value") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"id": 2}\n'
        with cluster.lock:
            cluster.topics["orders"][0].write([b"later"])
        assert process.stdout.readline() == b"later\n"
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - began < SECONDS
        assert (process.returncode, out, err) == (130, b"", b"kbatch consume: interrupted\n")


def test_a_signal_leaves_whole_lines(address: str, cluster: ScriptedCluster) -> None:
    """The pipe is full when the signal arrives, so that a line is written in part."""
    with cluster.lock:
        for _ in range(10):
            cluster.topics["orders"][0].write([b"x" * 1000] * 500)
    with start(address, "orders") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out = first + process.stdout.read()
        assert process.wait(30) == 130
    assert out.endswith(b"\n")
    assert 5 < len(list(map(json.loads, out.splitlines()))) < 5000


def test_a_closed_pipe_ends_the_command_quietly(address: str, cluster: ScriptedCluster) -> None:
    with cluster.lock:
        cluster.topics["orders"][0].write([b"x" * 1000] * 300)
    with start(address, "orders", "--follow", "--offsets", "0:") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(30), process.stderr.read()) == (0, b"")


def on_terminal(address: str, out: Any, *arguments: str, seconds: float) -> str:
    """Return what a command writes to a terminal as standard error until Ctrl-C."""
    own, other = pty.openpty()
    with start(address, *arguments, stdout=out, stderr=other) as process:
        os.close(other)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        text = b""
        try:
            while data := os.read(own, 4096):
                text += data
        except OSError:
            # The end of a terminal.
            pass
        os.close(own)
    return text.decode()


def test_a_terminal_shows_rate_and_lag_only_while_the_lines_go_to_a_file(address: str, tmp_path: Path) -> None:
    arguments = ("orders", "--follow", "--offsets", "0:")
    with (tmp_path / "out").open("wb") as file:
        text = on_terminal(address, file, *arguments, seconds=3.0)
    assert "5 records, " in text
    assert "/s, 0 offsets behind" in text
    assert len((tmp_path / "out").read_bytes().splitlines()) == 5
    assert "record" not in on_terminal(address, subprocess.PIPE, *arguments, seconds=1.5)
