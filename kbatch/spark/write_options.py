"""What an export is asked to write: format, compression, sizes of files and row groups, days.

No pyspark in here: the tasks share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = ["DEFAULT_FILE_BYTES", "Format", "WriteOptions", "parse_compression"]

Format = Literal["parquet", "arrow", "delta", "iceberg"]

# A row group is what a reader takes at once: large enough for its columns to compress and scan well, and small enough
# for many to be read in parallel.
_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
# What a task of the usual size writes, and some more: files that object stores and query engines like.
DEFAULT_FILE_BYTES = 512 << 20

# The levels that the codecs have in Arrow; None for those without.
_LEVELS: dict[str, tuple[int, int] | None] = {
    "zstd": (1, 22),
    "gzip": (1, 9),
    "lz4": (1, 12),
    "snappy": None,
    "none": None,
}


@dataclass(frozen=True)
class WriteOptions:
    """What to write. Picklable, with plain values only.

    Attributes
    ----------
    format : {"parquet", "arrow", "delta", "iceberg"}
        Files in directories: Parquet, or Arrow IPC (Feather 2). Or Parquet files of a table, with one transaction.
    compression : str
        ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``; those with levels also as ``zstd:3``. Arrow IPC knows zstd,
        lz4 and none.
    row_group_rows, row_group_bytes : int
        Most rows of a row group, and about how many bytes its columns have at most before they are encoded and
        compressed. Of Arrow IPC that is a record batch.
    file_bytes : int or None
        Aim for the size of a file: a task begins another one there. If it is given, tasks also read about as many bytes
        of the log, so that files become that large. None is 512 MiB, and tasks of the usual size.
    by_day : bool
        Whether there is a directory ``date=YYYY-MM-DD`` for the UTC day of each record's timestamp.
    dictionary : tuple of str
        Columns that Parquet may encode with a dictionary.
    storage : mapping of str to str
        Options of the output's file system.

    Raises
    ------
    ValueError
        For values that aren't possible.

    Examples
    --------
    >>> import kbatch.spark
    >>> options = kbatch.spark.WriteOptions(compression="zstd:3", by_day=True)
    >>> options.columns_in_path
    ('topic', 'partition', 'date')
    """

    format: Format = "parquet"
    compression: str = "zstd"
    row_group_rows: int = _GROUP_ROWS
    row_group_bytes: int = _GROUP_BYTES
    file_bytes: int | None = None
    by_day: bool = False
    dictionary: tuple[str, ...] = ("key", "timestampType", "headers")
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {self.format!r}")
        codec, _ = parse_compression(self.compression)
        if self.format == "arrow" and codec not in ("zstd", "lz4", "none"):
            raise ValueError(f"Arrow files can be compressed with zstd, lz4 or none, not {codec}")
        for name in ("row_group_rows", "row_group_bytes", "file_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def suffix(self) -> str:
        """The end of the names of data files."""
        return ".arrow" if self.format == "arrow" else ".parquet"

    @property
    def is_table(self) -> bool:
        """Whether the files belong to a table with transactions of its own."""
        return self.format in ("delta", "iceberg")

    @property
    def columns_in_path(self) -> tuple[str, ...]:
        """The columns that the directories tell, and the files don't."""
        if self.format == "iceberg":
            # Its readers look for partition values in the files' columns, and at days by the timestamp.
            return ()
        return ("topic", "partition", *(("date",) if self.by_day else ()))


def parse_compression(text: str) -> tuple[str, int | None]:
    """Return codec and level of a text such as ``zstd`` or ``zstd:3``; the level is None for the codec's own default.

    Raises
    ------
    ValueError
        For another codec, or a level that it doesn't have.

    Examples
    --------
    >>> from kbatch.spark.write_options import parse_compression
    >>> parse_compression("zstd:3"), parse_compression("snappy")
    (('zstd', 3), ('snappy', None))
    """
    found = re.fullmatch(r"([a-z0-9]+)(?::(\d{1,3}))?", text)
    if not found or found[1] not in _LEVELS:
        raise ValueError(
            f"compression must be one of {', '.join(_LEVELS)}, or with a level such as zstd:3, got {text!r}"
        )
    codec, level = found[1], found[2]
    bounds = _LEVELS[codec]
    if level is None:
        return codec, None
    if bounds is None:
        raise ValueError(f"compression {codec} has no levels, got {text!r}")
    if not bounds[0] <= int(level) <= bounds[1]:
        raise ValueError(f"compression {codec} has levels {bounds[0]} to {bounds[1]}, got {text!r}")
    return codec, int(level)
