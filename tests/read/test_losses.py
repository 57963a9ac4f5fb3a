"""Losses are compact until they are accessed, count for the memory of a table, and cost little more than batches."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import oracle
import pytest
from line_counts import lines_run
from log_batches import write_segment
from support.bombs import MIB, measured
from transaction_logs import ABORT, marker

import kbatch
from kbatch import LimitExceededError, Limits, Loss
from kbatch.errors import Fault, Finding, finding_text
from kbatch.format import BATCH_DTYPE
from kbatch.read import damage as damage_engine
from kbatch.read import workers
from kbatch.read.damage import DamageEngine
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part, decode_tables
from kbatch.records.loss_list import LossList
from kbatch.transactions import lost

GOOD = oracle.build_batch([oracle.encode_record(value=b"v")])
BAD_CRC = oracle.with_crc(GOOD, 1)
INVALID = oracle.build_batch(payload=b"\x7f" * 9, record_count=1)
COMPRESSED = oracle.build_batch([oracle.encode_record(value=b"v" * 50)], codec="zstd")
MESSAGE = oracle.build_message(b"k", b"v", magic=1, offset=1)
MARKER_BAD_CRC = oracle.with_crc(marker(1, 7, ABORT), 1)
UNITS = {
    "bad checksum": (GOOD, BAD_CRC),
    "bad checksum, compressed": (COMPRESSED, oracle.with_crc(COMPRESSED, 1)),
    "invalid records": (GOOD, INVALID),
    "bad checksum of a message": (MESSAGE, oracle.build_message(b"k", b"v", magic=1, crc=5, offset=2)),
    "codec without a name": (GOOD, oracle.build_batch(payload=b"v", record_count=1, attributes=6)),
    "junk": (GOOD, b"\xff" * 30),
}
SAMPLES = [
    Loss(0, 10, "some text", None),
    Loss(10, 2**62, "some text", 5),
    Loss(-1, 0, "", -(2**63)),
    Loss(3, 4, finding_text(Finding(Fault.BAD_CRC, expected=2**32 - 1, found=7, detail="; more")), 2**63 - 1),
]


def test_a_loss_list_is_a_sequence_of_losses() -> None:
    losses = LossList(SAMPLES)
    assert list(losses) == SAMPLES
    assert losses == SAMPLES
    assert losses == LossList(SAMPLES)
    assert losses != SAMPLES[:-1]
    assert losses != [*SAMPLES[:-1], Loss(0, 0, "")]
    assert losses != tuple(SAMPLES)
    assert (len(losses), losses[0], losses[-1], losses[1:3]) == (4, SAMPLES[0], SAMPLES[-1], SAMPLES[1:3])
    assert SAMPLES + losses == losses + SAMPLES == losses + losses == SAMPLES * 2
    assert repr(losses) == repr(SAMPLES)
    assert SAMPLES[2] in losses
    assert not LossList()
    assert pickle.loads(pickle.dumps(losses)) == copy.deepcopy(losses) == SAMPLES
    assert losses.positions.tolist() == [loss.position for loss in SAMPLES]
    assert losses.lengths.tolist() == [loss.length for loss in SAMPLES]
    assert (LossList(SAMPLES[:2]).end, LossList().end) == (10 + 2**62, 0)
    assert LossList(SAMPLES[:2])._extended(SAMPLES[2:]) == SAMPLES
    with pytest.raises(IndexError):
        losses[4]
    with pytest.raises(TypeError, match="unhashable"):
        hash(losses)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault != Fault.NONE])
def test_the_reason_of_a_loss_is_the_text_of_its_fault(fault: Fault) -> None:
    losses = LossList()
    for detail in ("", "detail"):
        finding = Finding(fault, at=3, record=4, expected=2**63 - 1, found=-(2**63), detail=detail)
        losses._append(1, 2, finding, None)
        assert losses[-1] == Loss(1, 2, finding_text(finding), None)


def test_equal_texts_take_memory_once() -> None:
    losses = LossList()
    losses._append(0, 1, "x" * 100_000)
    once = losses.nbytes
    for i in range(100):
        losses._append(i, 1, "x" * 100_000)
    assert once > 100_000
    assert losses.nbytes == once + 100 * 54


def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_MAX_SKIPPED", 2)


def frame_nothing(_engine: DamageEngine, _windows: Any, _window: Any, span: tuple[int, int, int], *_: Any) -> Any:
    """In place of `DamageEngine.frame`: each step is decided by the engine."""
    return span[1], np.empty((0, 6), np.int64), False


@pytest.mark.parametrize("crc", ["verify", "mark", "skip"])
@pytest.mark.parametrize("name", UNITS)
def test_bad_batches_that_the_kernel_passes_over_are_those_that_python_judges(
    name: str, crc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches one at a time, where each follows the first damage, and all of them at once."""
    good, bad = UNITS[name]
    data = good + (bad + good) * 7 + bad + bad + good + bad
    options: dict[str, Any] = {"on_error": "skip", "crc": crc}
    whole = kbatch.decode(data, **options)
    small_runs(monkeypatch)
    in_steps = kbatch.decode(data, **options)
    monkeypatch.setattr(workers, "run_skipping", lambda pipeline, *_: (workers.run_pipeline(pipeline, 1), None))
    monkeypatch.setattr(DamageEngine, "frame", frame_nothing)
    slow = kbatch.decode(data, **options)
    assert slow.losses == whole.losses == in_steps.losses
    assert slow.batches.tolist() == whole.batches.tolist() == in_steps.batches.tolist()
    assert slow.records.tolist() == whole.records.tolist() == in_steps.records.tolist()
    if crc == "verify":
        assert len(whole) >= 8
        assert len(whole.losses) >= 7


def changed_length(batch: bytes, change: int) -> bytes:
    length = int.from_bytes(batch[8:12], "big") + change
    return batch[:8] + length.to_bytes(4, "big", signed=True) + batch[12:]


def random_damage(random: Random) -> bytes:
    """Batches of every kind, and damage of every kind in most of them and between them."""
    parts = []
    for offset in range(random.randrange(4, 30)):
        records = [oracle.encode_record(value=random.randbytes(random.randrange(60)))]
        owner: dict[str, int] = {"producer_id": random.randrange(2), "producer_epoch": 0, "attributes": 16}
        inner = oracle.build_batch(records, base_offset=offset)
        batch = random.choice(
            [
                inner,
                oracle.build_batch(records, base_offset=offset, **owner),
                marker(offset, random.randrange(2), ABORT),
                oracle.build_batch([oracle.encode_record(value=inner)], base_offset=offset),
                oracle.build_batch(records, base_offset=offset, codec="zstd"),
                oracle.build_message(b"k", b"v", magic=random.randrange(2), offset=offset),
                oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=offset),
            ]
        )
        flipped = bytearray(batch)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        change = random.choice([5, -5, 60, 200, 1 << 20, 1 << 30, -(1 << 20)])
        damaged = [batch, changed_length(batch, change), bytes(flipped), batch[: random.randrange(len(batch))]]
        between = [b"", b"", b"\xff" * random.randrange(40), bytes(random.randrange(40)), random.randbytes(20)]
        parts += [random.choice(damaged), random.choice(between)]
    return b"".join(parts)


def everything(tables: list[kbatch.RecordTable]) -> list[Any]:
    """The batches, losses and values of some tables, wherever each of these ends."""
    names = [name for name in BATCH_DTYPE.names or () if name != "first_record"]
    batches = [row for table in tables for row in table.batches[names].tolist()]
    losses = [loss for table in tables for loss in table.losses]
    values = [table.value(i) for table in tables for i in range(len(table))]
    return [batches, losses, [None if value is None else bytes(value) for value in values]]


@pytest.mark.filterwarnings("ignore:decode.* too few")
@pytest.mark.parametrize("seed", range(60))
def test_frequent_damage_gives_the_result_of_single_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    data = random_damage(random)
    array = np.frombuffer(data, np.uint8)
    chunk = random.randrange(20, 2000)
    chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    size = random.choice([1, 300, 1500, 5000, 1 << 20])
    framing = DecodeOptions(on_error="skip", framing_only=True)
    first, last = random.randrange(10), random.randrange(4, 30)

    def results() -> list[list[Any]]:
        found = [
            everything([decode_part(array, framing)]),
            everything([*decode_tables(array, framing, max_bytes=size)]),
        ]
        for isolation in ("read_uncommitted", "read_committed"):
            options: dict[str, Any] = {"on_error": "skip", "isolation": isolation}
            found.append(everything([kbatch.decode(data, **options)]))
            found.append(everything([*kbatch.decode_stream(chunks, max_bytes=size, **options)]))
            options |= {"start_offset": first, "stop_offset": last}
            found.append(everything([kbatch.decode(data, **options)]))
            found.append(everything([*kbatch.decode_stream(chunks, max_bytes=size, **options)]))
        return found

    at_once = results()
    monkeypatch.setattr(DamageEngine, "frame", frame_nothing)
    assert at_once == results()


BETWEEN = {
    "junk": b"\xff" * 7,
    "length": changed_length(GOOD, 5),
    "length beyond the end": changed_length(GOOD, 1 << 20),
    "magic": GOOD[:16] + b"\7" + GOOD[17:],
    "cut": GOOD[:40],
}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("start_offset", [None, 0])
@pytest.mark.parametrize("damage", BETWEEN.values(), ids=BETWEEN)
def test_searching_the_end_of_damage_runs_no_python_for_it(
    damage: bytes, start_offset: int | None, isolation: Any
) -> None:
    """After the first loss, a kernel frames batches and finds the ends of damage, many at a time."""
    options = {"on_error": "skip", "isolation": isolation, "start_offset": start_offset}
    assert lines_run(GOOD, damage, 1000, "kbatch", options) <= lines_run(GOOD, damage, 100, "kbatch", options)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("damage", BETWEEN.values(), ids=BETWEEN)
def test_the_engine_searches_at_most_three_times_in_a_window_of_a_log(
    damage: bytes, isolation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The windows before the end of the segment, too: a length that leads beyond it is known to be wrong."""
    write_segment(tmp_path / "t-0", 0, [], tail=(GOOD + damage) * 3000 + GOOD)
    write_segment(tmp_path / "t-0", 1 << 40, [])
    searches = 0
    begin = DamageEngine.begin

    def counted(*args: Any, **options: Any) -> None:
        nonlocal searches
        searches += 1
        begin(*args, **options)

    monkeypatch.setattr(DamageEngine, "begin", counted)
    tables = list(kbatch.Log(tmp_path / "t-0").tables(on_error="skip", isolation=isolation, max_bytes=64 << 10))
    assert sum(len(table.losses) for table in tables) >= 3000
    assert len(tables) > 3
    assert 0 < searches <= 3 * len(tables)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_last_good_offset_is_that_of_a_batch_that_was_not_passed_over(isolation: Any) -> None:
    """LEG-R26: a message after the damage has an offset after that of the last good batch, not of a bad one."""
    high = oracle.with_crc(oracle.build_batch([oracle.encode_record(value=b"v")], base_offset=2**40), 1)
    bad = oracle.build_batch(payload=b"\x7f" * 9, record_count=1, base_offset=2**40)
    message = oracle.build_message(b"k", b"v", magic=1, offset=7)
    for damage in (BAD_CRC + GOOD + high + GOOD, INVALID + bad + bad):
        data = GOOD + damage + b"\xff" * 40 + message
        table = kbatch.decode(data, on_error="skip", isolation=isolation)
        assert table.records["offset"].tolist()[-1] == 7


# -- memory

LIMIT = 24 * MIB
# The increase that SECURITY.md allows.
MOST = LIMIT * 13 // 10 + 8 * MIB


def drained(tables: Any) -> int:
    count = 0
    for table in tables:
        count += len(table.losses)
        del table
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["invalid records", "bad checksum, compressed"])
def test_losses_count_for_the_limit_of_a_table(name: str, tmp_path: Path) -> None:
    count = 200_000
    # Nearly only losses.
    data = UNITS[name][1] * count if name == "invalid records" else b"".join(UNITS[name]) * (count // 2)
    write_segment(tmp_path / "t-0", 0, [], tail=data)
    routes: dict[str, Callable[[], int]] = {
        "decode": lambda: len(kbatch.decode(data, on_error="skip", limits=Limits(max_table_bytes=LIMIT)).losses),
        "stream": lambda: drained(kbatch.decode_stream([data], on_error="skip", max_bytes=LIMIT)),
        "log": lambda: drained(kbatch.Log(tmp_path / "t-0").tables(on_error="skip", max_bytes=LIMIT)),
    }
    for route, read in routes.items():
        increase, result = measured(read)
        if route == "decode":
            assert "LimitExceededError" in str(result)
            assert "raise Limits(max_table_bytes=...)" in str(result)
        else:
            assert result == data.count(UNITS[name][1])
        assert increase <= MOST + (len(data) if route == "stream" else 0), route


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("unit", [INVALID, GOOD + BAD_CRC, GOOD + b"\xff" * 30], ids=["invalid", "checksum", "junk"])
def test_more_losses_than_the_limit_are_an_error_or_several_tables(unit: bytes, isolation: Any) -> None:
    data = unit * 1500
    limit = 200_000
    options: dict[str, Any] = {"on_error": "skip", "isolation": isolation}
    with pytest.raises(LimitExceededError, match=r"losses a table takes more than 200000 bytes .* raise Limits\(max_t"):
        kbatch.decode(data, limits=Limits(max_table_bytes=limit), **options)
    tables = list(kbatch.decode_stream([data], max_bytes=limit, **options))
    assert len(tables) >= 2
    for table in tables:
        assert table.records.nbytes + table.batches.nbytes + table.losses.nbytes <= limit
    whole = kbatch.decode(data, **options)
    assert [loss for table in tables for loss in table.losses] == whole.losses
    assert sum(map(len, tables)) == len(whole)
    assert sum(table.consumed for table in tables) == whole.consumed == len(data)


COMMITTED: dict[str, Any] = {"on_error": "skip", "isolation": "read_committed"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["each after a good batch", "one after the other"])
def test_bad_batches_under_read_committed_count_for_the_limit_of_a_table(name: str, tmp_path: Path) -> None:
    count = 200_000
    unit = GOOD + BAD_CRC if name.startswith("each") else BAD_CRC + BAD_CRC
    data = unit * (count // 2)
    losses = count // 2 if name.startswith("each") else 1
    write_segment(tmp_path / "t-0", 0, [], tail=data)
    limits = Limits(max_table_bytes=LIMIT)
    routes: dict[str, Callable[[], int]] = {
        "decode": lambda: len(kbatch.decode(data, limits=limits, **COMMITTED).losses),
        "stream": lambda: drained(kbatch.decode_stream([data], max_bytes=LIMIT, limits=limits, **COMMITTED)),
        "log": lambda: drained(kbatch.Log(tmp_path / "t-0").tables(max_bytes=LIMIT, **COMMITTED)),
    }
    for route, read in routes.items():
        increase, result = measured(read)
        assert result == losses or (route == "decode" and "raise Limits(max_table_bytes=...)" in str(result)), result
        assert increase <= MOST + (len(data) if route == "stream" else 0), route


@pytest.mark.parametrize("bad", [BAD_CRC, MARKER_BAD_CRC, BAD_CRC + BAD_CRC], ids=["records", "marker", "two"])
def test_following_a_bad_batch_runs_no_python_for_it(bad: bytes) -> None:
    """Transactions are followed over all losses of a table at once."""
    assert lines_run(GOOD, bad, 200, "lost.py", COMMITTED) == lines_run(GOOD, bad, 50, "lost.py", COMMITTED) > 0


def test_more_bad_headers_than_are_looked_at_leave_transactions_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """TXN-R2: a marker of any producer may have been among them; the result is the same for every size of a table."""
    opened = oracle.build_batch([oracle.encode_record()], producer_id=7, producer_epoch=0, attributes=16)
    records = [oracle.encode_record(value=bytes(20))] * 2
    bad = [oracle.with_crc(oracle.build_batch(records, base_offset=1 + 2 * i), 1) for i in range(6)]
    after = oracle.build_batch(records, base_offset=13)
    data = opened + b"".join(bad) + after
    for most, pending in ((6, [(7, 0)]), (5, [(7, 0)])):
        monkeypatch.setattr(lost, "MAX_LOST_HEADERS", most)
        monkeypatch.setattr(damage_engine, "MAX_LOST_HEADERS", most)
        table = kbatch.decode(data, **COMMITTED)
        assert table.pending == pending
        # An open transaction holds the offsets after it back; an undecided one does not.
        assert table.last_stable_offset == (0 if most == 6 else None)
        chunks = [data[i : i + 50] for i in range(0, len(data), 50)]
        streamed = list(kbatch.decode_stream(chunks, **COMMITTED))
        assert streamed[-1].last_stable_offset == table.last_stable_offset


def test_losses_count_for_the_memory_of_views() -> None:
    data = GOOD + INVALID * 1000
    table = kbatch.decode(data, on_error="skip", limits=Limits(max_table_bytes=1_000_000))
    assert table._memory is not None
    assert table._memory.rest == 1_000_000 - table.records.nbytes - table.batches.nbytes - table.losses.nbytes
