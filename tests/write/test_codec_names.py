"""`codec` is the only name for the codec of batches, with its level as in "zstd:3"."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kbatch
import kbatch.log
from kbatch.format import ATTRIBUTE_CODEC

VALUES = [b'{"user": %d, "page": "/%d"}' % (i * 7919 % 1000, i % 37) for i in range(1000)]
DATA = kbatch.encode(VALUES, timestamps=1000)
OLD = kbatch.encode(VALUES, timestamps=1000, magic=1)


def written(**options: Any) -> bytes:
    file = io.BytesIO()
    with kbatch.BatchWriter(file, batch_size="1g", **options) as writer:
        writer.append_many(VALUES, timestamps=1000)
    return file.getvalue()


def rewritten(make: Callable[..., Any], data: bytes, tmp_path: Path, **options: Any) -> bytes:
    source, out = tmp_path / "in" / "t-0", tmp_path / "out" / "t-0"
    for directory in (source, out.parent):
        directory.mkdir(parents=True, exist_ok=True)
    (source / f"{0:020d}.log").write_bytes(data)
    make(source, out, **options)
    made = (out / f"{0:020d}.log").read_bytes()
    for file in out.iterdir():
        file.unlink()
    return made


CALLS: dict[str, Callable[..., bytes]] = {
    "encode": lambda tmp_path, **options: kbatch.encode(VALUES, timestamps=1000, **options),
    "encode of a table": lambda tmp_path, **options: kbatch.encode(kbatch.decode(DATA), **options),
    "encode_table": lambda tmp_path, **options: kbatch.encode_table(kbatch.decode(DATA), **options),
    "BatchWriter": lambda tmp_path, **options: written(**options),
    "convert": lambda tmp_path, **options: kbatch.convert(OLD, 2, batch_size="1g", **options),
    "recompress": lambda tmp_path, **options: kbatch.recompress(DATA, **options),
    "convert_log": lambda tmp_path, **options: rewritten(
        kbatch.log.convert_log, OLD, tmp_path, batch_size="1g", **options
    ),
    "recompress_log": lambda tmp_path, **options: rewritten(kbatch.log.recompress_log, DATA, tmp_path, **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_codec_has_its_level_everywhere(name: str, tmp_path: Path) -> None:
    fast, good = (CALLS[name](tmp_path, codec=codec) for codec in ("zstd:-50", "zstd:19"))
    assert len(good) < len(fast)
    for data in (fast, good):
        assert set((kbatch.scan(data)["attributes"] & ATTRIBUTE_CODEC).tolist()) == {int(kbatch.Codec.ZSTD)}
        assert kbatch.decode(data).values() == VALUES


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "zstd:23"}, r"codec must be none, .* \(gzip:1 to gzip:9, lz4:1 to lz4:17, zstd:-131072 to zstd:22"),
        ({"codec": "zstd:"}, "codec must be none, .* got 'zstd:'"),
        ({"codec": 7}, "codec must be 0 to 4, got 7"),
        ({"codec": b"zstd"}, "codec must be a str such as 'zstd:3', or a kbatch.Codec, got bytes"),
        ({"codec": 1.5}, "codec must be a str such as 'zstd:3', or a kbatch.Codec, got float"),
    ],
)
def test_one_message_for_invalid_codecs(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        CALLS[name](tmp_path, **options)


def test_the_levels_of_a_topic_are_those_of_its_codec() -> None:
    kbatch.TopicConfig(compression_type="zstd", compression_level=19)
    with pytest.raises(ValueError, match=r"codec must be .* got 'gzip:19'"):
        kbatch.TopicConfig(compression_type="gzip", compression_level=19)
    with pytest.raises(ValueError, match=r"compression_type must be 'producer', 'uncompressed', .*, got 'zstd:3'"):
        kbatch.TopicConfig(compression_type="zstd:3")  # type: ignore[arg-type]
