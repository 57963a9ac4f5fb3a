"""The options of streams: what is refused, units, and what follows from the options of data loss."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from kbatch.spark.datasource import KbatchDataSource
from kbatch.spark.stream_options import parse_stream_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "not valid in streaming"),
        ({"endingTimestamp": "1"}, "not valid in streaming"),
        ({"table": "losses"}, "not valid in streaming"),
        ({"onError": "stop"}, "not valid in streaming"),
        ({"startingOffsets": "soon"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "earliest, latest or JSON"),
        ({"maxOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"maxTriggerDelay": "soon"}, "a time such as"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "must not be more"),
        ({"nonsense": "1"}, "unknown option"),
    ],
)
def test_invalid_stream_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_stream_options({"path": "/x", **options})


@pytest.mark.parametrize(
    ("text", "seconds"), [("1500", 1.5), ("1500ms", 1.5), ("90s", 90), ("2min", 120), ("1d", 86400)]
)
def test_a_trigger_delay_without_a_unit_is_milliseconds_as_in_sparks_kafka_source(text: str, seconds: float) -> None:
    assert parse_stream_options({"path": "/x", "maxTriggerDelay": text})[1].max_delay == seconds


def test_fail_on_data_loss_and_on_error_are_independent() -> None:
    for options, fails, on_error in (
        ({}, True, "raise"),
        ({"failOnDataLoss": "false"}, False, "skip"),
        ({"onError": "skip"}, True, "skip"),
        ({"onError": "raise", "failOnDataLoss": "false"}, False, "raise"),
    ):
        stream = parse_stream_options({"path": "/x", **options})[1]  # type: ignore[dict-item]
        assert (stream.read.fail_on_data_loss, stream.read.on_error) == (fails, on_error)
    # Batch reads and streams share the schema; the reader of a stream refuses options of batch reads.
    assert KbatchDataSource({"path": "/x", "endingTimestamp": "5"}).schema()
    with pytest.raises(ValueError, match="endingTimestamp is not valid in streaming queries"):
        KbatchDataSource({"path": "/x", "endingTimestamp": "5"}).streamReader(KbatchDataSource({"path": "/x"}).schema())
