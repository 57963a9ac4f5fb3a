"""``kbatch dump --protocol``: requests and responses of a captured connection as JSON lines."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.cli import main
from kbatch.protocol import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    SaslAuthenticateRequest,
    encode_request,
    encode_response,
)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        status = main(["dump", "--protocol", *map(str, arguments)])
        captured = capfd.readouterr()
        return status, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return command


def written(path: Path, *messages: list[Any]) -> Path:
    path.write_bytes(b"".join(b"".join(each) for each in messages))
    return path


def test_requests_and_responses_are_listed(tmp_path: Path, run: Any) -> None:
    records = kbatch.encode([b"v", b"\xff"], keys=[b"k", None], headers=[[("h", b"1")], []], codec="gzip")
    produced = ProduceRequest.PartitionProduceData(index=2, records=records)
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[produced])
    requests = written(
        tmp_path / "requests",
        encode_request(ProduceRequest(acks=-1, topic_data=[topic]), 9, correlation_id=1, client_id="c"),
        encode_request(FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=uuid.UUID(int=0))]), 13, correlation_id=2),
        encode_request(SaslAuthenticateRequest(auth_bytes=b"\0token"), 2, correlation_id=3),
        encode_request(ApiVersionsRequest(unknown_tags={9: b"x"}), 3, correlation_id=4),
    )
    partition = FetchResponse.PartitionData(partition_index=1, records=records[:-1])
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])])
    responses = written(tmp_path / "responses", encode_response(response, 13, correlation_id=2))
    status, lines, errors = run(requests, responses)
    assert (status, errors) == (0, "")
    assert [(line["type"], line["api"], line["version"], line["correlation_id"]) for line in lines] == [
        ("request", "PRODUCE", 9, 1),
        ("request", "FETCH", 13, 2),
        ("request", "SASL_AUTHENTICATE", 2, 3),
        ("request", "API_VERSIONS", 3, 4),
        ("response", "FETCH", 13, 2),
    ]
    assert [line["position"] for line in lines[:2]] == [0, 4 + lines[0]["size"]]
    data = lines[0]["message"]["topic_data"][0]["partition_data"][0]
    assert (lines[0]["client_id"], data["index"], data["records"]["size"]) == ("c", 2, len(records))
    (batch,) = data["records"]["batches"]
    assert (batch["codec"], batch["count"], batch["magic"]) == ("gzip", 2, 2)
    assert [(each["offset"], each["key"], each["value"], each["headers"]) for each in batch["records"]] == [
        (0, "k", "v", [["h", "1"]]),
        (1, None, {"base64": "/w=="}, []),
    ]
    assert lines[1]["message"]["topics"][0]["topic_id"] == "A" * 22
    assert "topic" not in lines[1]["message"]["topics"][0]
    assert lines[2]["message"]["auth_bytes"] == {"base64": "AHRva2Vu"}
    assert lines[3]["message"]["unknown_tags"] == {"9": "x"}
    cut = lines[4]["message"]["responses"][0]["partitions"][0]["records"]
    assert cut == {"size": len(records) - 1, "batches": [], "incomplete_batch": len(records) - 1}


def test_damage_is_reported_and_the_listing_continues(tmp_path: Path, run: Any) -> None:
    good = encode_request(ApiVersionsRequest(client_software_name="n"), 3, correlation_id=4)
    bad = [b"".join(good)[4:-1]]
    bad.insert(0, len(bad[0]).to_bytes(4, "big"))
    requests = written(tmp_path / "requests", bad, [b"\0\0\0\x0a", b"\0\4\0\0\0\0\0\1\0\1"], good, [b"\0\0"])
    responses = written(tmp_path / "responses", encode_response(FetchResponse(), 4, correlation_id=77))
    status, lines, errors = run(requests, responses)
    assert status == 3
    assert [line.get("error", line.get("api")) for line in lines] == [
        "byte 14: variable-length integer is cut",
        "byte 8, client_id: length is 1, but 0 bytes remain",
        "API_VERSIONS",
        "no request has the correlation id 77",
    ]
    assert f"{requests}: message at byte 0: byte 14" in errors
    assert "stream ends within a message" in errors


def test_messages_of_unknown_apis_and_versions_are_listed_with_their_bytes(tmp_path: Path, run: Any) -> None:
    """They are no errors, and neither are the messages after them."""
    known = encode_request(ApiVersionsRequest(), 3, correlation_id=1)
    later = [struct.pack(">ihhihb", 17, 1000, 2, 2, -1, 0), b"later\xff"]
    newer = [struct.pack(">ihhihb", 16, 18, 99, 3, -1, 0), b"newer"]
    requests = written(tmp_path / "requests", later, newer, known)
    answered = encode_response(ApiVersionsResponse(), 3, correlation_id=1)
    responses = written(
        tmp_path / "responses",
        [struct.pack(">iib", 11, 2, 0), b"answer"],
        [struct.pack(">ii", 10, 3), b"answer"],
        answered,
    )
    status, lines, errors = run(requests, responses)
    assert (status, errors) == (0, "")
    assert [(each["type"], each["api"], each["version"], each.get("body")) for each in lines] == [
        ("request", "UNKNOWN_1000", 2, {"base64": "bGF0ZXL/"}),
        ("request", "API_VERSIONS", 99, "newer"),
        ("request", "API_VERSIONS", 3, None),
        ("response", "UNKNOWN_1000", 2, "answer"),
        ("response", "API_VERSIONS", 99, "answer"),
        ("response", "API_VERSIONS", 3, None),
    ]
    assert [line for line in lines if "message" in line] == [lines[2], lines[5]]
    assert run(requests, "--max-bytes-shown", 2)[1][1]["body"] == {"text": "ne", "size": 5}


def test_a_message_that_takes_too_much_memory_is_an_error_and_the_listing_continues(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbatch.read.budget.default_table_bytes", lambda: 5000)
    large = encode_request(ApiVersionsRequest(unknown_tags={9: bytes(6000)}), 3)
    requests = written(tmp_path / "requests", large, encode_request(ApiVersionsRequest(), 3))
    status, lines, errors = run(requests)
    assert (status, len(lines)) == (3, 2)
    assert "take more than" in lines[0]["error"]
    assert "message" in lines[1]
    assert f"{requests}: message at byte 0: byte " in errors


def test_damaged_records_are_listed(tmp_path: Path, run: Any) -> None:
    records = bytearray(kbatch.encode([b"v"]))
    records[-1] ^= 1
    produced = ProduceRequest.PartitionProduceData(records=bytes(records))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[produced])
    requests = written(tmp_path / "requests", encode_request(ProduceRequest(topic_data=[topic]), 7))
    _, (line,), _ = run(requests, "--max-bytes-shown", 1)
    found = line["message"]["topic_data"][0]["partition_data"][0]["records"]
    assert found["lost"][0]["size"] == len(records)


@pytest.mark.parametrize("arguments", [["a", "b", "c"], ["a", "--records"], ["a", "--format", "kafka"]])
def test_conflicting_options_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dump", "--protocol", *arguments])
    assert "--protocol" in capsys.readouterr().err
