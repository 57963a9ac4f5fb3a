"""``kbatch dump``: Kafka's own text byte for byte, JSON lines, filters, pipes and damage."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from golden_logs import GOLDEN
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main
from kbatch.cli.selection_flags import parse_offsets, parse_times
from kbatch.cli.shown import json_bytes, plain_text
from kbatch.options import parse_bytes

LOGS = GOLDEN / "logs"
DUMPS = sorted(path for path in (GOLDEN / "dump").glob("*-0/*") if not path.name.endswith(".err"))


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Run a command in this process: status, standard output, standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status = main(list(map(str, arguments)))
        captured = capfdbinary.readouterr()
        return status, captured.out.decode(), captured.err.decode()

    return command


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def damaged(tmp_path: Path, name: str, segment: int, position: int, bit: int = 1) -> Path:
    """Copy a log and flip a bit of one of its segments."""
    directory = tmp_path / name
    shutil.copytree(LOGS / name, directory, copy_function=shutil.copyfile)
    path = sorted(directory.glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)
    return path


# -- Kafka's format


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_output_equals_kafkas_byte_for_byte(path: Path, run: Any) -> None:
    """DMP-1 to DMP-6, CLI-R1; the only difference is the exception of Kafka's tool at a preallocated end."""
    packed = path.suffix == ".gz"
    stem, kind = path.name.removesuffix(".gz").rsplit(".", 1)
    expected = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    data = ["--print-data-log"] if kind == "records" else []
    status, out, _ = run("dump", "--format", "kafka", *data, LOGS / path.parent.name / stem)
    out = out.replace(f"{LOGS}/", "")
    if path.parent.name == "prealloc-0":
        # Kafka's last line has no line break there: its tool fails while it writes the line.
        expected = expected.rstrip("\n") + f"\nFound 65139 invalid bytes at the end of {stem}\n"
    assert out == expected
    assert status == 0


def test_records_without_data_and_gaps_are_listed_like_kafka(run: Any) -> None:
    """DMP-4, DMP-7: `--records` is --deep-iteration."""
    name = "compact-pass1-0"
    expected = (GOLDEN / "dump" / name / f"{0:020d}.log.records").read_text()
    status, out, err = run("dump", "--format", "kafka", "--records", LOGS / name / f"{0:020d}.log")
    assert status == 0
    assert [line.partition(" key: ")[0].partition(" payload: ")[0] for line in expected.splitlines()[2:]] == (
        out.splitlines()[2:]
    )
    kafka = (GOLDEN / "dump" / name / f"{0:020d}.log.err").read_text().splitlines()
    ours = err.splitlines()
    assert ours[0].endswith(kafka[0].removeprefix("Non-consecutive offsets in "))
    assert sorted(ours[1:]) == sorted(kafka[1:])


def test_a_directory_lists_its_segments_in_order(run: Any) -> None:
    """A topic-partition directory is its segments in order, a log directory its topic-partitions."""
    log = LOGS / "txn-0"
    apart = "".join(run("dump", "--format", "kafka", path)[1] for path in sorted(log.glob("*.log")))
    assert run("dump", "--format", "kafka", log)[1] == apart
    _, out, _ = run("dump", LOGS)
    files = list(dict.fromkeys(line["file"] for line in lines(out)))
    assert files == [segment.path for each in kbatch.find_logs(LOGS) for segment in each.segments]


def test_binary_data_is_base64_in_kafka_text(run: Any, tmp_path: Path) -> None:
    """Bytes that are not text, or contain a line break, are base64; tabs are text."""
    values = [b"\x00\xff", "é\t".encode(), b"two\nlines"]
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [1], value=value) for i, value in enumerate(values)])
    _, out, _ = run("dump", "--format", "kafka", "--print-data-log", path)
    assert [line.partition("payload: ")[2] for line in out.splitlines() if line.startswith("|")] == [
        "base64:AP8=", "é\t", "base64:dHdvCmxpbmVz",
    ]  # fmt: skip


# -- JSON


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_records_equal_the_log(name: str, run: Any) -> None:
    """CTL-R5: with `--control` all records are listed, without it only application records."""

    def back(shown: Any) -> bytes | None:
        if shown is None:
            return None
        return base64.b64decode(shown["base64"]) if isinstance(shown, dict) else shown.encode()

    for control in (False, True):
        status, out, _ = run("dump", "--records", *(["--control"] if control else []), LOGS / name)
        assert status == 0
        reported = iter(lines(out))
        for table in kbatch.Log(LOGS / name).tables(include_control=control):
            headers: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(len(table))]
            for row in table.headers:
                key = table.data[row["key_pos"] : row["key_pos"] + row["key_len"]].tobytes()
                at, size = row["value_pos"], row["value_len"]
                headers[row["record"]].append((key, None if size < 0 else table.data[at : at + size].tobytes()))
            for row, key_, value, pairs in zip(table.records, table.keys(), table.values(), headers, strict=True):
                line = next(reported)
                assert line["offset"] == row["offset"]
                assert line["timestamp"] == (None if row["timestamp"] == -1 else row["timestamp"])
                assert (back(line["key"]), back(line["value"])) == (key_, value)
                assert [(back(key), back(value)) for key, value in line["headers"]] == pairs
                assert line["position"] == table.batches["position"][row["batch"]]
                assert ("control" in line) == bool(
                    control and table.batches["magic"][row["batch"]] == 2
                    and table.batches["attributes"][row["batch"]] & 0x20
                )  # fmt: skip
        assert next(reported, None) is None


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_batches_equal_those_of_kafka(name: str, run: Any) -> None:
    status, out, _ = run("dump", LOGS / name)
    assert status == 0
    shown = lines(out)
    truth = []
    for path in sorted((LOGS / name).glob("*.expected.jsonl")):
        truth += [row for row in map(json.loads, path.read_text().splitlines()) if "magic" in row]
    assert [line["position"] for line in shown] == [row["position"] for row in truth]
    for line, row in zip(shown, truth, strict=True):
        assert (line["magic"], line["size"], line["count"]) == (row["magic"], row["size"], row["records"])
        assert line["last_offset"] == row["lastOffset"]
        if row["magic"] == 2:
            assert line["base_offset"] == row["baseOffset"]
        else:
            assert line["last_offset"] - line["base_offset"] + 1 == line["count"]
        assert line["status"] == "ok"


def test_a_batch_is_listed_with_all_fields(run: Any) -> None:
    _, out, _ = run("dump", "--offsets", "5", LOGS / "txn-0")
    assert lines(out) == [
        {
            "topic": "txn", "partition": 0, "file": str(LOGS / "txn-0" / f"{0:020d}.log"), "position": 363,
            "size": 147, "magic": 2, "base_offset": 5, "last_offset": 6,
            "count": 2, "codec": "none", "crc": 788558297, "status": "ok",
            "timestamp_type": "CreateTime", "base_timestamp": 1700000001000, "max_timestamp": 1700000001001,
            "transactional": True, "control": False, "delete_horizon_ms": None, "producer_id": 1002,
            "producer_epoch": 3, "base_sequence": 0, "last_sequence": 1, "partition_leader_epoch": 0,
        }
    ]  # fmt: skip


def test_control_records_are_decoded(run: Any) -> None:
    """CTL-R1 to CTL-R3, CTL-R7."""
    _, out, _ = run("dump", "--records", "--control", "--offsets", "14", LOGS / "txn-0")
    assert [line["control"] for line in lines(out)] == [{"type": "COMMIT", "version": 0, "coordinatorEpoch": 7}]
    _, out, _ = run("dump", "--records", "--control", LOGS / "kraft-control-0")
    assert [line["control"]["type"] for line in lines(out)] == [
        "LEADER_CHANGE", "SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS", "SNAPSHOT_FOOTER",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "size", "shown"),
    [
        (None, -1, None),
        (b"", -1, ""),
        (b'a"\\\n\t', -1, 'a"\\\n\t'),
        ("é\u2028€".encode(), -1, "é\u2028€"),
        (b"\xff", -1, {"base64": "/w=="}),
        (b"a\x00", -1, {"base64": "YQA="}),
        (b"\x7f", -1, {"base64": "fw=="}),
        (b"\xc2\x85", -1, {"base64": "woU="}),
        (b"abc", 5, {"text": "abc", "size": 5}),
        (b"abc", 3, "abc"),
        ("aé".encode()[:2], 3, {"text": "a", "size": 3}),
        (b"\xff\xff", 3, {"base64": "//8=", "size": 3}),
        (b'{"base64": "AA=="}', -1, '{"base64": "AA=="}'),
    ],
)
def test_bytes_in_json_have_an_encoding(data: bytes | None, size: int, shown: Any) -> None:
    assert json.loads(json_bytes(data, size)) == shown


def test_only_tabs_count_as_plain_text() -> None:
    assert [plain_text(data) for data in (b"a\tb", b"a\r", b"\x1b[2J")] == ["a\tb", "base64:YQ0=", "base64:G1sySg=="]


def test_large_values_are_complete_unless_limited(run: Any, tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, [batch(0, [1], value=b"x" * 3_000_000), batch(1, [1], value=b"\xff" * 9)])
    _, out, _ = run("dump", "--records", path)
    assert len(lines(out)[0]["value"]) == 3_000_000
    _, out, _ = run("dump", "--records", "--max-bytes-shown", "4", path)
    assert [line["value"] for line in lines(out)] == [
        {"text": "xxxx", "size": 3_000_000},
        {"base64": "/////w==", "size": 9},
    ]


def test_index_files_are_listed_as_json(run: Any) -> None:
    """DSK-R2, DSK-R3, TXI-R1, DSK-R6."""
    directory = LOGS / "txn-0"
    for suffix, first in (
        (".index", {"offset": 203, "position": 1091}),
        (".timeindex", {"timestamp": 1700000024001, "offset": 201}),
    ):
        _, out, _ = run("dump", directory / f"{186:020d}{suffix}")
        assert {key: lines(out)[0][key] for key in first} == first
    _, out, _ = run("dump", directory / f"{0:020d}.txnindex", directory / f"{186:020d}.snapshot")
    shown = lines(out)
    assert (shown[0]["producer_id"], shown[0]["first_offset"], shown[0]["last_offset"]) == (1001, 15, 30)
    assert [line["producer_id"] for line in shown[6:]] == [
        int(line.split()[1])
        for line in (GOLDEN / "dump/txn-0" / f"{186:020d}.snapshot.entries").read_text().splitlines()[1:]
    ]


# -- filters


def offsets(text: str) -> list[int]:
    return [line["offset"] for line in lines(text)]


def test_filters_select_the_records_of_a_full_scan(run: Any) -> None:
    path = LOGS / "txn-0"
    _, out, _ = run("dump", "--records", "--control", path)
    everything = lines(out)
    _, out, _ = run("dump", path)
    producers = {line["base_offset"]: line["producer_id"] for line in lines(out)}
    base = sorted(producers)

    def producer(offset: int) -> int | None:
        return producers[max(first for first in base if first <= offset)]

    for arguments, expected in (
        (["--offsets", "100:203"], lambda line: 100 <= line["offset"] < 203),
        (["--offsets", ":3"], lambda line: line["offset"] < 3),
        (["--offsets", "360:"], lambda line: line["offset"] >= 360),
        (["--times", "1700000020000:1700000030000"], lambda line: 1700000020000 <= line["timestamp"] < 1700000030000),
        (["--times", "2023-11-14T22:13:50Z:"], lambda line: line["timestamp"] >= 1700000030000),
        (["--key", "key-3"], lambda line: line["key"] == "key-3"),
        (["--key", "hex:6b65792d33"], lambda line: line["key"] == "key-3"),
        (["--producer", "1002"], lambda line: producer(line["offset"]) == 1002),
        (
            ["--producer", "1002", "--key", "key-3", "--offsets", "50:"],
            lambda line: producer(line["offset"]) == 1002 and line["key"] == "key-3" and line["offset"] >= 50,
        ),
        (["--key", "no such key"], lambda line: False),
    ):
        status, out, err = run("dump", "--records", "--control", *arguments, path)
        assert (status, err) == (0, "")
        assert lines(out) == [line for line in everything if expected(line)], arguments
        chosen = {line["position"] for line in everything if expected(line)}
        _, out, _ = run("dump", *arguments, path)
        assert {line["position"] for line in lines(out)} == chosen
        _, out, _ = run("dump", "--format", "kafka", "--records", *arguments, path)
        shown = [int(line.split()[2]) for line in out.splitlines() if line.startswith("|")]
        assert shown == [line["offset"] for line in everything if expected(line)]


@pytest.mark.parametrize("limit", [0, 1, 7, 1000])
def test_max_records_limits_the_listing(limit: int, run: Any) -> None:
    path = LOGS / "txn-0"
    _, everything, _ = run("dump", "--records", path)
    _, out, _ = run("dump", "--records", "--max-records", limit, path)
    assert out.splitlines() == everything.splitlines()[:limit]
    _, everything, _ = run("dump", path)
    _, out, _ = run("dump", "--max-records", limit, path)
    assert out.splitlines() == everything.splitlines()[:limit]
    _, out, _ = run("dump", "--format", "kafka", "--records", "--max-records", limit, path)
    assert sum(line.startswith("|") for line in out.splitlines()) == min(limit, 371)


def test_arguments_are_parsed() -> None:
    assert parse_offsets("1:2") == (1, 2)
    assert parse_times("2023-11-14:2023-11-15") == (1699920000000, 1700006400000)
    assert parse_times("2023-11-14T22:13:20:2023-11-14T22:13:21") == (1700000000000, 1700000001000)
    assert parse_times(":2023-11-14T23:13:20.5+01:00") == (None, 1700000000500)
    assert parse_bytes("base64:AP8=") == b"\x00\xff"
    assert parse_bytes("schlüssel") == "schlüssel".encode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--offsets", "a:b"], ["--offsets", ":"], ["--times", "2023-11-14"], ["--times", "yesterday:"],
        ["--times", ":"],
        ["--key", "hex:0"], ["--key", "base64:?"], ["--producer", "x"], ["--max-records", "-1"], ["--format", "xml"],
        ["--max-bytes-shown", "many"],
    ],
)  # fmt: skip
def test_wrong_arguments_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["dump", *arguments, str(LOGS / "txn-0")])
    assert done.value.code == 2
    assert "usage: kbatch dump" in capsys.readouterr().err


# -- damage


@pytest.mark.parametrize("how", [[], ["--records"], ["--format", "kafka"], ["--format", "kafka", "--records"]])
def test_a_bad_batch_is_reported_and_the_others_are_listed(how: list[str], run: Any, tmp_path: Path) -> None:
    """CLI-R2, CLI-R3, CRC-R4."""
    path = damaged(tmp_path, "txn-0", 1, 3000)
    _, whole, _ = run("dump", *how, LOGS / "txn-0")
    status, out, err = run("dump", *how, path.parent)
    assert status == 3
    shown = [line for line in err.splitlines() if line.startswith("kbatch dump: ") and "Non-consecutive" not in line]
    assert len(shown) == 1
    assert shown[0].startswith(f"kbatch dump: {path}: byte 2966: base offset 232: ")
    whole_lines, out_lines = whole.replace(str(LOGS), str(tmp_path)).splitlines(), out.splitlines()
    if "kafka" in how:
        differ = [(a, b) for a, b in zip(whole_lines, out_lines, strict=False) if a != b and a.startswith("base")]
        assert all("isvalid: false" in b for _, b in differ[:1])
        assert sum("isvalid: false" in line for line in out_lines) == 1
        assert len([a for a in out_lines if a.startswith("base")]) == 165
    elif how:
        bad = [line for line in whole_lines if json.loads(line)["offset"] in (232, 233)]
        assert out_lines == [line for line in whole_lines if line not in bad]
    else:
        bad_lines = [b for b in out_lines if b not in whole_lines]
        assert len(out_lines) == len(whole_lines)
        assert [(json.loads(line)["position"], json.loads(line)["status"]) for line in bad_lines] == [(2966, "bad_crc")]
        assert "0xdeb08f87" in json.loads(bad_lines[0])["error"]


def test_framing_damage_is_reported_in_a_line(run: Any, tmp_path: Path) -> None:
    """FRM-R2: an impossible length loses the bytes up to the next complete batch."""
    path = damaged(tmp_path, "txn-0", 1, 2966 + 8, 0xFF)
    status, out, err = run("dump", path.parent)
    assert status == 3
    lost = [line for line in lines(out) if line["status"] != "ok"]
    assert [(line["position"], line["size"], line["status"]) for line in lost] == [(2966, 119, "lost")]
    positions = [line["position"] for line in lines(out) if line["file"] == str(path)]
    assert positions == sorted(positions)
    assert "byte 2966" in err
    assert err.count("\n") == 1


def test_any_flipped_bit_keeps_the_listing_valid(run: Any, tmp_path: Path) -> None:
    """With any bit flipped, every listing exits with 0 or 3, and every line is JSON."""
    for name in ("txn-0", "mixed-0", "kraft-control-0"):
        size = (LOGS / name / f"{0:020d}.log").stat().st_size
        for position in range(0, min(size, 1200), 41):
            path = damaged(tmp_path / f"{name}{position}", name, 0, position, 1 << position % 8)
            for how in ([], ["--records", "--control"], ["--format", "kafka", "--print-data-log"]):
                status, out, err = run("dump", *how, path)
                assert status in (0, 3), (name, position, how, err)
                assert "Traceback" not in err
                if "kafka" not in how:
                    lines(out)


def test_incomplete_and_preallocated_ends_are_not_damage(run: Any, tmp_path: Path) -> None:
    """CLI-R2, DSK-R14: in the last segment, an incomplete batch or zeros at the end are not damage."""
    one = batch(0, [1, 2, 3])
    last = write_segment(tmp_path / "t-0", 10, [batch(10, [1])], tail=one[:50])
    status, out, err = run("dump", last.parent)
    assert (status, len(lines(out))) == (0, 1)
    assert "byte 73: 50 bytes of an incomplete batch" in err
    _, out, _ = run("dump", "--format", "kafka", last)
    assert out.splitlines()[-1] == f"Found 50 invalid bytes at the end of {last.name}"
    first = write_segment(tmp_path / "t-0", 0, [one], tail=one[:50])
    for path in (first, first.parent):
        status, out, err = run("dump", path)
        assert status == 3, path
        assert f"{first}: byte {len(one)}: " in err


def test_a_damaged_snapshot_is_reported(run: Any, tmp_path: Path) -> None:
    """DSK-R6; the other paths are listed too."""
    path = tmp_path / f"{186:020d}.snapshot"
    data = bytearray((LOGS / "txn-0" / path.name).read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    status, out, err = run("dump", path, LOGS / "txn-0" / f"{186:020d}.index")
    assert status == 3
    assert "stored checksum is" in err
    assert len(lines(out)) == 5


def test_empty_and_preallocated_indexes_have_no_entries(run: Any, tmp_path: Path) -> None:
    """DSK-R4."""
    path = tmp_path / f"{186:020d}.index"
    path.write_bytes(b"")
    assert run("dump", path) == (0, "", "")
    assert run("dump", "--format", "kafka", path)[1] == f"Dumping {path}\n{path} is empty.\n"
    data = (LOGS / "txn-0" / path.name).read_bytes()
    path.write_bytes(data + bytes(10 << 10))
    assert len(lines(run("dump", path)[1])) == len(data) // 8


def test_snapshots_of_metadata_are_listed_like_logs(run: Any, tmp_path: Path) -> None:
    """DMP-1 of a KRaft snapshot."""
    path = tmp_path / f"{7:020d}-{3:010d}.checkpoint"
    shutil.copyfile(LOGS / "kraft-control-0" / f"{0:020d}.log", path)
    status, out, _ = run("dump", "--format", "kafka", path)
    assert status == 0
    assert out.splitlines()[1] == "Snapshot end offset: 7, epoch: 3"
    assert len(out.splitlines()) == 7


# -- as a program


def test_wrong_paths_are_errors_of_one_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no log")
    (tmp_path / "x.index").write_text("")
    for command in ("dump", "verify", "stats"):
        for path, message in (
            ("missing", "missing: no such file or directory"),
            ("empty", "empty: no topic-partition directory"),
            ("notes.txt", "notes.txt: not a Kafka log: the bytes look like text"),
            ("x.index", "x.index: "),
        ):
            status, out, err = run(command, tmp_path / path)
            assert (status, out) == (1, "")
            assert message in err
            assert err.startswith(f"kbatch {command}: ")
            assert err.count("\n") == 1


def test_a_closed_pipe_is_not_an_error() -> None:
    """A reader that closes the pipe after the first line causes no error."""
    command = f"{sys.executable} -m kbatch dump --records {LOGS} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines(done.stdout)) == 1


def test_dump_imports_few_modules_and_help_has_examples() -> None:
    code = (
        "import sys; from kbatch.cli import main\n"
        f"main(['dump', {str(LOGS / 'txn-0')!r}]); main(['verify', {str(LOGS / 'txn-0')!r}])\n"
        f"main(['stats', {str(LOGS / 'txn-0')!r}])\n"
        "print([m for m in ('pyarrow', 'pandas', 'pyspark', 'polars') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    done = subprocess.run([sys.executable, "-m", "kbatch", "dump", "--help"], capture_output=True, text=True)
    assert "examples:" in done.stdout
    assert '{"base64": "..."}' in done.stdout
