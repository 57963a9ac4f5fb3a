"""Names from the file system reach the terminal escaped."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_batches import batch, write_segment

import kbatch
import kbatch.sinks.table_target  # defines an error
from kbatch import errors
from kbatch.cli import main
from kbatch.cli.shown import plain_text
from kbatch.escaping import is_printable, printable
from kbatch.log.store.names import parse_directory_name

PACKAGE = Path(kbatch.__file__).parent
# Red text, a line break and a forged line, CSI as one character, a right-to-left override, a byte that is not UTF-8.
EVIL = "caf\u00e9\x1b[31m\x9b1mA\r\nkbatch: ok\u202egol\u2066\udcff\x07"
SHOWN = r"café\x1b[31m\x9b1mA\r\nkbatch: ok\u202egol\u2066\udcff\x07"
JSON = json.dumps(EVIL.removeprefix("café"))[1:-1]
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NOW = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with one log whose name and parent's name hold escapes; its second segment is damaged."""
    root = tmp_path / f"d{EVIL}"
    directory = root / f"{EVIL}-0"
    write_segment(directory, 0, [batch(i, [NOW + i]) for i in range(5)], indexes=True)
    damaged = bytearray(batch(8, [NOW]))
    damaged[-2] ^= 1
    write_segment(directory, 5, [batch(5, [NOW]), bytes(damaged), batch(9, [NOW])], indexes=True)
    (directory / f"{5:020d}.snapshot").write_bytes(b"not a snapshot")
    write_segment(tmp_path / f"good{EVIL}" / f"{EVIL}-0", 0, [batch(i, [NOW + i]) for i in range(5)])
    return root


def output_of(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command; return its status and output, which is checked for characters that terminals obey."""
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = int(str(ended.code))
    printed = capfd.readouterr()
    for text in printed:
        assert not (found := UNSAFE.search(text)), f"{arguments}: {found and found[0]!r} in {text!r}"
        assert "\nkbatch: ok" not in text
    return status, printed.out, printed.err


COMMANDS = {
    "dump": (["dump", "{log}"], 3, JSON),
    "dump-records": (["dump", "--records", "{log}"], 3, JSON),
    "dump-kafka": (["dump", "--format", "kafka", "--print-data-log", "{log}"], 3, SHOWN),
    "dump-index": (["dump", "{log}/00000000000000000000.index"], 0, JSON),
    "dump-kafka-index": (["dump", "--format", "kafka", "{log}/00000000000000000000.timeindex"], 0, SHOWN),
    "dump-snapshot": (["dump", "{log}/00000000000000000005.snapshot"], 3, SHOWN),
    "dump-protocol": (["dump", "--protocol", "{log}/00000000000000000005.snapshot"], 3, SHOWN),
    "dump-missing": (["dump", "{root}/missing-0"], 1, SHOWN),
    "dump-name": (["dump", "{root}/{evil}"], 1, SHOWN),
    "verify": (["verify", "{root}"], 3, SHOWN),
    "verify-json": (["verify", "--json", "{root}"], 3, json.dumps(EVIL)[1:-1]),
    "verify-snapshot": (["verify", "{log}/00000000000000000005.snapshot"], 3, SHOWN),
    "stats": (["stats", "{root}"], 3, SHOWN),
    "stats-details": (["stats", "--details", "{log}"], 3, SHOWN),
    "stats-json": (["stats", "--json", "{root}"], 3, json.dumps(EVIL)[1:-1]),
    "diff": (["diff", "--on-error", "skip", "{root}", "{root}"], 2, SHOWN),
    "diff-json": (["diff", "--json", "{good}", "{good}"], 0, json.dumps(EVIL)[1:-1]),
    "diff-damaged": (["diff", "{root}", "{root}"], 2, SHOWN),
    "convert": (["convert", "--magic", "1", "{log}", "{root}/new-0"], 1, SHOWN),
    "convert-skip": (["convert", "--magic", "1", "--on-error", "skip", "{root}", "{out}"], 3, SHOWN),
    "recompress": (["recompress", "--codec", "lz4", "{log}", "{root}/new-0"], 1, SHOWN),
    "recompress-skip": (["recompress", "--codec", "lz4", "--on-error", "skip", "{root}", "{out}"], 3, SHOWN),
    "recompress-exists": (["recompress", "--codec", "lz4", "{log}", "{root}"], 1, SHOWN),
    "compact": (["compact", "{good}", "{out}"], 0, SHOWN),
    "compact-damaged": (["compact", "{log}", "{root}/new-0"], 1, SHOWN),
    "compact-active": (["compact", "--include-active", "{root}", "{out}"], 1, SHOWN),
    "compact-json": (["compact", "--json", "{good}", "{out}"], 0, json.dumps(EVIL)[1:-1]),
    "export-missing": (["export", "{root}/missing", "{out}"], 1, SHOWN),
    "export-existing": (["export", "{log}", "{root}"], 1, SHOWN),
    "usage": (["stats", "{root}", "--a\x1b[31m\u202e"], 2, r"--a\x1b[31m\u202e"),
    "usage-choice": (["convert", "{root}", "{out}", "--lossy={evil}"], 2, ""),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_escapes_names(name: str, logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments, expected, shown = COMMANDS[name]
    places = {
        "log": f"{logs}/{EVIL}-0",
        "root": str(logs),
        "evil": EVIL,
        "good": f"{logs.parent}/good{EVIL}",
        "out": f"{logs.parent}/out{EVIL}",
    }
    status, out, err = output_of([each.format(**places) for each in arguments], capfd)
    assert status == expected, err
    assert shown in out + err


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_an_export_escapes_names(arguments: list[str], logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The bytes of paths in Java and Arrow must be UTF-8.
    name = EVIL.replace("\udcff", "")
    root = logs.parent / f"e{name}"
    shutil.copytree(f"{logs}/{EVIL}-0", root / f"{name}-0")
    status, out, err = output_of(["export", *arguments, str(root), f"{root}-out"], capfd)
    assert (status, out) == (1, "")
    assert SHOWN.replace(r"\udcff", "") in err
    status, out, err = output_of(["export", *arguments, "--on-error", "skip", str(root), f"{root}-out"], capfd)
    assert (status, err) == (3, "")
    assert (json.dumps(name)[1:-1] if arguments else SHOWN.replace(r"\udcff", "")) in out


def test_listed_json_has_the_names_unchanged(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output_of(["dump", "--records", f"{logs}/{EVIL}-0"], capfd)
    assert {json.loads(line)["file"] for line in out.splitlines()} == {
        str(logs / f"{EVIL}-0" / f"{base:020d}.log") for base in (0, 5)
    }


def test_keys_and_values_that_reorder_a_line_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "\u202edetrever"
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW], value=text.encode()), batch(1, [NOW], value=b"tab\there")])
    _, out, _ = output_of(["dump", "--records", str(tmp_path / "t-0")], capfd)
    assert [json.loads(line)["value"] for line in out.splitlines()] == [text, "tab\there"]
    assert plain_text(text.encode()).startswith("base64:")


def kinds() -> Iterator[type[errors.KbatchError]]:
    pending = [errors.KbatchError]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_the_base_class_of_errors_escapes_messages(kind: type[errors.KbatchError]) -> None:
    """The attribute keeps the path; the message is one printable line, also after pickling."""
    error = kind(f"{EVIL}: damaged")
    assert str(error) == f"{SHOWN}: damaged"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_error_keeps_the_path_itself() -> None:
    with pytest.raises(errors.LogDirectoryError) as raised:
        parse_directory_name(EVIL)
    assert is_printable(str(raised.value))
    assert errors.LogDirectoryError(EVIL, source=EVIL).source == EVIL


def test_only_the_terminal_module_prints() -> None:
    """`kbatch.cli.terminal` escapes what it prints; other modules neither print nor touch the standard streams."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "cli" / "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            if re.fullmatch(r"print|sys\.(stderr|__\w+__)|sys\.stdout\.(write\w*|buffer)", ast.unparse(node)):
                found.append(f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}")
    assert found == []


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("orders-0", "orders-0"),
        ("größe-日本-😀-0", "größe-日本-😀-0"),
        ("a\\b", "a\\b"),
        (printable(EVIL), SHOWN),
        ("\u061c\u200e\u200f\u2028\u2029\u202a\u2069\ufeff", r"\u061c\u200e\u200f\u2028\u2029\u202a\u2069\ufeff"),
    ],
)
def test_printable_text_is_kept_and_the_rest_escaped(text: str, escaped: str) -> None:
    assert printable(text) == escaped


@pytest.mark.parametrize("code", [*range(32), *range(127, 160), 0xD800, 0xDCFF, 0xDFFF, 0x202E])
def test_every_character_that_a_terminal_obeys_is_escaped(code: int) -> None:
    shown = printable(chr(code))
    assert shown.isascii()
    assert shown.isprintable()
    assert is_printable(f"a{chr(code)}b") == (code in (9, 10))
    assert os.fsencode(shown)
