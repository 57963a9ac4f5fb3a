"""Numbers on the command line: an invalid one is a usage error, and the message names the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbatch.cli import main

_INT32, _INT64 = 2**31, 2**63
_REWRITING = (("--batch-size", -1), ("--segment-bytes", 0), ("--index-interval-bytes", -1))
# By command: the options with numbers, and for each the largest invalid number below its minimum.
_NUMBERS = {
    "convert": _REWRITING,
    "recompress": _REWRITING,
    "compact": (
        ("--delete-retention-ms", -1),
        ("--min-compaction-lag-ms", -1),
        ("--first-dirty-offset", -1),
        ("--segment-bytes", 0),
        ("--segment-index-bytes", 23),
        ("--producer-expiration-ms", -1),
        ("--dedupe-buffer-bytes", 63),
    ),
    "dump": (("--producer", -2), ("--max-records", -1), ("--max-bytes-shown", -1)),
}
CODECS = (
    "must be none, gzip, snappy, lz4 or zstd, optionally with a level (gzip:1 to gzip:9, lz4:1 to lz4:17, zstd:-131072 "
    "to zstd:22)"
)
_REST = {"convert": [], "recompress": ["--codec", "lz4"], "compact": [], "dump": []}


@pytest.mark.parametrize("command", _NUMBERS)
def test_invalid_numbers_are_usage_errors(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t-0").mkdir()
    out = [] if command == "dump" else [str(tmp_path / "out-0")]
    for option, below in _NUMBERS[command]:
        above = _INT64 if command in ("compact", "dump", "export") and "segment" not in option else _INT32
        for bad in (str(below), str(above), "9" * 5000, "5x", "1.5", "", "one"):
            with pytest.raises(SystemExit, match="2"):
                main([command, str(tmp_path / "t-0"), *out, *_REST[command], option, bad])
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith(f"kbatch {command}: error: argument {option}: must be "), error
            if bad.lstrip("-").isdigit() and len(bad) < 100:
                assert error.replace(",", "").endswith(f" got {bad}")
    assert [path.name for path in tmp_path.iterdir()] == ["t-0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compact", "a", "b", "--now", "yesterday"], "argument --now: must be a time such as 2026-03-01"),
        (["compact", "a", "b", "--now", "9" * 19], "argument --now: must be a time in the range of an int64"),
        (["compact", "a", "b", "--now", "1969-01-01"], "argument --now: must be 0 to"),
        (["convert", "a", "b", "--magic", "3"], "argument --magic: must be 0 to 2, got 3"),
        (["convert", "a", "b", "--codec", "zstd:99"], f"argument --codec: {CODECS}, got 'zstd:99'"),
        (["convert", "a", "b", "--codec", "zip"], "argument --codec: "),
        (["convert", "a", "b", "--magic", "1", "--codec", "zstd"], "zstd needs magic 2, got magic 1"),
        (["recompress", "a", "b", "--codec", "snappy:3"], f"argument --codec: {CODECS}, got 'snappy:3'"),
        (["dump", "a", "--offsets", "5-7"], "argument --offsets: must be a range of offsets"),
        (["dump", "a", "--times", "noon:"], "argument --times: must be a range of times"),
        (["dump", "a", "--key", "hex:0"], "argument --key: must have an even number of hexadecimal digits"),
        (["dump", "a", "--key", "base64:?"], "argument --key: must have complete base64 after base64:, got"),
        (["dump", "a", "--max-bytes-shown", "1x"], "argument --max-bytes-shown: must be a number of bytes"),
        # Required arguments are missing because an option is misspelt.
        (["recompress", "a", "b", "--codek", "zstd"], "unrecognized arguments: --codek, did you mean '--codec'?"),
        (["diff", "--mach=key", "a"], "unrecognized arguments: --mach=key, did you mean '--match'?"),
        (["dump", "--"], "the following arguments are required: PATH"),
    ],
)
def test_invalid_values_are_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"kbatch {arguments[0]}: error: {message}" in capsys.readouterr().err


def test_minimum_and_maximum_are_accepted(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(golden / "logs" / "mixed-0")
    minimums = ["--batch-size", "0", "--segment-bytes", "1", "--index-interval-bytes", "0"]
    maximums = [text for option in minimums[::2] for text in (option, str(_INT32 - 1))]
    for number, numbers in enumerate((minimums, maximums)):
        assert main(["convert", log, str(tmp_path / f"c{number}-0"), *numbers]) == 0
    text = str(_INT64 // 2 - 1)
    for number, given in enumerate((["0"] * 2, [text] * 2)):
        times = ["--now", given[0], "--delete-retention-ms", given[1], "--min-compaction-lag-ms", "0"]
        assert main(["compact", log, str(tmp_path / f"k{number}-0"), *times, "--include-active"]) == 0
    capsys.readouterr()
    for given in (
        ["--offsets", f"0:{_INT64 - 1}"],
        ["--offsets=-5:"],
        ["--producer", str(_INT64 - 1)],
        ["--times", f"{_INT64 - 1}:"],
    ):
        assert main(["dump", log, *given]) == 0


def test_a_misspelt_option_of_kbatch_itself_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--verson"])
    assert "kbatch: error: unrecognized arguments: --verson, did you mean '--version'?" in capsys.readouterr().err
