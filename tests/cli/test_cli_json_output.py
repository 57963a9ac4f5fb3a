"""docs/json-output.md: the fields that it lists are those that the commands print, with the types that it states."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from live_reading import partition
from log_batches import batch, write_segment
from scripted_broker import ScriptedCluster

from kbatch.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "json-output.md"
_ROW = re.compile(r"^\| (.*?) \| (.*?) \| .*\|$")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "null": (type(None),), "any": (object,),
}  # fmt: skip


@cache
def tables() -> dict[str, dict[str, str]]:
    """Return the types of fields: of each section of a command by its title, and of each object by its name."""
    found: dict[str, dict[str, str]] = {}
    section, table = "", ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section, table = line[3:], ""
        if line.startswith("|---"):
            continue
        row = _ROW.match(line)
        if row is None:
            table = ""
        elif row[2] == "type":
            table = section if row[1] == "field" else row[1]
        elif table:
            for name in re.findall(r"`(.*?)`", row[1]):
                found.setdefault(table, {})[name] = row[2]
    return found


def expanded(path: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of a field and of the fields of its object, with their types; a map has the name ``*``."""
    yield path, kind
    for each in kind.split(" or "):
        inner = each.removesuffix("[]").removeprefix("map of ")
        if inner in tables():
            below = path + ("[]" if each.endswith("[]") else "") + (".*" if each.startswith("map of ") else "")
            if below != path:
                yield below, inner
            for name, of in tables()[inner].items():
                yield from expanded(f"{below}.{name}", of)
        elif each.startswith("map of "):
            yield f"{path}.*", inner


def documented(*names: str, has_path: bool = True) -> dict[str, str]:
    """Return the types by path: of every document, of the entries of logs, and of sections."""
    fields = {**tables()["Every document"]}
    for name, kind in tables()["entry"].items():
        if has_path or name != "path":
            fields[f"logs[].{name}"] = kind
    for name in names:
        fields |= tables()[name]
    return {path: of for name, kind in fields.items() for path, of in expanded(name, kind)}


def printed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of a document, those of objects and arrays included."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, each in value.items():
            yield from printed(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from printed(each, f"{path}[]")


def is_of(value: Any, kind: str) -> bool:
    for each in kind.split(" or "):
        if each.endswith("[]"):
            if isinstance(value, list):
                return True
        elif each.startswith("map of ") or each in tables():
            if isinstance(value, dict):
                return True
        elif isinstance(value, _TYPES[each]) and (each != "integer" or not isinstance(value, bool)):
            return True
    return False


def pattern(path: str) -> str:
    return re.escape(path).replace(r"\*", r"[^.\[]+")


def check(documents: list[dict[str, Any]], fields: dict[str, str]) -> None:
    """Check that all printed fields are documented, with their types, and that all documented fields are printed."""
    seen = set()
    for document in documents:
        for path, value in printed(document):
            covering = [known for known, kind in fields.items() if re.search("object|any", kind) and path != known
                        and re.match(pattern(known) + r"[.\[]", path)]  # fmt: skip
            element = re.sub(r"\[\]$", "", path)
            matching = [known for known in fields if re.fullmatch(pattern(known), path)]
            seen.update(matching)
            if matching:
                assert is_of(value, fields[matching[0]]), f"{path}: {value!r} is not {fields[matching[0]]}"
            else:
                is_element = any(re.fullmatch(pattern(known), element) for known in fields)
                assert covering or is_element, f"{path} is not documented"
    missing = {path for path in fields if path not in seen}
    # Objects in arrays that may be empty.
    missing = {path for path in missing if not re.search(r"losses\[\]|open_transactions\[\]|\.\*", path)}
    assert not missing, f"documented, but not printed: {sorted(missing)}"


def documents_of(capsys: pytest.CaptureFixture[str], *commands: list[object]) -> list[dict[str, Any]]:
    found = []
    for command in commands:
        assert main([*map(str, command), "--json"]) in (0, 1, 3, 4)
        found.append(json.loads(capsys.readouterr().out))
    return found


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a log directory with a damaged batch."""
    write_segment(tmp_path / "logs" / "t-0", 0, [batch(0, [1]), batch(1, [2]), batch(2, [3])])
    (path,) = (tmp_path / "logs" / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return tmp_path / "logs"


def test_stats(capsys: pytest.CaptureFixture[str], damaged: Path) -> None:
    documents = documents_of(capsys, ["stats", LOGS], ["stats", damaged, "--headers-only"])
    fields = documented("kbatch stats")
    fields |= {f"topics[].{name}": kind for name, kind in tables()["sums"].items()} | {"topics[].topic": "string"}
    check(documents, {path: of for name, kind in fields.items() for path, of in expanded(name, kind)})


def test_verify(capsys: pytest.CaptureFixture[str], damaged: Path) -> None:
    of_output = {"out", *(f"logs[].{name}" for name in ("start", "end", "compared", "missing", "doubled"))}
    fields = {path: kind for path, kind in documented("kbatch verify").items() if path not in of_output}
    check(documents_of(capsys, ["verify", LOGS / "txn-0"], ["verify", damaged]), fields)


def test_verify_against(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert main(["export", str(LOGS / "txn-0"), str(tmp_path / "out"), "--engine", "local"]) == 0
    capsys.readouterr()
    names = ("damaged", "segments", "batches", "damaged_batches", "control_records", "open_transactions", "bytes",
             "side_files")  # fmt: skip
    of_logs = tuple(f"logs[].{name}" for name in names)
    fields = {
        path: of for path, of in documented("kbatch verify", has_path=False).items() if not path.startswith(of_logs)
    }
    check(documents_of(capsys, ["verify", tmp_path / "out", "--against", LOGS / "txn-0"]), fields)


def test_diff(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["diff", LOGS / "txn-0", LOGS / "compact-src-0"]
    check(documents_of(capsys, command), documented("kbatch diff", has_path=False))


def test_backup(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ScriptedCluster(orders=[partition(5), partition()])
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", cluster.connect)
    command = ["backup", "kafka://localhost", tmp_path / "out", "--topic", "orders"]
    check(documents_of(capsys, command), documented("kbatch backup", has_path=False))


@pytest.mark.parametrize("command", ["convert", "recompress"])
def test_convert_and_recompress(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = {"convert": ["--magic", "1", "--lossy", "drop"], "recompress": []}
    run = [command, "--codec", "lz4", *flags[command], LOGS / "txn-0", tmp_path / "out"]
    check(documents_of(capsys, run), documented("kbatch convert and kbatch recompress"))


def test_compact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [["compact", LOGS / "txn-0", tmp_path / "txn-0"], ["compact", LOGS / "compact-src-0", "--dry-run"]]
    check(documents_of(capsys, *runs), documented("kbatch compact"))


def test_index(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["index", LOGS, "--topic", "txn", "--index", tmp_path]
    check(documents_of(capsys, command), documented("kbatch index"))


def test_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    command = ["report", LOGS / "txn-0", "-o", tmp_path / "report.html"]
    check(documents_of(capsys, command), documented("kbatch report"))


def test_export_and_follow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    of_follow = {"lag_bytes", "lag_offsets"}
    fields = documented("kbatch export and kbatch follow", has_path=False)
    command = ["export", LOGS / "txn-0", tmp_path / "out", "--engine", "local"]
    check(documents_of(capsys, command), {path: kind for path, kind in fields.items() if path not in of_follow})
    command = ["follow", LOGS / "txn-0", tmp_path / "followed", "--engine", "local", "--available-now"]
    check(documents_of(capsys, command), fields)


@pytest.mark.parametrize(
    ("flags", "table"),
    [([], "batch line"), (["--records", "--control"], "record line"), (["--digests", "64"], "digest line")],
)
def test_dump(flags: list[str], table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(LOGS / "txn-0"), *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    check(lines, tables()[table])


def test_every_command_with_json_has_a_section() -> None:
    from kbatch.cli.running import make_parser

    titles = " ".join(line for line in PAGE.read_text().splitlines() if line.startswith("## "))
    commands = [name for name, parser in make_parser()[1].items() if "--json" in parser._option_string_actions]
    assert len(commands) > 10
    assert [name for name in commands if f"kbatch {name}" not in titles] == []
