"""The flags of a selection: one spelling in every command that reads logs, or the reason why a command refuses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_logs import LOGS

import kbatch
from kbatch.cli import main
from kbatch.cli.running import make_parser

COMMANDS = {
    "export",
    "follow",
    "dump",
    "verify",
    "stats",
    "report",
    "diff",
    "convert",
    "recompress",
    "compact",
    "index",
    "consume",
    "topics",
    "backup",
}
FLAGS = {
    "--topic": "txn",
    "--partition": "0",
    "--offsets": "1:2",
    "--times": "-1h:",
    "--isolation": "read_committed",
    "--key": "k",
}
# The flags that a command takes; it refuses the others.
WHOLE = {"--topic", "--partition"}
TAKES = {
    "export": {*FLAGS},
    "follow": {*FLAGS},
    "dump": {*FLAGS},
    "diff": {*FLAGS} - {"--key"},
    "consume": {*FLAGS} - {"--topic"},
    "topics": set(),
}
WRITERS = {"convert": [], "recompress": ["--codec", "none"], "compact": []}
# The flags that a command needs.
REQUIRED = {"report": ["--output", "c"]}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_takes_a_flag_or_refuses_it_with_the_reason(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [command, "a", "b", flag, FLAGS[flag]]
    parser, commands = make_parser()
    assert {*commands} - {"help", "completion"} == COMMANDS
    if flag in TAKES.get(command, WHOLE):
        assert flag in commands[command].format_help()
        parser.parse_args([*arguments, *WRITERS.get(command, []), *REQUIRED.get(command, [])])
        return
    assert flag not in commands[command].format_help().replace("--key-", "").replace("--topic-", "")
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"error: {flag} has no meaning for this command: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["--topic", "mixed", "--topic", "codec-z*"], ["codec-zstd-0", "mixed-0"]),
        (["--topic", "mixed", "--partition", "0"], ["mixed-0"]),
        (["--partition", "3", "--partition", "0-1", "--topic", "txn"], ["txn-0"]),
    ],
)
@pytest.mark.parametrize("command", ["stats", "verify", "diff", *WRITERS])
def test_commands_choose_topic_partitions(
    command: str, given: list[str], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = [str(LOGS)] if command == "diff" else [str(tmp_path / "out")] if command in WRITERS else []
    assert main([command, "--json", *given, *WRITERS.get(command, []), str(LOGS), *second]) == 0
    assert sorted(log["name"] for log in json.loads(capsys.readouterr().out)["logs"]) == names
    if command in WRITERS:
        assert sorted(f"{log.topic}-{log.partition}" for log in kbatch.find_logs(tmp_path / "out")) == names


@pytest.mark.parametrize("path", [LOGS, LOGS / "txn-0"], ids=["directory", "log"])
@pytest.mark.parametrize("command", ["dump", "stats", "verify", "diff", *WRITERS])
def test_a_topic_or_partition_without_a_log_is_an_error(
    command: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = [str(path)] if command == "diff" else [str(tmp_path / "out")] if command in WRITERS else []
    for given, message in ((["--topic", "nosuch"], "no log of topic 'nosuch'"), (["--partition", "7"], "partition 7")):
        status = main([command, *given, *WRITERS.get(command, []), str(path), *second])
        captured = capsys.readouterr()
        assert (status, captured.out) == (2 if command == "diff" else 1, "")
        assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_topic_of_one_side_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mixed-0").symlink_to(LOGS / "mixed-0")
    given = ["--storage-option", "follow_links=true", "--topic", "mixed", "--topic", "txn"]
    assert main(["diff", *given, str(tmp_path), str(LOGS)]) == 1
    assert "txn-0: only in B" in capsys.readouterr().out


def test_an_export_reads_the_records_of_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "a", "b", "--key", "k", "--key", "l"])
    assert "--key may be given once: an export reads the records of one key" in capsys.readouterr().err
