"""Payloads that their codec refuses, in batches with a good checksum: each is a loss, and costs little."""

from __future__ import annotations

from random import Random
from typing import Any

import oracle
import pytest
from line_counts import lines_run

import kbatch
from kbatch import LimitExceededError, Limits, Loss
from kbatch.batches.native import addresses

# Payloads that no codec accepts, in batches with a good checksum.
REFUSED = {
    codec: oracle.build_batch(codec=codec, payload=b"no payload of this codec", record_count=1)
    for codec in ("gzip", "snappy", "lz4", "zstd")
}


def refused_payload(random: Random, codec: str, offset: int) -> bytes:
    """Build a batch with a good checksum and a changed payload, which may still be that of a batch."""
    values = [bytes(random.randrange(100)) + random.randbytes(5) for _ in range(random.randrange(1, 20))]
    records = [oracle.encode_record(delta, value=value) for delta, value in enumerate(values)]
    payload = bytearray(oracle.compress(codec, b"".join(records)))
    kind = random.randrange(6)
    if kind < 3:
        payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
    elif kind == 3:
        del payload[random.randrange(len(payload)) :]
    elif kind == 4:
        payload += random.randbytes(random.randrange(1, 40))
    return oracle.build_batch(records, codec=codec, payload=bytes(payload), base_offset=offset)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("limit", [100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", REFUSED)
def test_a_refused_payload_among_others_is_the_loss_that_it_is_alone(codec: str, limit: int, isolation: Any) -> None:
    """With the same reason, and batches of the same codec, or of another one, before and after it."""
    random = Random(limit)
    options: dict[str, Any] = {
        "on_error": "skip",
        "isolation": isolation,
        "limits": Limits(max_decompressed_bytes=limit, max_batch_bytes=1 << 20),
    }
    parts = [refused_payload(random, codec if random.randrange(9) else "gzip", 20 * i) for i in range(300)]
    data = b"".join(parts)
    losses, values, position = list[Loss](), list[bytes | None](), 0
    for part in parts:
        alone = kbatch.decode(part, **options)
        losses += [loss._replace(position=loss.position + position) for loss in alone.losses]
        values += alone.values()
        position += len(part)
    assert len({loss.reason for loss in losses}) >= 4
    for tables in (
        [kbatch.decode(data, **options)],
        list(kbatch.decode_stream([data], max_bytes=20_000, **options)),
        list(kbatch.decode_stream([data[at : at + 3000] for at in range(0, len(data), 3000)], **options)),
    ):
        assert [loss for table in tables for loss in table.losses] == losses
        assert [value for table in tables for value in table.values()] == values


@pytest.mark.skipif(not addresses(), reason="Python decompresses every payload")
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("codec", REFUSED)
def test_python_runs_for_a_refused_payload_only_to_state_its_reason(codec: str, isolation: Any) -> None:
    """The kernel that decodes calls the codec again for the text, and goes on with the next batch."""
    options: dict[str, Any] = {"on_error": "skip", "isolation": isolation}
    good = oracle.build_batch([oracle.encode_record(value=b"v" * 50)], codec=codec)
    kbatch.decode(good + REFUSED[codec], **options)
    few, many = ({file: lines_run(good, REFUSED[codec], count, file, options) for file in FILES} for count in (50, 550))
    reasons = sum(many[file] - few[file] for file in FILES[1:])
    assert 0 < reasons <= 500 * 50
    assert many["kbatch"] - few["kbatch"] < reasons + 500


# All modules, and those that state the reason of a refused payload.
FILES = ("kbatch", "read/refusals.py", "batches/", "records/loss_list.py", "kbatch/errors.py")


def test_the_texts_of_refused_payloads_count_for_the_limit_of_a_table() -> None:
    """Each has a reason of its own, which takes more memory than its row."""
    refused = [
        oracle.build_batch(codec="zstd", payload=number.to_bytes(4, "big") + bytes(6), record_count=1)
        for number in range(3000)
    ]
    data = b"".join(refused)
    limit = 500_000
    with pytest.raises(LimitExceededError, match=r"losses a table takes more than 500000 bytes .* raise Limits\(max_t"):
        kbatch.decode(data, on_error="skip", limits=Limits(max_table_bytes=limit))
    tables = list(kbatch.decode_stream([data], on_error="skip", max_bytes=limit, limits=Limits(max_table_bytes=limit)))
    assert len(tables) >= 2
    for table in tables:
        assert table.records.nbytes + table.batches.nbytes + table.losses.nbytes <= limit
    whole = kbatch.decode(data, on_error="skip")
    assert [loss for table in tables for loss in table.losses] == whole.losses
    assert len({loss.reason for loss in whole.losses}) == len(refused)
