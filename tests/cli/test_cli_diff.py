"""`kbatch diff`: exit statuses as of `diff`, the text of differences, JSON, damage and wrong usage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from log_batches import segment_path, write_segment

import kbatch
from kbatch.cli import main

KEYS = [b"a", b"b", b"c", b"a"]


def write(directory: Path, values: list[bytes | None], *, base_offset: int = 0, **columns: Any) -> Path:
    columns = {"keys": KEYS, "timestamps": [1_700_000_000_000 + n for n in range(len(values))]} | columns
    write_segment(directory, base_offset, [kbatch.encode(values, base_offset=base_offset, **columns)])
    return directory


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """Two directories: t-0 is equal, t-1 differs in two records, t-2 and u-0 are on one side only."""
    for side in ("a", "b"):
        write(tmp_path / side / "t-0", [b"1", b"2", b"3", b"4"])
    write(tmp_path / "a/t-1", [b"1", b"2", b"3", b"4"])
    write(tmp_path / "b/t-1", [b"1", b"\x00" * 300, b"3"], keys=KEYS[:3])
    write(tmp_path / "a/t-2", [b"1", b"2", b"3", b"4"])
    write(tmp_path / "b/u-0", [b"1", b"2", b"3", b"4"])
    return str(tmp_path / "a"), str(tmp_path / "b")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["diff", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_directories_as_text(sides: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *sides, "--max-bytes-shown", "3")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "t-0: equal: 4 records",
        "t-1: different: 4 records in A and 3 records in B",
        "  2 records equal, 1 different (value 1), 1 only in A, 0 only in B",
        "  first difference: offset 1: value",
        '    A  value      "2"',
        '    B  value      {"base64": "AAAA", "size": 300}',
        "t-2: only in A: 4 records in A",
        "u-0: only in B: 4 records in B",
        "different: 3 of 4 topic-partitions",
    ]


def test_equal_logs_have_status_0(sides: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, f"{sides[0]}/t-0", f"{sides[1]}/t-0") == (0, "t-0: equal: 4 records\n", "")
    segments = [str(segment_path(Path(side) / "t-0", 0)) for side in sides]
    assert run(capsys, *segments)[0] == 0
    status, out, _ = run(capsys, sides[0], sides[0])
    assert (status, out.splitlines()[-1]) == (0, "equal: 3 topic-partitions")


def test_a_record_on_one_side_is_shown_with_all_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headers = [[(b"h", b"%d" % n) for n in range(10)]]
    a = write(tmp_path / "t-0", [None], keys=[b"\x1b"], headers=headers)
    b = tmp_path / "b/t-0"
    write_segment(b, 0, [])
    status, out, _ = run(capsys, str(a), str(b))
    shown = ", ".join(f'["h", "{n}"]' for n in range(8))
    assert (status, out.splitlines()[2:]) == (
        1,
        [
            "  first difference: offset 0: only in A",
            "    A  timestamp  1700000000000 (2023-11-14 22:13:20.000Z)",
            '    A  key        {"base64": "Gw=="}',
            "    A  value      null",
            f"    A  headers    [{shown}, ... 2 more headers]",
        ],
    )


def test_order_and_key_ignore_offsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(write(tmp_path / "a/t-0", [b"1", b"2", b"3", b"4"]))
    b = str(write(tmp_path / "b/eu.t-0", [b"1", b"2", b"3", b"4"], base_offset=70))
    assert run(capsys, a, b)[0] == 1
    assert run(capsys, a, b, "--match", "order")[:2] == (0, "t-0: equal: 4 records\n")
    status, out, _ = run(capsys, a, b, "--match", "key")
    assert (status, out) == (0, "t-0: equal: 3 keys of 4 records in A and 4 records in B\n")
    c = str(write(tmp_path / "c/t-0", [b"1", b"x", b"3"], base_offset=70, keys=[b"a", b"b", None]))
    status, out, _ = run(capsys, a, c, "--match", "order")
    assert "  first difference: record 1 (offset 1 in A and offset 71 in B): value" in out.splitlines()
    status, out, _ = run(capsys, a, c, "--match", "key")
    assert status == 1
    assert out.splitlines()[1:] == [
        "  0 keys equal, 2 different (timestamp 1, value 2), 1 only in A, 0 only in B",
        '  first difference: offset 1 in A and offset 71 in B, key "b": value',
        '    A  value      "2"',
        '    B  value      "x"',
        "  B: 1 record without a key, not compared",
    ]


def test_json_has_counts_and_the_first_difference(sides: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *sides, "--json", "--max-bytes-shown", "3")
    found = json.loads(out)
    logs = {each["name"]: each for each in found.pop("logs")}
    assert found == {"command": "diff", "exit_status": 1, "damaged": False, "equal": False, "match": "offset"}
    assert status == 1
    assert [each["equal"] for each in logs.values()] == [True, False, False, False]
    one = logs["t-1"]
    assert [one[name] for name in ("matching", "different", "only_a", "only_b", "fields")] == [2, 1, 1, 0, {"value": 1}]
    record = {"offset": 1, "timestamp": 1_700_000_000_001, "key": "b", "value": "2", "headers": []}
    assert one["first"] == {
        "row": None,
        "fields": ["value"],
        "a": record,
        "b": record | {"value": {"base64": "AAAA", "size": 300}},
    }
    assert (logs["t-2"]["b"], logs["u-0"]["a"]) == (None, None)
    assert logs["u-0"]["b"]["records"] == 4


def test_ranges_and_isolation(sides: tuple[str, str], golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [f"{side}/t-1" for side in sides]
    assert run(capsys, *logs, "--offsets", ":1")[:2] == (0, "t-1: equal: 1 record\n")
    assert run(capsys, *logs, "--times", "1700000000002:1700000000003")[:2] == (0, "t-1: equal: 1 record\n")
    txn = str(golden / "logs" / "txn-0")
    committed = sum(map(len, kbatch.Log(txn).tables(isolation="read_committed")))
    status, out, _ = run(capsys, txn, txn, "--isolation", "read_committed")
    lines = out.splitlines()
    assert (status, lines[0]) == (0, f"txn-0: equal: {committed} records")
    for name, notes in (("A", lines[1:4]), ("B", lines[4:])):
        control, still_open, withheld = notes
        assert control == f"  {name}: 34 control records, not compared"
        assert still_open.startswith(f"  {name}: 2 open transactions (producer 1002 from offset 362 since ")
        assert withheld == f"  {name}: records of 2 open or undecided transactions are withheld"


@pytest.mark.parametrize("on_json", [False, True])
def test_damage_has_status_2_even_if_the_rest_is_equal(
    on_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = [kbatch.encode([b"v"], timestamps=1, base_offset=n) for n in range(3)]
    path = write_segment(tmp_path / "a/t-0", 0, batches)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    arguments = [str(tmp_path / "a/t-0"), str(tmp_path / "b/t-0"), *(["--json"] if on_json else [])]
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"kbatch diff: {path}, byte ")
    status, out, err = run(capsys, *arguments, "--on-error", "skip")
    position, size = len(batches[0]) * 2, len(batches[0])
    assert status == 2
    first, second = err.splitlines()
    assert first.startswith(f"kbatch diff: A: skipped: {path}, byte {position}, {size:,} bytes: ")
    assert second.startswith("kbatch diff: B: skipped: ")
    if on_json:
        found = json.loads(out)
        assert (found["exit_status"], found["damaged"], found["equal"]) == (2, True, True)
        assert found["logs"][0]["a"]["losses"][0]["position"] == position
    else:
        assert out.splitlines() == [
            "t-0: equal: 2 records",
            *(f"  {name}: DAMAGED: 1 loss of {size} bytes, not compared" for name in "AB"),
        ]


def test_errors_have_status_2(sides: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, sides[0], "missing", "--json")
    assert (status, out, err) == (2, "", "kbatch diff: missing: no such file or directory\n")
    status, _, err = run(capsys, f"{sides[0]}/t-0", sides[1])
    assert status == 2
    assert err.endswith("t-0 is one log, but the other side has several; compare two logs or two directories of logs\n")
    with pytest.raises(SystemExit, match="2"):
        main(["diff", *sides, "--match", "time"])
