"""Times and sizes: the forms that are accepted, what they mean, and the messages for other values."""

from __future__ import annotations

import datetime
import io
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from golden_logs import LOGS

import kbatch
import kbatch.log
import kbatch.protocol
import kbatch.values
from kbatch import quantities
from kbatch.bounds import Bound
from kbatch.cli import main
from kbatch.log import LogWriter, compact_log, compare_logs, convert_log, write_log
from kbatch.plan.read_options import ReadOptions
from kbatch.quantities import parse_size, parse_time, size_between

UTC = datetime.UTC
WHEN = datetime.datetime(2023, 11, 14, 22, 13, 50, tzinfo=UTC)
MILLISECONDS = 1_700_000_030_000
FORMS = [
    WHEN,
    WHEN.replace(tzinfo=None),
    WHEN.astimezone(datetime.timezone(timedelta(hours=5))),
    np.datetime64("2023-11-14T22:13:50"),
    np.datetime64("2023-11-14T22:13:50", "ns"),
    pd.Timestamp(WHEN),
    pd.Timestamp(WHEN).tz_localize(None),
    "2023-11-14T22:13:50",
    "2023-11-14T23:13:50+01:00",
    str(MILLISECONDS),
    MILLISECONDS,
    np.int64(MILLISECONDS),
]


def offsets(log: kbatch.Log, **options: Any) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_a_time_has_the_same_meaning_in_every_form(form: Any) -> None:
    log = kbatch.Log(LOGS / "txn-0")
    assert parse_time(form) == MILLISECONDS
    assert log.offset_for_timestamp(form) == 255
    assert offsets(log, start_timestamp=form) == offsets(log, start_timestamp=MILLISECONDS)
    assert offsets(log, stop_timestamp=form) == offsets(log, stop_timestamp=MILLISECONDS)
    assert Bound(timestamp=form).timestamp == MILLISECONDS
    assert Bound(timestamps={"orders": {0: form}}).timestamps == {"orders": {0: MILLISECONDS}}


@pytest.mark.parametrize(
    "form", [timedelta(hours=1), np.timedelta64(1, "h"), pd.Timedelta(hours=1), "1h", "60min", "3600 s"], ids=repr
)
def test_a_duration_is_a_time_before_now(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantities, "_now", lambda: MILLISECONDS)
    assert parse_time(form) == MILLISECONDS - 3_600_000


def test_a_date_is_its_first_millisecond_in_utc() -> None:
    assert parse_time(datetime.date(1970, 1, 2)) == parse_time("1970-01-02") == 86_400_000


@pytest.mark.parametrize("before_1970", [False, True])
def test_finer_times_are_rounded_up_so_that_bounds_select_the_same_records(before_1970: bool) -> None:
    sign = -1 if before_1970 else 1
    rounded = 0 if before_1970 else 1
    assert parse_time(quantities.EPOCH + timedelta(microseconds=sign)) == rounded
    assert parse_time(np.datetime64(sign, "ns")) == parse_time(pd.Timestamp(sign)) == rounded


@pytest.mark.parametrize("number", [1_700_000_030, 1_700_000_030_000_000, 1_700_000_030_000_000_000])
def test_an_integer_that_looks_like_another_unit_gives_a_warning(number: int) -> None:
    log = kbatch.Log(LOGS / "txn-0")
    for call in (lambda: log.offset_for_timestamp(number), lambda: log.tables(start_timestamp=number)):
        with pytest.warns(UserWarning, match="seconds it would be 2023-11-14T22:13:50Z") as caught:
            call()
        assert caught[0].filename == __file__


@pytest.mark.parametrize("number", [0, 1000, -1, 86_400_000, 946_684_800_000, 4_102_444_800_000])
def test_other_integers_give_no_warning(number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_time(number) == number


@pytest.mark.parametrize("wrong", [True, 1.5, b"x", None, [1]], ids=repr)
def test_another_type_is_not_a_time(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^timestamp must be a time: datetime, .*, got "):
        kbatch.Log(LOGS / "txn-0").offset_for_timestamp(wrong)


@pytest.mark.parametrize("wrong", ["yesterday", "", "2023", "12", np.datetime64("NaT"), pd.NaT])
def test_an_invalid_time_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^start_timestamp must be a time"):
        kbatch.Log(LOGS / "txn-0").tables(start_timestamp=wrong)


def test_the_command_line_prints_the_warning_and_accepts_durations(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(LOGS / "txn-0")
    assert main(["dump", "--records", "--times", "1700000030:", "--max-records", "1", log]) == 0
    assert "kbatch: warning: 1700000030 is in milliseconds" in capsys.readouterr().err
    assert main(["dump", "--records", "--times", "-1h:", log]) == 0
    assert capsys.readouterr().out == ""


def test_sizes_have_the_same_meaning_in_every_form(tmp_path: Path) -> None:
    log = kbatch.Log(LOGS / "codec-none-0")
    data = Path(log.segments[0].path).read_bytes()
    assert parse_size("64k") == parse_size(65536) == parse_size(np.int64(65536)) == 65536
    assert kbatch.Limits(max_batch_bytes="2m") == kbatch.Limits(max_batch_bytes=2 << 20)
    assert [len(t) for t in log.tables(max_bytes="100k")] == [len(t) for t in log.tables(max_bytes=102400)]
    assert len(list(kbatch.decode_stream([data], max_bytes="16m"))) == 1
    assert kbatch.encode([b"x" * 600] * 4, batch_size="1k", timestamps=0) == kbatch.encode(
        [b"x" * 600] * 4, batch_size=1024, timestamps=0
    )
    assert ReadOptions(split_bytes="64m").split_bytes == 64 << 20
    rows = {"value": [b"x" * 600] * 4}
    write_log(tmp_path / "root", pd.DataFrame(rows), topic="t", num_partitions=1, batch_size="1k", segment_bytes="1k")
    assert len(kbatch.Log(tmp_path / "root" / "t-0").segments) == 4
    convert_log(log, tmp_path / "converted-0", batch_size="16k", max_bytes="1m", segment_bytes="50k")
    assert len(kbatch.Log(tmp_path / "converted-0").segments) > len(log.segments)
    compact_log(log, tmp_path / "compacted-0", segment_bytes="1g", dedupe_buffer_bytes="1m", max_bytes="1m")
    with LogWriter(tmp_path / "written-0", segment_bytes="1k", index_interval_bytes="1k") as writer:
        writer.append(data)


@pytest.mark.parametrize("command", [["convert"], ["recompress", "--codec", "zstd"]])
def test_sizes_on_the_command_line_have_units(command: list[str], tmp_path: Path) -> None:
    flags = ["--batch-size", "64k", "--segment-bytes", "64m", "--index-interval-bytes", "4k"]
    assert main([*command, str(LOGS / "codec-none-0"), str(tmp_path / "a-0"), *flags]) == 0
    compact = ["compact", str(LOGS / "codec-none-0"), str(tmp_path / "b-0")]
    assert main([*compact, "--segment-bytes", "1g", "--dedupe-buffer-bytes", "64m"]) == 0


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("64x", ValueError, "max_bytes must be a number of bytes such as 67108864 or 64m, got '64x'"),
        (1.5, TypeError, "max_bytes must be a number of bytes such as 67108864 or 64m, got 1.5"),
        (True, TypeError, "max_bytes must be a number of bytes such as 67108864 or 64m, got True"),
        (0, ValueError, "max_bytes must be at least 1, got 0"),
    ],
)
def test_an_invalid_size_is_named(wrong: Any, error: type[Exception], message: str) -> None:
    for call in (
        lambda: kbatch.Log(LOGS / "txn-0").tables(max_bytes=wrong),
        lambda: kbatch.decode_stream([], max_bytes=wrong),
        lambda: kbatch.StreamDecoder().tables([], max_bytes=wrong),
        lambda: size_between("max_bytes", wrong, 1),
    ):
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value) == message


def test_several_logs_read_with_one_time_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = kbatch.find_logs(LOGS)[:3]
    for call in (
        lambda: logs.to_arrow(columns=["offset"], start_timestamp=1_700_000_030),
        lambda: logs.tables(stop_timestamp=1_700_000_030),
        lambda: logs[0].to_arrow(columns=["offset"], start_timestamp=1_700_000_030),
        lambda: compare_logs(logs, logs, start_timestamp=1_700_000_030),
    ):
        with pytest.warns(UserWarning, match="as seconds it would be") as caught:
            call()
        assert [each.filename for each in caught] == [__file__]
    moments = iter(range(MILLISECONDS, MILLISECONDS + 100))
    monkeypatch.setattr(quantities, "_now", lambda: next(moments))
    log = kbatch.Log(LOGS / "txn-0")
    # A second look at the clock would start the other side a millisecond later.
    assert compare_logs(log, log, start_timestamp=timedelta(0)).equal
    assert next(moments) == MILLISECONDS + 1


def test_sizes_of_settings_messages_and_parsers_have_units() -> None:
    assert kbatch.TopicConfig(max_message_bytes="1m", segment_bytes="64m") == kbatch.TopicConfig(
        max_message_bytes=1 << 20, segment_bytes=64 << 20
    )
    with pytest.raises(ValueError, match=r"^segment_bytes must be 1 to 2147483647, got 0"):
        kbatch.TopicConfig(segment_bytes=0)
    frame = (1025).to_bytes(4, "big") + bytes(1025)
    with pytest.raises(kbatch.LimitExceededError, match="the limit is 1024"):
        list(kbatch.protocol.split_messages(frame, max_size="1k"))
    with pytest.raises(kbatch.LimitExceededError, match="the limit is 1024"):
        kbatch.protocol.decode_request(bytes(1025), max_size="1k")
    column = pa.array([b"x" * 100] * 100)
    with pytest.raises(kbatch.LimitExceededError, match="more than 1024 bytes"):
        kbatch.values.TextParser().parse(column, max_bytes="1k")
    assert kbatch.StreamDecoder().read_from(io.BytesIO(bytes(2000)).readinto, "1k") == 1024


def test_an_integer_of_numpy_is_an_offset() -> None:
    made = kbatch.encode([b"a", b"b"], base_offset=np.int64(5), timestamps=0)  # type: ignore[arg-type]
    assert made == kbatch.encode([b"a", b"b"], base_offset=5, timestamps=0)
    writer = kbatch.BatchWriter(io.BytesIO(), base_offset=np.int64(5))  # type: ignore[arg-type]
    assert (type(writer.append(b"a")), writer.next_offset) == (int, 6)
    assert "first_dirty_offset=" in repr(kbatch.log.Compaction(first_dirty_offset=np.int64(3)))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [*FORMS[-4:], datetime.date(2023, 11, 14)], ids=repr)
def test_records_are_written_with_times_in_every_form(form: Any) -> None:
    expected = parse_time(form)
    for options in ({"timestamps": form}, {"timestamp_type": "log_append_time", "append_time": form}):
        assert kbatch.decode(kbatch.encode([b"a"], **options)).records["timestamp"].tolist() == [expected]
    texts = [None, "2023-11-14T22:13:50.0009", "1970-01-02"]
    written = kbatch.decode(kbatch.encode([b"a", b"b", b"c"], timestamps=texts))
    assert written.records["timestamp"].tolist() == [-1, MILLISECONDS, 86_400_000]
    with pytest.raises(ValueError, match=r"timestamps\[1\]: .*got 'noon'"):
        kbatch.encode([b"a", b"b"], timestamps=["2023-11-14", "noon"])
