"""Every change of one byte, every truncation and every number at a boundary, in each magic and codec, as the oracle.

The changed copies of a batch have good checksums and are decoded in one call, so that thousands of them take a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import oracle
import pytest
from agreement import assert_agrees
from entries import FIELDS, repaired
from generated_kinds import KINDS
from tables import batches_of

import kbatch

STATUSES = {
    oracle.Invalid: kbatch.BatchStatus.INVALID,
    oracle.CodecFailure: kbatch.BatchStatus.BAD_CODEC,
    oracle.Unsupported: kbatch.BatchStatus.UNSUPPORTED,
}
# Length and magic decide where the next batch begins; changes of them are decoded one by one.
FRAMING = [*range(8, 12), 16]
CRC = {2: range(17, 21), 1: range(12, 16), 0: range(12, 16)}
# Kafka's checksum covers neither the offset nor the leader epoch (CRC-R1, CRC-R7).
UNCOVERED = {2: {*range(8), *range(12, 16)}, 1: set(range(8)), 0: set(range(8))}


EVERY_KIND = pytest.mark.parametrize("batch", KINDS.values(), ids=list(KINDS))


def changed_at(batch: bytes, at: int) -> set[bytes]:
    """Return the copies with one bit of a byte flipped, or the byte set to 0x00, 0x7f, 0x80 or 0xff."""
    values = {batch[at] ^ 1 << bit for bit in range(8)} | {0x00, 0x7F, 0x80, 0xFF}
    return {batch[:at] + bytes([value]) + batch[at + 1 :] for value in values - {batch[at]}}


def assert_each_agrees(variants: Iterable[bytes]) -> None:
    """Decode entries with good checksums in one call, and compare the outcome of each with the oracle's."""
    entries = list(variants)
    starts = [0, *itertools.accumulate(map(len, entries))]
    table = kbatch.decode(b"".join(entries), on_error="skip", include_control=True)
    assert table.batches["position"].tolist() == starts[:-1]
    assert table.consumed == starts[-1]
    found = zip(entries, starts, batches_of(table), table.batches["status"].tolist(), strict=False)
    for entry, start, batch, status in found:
        truth = oracle.decode(entry, verify=False)
        if truth.error is not None:
            assert (status, batch.records) == (STATUSES[type(truth.error)], ()), (entry, truth.error)
            continue
        assert batch == truth.batches[0]._replace(position=start), entry
        inner_crc = entry[16] < 2 and oracle.decode(entry).error is not None
        assert status == (kbatch.BatchStatus.BAD_INNER_CRC if inner_crc else kbatch.BatchStatus.OK), entry


@EVERY_KIND
def test_every_changed_byte_with_a_good_checksum_reads_as_the_oracle_reads_it(batch: bytes) -> None:
    skipped = {*FRAMING, *CRC[batch[16]]}
    positions = [at for at in range(len(batch)) if at not in skipped]
    assert_each_agrees(repaired(entry) for at in positions for entry in changed_at(batch, at))


@EVERY_KIND
def test_every_changed_byte_fails_the_checksum(batch: bytes) -> None:
    """CRC-R2, CRC-R7: and the batch after it is not lost."""
    covered = [at for at in range(len(batch)) if at not in FRAMING and at not in UNCOVERED[batch[16]]]
    variants = [entry for at in covered for entry in changed_at(batch, at)]
    table = kbatch.decode(b"".join(entry + batch for entry in variants), on_error="skip")
    assert table.batches["status"].tolist() == [kbatch.BatchStatus.BAD_CRC, kbatch.BatchStatus.OK] * len(variants)
    assert [(loss.position, loss.length) for loss in table.losses] == [
        (2 * i * len(batch), len(batch)) for i in range(len(variants))
    ]


@EVERY_KIND
def test_every_changed_byte_of_length_and_magic_is_found_by_both(batch: bytes) -> None:
    for at in FRAMING:
        for entry in changed_at(batch, at):
            for data in (entry, entry + batch, repaired(entry, length=False) + batch):
                assert_agrees(data, verify=False)


@EVERY_KIND
def test_every_truncation_is_an_incomplete_batch(batch: bytes) -> None:
    """FRM-R3: neither an error nor a batch; LEG-R11: also if a message is unchanged in the compressed data."""
    before = oracle.three(97)
    for end in range(len(batch)):
        for on_error in ("raise", "skip"):
            table = kbatch.decode(before + batch[:end], on_error=on_error)  # type: ignore[arg-type]
            assert (table.consumed, len(table.batches), table.losses) == (len(before), 1, [])


@EVERY_KIND
def test_every_truncation_with_a_good_length_and_checksum_reads_as_the_oracle_reads_it(batch: bytes) -> None:
    smallest = {2: 61, 1: 34, 0: 26}[batch[16]]
    assert_each_agrees(repaired(batch[:end]) for end in range(smallest, len(batch)))


# All numbers at which a comparison, a shift or an addition of 32 or 64 bits may go wrong.
BOUNDARIES = sorted({sign * (1 << bit) + change for bit in range(65) for sign in (1, -1) for change in (-1, 0, 1)})


def fixed(number: int, size: int) -> bytes:
    """Return the lowest bytes of a number, big-endian."""
    return (number & (1 << 8 * size) - 1).to_bytes(size, "big")


@EVERY_KIND
def test_every_field_of_the_header_at_every_boundary(batch: bytes) -> None:
    variants = {
        repaired(batch[:at] + fixed(number, size) + batch[at + size :])
        for at, size in FIELDS[batch[16]]
        if at not in FRAMING
        for number in BOUNDARIES
    }
    assert_each_agrees(sorted(variants))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize(
    "field", ["length", "timestamp_delta", "offset_delta", "key_length", "value_length", "header_count"]
)
def test_every_number_of_a_record_at_every_boundary(field: str, codec: str) -> None:
    """VAR-R1, VAR-R2, REC-R1, HDR-R1: each as a variable-length integer of 32 and of 64 bits."""
    good = oracle.encode_record(0, 0, b"k", b"v")
    numbers = {oracle.zigzag(number, bits) for number in BOUNDARIES for bits in (32, 64)}
    assert_each_agrees(
        oracle.build_batch(
            [good, oracle.encode_record(**{"key": b"k", "value": b"v", field: number}), good], codec=codec
        )
        for number in sorted(numbers)
    )


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("which", ["key", "value"])
def test_every_length_in_a_record_header_at_every_boundary(which: str, codec: str) -> None:
    """HDR-R2, HDR-R3."""
    good = oracle.encode_record(0, 0, b"k", b"v", [(b"h", b"1")])
    numbers = {oracle.zigzag(number, bits) for number in BOUNDARIES for bits in (32, 64)}
    variants = []
    for number in sorted(numbers):
        header = number + b"h\2v" if which == "key" else b"\2h" + number + b"v"
        record = oracle.encode_record(0, 0, b"k", b"v", header_count=1, extra=header)
        variants.append(oracle.build_batch([good, record, good], codec=codec))
    assert_each_agrees(variants)


@pytest.mark.parametrize("size", range(1, 12))
def test_every_size_of_a_variable_length_integer(size: int) -> None:
    """VAR-R1, VAR-R3: longer than necessary is accepted up to 5 bytes for 32 bits and 10 for 64."""
    variants = []
    for last in (0x00, 0x01, 0x0F, 0x10, 0x7F, 0x80):
        number = b"\x80" * (size - 1) + bytes([last])
        for field in ("length", "timestamp_delta", "offset_delta", "key_length", "value_length", "header_count"):
            variants.append(oracle.build_batch([oracle.encode_record(key=b"k", value=b"v", **{field: number})]))
    assert_each_agrees(variants)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_number_of_a_message_at_every_boundary(magic: int, codec: str) -> None:
    """LEG-R6, LEG-R7, LEG-R10 to LEG-R14: also in a compressed message."""
    variants = []
    for at, size in FIELDS[magic]:
        for number in BOUNDARIES:
            message = oracle.build_message(b"k", b"v", magic=magic, offset=1)
            message = message[:at] + fixed(number, size) + message[at + size :]
            if at not in FRAMING and at not in CRC[magic]:
                message = repaired(message)
            if codec != "none":
                inner = oracle.build_message(magic=magic) + message + oracle.build_message(magic=magic, offset=2)
                variants.append(oracle.build_wrapper(inner, magic=magic, codec=codec, offset=2))
            elif at not in FRAMING and at not in CRC[magic]:
                variants.append(message)
    assert_each_agrees(variants)
