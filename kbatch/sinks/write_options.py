"""The options for the files of an export: format, compression, sizes of files and row groups, days."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kbatch import options as opts
from kbatch.arguments import check_fields
from kbatch.options import OptionError, ValueKind, option

__all__ = ["ExportMode", "NewFields", "OutputFormat", "WriteOptions", "parse_compression"]

OutputFormat = Literal["parquet", "arrow", "delta", "iceberg"]
ExportMode = Literal["continue", "overwrite", "error"]
NewFields = Literal["add", "bad"]

# The codecs of Arrow and their levels.
_ARROW_LEVELS: dict[str, Sequence[int]] = {
    "none": (),
    "gzip": range(1, 10),
    "snappy": (),
    "lz4": range(1, 13),
    "zstd": range(-131_072, 23),
}


def parse_compression(text: str) -> tuple[str, int | None]:
    """Return the Arrow name of a codec and its level; None means the codec's default level."""
    return opts.parse_codec_level(text, _ARROW_LEVELS)


def _check_compression(text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"must be a text such as zstd:3, got {text!r}")
    parse_compression(text)


def _parse_columns(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _check_columns(names: tuple[str, ...]) -> None:
    from kbatch.records.kafka_columns import SPARK_COLUMNS

    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ValueError(f"must be a sequence of columns, got {names!r}")
    for name in names:
        if name not in SPARK_COLUMNS:
            raise ValueError(f"must be columns of {', '.join(SPARK_COLUMNS)}, or none, got {name!r}")


def _check_max_bad(text: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"must be a text such as 100 or 0.5%, got {text!r}")
    found = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", text, re.ASCII)
    if not found or (found[2] and float(found[2]) > 100):
        raise ValueError(f"must be a number such as 100, or percent such as 0.5%, got {text!r}")


@opts.documented
@dataclass(frozen=True)
class WriteOptions:
    """How to write the files of an export. Instances hold only plain values and can be pickled.

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
    >>> options = WriteOptions(compression="zstd:3", by_day=True)
    >>> options.columns_in_path
    ('topic', 'partition', 'date')
    """

    format: OutputFormat = option(
        opts.choice(*get_args(OutputFormat)), "parquet", flag="--format",
        help="Parquet files, Arrow IPC files (Feather 2), or Parquet files of a Delta or Iceberg table, which is "
        "created or appended to with one transaction",
    )  # fmt: skip
    mode: ExportMode = option(
        opts.choice(*get_args(ExportMode)), "continue", flag="--mode",
        help="if the output has data: write only the records that earlier exports have not written, replace all data, "
        "or fail",
    )  # fmt: skip
    compression: str = option(
        ValueKind(str, "zstd:3", _check_compression, metavar="CODEC[:LEVEL]"), "zstd", flag="--compression",
        help="zstd, snappy, gzip, lz4 or none, with a level such as zstd:3; Arrow IPC has zstd, lz4 and none",
    )  # fmt: skip
    # A reader reads a row group at once: it should be large enough for columns to compress and scan well, and small
    # enough for many to be read in parallel.
    row_group_rows: int = option(
        opts.whole_number(1),
        4 << 20,
        flag="--row-group-rows",
        help="maximum number of rows in a row group or record batch",
    )
    row_group_bytes: int = option(
        opts.size(), 128 << 20, flag="--row-group-size",
        help="approximate number of bytes in a row group or record batch before encoding and compression",
    )  # fmt: skip
    file_bytes: int = option(
        opts.size(), 256 << 20, flag="--file-size",
        help="target size of files after compression, such as 1g",
    )  # fmt: skip
    by_day: bool = option(
        opts.BOOLEAN, False, flag="--by-day",
        help="write a directory date=YYYY-MM-DD for each day (UTC) of the timestamps; in Iceberg a partition field",
    )  # fmt: skip
    dictionary: tuple[str, ...] = option(
        ValueKind(_parse_columns, "key,timestampType", _check_columns, metavar="COLUMN,...", show=",".join),
        ("key", "timestampType", "headers"),
        flag="--dictionary",
        help="columns that Parquet may encode with a dictionary if their values repeat, as it may all parsed fields; "
        "or none",
    )  # fmt: skip
    max_bad: str = option(
        ValueKind(str, "1%", _check_max_bad, metavar="N|P%"), "0", flag="--max-bad",
        help="how many keys and values may be unparsed or incomplete, as a number or in percent; with more, the exit "
        "status is 5",
    )  # fmt: skip
    flatten: bool = option(
        opts.BOOLEAN, False, flag="--flatten",
        help="write the fields of parsed values and keys as columns; one with the name of another column gets the "
        "prefix value_ or key_",
    )  # fmt: skip
    new_fields: NewFields = option(
        opts.choice(*get_args(NewFields)), "add", flag="--new-fields",
        help="with an inferred schema, fields of the new records that the data does not have: add columns for them, or "
        "keep the values with these fields as incomplete ones in value_bad (key_bad)",
    )  # fmt: skip
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        opts.check_options(self)
        check_fields(self)
        codec, _ = parse_compression(self.compression)
        if self.format == "arrow" and codec not in ("zstd", "lz4", "none"):
            raise OptionError("{format} arrow can be compressed with zstd, lz4 or none, not {0}", codec)

    def tolerates(self, bad: int, values: int) -> bool:
        """Whether `max_bad` allows this number of incompletely parsed values."""
        if self.max_bad.endswith("%"):
            return bad * 100 <= float(self.max_bad[:-1]) * values
        return bad <= int(self.max_bad)

    @property
    def suffix(self) -> str:
        """The suffix of data files."""
        return ".arrow" if self.format == "arrow" else ".parquet"

    @property
    def columns_in_path(self) -> tuple[str, ...]:
        """The columns that are in the names of directories instead of the files."""
        if self.format == "iceberg":
            # Iceberg readers take partition values from the columns of the files, and days from the timestamp.
            return ()
        return ("topic", "partition", *(("date",) if self.by_day else ()))
