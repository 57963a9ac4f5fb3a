"""``--offsets`` and ``--times``: one syntax, and values that begin with a minus."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from golden_logs import LOGS

import kbatch
from kbatch import quantities
from kbatch.cli import export, main
from kbatch.cli.selection_flags import parse_offsets, parse_times
from kbatch.plan.read_options import Bound

LOG = str(LOGS / "txn-0")
NOW = 1_700_000_040_000


@pytest.fixture
def dumped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The offsets that ``dump --records`` lists, at a fixed time, and what it prints on standard error."""
    monkeypatch.setattr(quantities, "_now", lambda: NOW)

    def command(*arguments: str) -> tuple[list[int], str]:
        assert main(["dump", "--records", *arguments, LOG]) == 0
        captured = capsys.readouterr()
        return [json.loads(line)["offset"] for line in captured.out.splitlines()], captured.err

    return command


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100:200", (100, 200)), ("100:", (100, None)), (":200", (None, 200)), ("100", (100, 101)), ("0", (0, 1)),
        ("-10:", (-10, None)), (":-10", (None, -10)), ("-10:-5", (-10, -5)), ("-10", (-10, -9)), ("-1", (-1, None)),
    ],
)  # fmt: skip
def test_a_range_of_offsets_has_open_sides_and_counts_back(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_offsets(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-14:2023-11-15", ("2023-11-14", "2023-11-15")),
        ("2023-11-14:", ("2023-11-14", None)),
        (":2023-11-14T22", (None, "2023-11-14T22:00")),
        ("2023-11-14T22:13:", ("2023-11-14T22:13", None)),
        ("2023-11-14T22:13:20:", ("2023-11-14T22:13:20", None)),
        (":2023-11-14T22:13:20", (None, "2023-11-14T22:13:20")),
        ("2023-11-14T22:13:2023-11-14T22:14:30", ("2023-11-14T22:13", "2023-11-14T22:14:30")),
        ("2023-11-14T22:13:20.5+02:00:2023-11-15", ("2023-11-14T22:13:20.5+02:00", "2023-11-15")),
        ("2023-11-14T22:13+02:00:", ("2023-11-14T22:13+02:00", None)),
        ("1700000000000:1700000001000", (1700000000000, 1700000001000)),
        ("-1h:", ("-1h", None)),
        ("-2h:-30m", ("-2h", "-30m")),
        ("2h:2023-11-15", ("-2h", "2023-11-15")),
    ],
)
def test_a_range_of_times_is_split_at_the_colon_between_two_times(
    text: str, expected: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantities, "_now", lambda: NOW)
    assert parse_times(text) == tuple(each if each is None else quantities.parse_time(each) for each in expected)


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_offsets, "10:5"), (parse_offsets, "-5:-10"), (parse_times, "2023-11-15:2023-11-14")]
)
def test_a_range_that_ends_before_its_start_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"got '{text}', whose start is after its end"):
        parse(text)
    assert parse_offsets("-10:5") == (-10, 5)


@pytest.mark.parametrize("text", ["2023-11-14", "2023-11-14T22:13:20", "-1h", ":", "", "a:b", "1h:now", "1:2:3"])
def test_other_texts_are_not_a_range_of_times(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^must be a range of times such as .*, each side in ISO 8601 \(UTC\), .*, got"
    ):
        parse_times(text)


@pytest.mark.parametrize("join", [lambda flag, text: [flag, text], lambda flag, text: [f"{flag}={text}"]])
def test_values_may_begin_with_a_minus_with_and_without_an_equals_sign(join: Any, dumped: Any) -> None:
    everything, _ = dumped()
    assert dumped(*join("--offsets", "-10:"))[0] == [each for each in everything if each >= 361]
    assert dumped(*join("--offsets", "-10:-5"))[0] == [each for each in everything if 361 <= each < 366]
    recent, _ = dumped("--times", f"{NOW - 10_000}:")
    assert 0 < len(recent) < len(everything)
    assert dumped(*join("--times", "-10s:"))[0] == dumped(*join("--times", "10s:"))[0] == recent
    assert main(["compact", LOG, "/dev/null/x", *join("--now", "-1h")]) == 1


def test_both_ranges_apply(dumped: Any) -> None:
    early = set(dumped("--times", "1700000020000:1700000030000")[0])
    low = set(dumped("--offsets", "100:203")[0])
    assert set(dumped("--times", "1700000020000:1700000030000", "--offsets", "100:203")[0]) == early & low != early


def exported(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Bound, Bound]:
    """Return the bounds that the export is called with."""
    found: list[Any] = []

    def stop(options: Any) -> int:
        found.append(export.read_options(options))
        return 0

    monkeypatch.setattr(export, "run", stop)
    assert main(["export", LOG, "out", *arguments]) == 0
    return found[0].starting, found[0].ending


def test_the_export_has_the_same_ranges(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(quantities, "_now", lambda: NOW)
    assert exported(monkeypatch, "--offsets", "-10:-5") == (Bound(offset=-10), Bound(offset=-5))
    assert exported(monkeypatch, "--times=-1h:", "--offsets", ":7") == (Bound(timestamp="1h"), Bound(offset=7))
    assert exported(monkeypatch) == (Bound(), Bound())
    assert capsys.readouterr().err == ""


def test_a_doubtful_time_gives_one_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exported(monkeypatch, "--times", "1700000030:")
    assert capsys.readouterr().err.count("is in milliseconds") == 1


@pytest.mark.parametrize("command", ["dump", "export"])
def test_the_help_describes_ranges_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert text.count("\nranges:\n") == 1
    assert "--times FROM:TO" in text


@pytest.mark.parametrize(
    "form",
    [
        "2023-11-14T22:13:50", "1700000030000", 1_700_000_030_000, np.datetime64("2023-11-14T22:13:50"),
        pd.Timestamp("2023-11-14T22:13:50"), pd.Timestamp("2023-11-14T22:13:50").to_pydatetime(),
    ],
    ids=repr,
)  # fmt: skip
def test_seek_timestamp_of_a_segment_takes_every_form_of_time(form: Any) -> None:
    segment = kbatch.Log(LOG).segments[1]
    positions = [segment.seek_timestamp(each) for each in (0, form, 1 << 62)]
    assert positions == sorted(set(positions))
    with pytest.raises(ValueError, match=r"^timestamp must be a time such as"):
        segment.seek_timestamp("noon")
    with pytest.warns(UserWarning, match="is in milliseconds") as caught:
        segment.seek_timestamp(1_700_000_030)
    assert [each.filename for each in caught] == [__file__]
