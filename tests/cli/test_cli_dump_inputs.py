"""``kbatch dump``: standard input, files of any name, topics, isolation levels and several keys."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from golden_logs import COMMITTED, LOGS
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main

TXN = LOGS / "txn-0"
SEGMENTS = sorted(TXN.glob("*.log"))


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``dump``, with bytes as standard input: exit status, lines, standard error."""

    def command(*arguments: object, stdin: bytes = b"") -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
        status = main(["dump", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return status, [json.loads(line) for line in captured.out.decode().splitlines()], captured.err.decode()

    return command


def without_place(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: line[name] for name in line if name not in ("topic", "partition", "file")} for line in lines]


# -- topics


def test_every_line_names_its_topic_and_partition(run: Any, tmp_path: Path) -> None:
    places = {(log.topic, log.partition) for log in kbatch.find_logs(LOGS)}
    for arguments in ([], ["--records", "--control"]):
        _, lines, _ = run(*arguments, LOGS)
        assert {(line["topic"], line["partition"]) for line in lines} == places
        assert all(f"{line['topic']}-{line['partition']}" == line["file"].split("/")[-2] for line in lines)
    for path in sorted(TXN.iterdir()):
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            _, lines, _ = run(path)
            assert {(line["topic"], line["partition"]) for line in lines} <= {("txn", 0)}
    data = bytearray(SEGMENTS[0].read_bytes())
    data[8] ^= 0xFF
    (tmp_path / SEGMENTS[0].name).write_bytes(data)
    status, lines, _ = run(tmp_path)
    assert status == 3
    assert "lost" in [line["status"] for line in lines]
    assert {(line["topic"], line["partition"]) for line in lines} == {(None, None)}


def test_topics_are_selected(run: Any) -> None:
    _, lines, _ = run("--topic", "txn", "--topic", "mixed", LOGS)
    assert {line["topic"] for line in lines} == {"txn", "mixed"}
    _, expected, _ = run(LOGS / "mixed-0", TXN)
    assert lines == expected
    _, lines, _ = run("--topic", "txn", TXN, LOGS / "mixed-0", SEGMENTS[0].with_suffix(".txnindex"))
    assert {line["topic"] for line in lines} == {"txn"}


def test_a_topic_that_does_not_exist_is_an_error(run: Any) -> None:
    for paths, message in (
        ([TXN], "no log of topic 'mixed', 'no-such'; the topics are txn"),
        ([TXN, LOGS / "mixed-0"], "no log of topic 'no-such'; the topics are mixed, txn"),
        ([SEGMENTS[0]], "no log of topic 'mixed', 'no-such'; the topics are txn"),
        (["-"], "no log of topic 'mixed', 'no-such'"),
        ([LOGS], "no log of topic 'no-such'; the topics are codec-gzip, codec-lz4, "),
    ):
        status, lines, err = run("--topic", "mixed", "--topic", "no-such", *paths)
        assert (status, lines) == (1, [])
        assert err.startswith(f"kbatch dump: {', '.join(map(str, paths))}: {message}")
        assert err.count("\n") == 1


# -- isolation


def test_read_committed_lists_what_a_consumer_gets(run: Any) -> None:
    """TXN-R1, LSO-R2: records of open transactions are withheld, which is reported and has its own exit status."""
    status, lines, err = run("--records", "--isolation", "read_committed", TXN)
    assert [line["offset"] for line in lines] == COMMITTED
    assert status == 4
    assert err == (
        f"kbatch dump: {TXN}: records from offset 362 on are withheld: "
        "2 open or undecided transactions (producer 1002, 1004)\n"
    )
    _, last, _ = run("--tail", 5, "--isolation", "read_committed", TXN)
    assert last == lines[-5:]
    status, part, err = run("--records", "--isolation", "read_committed", "--offsets", ":300", TXN)
    assert part == [line for line in lines if line["offset"] < 300]
    assert (status, err) == (0, "")
    data = b"".join(path.read_bytes() for path in SEGMENTS)
    status, piped, err = run("--records", "--isolation", "read_committed", "-", stdin=data)
    assert [line["offset"] for line in piped] == COMMITTED
    assert status == 4
    assert err.startswith("kbatch dump: -: records from offset 362 on are withheld: 2 open")


def test_read_committed_omits_batches_of_aborted_and_open_transactions(run: Any) -> None:
    _, everything, _ = run(TXN)
    _, lines, _ = run("--isolation", "read_committed", TXN)
    assert lines
    assert {line["status"] for line in lines} == {"ok"}
    listed = {line["position"] for line in lines if not line["control"] and line["file"] == str(SEGMENTS[0])}
    _, records, _ = run("--records", "--isolation", "read_committed", SEGMENTS[0].parent)
    assert listed == {line["position"] for line in records if line["file"] == str(SEGMENTS[0])}
    assert listed < {line["position"] for line in everything if not line["control"]}


def test_offsets_that_read_committed_omits_are_not_reported_as_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--format", "kafka", "--records", "--isolation", "read_committed", str(TXN)]) == 4
    captured = capsys.readouterr()
    shown = [int(line.split()[2]) for line in captured.out.splitlines() if line.startswith("|")]
    control = [o for table in kbatch.Log(TXN).tables(include_control=True) for o in table.records["offset"].tolist()]
    assert set(COMMITTED) <= set(shown) <= set(control)
    assert "Non-consecutive" not in captured.err


# -- keys


def test_records_with_any_of_several_keys_are_listed_in_log_order(run: Any) -> None:
    _, everything, _ = run("--records", TXN)
    keys = ["key-3", "hex:6b65792d3130", "no such key", "key-3"]
    _, lines, _ = run("--records", *(text for key in keys for text in ("--key", key)), TXN)
    assert lines == [line for line in everything if line["key"] in ("key-3", "key-10")]
    assert len({line["key"] for line in lines}) == 2
    _, last, _ = run("--tail", 4, "--key", "key-3", "--key", "key-10", TXN)
    assert last == lines[-4:]


# -- files


@pytest.mark.parametrize("name", ["orders.bin", "segment", "00000000000000000000.log.deleted", "a.kafka", "x.log.bak"])
def test_a_segment_may_have_any_file_name(name: str, run: Any, tmp_path: Path) -> None:
    (tmp_path / "orders-3").mkdir()
    path = tmp_path / "orders-3" / name
    shutil.copyfile(SEGMENTS[1], path)
    for arguments in (
        [],
        ["--records"],
        ["--offsets", "200:203"],
        ["--tail", "3"],
        ["--times", "2023-11-14T22:13:45:"],
    ):
        status, lines, err = run(*arguments, path)
        _, expected, _ = run(*arguments, SEGMENTS[1])
        assert (status, without_place(lines)) == (0, without_place(expected))
        assert lines
        assert {(line["topic"], line["partition"], line["file"]) for line in lines} == {("orders", 3, str(path))}
    # Its last batch may have been incomplete when it was copied.
    path.write_bytes(SEGMENTS[1].read_bytes()[:-10])
    status, _, err = run(path)
    assert status == 0
    assert "bytes of an incomplete batch" in err


@pytest.mark.parametrize("command", ["verify", "stats"])
def test_other_commands_read_a_segment_of_any_file_name(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(SEGMENTS[1], tmp_path / "segment")
    assert main([command, str(tmp_path / "segment")]) == 0
    assert "segment" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "look"),
    [
        (b"\x1f\x8b\x08\x00" + bytes(90), "a gzip file; decompress it first"),
        (b"version=0\n", "text"),
        (b"PAR1" * 9, "a Parquet"),
    ],
)
def test_another_kind_of_file_is_named(data: bytes, look: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_bytes(data)
    for arguments in ([path], ["-"]):
        status, lines, err = run(*arguments, stdin=data)
        assert (status, lines) == (1, [])
        assert err.startswith(f"kbatch dump: {arguments[0]}: not a Kafka log: the bytes look like {look}")


# -- standard input


@pytest.mark.parametrize("name", ["txn-0", "magic0-0", "mixed-0", "codec-zstd-0", "kraft-control-0"])
@pytest.mark.parametrize("arguments", [[], ["--records"], ["--records", "--control", "--offsets", "2:40"]])
def test_standard_input_is_listed_like_a_file(name: str, arguments: list[str], run: Any, tmp_path: Path) -> None:
    data = b"".join(path.read_bytes() for path in sorted((LOGS / name).glob("*.log")))
    path = tmp_path / "all"
    path.write_bytes(data)
    status, lines, err = run(*arguments, "-", stdin=data)
    assert (status, err) == (0, "")
    _, expected, _ = run(*arguments, path)
    assert without_place(lines) == without_place(expected)
    assert {(line["topic"], line["partition"], line["file"]) for line in lines} <= {(None, None, "-")}


def test_kafkas_format_of_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--format", "kafka", "--print-data-log", str(SEGMENTS[0])]) == 0
    expected = capsys.readouterr().out.splitlines()[2:]
    command = [sys.executable, "-m", "kbatch", "dump", "--format", "kafka", "--print-data-log", "-"]
    done = subprocess.run(command, input=SEGMENTS[0].read_bytes(), capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().splitlines() == ["Dumping -", *expected]


def test_damage_in_standard_input_is_reported_and_an_incomplete_end_is_not_damage(run: Any) -> None:
    """CLI-R2, CLI-R3, DSK-R14."""
    data = bytearray(SEGMENTS[1].read_bytes())
    status, lines, err = run("-", stdin=bytes(data[:-10]))
    assert status == 0
    assert err.startswith(f"kbatch dump: -: byte {lines[-1]['position'] + lines[-1]['size']}: ")
    assert err.endswith(" bytes of an incomplete batch\n")
    data[3000] ^= 1
    status, lines, err = run("-", stdin=bytes(data))
    assert status == 3
    assert [line["position"] for line in lines if line["status"] == "bad_crc"] == [2966]
    assert err.startswith("kbatch dump: -: byte 2966: base offset 232: ")


def test_an_empty_standard_input_lists_nothing(run: Any) -> None:
    assert run("-") == (0, [], "")


def test_standard_input_has_no_end_to_count_from(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--tail", "3", "-"], "--tail and negative offsets need the end of a log"),
        (["--offsets", "-3:", "-"], "--tail and negative offsets need the end of a log"),
        (["-", str(TXN), "-"], "standard input (-) can be read only once"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["dump", *arguments])
        assert f"kbatch dump: error: {message}" in capsys.readouterr().err


def test_only_dump_reads_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "stats"):
        assert main([command, "-"]) == 1
        assert (
            capsys.readouterr().err == f"kbatch {command}: -: only `kbatch dump` reads standard input; ./- is a file\n"
        )


def test_a_closed_standard_input_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["dump", "-"]) == 1
    assert capsys.readouterr().err == "kbatch dump: -: standard input is closed\n"


class FailingFile(io.RawIOBase):
    """A file whose second read fails."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.data:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        buffer[: len(self.data)] = self.data
        size, self.data = len(self.data), b""
        return size


def test_a_read_error_names_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for data, listed in ((b"", 0), (batch(0, [1]), 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(FailingFile(data))))
        assert main(["dump", "-"]) == 1
        captured = capsys.readouterr()
        assert captured.err == "kbatch dump: standard input: Input/output error\n"
        assert len(captured.out.splitlines()) == listed


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_write_error_does_not_name_standard_input() -> None:
    command = f"exec {sys.executable} -m kbatch dump - < {SEGMENTS[0]} > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "kbatch dump: No space left on device\n")


def test_protocol_messages_are_read_from_standard_input(run: Any, golden: Path) -> None:
    requests, responses = (golden / "protocol" / f"librdkafka-4.{name}" for name in ("requests", "responses"))
    _, expected, _ = run("--protocol", requests, responses)
    status, lines, _ = run("--protocol", "-", responses, stdin=requests.read_bytes())
    assert status == 0
    assert [{**line, "file": ""} for line in lines] == [{**line, "file": ""} for line in expected]


def test_a_file_that_is_neither_a_capture_nor_messages_is_named_as_such(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "o.snoop"
    path.write_bytes(b"snoop\0\0\0" + bytes(100))
    status, lines, errors = run("--protocol", path)
    assert (status, lines) == (3, [])
    assert errors.startswith(f"kbatch dump: {path}: the file does not begin with a message of Kafka's protocol")
    assert errors.endswith("convert captures of other formats with editcap -F pcapng IN OUT\n")


def test_batches_of_a_pipe_are_listed_as_they_arrive() -> None:
    command = [sys.executable, "-m", "kbatch", "dump", "--records", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for offset in range(3):
            process.stdin.write(batch(offset, [1]))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["offset"] == offset
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0
        watchdog.cancel()


def test_standard_input_takes_bounded_memory(tmp_path: Path) -> None:
    """The process grows by less than the size of the stream, 64 MiB."""
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [1], value=os.urandom(1 << 20)) for i in range(64)])
    code = (
        "import resource, sys; from kbatch.cli import main; import kbatch.cli.dump\n"
        "main(['dump', '--max-records', '0', sys.argv[1]])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "status = main(['dump', '-', '--offsets', '63:'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    with path.open("rb") as file:
        command = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert int(done.stderr) < 48 << 10
