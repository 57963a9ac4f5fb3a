"""Options. Each option is defined once, as a field of a dataclass, and every interface derives it from there.

A field that `option` makes has a default, a kind of value, and names for Spark (`Option.spark`) and the command line
(`Option.flags`). The parser of Spark's strings (`from_strings`), the flags (`kbatch.cli.flags`), the check of values
(`check_options`) and the documentation (`documented`, `table_of`) are derived from it. The dataclasses stay in the
modules that use their values.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import operator
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from kbatch.quantities import INT32_MAX, INT64_MAX, bounds_text, parse_duration, parse_size

__all__ = [
    "BOOLEAN",
    "BYTES",
    "CODEC",
    "CODEC_LEVELS",
    "CRC",
    "EVERY_TOPIC",
    "INT32_MAX",
    "INT64_MAX",
    "ISOLATION",
    "ON_ERROR",
    "TEXT",
    "CodecLevel",
    "CodecName",
    "ComparedExtent",
    "Crc",
    "EngineName",
    "Framing",
    "Isolation",
    "Match",
    "OnError",
    "Option",
    "OptionError",
    "Overflow",
    "RaiseOrSkip",
    "ValueKind",
    "as_named",
    "check_options",
    "choice",
    "describe_codecs",
    "did_you_mean",
    "documented",
    "from_strings",
    "option",
    "options_of",
    "parse_bytes",
    "parse_codec_level",
    "per_topic",
    "refuse_unknown",
    "size",
    "switch_off",
    "table_of",
    "to_strings",
    "whole_number",
]

_OPTION = "kbatch.option"

# In place of a topic, for the policy of all topics without one of their own.
EVERY_TOPIC = "*"

C = TypeVar("C", bound=type)

# The words of options that functions, Spark and the command line share.
Crc = Literal["verify", "mark", "skip"]
OnError = Literal["raise", "stop", "skip"]
RaiseOrSkip = Literal["raise", "skip"]
Isolation = Literal["read_uncommitted", "read_committed"]
Overflow = Literal["raise", "null"]
Match = Literal["offset", "order", "key"]
ComparedExtent = Literal["common", "all"]
Framing = Literal["none", "confluent"]
On = Literal["key", "value"]
Unknown = Literal["ignore", "bad", "keep"]
Binary = Literal["binary", "large_binary", "binary_view"]
EngineName = Literal["auto", "local", "spark"]
# The names of codecs, and names with the usual levels. Other levels of zstd are negative ones for more speed.
CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CodecLevel = Literal[
    "gzip:-1", "gzip:1", "gzip:2", "gzip:3", "gzip:4", "gzip:5", "gzip:6", "gzip:7", "gzip:8", "gzip:9",
    "lz4:1", "lz4:2", "lz4:3", "lz4:4", "lz4:5", "lz4:6", "lz4:7", "lz4:8", "lz4:9", "lz4:10", "lz4:11", "lz4:12",
    "lz4:13", "lz4:14", "lz4:15", "lz4:16", "lz4:17",
    "zstd:-7", "zstd:-6", "zstd:-5", "zstd:-4", "zstd:-3", "zstd:-2", "zstd:-1", "zstd:1", "zstd:2", "zstd:3", "zstd:4",
    "zstd:5", "zstd:6", "zstd:7", "zstd:8", "zstd:9", "zstd:10", "zstd:11", "zstd:12", "zstd:13", "zstd:14", "zstd:15",
    "zstd:16", "zstd:17", "zstd:18", "zstd:19", "zstd:20", "zstd:21", "zstd:22",
]  # fmt: skip


class OptionError(ValueError):
    """An option is invalid. The text has ``{field}`` in place of option names, so that each interface inserts its own.

    Parameters
    ----------
    text : str
        A format string: ``{0}``, ``{1}``, ... are `values`, any other name is the field of an option.
    *values : object
    """

    def __init__(self, text: str, *values: object) -> None:
        self.text, self.values = text, values
        super().__init__(self.named({}))

    def named(self, names: Mapping[str, str]) -> str:
        """Return the message with these names of options, by field; other options keep the names of their fields."""
        return string.Formatter().vformat(self.text, self.values, _Names(names))


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


@dataclass(frozen=True)
class ValueKind:
    """A kind of value: its form as text, and the allowed values.

    Attributes
    ----------
    parse : callable
        Text to value. The message of a `ValueError` continues after the name of the option: "must be ..., got ...".
    example : str
        A valid text.
    check : callable
        Raises `ValueError` in the same way for a value that is not allowed.
    choices : tuple of str
        All texts, if there are only a few.
    metavar : str
        Placeholder for the text in the help of the command line.
    letter : str
        A short form of the flag, such as ``-o``.
    help : str
        The meaning of the name, where an option has names of several kinds.
    show : callable
        Value to text, for defaults.
    repeated : bool
        Whether a flag may be repeated. `parse` then returns a collection, and the value has the members of all of them.
    is_switch : bool
        Whether a flag has no value, or needs none if it may be repeated; `parse` is called with "true".
    parses_values : bool
        Whether the dataclass accepts the text too.
    """

    parse: Callable[[str], Any]
    example: str
    check: Callable[[Any], None] = lambda value: None
    choices: tuple[str, ...] = ()
    metavar: str = "TEXT"
    letter: str = ""
    help: str = ""
    show: Callable[[Any], str] = str
    repeated: bool = False
    is_switch: bool = False
    parses_values: bool = False


@dataclass(frozen=True)
class Option:
    """The definition of an option.

    Attributes
    ----------
    name : str
        The field's name.
    kind : ValueKind
    spark, flags : dict of str to ValueKind
        Names of the option in Spark and on the command line, and the kind of each; the first is the usual one.
    help : str
    first_wins : bool
        Whether several names may be given; the first in `spark` takes precedence. Otherwise they exclude each other.
    default : object
    """

    name: str
    kind: ValueKind
    spark: Mapping[str, ValueKind]
    flags: Mapping[str, ValueKind]
    help: str
    first_wins: bool
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def shown(self) -> str:
        """The default as text."""
        return "none" if self.default is None else self.kind.show(self.default)


def option(
    kind: ValueKind,
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    spark: str | Mapping[str, ValueKind] | None = None,
    flag: str | Mapping[str, ValueKind] | None = None,
    first_wins: bool = False,
    default_factory: Any = dataclasses.MISSING,
) -> Any:
    """Make a field of a dataclass that is an option; `Option` explains the arguments.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from kbatch.options import from_strings, option, options_of, size
    >>> @dataclass
    ... class Reading:
    ...     split_bytes: int = option(size(), 128 << 20, help="bytes per task", spark="splitBytes", flag="--split-size")
    >>> from_strings(options_of(Reading), {"splitbytes": "64m"})
    ({'split_bytes': 67108864}, {'split_bytes': 'splitBytes'})
    """
    names = [{} if each is None else {each: kind} if isinstance(each, str) else dict(each) for each in (spark, flag)]
    metadata = {_OPTION: (kind, *names, help, first_wins)}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def options_of(cls: type[Any], **prefixes: str) -> list[Option]:
    """Return the options that a dataclass declares; `prefixes` are inserted in names such as ``{side}Format``."""

    def filled(text: str) -> str:
        for name, prefix in prefixes.items():
            text = text.replace("{" + name + "}", prefix)
        return text

    found = []
    for field in dataclasses.fields(cls):
        if _OPTION not in field.metadata:
            continue
        kind, spark, flags, text, first_wins = field.metadata[_OPTION]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        spark, flags = ({filled(name): each for name, each in names.items()} for names in (spark, flags))
        found.append(Option(field.name, kind, spark, flags, text, first_wins, default))
    return found


def check_options(options: Any) -> None:
    """Check the value of each option of a dataclass; None is allowed where it is the default. Sizes may be text.

    Raises
    ------
    OptionError
    """
    for each in options_of(type(options)):
        value = getattr(options, each.name)
        if value is None and each.default is None:
            continue
        try:
            if each.kind.parses_values and isinstance(value, str):
                value = each.kind.parse(value)
                object.__setattr__(options, each.name, value)
            each.kind.check(value)
        except ValueError as error:
            raise OptionError("{" + each.name + "} {0}", error) from None


def as_named(make: Callable[[], Any], names: Mapping[str, str]) -> Any:
    """Call `make`; in the message of an `OptionError`, options have these names."""
    try:
        return make()
    except OptionError as error:
        raise ValueError(error.named(names)) from None


# -- Spark


def from_strings(options: Sequence[Option], given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse options from Spark.

    Parameters
    ----------
    options : sequence of Option
    given : mapping of str to str
        By name in lower case. Unknown names are ignored; `refuse_unknown` reports them.

    Returns
    -------
    values : dict
        The given values, by field.
    names : dict of str to str
        The Spark name of each option, by field: the given name, or the usual one.

    Raises
    ------
    ValueError
        For an invalid text, and for two names of one option.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for each in options:
        found = [name for name in each.spark if name.lower() in given]
        if len(found) > 1 and not each.first_wins:
            raise ValueError(f"{' and '.join(found)} exclude each other")
        if each.spark:
            names[each.name] = name = [*found, *each.spark][0]
        if found:
            try:
                values[each.name] = each.spark[name].parse(given[name.lower()])
                each.kind.check(values[each.name])
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    return values, names


def to_strings(given: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the texts that Spark passes on and `from_strings` parses, without those that are None.

    Examples
    --------
    >>> from kbatch.options import to_strings
    >>> to_strings({"subscribe": "orders", "includeHeaders": True, "keyPartitions": 3, "key": None})
    {'subscribe': 'orders', 'includeHeaders': 'true', 'keyPartitions': '3'}
    """
    texts = {name: str(value) for name, value in given.items() if value is not None}
    return {name: text.lower() if isinstance(given[name], bool) else text for name, text in texts.items()}


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ValueError` for unknown names (in lower case); the message suggests the nearest name and lists all."""
    names = {name.lower(): name for name in known}
    listed = ", ".join(names[name] for name in sorted(names))
    for name in sorted(set(given) - set(names)):
        raise ValueError(f"unknown option {name!r}{did_you_mean(name, names.values()) or '.'} The options are {listed}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word, in any case: ``, did you mean 'topics'?``, or nothing."""
    from difflib import get_close_matches

    # The dashes of options would make all of them similar.
    names = {name.lower().lstrip("-"): name for name in known}
    near = get_close_matches(word.lower().lstrip("-"), names, 1)
    return f", did you mean {names[near[0]]!r}?" if near else ""


# -- documentation


def documented(cls: C) -> C:
    """Insert the options in the docstring of a dataclass, in place of ``{options}``."""
    lines = []
    for each in options_of(cls):
        default = "" if each.is_required else f", default {each.shown}"
        lines += [f"{each.name} : {each.kind.metavar}{default}", f"    {each.help}"]
    cls.__doc__ = (cls.__doc__ or "").replace("{options}", "\n    ".join(lines))
    return cls


def table_of(options: Iterable[Option], arguments: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown table of the names, default and meaning of options; `arguments` are their names in Python."""
    titles = ["Spark", "flag", *(["Python"] if arguments else []), "default", ""]
    rows = [" | ".join(["", *titles, ""]).strip(), "|---" * len(titles) + "|"]
    for each in options:
        names = [each.spark, each.flags, *([arguments.get(each.name, ())] if arguments else [])]
        text = "; ".join([each.help, *(f"`{name}`: {kind.help}" for name, kind in each.spark.items() if kind.help)])
        cells = [*(", ".join(f"`{name}`" for name in each_place) for each_place in names), each.shown, text]
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(rows).replace("|  |", "| |")


# -- kinds of values


def whole_number(minimum: int = 0, maximum: int = INT64_MAX, metavar: str = "N") -> ValueKind:
    """Return the kind of integers within these bounds."""
    return ValueKind(_parse_integer, str(minimum), _between(minimum, maximum), metavar=metavar)


def size(minimum: int = 1, maximum: int = INT64_MAX) -> ValueKind:
    """Return the kind of sizes in bytes within these bounds."""
    return ValueKind(parse_size, "64k", _between(minimum, maximum), metavar="SIZE", show=_show_size, parses_values=True)


def duration(example: str, show: Callable[[float], str]) -> ValueKind:
    """Return the kind of a time of at least zero: seconds, or a text with a unit."""
    return ValueKind(parse_duration, example, _check_not_negative, metavar="TIME", show=show, parses_values=True)


def choice(*names: str) -> ValueKind:
    """Return the kind of these words, case-insensitive."""

    def test(value: Any) -> None:
        if not isinstance(value, str) or value not in names:
            hint = did_you_mean(str(value), names)
            raise ValueError(f"must be one of {', '.join(map(repr, names))}, got {value!r}{hint}")

    folded = {name.lower(): name for name in names}
    return ValueKind(
        lambda text: folded.get(text.strip().lower(), text), names[-1], test, names, f"{{{','.join(names)}}}"
    )


def _between(minimum: int, maximum: int) -> Callable[[Any], None]:
    def test(value: Any) -> None:
        try:
            operator.index(value)
        except TypeError:
            raise ValueError(f"must be a whole number, got {value!r}") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"must be {bounds_text(minimum, maximum, value)}")

    return test


def _check_not_negative(value: float) -> None:
    if not value >= 0:
        raise ValueError(f"must not be negative, got {value}")


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"\s*[-+]?\d{1,20}\s*", text, re.ASCII):
        raise ValueError(f"must be a whole number, got {text!r}")
    return int(text)


def _parse_boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, got {text!r}")
    return text.strip().lower() == "true"


CRC, ON_ERROR, ISOLATION = choice(*get_args(Crc)), choice(*get_args(OnError)), choice(*get_args(Isolation))
TEXT = ValueKind(str, "text")
BOOLEAN = ValueKind(_parse_boolean, "true", metavar="BOOL", show=lambda value: str(value).lower(), is_switch=True)


def switch_off(help: str) -> ValueKind:
    """Return the kind of a flag that turns off an option, such as ``--no-headers``."""
    return ValueKind(lambda text: not _parse_boolean(text), "true", metavar="BOOL", help=help, is_switch=True)


def per_topic(kind: ValueKind) -> ValueKind:
    """Return the kind of a flag whose value is a policy for all topics, or ``TOPIC=POLICY``: pairs of both.

    Examples
    --------
    >>> from kbatch.options import ON_ERROR, per_topic
    >>> per_topic(ON_ERROR).parse("skip"), per_topic(ON_ERROR).parse("orders=skip")
    ((('*', 'skip'),), (('orders', 'skip'),))
    """

    def parse(text: str) -> tuple[tuple[str, Any], ...]:
        topic, equals, policy = text.rpartition("=")
        if equals and not topic:
            raise ValueError(f"must be TOPIC={kind.metavar}, got {text!r}")
        try:
            value = kind.parse(policy)
            kind.check(value)
        except ValueError as error:
            raise ValueError(f"{error} for topic {topic!r}" if equals else str(error)) from None
        return ((topic or EVERY_TOPIC, value),)

    # The brackets of an optional value are of the whole.
    metavar = f"TOPIC={kind.metavar}" if kind.is_switch else f"[TOPIC=]{kind.metavar}"
    return dataclasses.replace(kind, parse=parse, check=lambda value: None, metavar=metavar, repeated=True)


def parse_bytes(text: str) -> bytes:
    r"""Parse text, ``hex:...`` or ``base64:...``; ``text:`` before a text avoids either prefix.

    Examples
    --------
    >>> from kbatch.options import parse_bytes
    >>> parse_bytes("key-1"), parse_bytes("hex:00ff"), parse_bytes("base64:AAAA"), parse_bytes("text:hex:00")
    (b'key-1', b'\x00\xff', b'\x00\x00\x00', b'hex:00')
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "hex":
            return bytes.fromhex(rest)
        if kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        expected = "an even number of hexadecimal digits" if kind == "hex" else "complete base64"
        raise ValueError(f"must have {expected} after {kind}:, got {text!r}") from None
    return (rest if kind == "text" else text).encode("utf-8", "surrogateescape")


BYTES = ValueKind(
    parse_bytes, "order-1", metavar="KEY", help="only records with this key: text, hex:00ff or base64:AP8="
)


def _show_size(value: int) -> str:
    shift = next((shift for shift in (30, 20, 10) if value % (1 << shift) == 0), 0)
    return f"{value >> shift}{ {30: 'g', 20: 'm', 10: 'k', 0: ''}[shift] }"


# The codecs, and the levels of Kafka's `compression.*.level` (COD-R10). zlib accepts level 0 (no compression), Kafka
# does not; -1 is Kafka's default for gzip.
CODEC_LEVELS: dict[str, Sequence[int]] = {
    "none": (),
    "gzip": (*range(1, 10), -1),
    "snappy": (),
    "lz4": range(1, 18),
    "zstd": range(-131072, 23),
}


def parse_codec_level(text: str, levels: Mapping[str, Sequence[int]]) -> tuple[str, int | None]:
    """Return codec and level of a text such as ``zstd`` or ``zstd:3``; the level is None for the codec's default.

    `levels` are the levels of each codec: from the first one to the largest. Files such as Parquet have other levels
    than Kafka (`CODEC_LEVELS`).

    Examples
    --------
    >>> from kbatch.options import parse_codec_level
    >>> levels = {"snappy": (), "zstd": range(1, 23)}
    >>> parse_codec_level("zstd:3", levels), parse_codec_level("snappy", levels)
    (('zstd', 3), ('snappy', None))
    """
    found = re.fullmatch(r"\s*(\w+)(?::([-+]?\d{1,7}))?\s*", text.lower(), re.ASCII)
    if found:
        # The name in Kafka's topic configuration, in Spark and in Parquet.
        codec = "none" if found[1] == "uncompressed" else found[1]
        level = None if found[2] is None else int(found[2])
        if codec in levels and (level is None or level in levels[codec]):
            return codec, level
    raise ValueError(f"must be {describe_codecs(levels)}, got {text!r}")


def _check_codec(text: str) -> None:
    parse_codec_level(text, CODEC_LEVELS)


# A codec of Kafka with or without a level, as text.
CODEC = ValueKind(str, "zstd:3", _check_codec, metavar="CODEC[:LEVEL]")


def describe_codecs(levels: Mapping[str, Sequence[int]]) -> str:
    """Return the codecs and their ranges of levels, for messages and help."""
    *others, last = levels
    ranges = [f"{codec}:{each[0]} to {codec}:{max(each)}" for codec, each in levels.items() if each]
    return f"{', '.join(others)} or {last}, optionally with a level ({', '.join(ranges)})"
