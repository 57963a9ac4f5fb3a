"""What an export is asked to write: format, compression, sizes of files and row groups, days.

No pyspark in here: the tasks share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from kbatch import options as opts
from kbatch.options import OptionError, ValueKind, option

__all__ = ["DEFAULT_FILE_BYTES", "Format", "WriteOptions"]

Format = Literal["parquet", "arrow", "delta", "iceberg"]

# What a task of the usual opts.size writes, and some more: files that object stores and query engines like.
DEFAULT_FILE_BYTES = 512 << 20

# The levels that the codecs have in Arrow; None for those without.
_LEVELS: dict[str, tuple[int, int] | None] = {
    "zstd": (1, 22),
    "gzip": (1, 9),
    "lz4": (1, 12),
    "snappy": None,
    "none": None,
}


def _check_compression(text: str) -> None:
    codec, level = opts.parse_compression(text)
    if codec not in _LEVELS:
        raise ValueError(f"must be one of {', '.join(_LEVELS)}, or with a level such as zstd:3, got {text!r}")
    levels = _LEVELS[codec]
    if level is not None and levels is None:
        raise ValueError(f"{codec} has no levels, got {text!r}")
    if level is not None and levels is not None and not levels[0] <= level <= levels[1]:
        raise ValueError(f"{codec} has levels {levels[0]} to {levels[1]}, got {text!r}")


def _parse_columns(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


@opts.documented
@dataclass(frozen=True)
class WriteOptions:
    """What to write. Picklable, with plain values only.

    Attributes
    ----------
    {options}
    storage : mapping of str to str
        Options of the output's file system.

    Raises
    ------
    OptionError
        For values that are not valid.

    Examples
    --------
    >>> import kbatch.spark
    >>> options = kbatch.spark.WriteOptions(compression="zstd:3", by_day=True)
    >>> options.columns_in_path
    ('topic', 'partition', 'date')
    """

    format: Format = option(
        opts.choice(*get_args(Format)), "parquet", flag="--format",
        help="Parquet files, Arrow IPC files (Feather 2), or Parquet files of a Delta or Iceberg table, which is "
        "created or appended to with one transaction",
    )  # fmt: skip
    compression: str = option(
        ValueKind(str, "zstd:3", _check_compression, metavar="CODEC[:LEVEL]"), "zstd", flag="--compression",
        help="zstd, snappy, gzip, lz4 or none, with a level such as zstd:3; Arrow IPC has zstd, lz4 and none",
    )  # fmt: skip
    # A row group is what a reader takes at once: large enough for its columns to compress and scan well, and small
    # enough for many to be read in parallel.
    row_group_rows: int = option(
        opts.whole_number(1), 1 << 20, flag="--row-group-rows", help="rows of a row group or record batch, at most"
    )
    row_group_bytes: int = option(
        opts.size(), 64 << 20, flag="--row-group-size",
        help="bytes of a row group or record batch before it is encoded and compressed, about",
    )  # fmt: skip
    file_bytes: int | None = option(
        opts.size(), None, flag="--file-size",
        help="size of files to aim for, such as 1g; tasks then read about as many bytes of the log (default: up to "
        "512m, as large as tasks of --split-size make them)",
    )  # fmt: skip
    by_day: bool = option(
        opts.BOOLEAN, False, flag="--by-day",
        help="a directory date=YYYY-MM-DD for the day (UTC) of the timestamps; in Iceberg a partition field",
    )  # fmt: skip
    dictionary: tuple[str, ...] = option(
        ValueKind(_parse_columns, "key,timestampType", metavar="COLUMN,...", show=",".join),
        ("key", "timestampType", "headers"),
        flag="--dictionary", help="columns that Parquet may encode with a dictionary, or none",
    )  # fmt: skip
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        opts.check_options(self)
        codec, _ = opts.parse_compression(self.compression)
        if self.format == "arrow" and codec not in ("zstd", "lz4", "none"):
            raise OptionError("{format} arrow can be compressed with zstd, lz4 or none, not {0}", codec)

    @property
    def suffix(self) -> str:
        """The end of the names of data files."""
        return ".arrow" if self.format == "arrow" else ".parquet"

    @property
    def columns_in_path(self) -> tuple[str, ...]:
        """The columns that the directories tell, and the files don't."""
        if self.format == "iceberg":
            # Its readers look for partition values in the files' columns, and at days by the timestamp.
            return ()
        return ("topic", "partition", *(("date",) if self.by_day else ()))
