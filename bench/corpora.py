"""The corpora: record batches and message sets that are made from a seed, with the sums that each decode must return.

``python -m bench.corpora`` makes all of them and prints their contents; the benchmarks make the ones that they need.
They are kept in ``bench/corpora/``, under names that depend on the content of this file, and are never committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cramjam
import crc32c
import lz4.frame
import numpy as np
import numpy.typing as npt
import zstandard

if TYPE_CHECKING:
    import kbatch

__all__ = [
    "COMPRESSED",
    "CORPORA",
    "DECODED",
    "SEED",
    "Corpus",
    "Sums",
    "corpus",
    "corpus_file",
    "default_size",
    "payloads",
]

SEED = 20261120
CACHE = Path(__file__).parent / "corpora"
KIB, MIB = 1 << 10, 1 << 20
BASE_TIMESTAMP = 1_767_225_600_000
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
ATTRIBUTES_AT = 21
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK = 32 * KIB

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def quick() -> bool:
    """Return whether each benchmark runs only once, on little data, to check results and not to measure."""
    return os.environ.get("KBATCH_BENCH_QUICK", "") not in ("", "0")


def default_size() -> int:
    """Return the uncompressed bytes of one corpus: ``KBATCH_BENCH_MB`` (in 10^6 bytes), or 32, or 1 in quick mode."""
    return int(float(os.environ.get("KBATCH_BENCH_MB", 1 if quick() else 32)) * 1_000_000)


@dataclass(frozen=True)
class Sums:
    """The sums that a decode of a corpus must return; ``headers`` is None if the decode returns no headers."""

    records: int
    offsets: int
    timestamps: int
    key_bytes: int
    value_bytes: int
    keys_crc: int
    values_crc: int
    headers: int | None = None

    @classmethod
    def of_columns(
        cls,
        offsets: Any,
        timestamps: Any,
        keys: Iterable[bytes],
        values: Iterable[bytes],
        headers: int | None = None,
    ) -> Sums:
        """Sum decoded columns."""
        offsets, timestamps = np.asarray(offsets, np.int64), np.asarray(timestamps, np.int64)
        all_keys, all_values = b"".join(keys), b"".join(values)
        return cls(
            records=len(offsets),
            offsets=int(offsets.sum()),
            timestamps=int((timestamps - BASE_TIMESTAMP).sum()),
            key_bytes=len(all_keys),
            value_bytes=len(all_values),
            keys_crc=zlib.crc32(all_keys),
            values_crc=zlib.crc32(all_values),
            headers=headers,
        )

    @classmethod
    def of_table(cls, table: kbatch.RecordTable) -> Sums:
        """Sum a ``kbatch.RecordTable``, including its headers."""
        records = table.records
        keys = [b"" if key is None else key for key in table.keys()]  # noqa: SIM118 - a table is not a dict
        values = [b"" if value is None else value for value in table.values()]
        return cls.of_columns(records["offset"], records["timestamp"], keys, values, len(table.headers))

    @classmethod
    def of_arrow(cls, table: Any) -> Sums:
        """Sum the four columns of the Arrow table that every contestant builds."""
        import pyarrow as pa

        return cls.of_columns(
            table["offset"].to_numpy(),
            table["timestamp"].cast(pa.int64()).to_numpy(),
            table["key"].to_pylist(),
            table["value"].to_pylist(),
        )

    def without_headers(self) -> Sums:
        """Return the same sums for a decode that returns no headers."""
        return replace(self, headers=None)


@dataclass(frozen=True)
class Corpus:
    """Consecutive batches, as in a log file."""

    name: str
    data: bytes
    codec: str
    batches: int
    payload_bytes: int  # of all batches, decompressed
    sums: Sums


@dataclass(frozen=True)
class Column:
    """Concatenated byte strings, and their lengths."""

    data: Bytes
    lengths: Ints

    @classmethod
    def of_rows(cls, rows: Bytes) -> Column:
        return cls(rows.reshape(-1), np.full(len(rows), rows.shape[1], np.int64))

    @classmethod
    def of_strings(cls, strings: list[bytes]) -> Column:
        return cls(np.frombuffer(b"".join(strings), np.uint8), np.fromiter(map(len, strings), np.int64, len(strings)))

    def strings(self) -> Iterator[bytes]:
        data, ends = self.data.tobytes(), np.cumsum(self.lengths).tolist()
        return (data[end - length : end] for end, length in zip(ends, self.lengths.tolist(), strict=True))


@dataclass(frozen=True)
class Columns:
    """Records before encoding; ``headers`` is each record's encoded header section, including the header count."""

    timestamps: Ints
    keys: Column
    values: Column
    headers: Column
    headers_per_record: int = 0


def random_columns(rng: np.random.Generator, count: int, key_size: int, value_size: int) -> Columns:
    """Make records of fixed sizes whose bytes cannot be compressed."""
    return Columns(
        timestamps(rng, count),
        Column.of_rows(rng.integers(0, 256, (count, key_size), np.uint8)),
        Column.of_rows(rng.integers(0, 256, (count, value_size), np.uint8)),
        Column.of_rows(np.zeros((count, 1), np.uint8)),
    )


def json_columns(rng: np.random.Generator, count: int) -> Columns:
    """Make records with a 16-byte key and an event of about 100 bytes of JSON."""
    user = rng.integers(0, 100_000, count).tolist()
    event = rng.choice(["view", "click", "purchase", "search", "add_to_cart"], count).tolist()
    amount = rng.integers(0, 1_000_000, count).tolist()
    session = rng.integers(0, 1 << 40, count).tolist()
    device = rng.choice(["ios", "android", "web", "desktop"], count).tolist()
    values = [
        b'{"user_id":%d,"event":"%s","amount":%d.%02d,"session":"%010x","device":"%s","ok":true}'
        % (u, e.encode(), a // 100, a % 100, s, d.encode())
        for u, e, a, s, d in zip(user, event, amount, session, device, strict=True)
    ]
    return Columns(
        timestamps(rng, count),
        Column.of_strings([b"user-%011d" % u for u in user]),
        Column.of_strings(values),
        Column.of_rows(np.zeros((count, 1), np.uint8)),
    )


def header_columns(rng: np.random.Generator, count: int) -> Columns:
    """Make records with a 16-byte key, a 100-byte value and three headers; one header differs in each record."""
    plain = random_columns(rng, count, 16, 100)
    section = bytearray([3 << 1])
    for key, value in ((b"trace-id", bytes(16)), (b"content-type", b"application/json"), (b"source", b"checkout")):
        section += bytes([len(key) << 1]) + key + bytes([len(value) << 1]) + value
    rows = np.tile(np.frombuffer(section, np.uint8), (count, 1))
    trace_at = section.index(bytes(16))
    rows[:, trace_at : trace_at + 16] = rng.integers(0, 256, (count, 16), np.uint8)
    return replace(plain, headers=Column.of_rows(rows), headers_per_record=3)


def timestamps(rng: np.random.Generator, count: int) -> Ints:
    """Make timestamps that increase by 0 to 3 ms, so that deltas in a batch take one to three bytes."""
    return BASE_TIMESTAMP + np.cumsum(rng.integers(0, 4, count))


def zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_sizes(values: Ints) -> Ints:
    left = zigzag(values)
    sizes = np.ones(len(values), np.int64)
    while (left := left >> np.uint64(7)).any():
        sizes += left > 0
    return sizes


def put_varints(out: Bytes, at: Ints, values: Ints) -> Ints:
    """Write zigzag varints at the positions `at`; return the positions after them."""
    sizes = varint_sizes(values)
    bits = zigzag(values)
    for byte in range(int(sizes.max(initial=0))):
        present = sizes > byte
        low = (bits[present] >> np.uint64(7 * byte)).astype(np.uint8) & 0x7F
        out[at[present] + byte] = low | np.where(sizes[present] > byte + 1, 0x80, 0).astype(np.uint8)
    return at + sizes


def put_column(out: Bytes, at: Ints, column: Column, first: int, stop: int) -> Ints:
    """Write rows `first` to `stop` of a column at the positions `at`; return the positions after them."""
    lengths = column.lengths[first:stop]
    start = int(column.lengths[:first].sum())
    source = column.data[start : start + int(lengths.sum())]
    before = np.cumsum(lengths) - lengths
    out[np.repeat(at - before, lengths) + np.arange(len(source))] = source
    return at + lengths


def encode_records(columns: Columns, first: int, stop: int, batch_first: Ints) -> tuple[Bytes, Ints]:
    """Encode records `first` to `stop`; `batch_first` is the number of the first record in the batch of each record.

    Returns the bytes, and the start of each record followed by the end of the last one.
    """
    time = columns.timestamps[first:stop]
    time_delta = time - columns.timestamps[batch_first]
    offset_delta = np.arange(first, stop) - batch_first
    key_len, value_len = columns.keys.lengths[first:stop], columns.values.lengths[first:stop]
    body = 1 + columns.headers.lengths[first:stop] + key_len + value_len
    for values in (time_delta, offset_delta, key_len, value_len):
        body += varint_sizes(values)
    starts = np.concatenate(([0], np.cumsum(body + varint_sizes(body))))
    out = np.zeros(int(starts[-1]), np.uint8)
    at = put_varints(out, starts[:-1], body) + 1  # the attributes byte stays 0
    at = put_varints(out, at, time_delta)
    at = put_varints(out, at, offset_delta)
    at = put_column(out, put_varints(out, at, key_len), columns.keys, first, stop)
    at = put_column(out, put_varints(out, at, value_len), columns.values, first, stop)
    at = put_column(out, at, columns.headers, first, stop)
    return out, starts


def gzip_payload(payload: bytes) -> bytes:
    encoder = zlib.compressobj(6, zlib.DEFLATED, 31)
    return encoder.compress(payload) + encoder.flush()


def xerial_payload(payload: bytes) -> bytes:
    out = bytearray(XERIAL_HEADER)
    for at in range(0, len(payload), XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(payload[at : at + XERIAL_BLOCK]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def lz4_payload(payload: bytes) -> bytes:
    """Compress as Kafka's Java producer does: fast, independent blocks of 64 KiB, no checksums, no content size."""
    size = lz4.frame.BLOCKSIZE_MAX64KB
    return lz4.frame.compress(payload, compression_level=0, block_size=size, block_linked=False, store_size=False)


def zstd_payload(payload: bytes) -> bytes:
    """Compress as a stream, that is without content size and with a window for input of any length."""
    encoder = zstandard.ZstdCompressor(level=3).compressobj()
    return encoder.compress(payload) + encoder.flush()


# The codec id in the batch attributes, and the function that compresses a payload.
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, lambda payload: payload),
    "gzip": (1, gzip_payload),
    "snappy": (2, xerial_payload),
    "snappy-raw": (2, lambda payload: bytes(cramjam.snappy.compress_raw(payload))),
    "lz4": (3, lz4_payload),
    "zstd": (4, zstd_payload),
}


@dataclass(frozen=True)
class Recipe:
    """How a corpus is made: records of about `record_size` bytes, batch sizes between two bounds, and a codec.

    A batch of magic 1 is a compressed wrapper message, or a single message if there is no codec.
    """

    columns: Callable[[np.random.Generator, int], Columns]
    record_size: int
    smallest: int
    largest: int
    codec: str = "none"
    magic: int = 2
    batch_records: int = 0  # the number of records in a batch, instead of a batch size in bytes

    @property
    def record_overhead(self) -> int:
        """Bytes of a record other than key, value and headers; for magic 2 the maximum."""
        return {1: 34, 2: 12}[self.magic]


def recipes() -> dict[str, Recipe]:
    medium = Recipe(json_columns, 135, 64 * KIB, MIB)
    medium_16k = replace(medium, smallest=16 * KIB, largest=16 * KIB)
    small = Recipe(lambda rng, n: random_columns(rng, n, 8, 32), 48, 16 * KIB, 16 * KIB)
    made = {
        "small": small,
        "medium": medium,
        "large": Recipe(lambda rng, n: random_columns(rng, n, 16, 1024), 1054, 64 * KIB, MIB),
        "headers": Recipe(header_columns, 218, 64 * KIB, MIB),
        "single": replace(small, record_size=108, batch_records=1),
        "ten": replace(small, record_size=53, batch_records=10),
        "small-lz4": replace(small, codec="lz4"),
        "small-zstd": replace(small, codec="zstd"),
        "small-v1": replace(small, magic=1, batch_records=1),
        "medium-16k-v1-lz4": replace(medium_16k, magic=1, codec="lz4"),
    }
    return made | {f"medium-16k-{codec}": replace(medium_16k, codec=codec) for codec in CODECS if codec != "none"}


CORPORA = recipes()
# The corpora that all decoders are compared on.
COMPRESSED = [f"medium-16k-{codec}" for codec in ("gzip", "snappy", "lz4", "zstd")]
DECODED = ["small", "medium", "large", "headers", "single", "ten", "small-v1", *COMPRESSED]


def batch_bounds(rng: np.random.Generator, recipe: Recipe, columns: Columns) -> Ints:
    """Split the records into batches; return the number of the first record of each, then the number of records."""
    count = len(columns.timestamps)
    if recipe.batch_records:
        return np.append(np.arange(0, count, recipe.batch_records), count)
    sizes = recipe.record_overhead + columns.keys.lengths + columns.values.lengths + columns.headers.lengths
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < count:
        target = recipe.smallest * (recipe.largest / recipe.smallest) ** rng.random()
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        capacity = target - BATCH_HEADER.size
        bounds.append(max(int(np.searchsorted(ends, before + capacity, "right")), bounds[-1] + 1))
    return np.array(bounds)


def frame_batch(
    payload: bytes, base_offset: int, first_timestamp: int, max_timestamp: int, count: int, codec: int
) -> bytes:
    """Prepend the 61-byte header to a payload, with its length and CRC-32C."""
    length = BATCH_HEADER.size - 12 + len(payload)
    batch = bytearray(
        BATCH_HEADER.pack(
            base_offset, length, 0, 2, 0, codec, count - 1, first_timestamp, max_timestamp, -1, -1, -1, count
        )
    )
    batch += payload
    struct.pack_into(">I", batch, ATTRIBUTES_AT - 4, crc32c.crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


def frame_message(attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes) -> bytes:
    """Frame a message of magic 1, with its length and CRC-32."""
    key_part = struct.pack(">i", -1) if key is None else struct.pack(">i", len(key)) + key
    body = struct.pack(">bbq", 1, attributes, timestamp) + key_part + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def message_sets(recipe: Recipe, columns: Columns, bounds: Ints) -> tuple[list[bytes], int]:
    """Make the entries of magic 1; return them and their decompressed size."""
    codec, compress = CODECS[recipe.codec]
    contents = zip(columns.timestamps.tolist(), columns.keys.strings(), columns.values.strings(), strict=True)
    entries: list[bytes] = []
    payload_bytes = 0
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        base_offset = low + number  # a gap of one after each entry
        # Offsets in a wrapper of magic 1 are relative.
        first = 0 if codec else base_offset
        last_timestamp = int(columns.timestamps[high - 1])
        inner = b"".join(
            frame_message(0, first + i, timestamp, key, value)
            for i, (timestamp, key, value) in enumerate(islice(contents, high - low))
        )
        payload_bytes += len(inner)
        if codec:
            inner = frame_message(codec, base_offset + high - low - 1, last_timestamp, None, compress(inner))
        entries.append(inner)
    return entries, payload_bytes


def record_batches(recipe: Recipe, columns: Columns, bounds: Ints) -> tuple[list[bytes], int]:
    """Make the batches of magic 2; return them and the decompressed size of their payloads."""
    codec, compress = CODECS[recipe.codec]
    batches: list[bytes] = []
    payload_bytes = 0
    # Encode a few batches at a time, so that the index arrays are small compared to the corpus.
    step = 4 * MIB // max(recipe.largest, recipe.record_size)
    for block in range(0, len(bounds) - 1, step):
        inner = bounds[block : block + step + 1]
        first, stop = int(inner[0]), int(inner[-1])
        encoded, starts = encode_records(columns, first, stop, np.repeat(inner[:-1], np.diff(inner)))
        block_bytes = encoded.tobytes()
        payload_bytes += len(block_bytes)
        for number, (low, high) in enumerate(zip(inner[:-1].tolist(), inner[1:].tolist(), strict=True), block):
            batches.append(
                frame_batch(
                    compress(block_bytes[int(starts[low - first]) : int(starts[high - first])]),
                    low + number,  # a gap of one after each batch, so that counting records gives wrong offsets
                    int(columns.timestamps[low]),
                    int(columns.timestamps[high - 1]),
                    high - low,
                    codec,
                )
            )
    return batches, payload_bytes


def make(name: str, size: int, seed: int) -> Corpus:
    """Make a corpus of about `size` uncompressed bytes."""
    recipe = CORPORA[name]
    # The seed does not depend on codec and magic, so corpora of the same kind hold the same records.
    rng = np.random.default_rng([seed, recipe.record_size])
    count = max(size // recipe.record_size, 1)
    columns = recipe.columns(rng, count)
    bounds = batch_bounds(rng, recipe, columns)
    batches, payload_bytes = (record_batches if recipe.magic == 2 else message_sets)(recipe, columns, bounds)
    numbers = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    sums = Sums.of_columns(
        np.arange(len(columns.timestamps)) + numbers,
        columns.timestamps,
        columns.keys.strings(),
        columns.values.strings(),
        columns.headers_per_record * len(columns.timestamps),
    )
    return Corpus(name, b"".join(batches), recipe.codec, len(batches), payload_bytes, sums)


def corpus_file(name: str, size: int | None = None, seed: int = SEED) -> Path:
    """Return the path of a corpus, which is made if it is not cached; its description is next to it."""
    size = default_size() if size is None else size
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    log = CACHE / f"{name}-{size}-{seed}-{version}.log"
    description = log.with_suffix(".json")
    if not description.exists():  # written last
        made = make(name, size, seed)
        CACHE.mkdir(exist_ok=True)
        for stale in CACHE.glob(f"{name}-{size}-{seed}-????????????.*"):
            stale.unlink(missing_ok=True)
        log.write_bytes(made.data)
        description.write_text(json.dumps({key: value for key, value in asdict(made).items() if key != "data"}))
    return log


@cache
def corpus(name: str, size: int | None = None, seed: int = SEED) -> Corpus:
    """Return a corpus, from the cache if it was made before."""
    log = corpus_file(name, size, seed)
    facts = json.loads(log.with_suffix(".json").read_text())
    return Corpus(data=log.read_bytes(), **(facts | {"sums": Sums(**facts["sums"])}))


def payloads(data: bytes) -> list[bytes]:
    """Return the stored payloads of a run of batches of magic 2, to measure what decompressing them alone takes."""
    found = []
    position = 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        found.append(data[position + BATCH_HEADER.size : end])
        position = end
    return found


def main() -> None:
    """Make every corpus and print its contents."""
    print(f"{'corpus':24}{'records':>10}{'batches':>10}{'payload bytes':>16}{'stored bytes':>16}")
    for name in CORPORA:
        made = corpus(name)
        print(f"{name:24}{made.sums.records:10}{made.batches:10}{made.payload_bytes:16}{len(made.data):16}")
        corpus.cache_clear()


if __name__ == "__main__":
    main()
