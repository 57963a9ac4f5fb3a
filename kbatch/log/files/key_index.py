"""The file of a key index: which blocks of a closed segment have a key, and what each block covers.

The file is Parquet. A block is a run of whole batches, about a mebibyte. There are two kinds of rows:

- One row for each pair of a key and a block that has it, in order of the key's hash: 32 bits of the hash, and the
  number of the block. A look-up reads the row groups whose statistics include the hash, about 0.2 MB each.
- Before them, with a null hash, one row for each block: the position of its first batch, and the ranges of its offsets
  and timestamps.

Arrow writes Bloom filters too, but does not read them, and Parquet needs the values next to them. For five million
keys, sorted hashes take 2.9 bytes per key. A Bloom filter per block with 1 % of false positives takes 1.7 bytes, or 9.7
with the values, and would make a look-up in a thousand blocks read ten of them in vain. With the hashes, one look-up in
a thousand reads one block in vain.

The hash is SipHash with a secret of the file, so that nobody can construct keys that collide. The name of the file has
the checksum of the footer, and pages have checksums, so that damage is found without reading the whole file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.batches.regular_files import open_regular
from kbatch.extras import require
from kbatch.json_text import parse_json
from kbatch.kernels.keymap import hash_slices
from kbatch.publishing import rename_all

__all__ = [
    "BLOCK_DTYPE",
    "FILE_NAME",
    "KeyIndexFile",
    "KeyIndexHeader",
    "base_offset_of_index",
    "key_hashes",
    "write_key_index",
]

BLOCK_DTYPE = np.dtype(
    [
        ("position", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("min_timestamp", np.int64),
        ("max_timestamp", np.int64),
    ]
)
# The base offset of the segment, and the checksum of the file's footer.
FILE_NAME = re.compile(r"(\d{20})-([0-9a-f]{8})\.parquet")

# Rows of a row group, all of which a look-up reads.
_GROUP_ROWS = 1 << 16
# A segment of 128 GiB has this number of blocks.
_MAX_BLOCKS = 1 << 17
# The most bytes of a column in a row group, and of a footer: that of 33 million pairs has a quarter of a megabyte.
_MAX_COLUMN_BYTES = 8 << 20
_MAX_FOOTER_BYTES = 2 << 20
_HEADER = b"kbatch.key_index"
_VERSION = 1
_MAGIC = b"PAR1"
_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyIndexHeader:
    """The segment that an index was made from.

    Attributes
    ----------
    base_offset : int
        From the segment's name.
    size : int
        Bytes of the segment.
    last_position, last_offset, crc : int
        The position, the last offset and the checksum of the last batch.
    secret : str
        Of the hash, in hexadecimal.
    log : str
        The path or URL of the log.
    keys : int
        The number of pairs of a key and a block.
    """

    base_offset: int
    size: int
    last_position: int
    last_offset: int
    crc: int
    secret: str
    log: str
    keys: int

    @classmethod
    def parse(cls, text: bytes) -> KeyIndexHeader:
        """Return the header in the metadata of a file.

        Raises
        ------
        ValueError
            If it is something else, or of another version.
        """
        found = parse_json(text)
        if not isinstance(found, dict) or found.pop("version", None) != _VERSION:
            raise ValueError("the metadata are not those of a key index of this version")
        texts = {"secret", "log"}
        if set(found) != set(cls.__dataclass_fields__) or not all(
            type(value) is (str if name in texts else int) for name, value in found.items()
        ):
            raise ValueError("the metadata of the key index have other fields")
        header = cls(**found)
        if len(bytes.fromhex(header.secret)) != _SECRET_BYTES:
            raise ValueError("the secret of the key index has another length")
        if not 0 <= header.last_position < header.size:
            raise ValueError("the last batch of the key index is outside of the segment")
        return header


def key_hashes(
    secret: bytes, positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint32]:
    """Return 32 bits of the hash of each key, none of which is null."""
    found = np.empty((len(positions), 2), np.uint64)
    hash_slices(secret, np.ascontiguousarray(positions), lengths.astype(np.int64), data, found)
    return found[:, 0].astype(np.uint32)


def base_offset_of_index(name: str) -> int | None:
    """Return the base offset of the segment that an index of this name belongs to; None for another file."""
    found = FILE_NAME.fullmatch(name)
    return None if found is None else int(found[1])


def write_key_index(
    directory: str,
    header: KeyIndexHeader,
    blocks: npt.NDArray[np.void],
    pairs: npt.NDArray[np.uint64],
) -> str:
    """Write an index file; return its name.

    Parameters
    ----------
    directory : str
    header : KeyIndexHeader
    blocks : ndarray of BLOCK_DTYPE
    pairs : ndarray of uint64
        Of each key and block: the hash in the upper 32 bits, and the number of the block. In ascending order.

    Raises
    ------
    MissingDependencyError
        Without pyarrow.
    OSError
    """
    pa, pq = require("pyarrow", "arrow", "a key index"), require("pyarrow.parquet", "arrow", "a key index")
    names = list(BLOCK_DTYPE.names or ())
    schema = pa.schema([("hash", pa.uint32()), ("block", pa.uint32()), *((name, pa.int64()) for name in names)])
    path = os.path.join(directory, f"{header.base_offset:020d}.tmp")
    first = [pa.nulls(len(blocks), pa.uint32()), pa.array(np.arange(len(blocks), dtype=np.uint32))]
    first += [pa.array(np.ascontiguousarray(blocks[name])) for name in names]
    with pq.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=["block"],
        column_encoding=dict.fromkeys(["hash", *names], "DELTA_BINARY_PACKED"),
        write_statistics=["hash"],
        write_page_checksum=True,
    ) as writer:
        writer.write_table(pa.table(first, schema=schema), row_group_size=_MAX_BLOCKS)
        for start in range(0, len(pairs), _GROUP_ROWS):
            part = pairs[start : start + _GROUP_ROWS]
            hashes, numbers = (part >> np.uint64(32)).astype(np.uint32), part.astype(np.uint32)
            columns = [pa.array(hashes), pa.array(numbers), *[pa.nulls(len(part), pa.int64())] * len(names)]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=_GROUP_ROWS)
        writer.add_key_value_metadata({_HEADER.decode(): json.dumps({"version": _VERSION, **asdict(header)})})
    with open_regular(path) as file:
        name = f"{header.base_offset:020d}-{_footer_checksum(file):08x}.parquet"
    rename_all([(path, os.path.join(directory, name))], sync=False)
    return name


def _footer_checksum(file: Any) -> int:
    """Return the checksum of the footer of a Parquet file.

    Raises
    ------
    ValueError
        If the file has none, or one that is too large.
    """
    from crc32c import crc32c

    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < length <= min(size - 12, _MAX_FOOTER_BYTES):
        raise ValueError("it does not end with the footer of a Parquet file")
    file.seek(size - 8 - length)
    found: int = crc32c(file.read(length) + tail)
    return found


class KeyIndexFile:
    """An index file that is read; use it in a ``with`` block.

    Parameters
    ----------
    path : str

    Attributes
    ----------
    header : KeyIndexHeader

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or is damaged or something else. The same holds for the methods.
    MissingDependencyError
        Without pyarrow.
    """

    def __init__(self, path: str) -> None:
        pa, pq = require("pyarrow", "arrow", "a key index"), require("pyarrow.parquet", "arrow", "a key index")
        name = FILE_NAME.fullmatch(os.path.basename(path))
        if name is None:
            raise ValueError("the name is not that of a key index")
        self._file = open_regular(path, follow=False)
        try:
            if _footer_checksum(self._file) != int(name[2], 16):
                raise ValueError("the footer does not have the checksum in the name")
            with _as_value_errors():
                self._parquet = pq.ParquetFile(pa.PythonFile(self._file, "r"), page_checksum_verification=True)
                self._metadata = self._parquet.metadata
                self.header = KeyIndexHeader.parse((self._metadata.metadata or {}).get(_HEADER, b""))
            if self.header.base_offset != int(name[1]):
                raise ValueError("the base offset is not that of the name")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> KeyIndexFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def blocks(self) -> npt.NDArray[np.void]:
        """Return the blocks of the segment, in order.

        Returns
        -------
        ndarray of BLOCK_DTYPE
        """
        columns = self._read([0], list(BLOCK_DTYPE.names or ()), _MAX_BLOCKS)
        found = np.empty(len(columns[0]), BLOCK_DTYPE)
        for name, column in zip(BLOCK_DTYPE.names or (), columns, strict=True):
            found[name] = column
        positions = found["position"]
        if not len(found) or positions[0] != 0 or np.any(positions[1:] <= positions[:-1]):
            raise ValueError("the positions of the blocks do not ascend from 0")
        if positions[-1] > self.header.last_position:
            raise ValueError("the last block begins after the last batch")
        return found

    def numbers(self, keys: Iterable[bytes]) -> npt.NDArray[np.uint32]:
        """Return the numbers of the blocks that may have one of the keys, in order."""
        secret = bytes.fromhex(self.header.secret)
        found = [self._numbers_of(_hash_of(secret, key)) for key in keys]
        return np.unique(np.concatenate([np.empty(0, np.uint32), *found]))

    def _numbers_of(self, hash_: int) -> npt.NDArray[np.uint32]:
        parts = [np.empty(0, np.uint32)]
        for group in self._groups_of(hash_):
            hashes, numbers = self._read([group], ["hash", "block"], _GROUP_ROWS)
            low, high = np.searchsorted(hashes, [hash_, hash_ + 1])
            parts.append(numbers[low:high])
        return np.concatenate(parts)

    def _groups_of(self, hash_: int) -> Iterator[int]:
        """Yield the row groups whose statistics include a hash."""
        with _as_value_errors():
            for group in range(1, self._metadata.num_row_groups):
                statistics = self._metadata.row_group(group).column(0).statistics
                if statistics is None or not statistics.has_min_max:
                    raise ValueError(f"row group {group} has no statistics")
                if statistics.min <= hash_ <= statistics.max:
                    yield group

    def _read(self, groups: list[int], names: Sequence[str], most_rows: int) -> list[npt.NDArray[Any]]:
        """Read columns of row groups whose sizes are within bounds."""
        with _as_value_errors():
            for group in groups:
                about = self._metadata.row_group(group)
                if about.num_rows > most_rows:
                    raise ValueError(f"row group {group} has {about.num_rows} rows, expected at most {most_rows}")
                for column in map(about.column, range(about.num_columns)):
                    if column.compression != "UNCOMPRESSED" or column.total_compressed_size > _MAX_COLUMN_BYTES:
                        raise ValueError(f"row group {group} is compressed or too large")
            table = self._parquet.read_row_groups(groups, columns=list(names), use_threads=False)
            if table.column_names != list(names) or any(column.null_count for column in table.columns):
                raise ValueError("the columns are not those of a key index")
            # `to_numpy` would import pandas, which takes longer than all else.
            return [np.from_dlpack(column.combine_chunks()) for column in table.columns]


def _hash_of(secret: bytes, key: bytes) -> int:
    data = np.frombuffer(key, np.uint8)
    return int(key_hashes(secret, np.zeros(1, np.int64), np.array([len(key)], np.int32), data)[0])


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise the errors of Arrow, and those of calls with damaged metadata, as `ValueError`."""
    pa = require("pyarrow", "arrow", "a key index")
    try:
        yield
    except ValueError:
        raise
    except (pa.ArrowException, OSError, TypeError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"it can't be read: {error}") from error
