"""Options are defined once: each has the same meaning, default and check everywhere."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import kbatch
import kbatch.cli
import kbatch.log
from kbatch.cli import export
from kbatch.cli.broker_flags import BrokerFlags
from kbatch.cli.command_parser import CommandParser
from kbatch.cli.compact import CompactFlags
from kbatch.cli.consume import ConsumeFlags
from kbatch.cli.convert import ConvertFlags
from kbatch.cli.diff import DiffFlags
from kbatch.cli.flags import add_flags, given_values
from kbatch.cli.rewriting import RewriteFlags
from kbatch.cli.running import make_parser
from kbatch.cli.value_flags import add_value_arguments, value_options
from kbatch.exporting import ExportOptions
from kbatch.log.write.dataframe_rows import RowOptions
from kbatch.log.write.rewriting import rewrite_log
from kbatch.options import (
    BOOLEAN,
    Option,
    OptionError,
    ValueKind,
    check_options,
    from_strings,
    option,
    options_of,
    parse_codec_level,
    refuse_unknown,
    size,
    table_of,
    whole_number,
)
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.quantities import parse_duration, parse_size
from kbatch.read.decode_options import DecodeOptions
from kbatch.rewrite.conversion import Conversion
from kbatch.rewrite.rewriter import Rewriter
from kbatch.sinks.follow_options import FollowOptions
from kbatch.sinks.write_options import WriteOptions
from kbatch.value_options import FormatOptions, RegistryOptions, ValueOptions

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.spark.datasink import SinkOptions, parse_sink_options
from kbatch.spark.stream_options import StreamReadOptions, parse_stream_options

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
# Options that an option requires, by field; a flag or a Spark name if the other option is in a different place.
NEEDS: dict[str, dict[str, str]] = {
    "key_partitions": {"key": "k"},
    "schema": {"format": "json"},
    "schema_file": {"format": "json"},
    "reader_schema": {"format": "avro", "schema": "x"},
    "framing": {"format": "avro", "schema": "x"},
    "message": {"format": "protobuf", "schema": "x"},
    "unknown": {"format": "json"},
    # In Spark, failOnDataLoss changes the default of onError.
    "fail_on_data_loss": {"on_error": "raise"},
}
# Values that are used instead of examples that require other options.
# Flags without a value.
SWITCHES = {
    flag
    for cls in (ReadOptions, WriteOptions)
    for each in options_of(cls)
    for flag, kind in each.flags.items()
    if kind.is_switch
}
EXAMPLES = {(FormatOptions, "format"): "string", (WriteOptions, "format"): "arrow", (RowOptions, "num_partitions"): "3"}

# -- the places with options: each takes texts by name, and returns the dataclass


def spark_read(texts: dict[str, str]) -> Any:
    return parse_options({"path": "x", **texts})[1]


def spark_stream(texts: dict[str, str]) -> Any:
    return parse_stream_options({"path": "x", **texts})[1]


def spark_write(texts: dict[str, str]) -> Any:
    return parse_sink_options({"path": "x", **texts})[1]


class RaisingParser(CommandParser):
    """Raises its errors, with the name of an option as elsewhere."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(re.sub(r"^argument (\S+): ", r"\1 ", message))


def command_line(texts: dict[str, str]) -> argparse.Namespace:
    parser = RaisingParser()
    export.add_parser(parser.add_subparsers())
    arguments = ["export", "logs", "out"]
    for flag, text in texts.items():
        arguments += [flag] if flag in SWITCHES else [f"{flag}={text}"]
    return parser.parse_args(arguments)


def flags_read(texts: dict[str, str]) -> Any:
    made = export.read_options(command_line(texts))
    # With this flag, a partition without a later record is empty instead of an error.
    assert made.latest_if_no_timestamp
    return replace(made, latest_if_no_timestamp=False)


def flags_write(texts: dict[str, str]) -> Any:
    return export.write_options(command_line(texts))


Place = Callable[[dict[str, str]], Any]
# Dataclass, words in its names, places with its options, and the function that returns it from the place's dataclass.
PLACES: list[tuple[type[Any], dict[str, str], str, Place, Callable[[Any], Any]]] = [
    (ReadOptions, {}, "spark", spark_read, lambda made: made),
    (ReadOptions, {}, "flags", flags_read, lambda made: made),
    (StreamReadOptions, {}, "spark", spark_stream, lambda made: made),
    (RowOptions, {}, "spark", spark_write, lambda made: made.rows),
    (SinkOptions, {}, "spark", spark_write, lambda made: made),
    (WriteOptions, {}, "flags", flags_write, lambda made: made),
    *(
        (FormatOptions, {"side": side}, kind, place, lambda made, side=side: getattr(made.values, side))
        for side in ("key", "value")
        for kind, place in (("spark", spark_read), ("flags", flags_read))
    ),
]
CASES = [
    pytest.param(cls, words, kind, place, part, each, name, id=f"{cls.__name__}-{name}")
    for cls, words, kind, place, part in PLACES
    for each in options_of(cls, **words)
    for name in getattr(each, kind)
    # It requires an option of another dataclass, see tests/values/test_schema_registry.py.
    if each.name != "subject"
]
CASE = pytest.mark.parametrize(("cls", "words", "kind", "place", "part", "each", "name"), CASES)


def texts_of(cls: type[Any], words: dict[str, str], kind: str, needed: dict[str, str]) -> dict[str, str]:
    names = {each.name: next(iter(getattr(each, kind)), "") for each in options_of(cls, **words)}
    return {names[field]: text for field, text in needed.items()}


def others(cls: type[Any]) -> dict[str, Any]:
    """Return values for the arguments without a default."""
    return {"rows": RowOptions()} if cls is SinkOptions else {"read": ReadOptions()} if cls is StreamReadOptions else {}


@CASE
def test_an_option_has_the_same_meaning_everywhere(
    cls: type[Any], words: dict[str, str], kind: str, place: Place, part: Any, each: Option, name: str
) -> None:
    """A text in Spark or on the command line has the effect of its value in Python."""
    used: ValueKind = getattr(each, kind)[name]
    text = EXAMPLES.get((cls, each.name), "false" if each.default is True and used is BOOLEAN else used.example)
    needed = NEEDS.get(each.name, {})
    made = part(place({**texts_of(cls, words, kind, needed), name: text}))
    values = {one.name: one.kind.parse(needed[one.name]) for one in options_of(cls) if one.name in needed}
    expected = cls(**others(cls), **values, **{each.name: used.parse(text)})
    for field in fields(cls):
        if field.name not in ("now", "read", "rows"):
            assert getattr(made, field.name) == getattr(expected, field.name), field.name
    assert getattr(made, each.name) != each.default


@CASE
def test_an_option_has_the_same_check_everywhere(
    cls: type[Any], words: dict[str, str], kind: str, place: Place, part: Any, each: Option, name: str
) -> None:
    """An invalid value gives the same message everywhere, after the name of the option in that place."""
    used: ValueKind = getattr(each, kind)[name]
    for bad in ("-5", "", "no such thing", "99999999999999999999", "\0"):
        try:
            value = used.parse(bad)
            each.kind.check(value)
        except ValueError as error:
            message = str(error)
        else:
            continue
        if name in SWITCHES:
            continue
        with pytest.raises(ValueError, match=r"^") as raised:
            place({name: bad})
        assert str(raised.value) == f"{name} {message}"
        if bad == "-5" and message.endswith(", got -5"):
            with pytest.raises(OptionError, match=r"^") as raised:
                cls(**others(cls), **{each.name: value})
            assert str(raised.value) == f"{each.name} {message}"


# Options with any text as value: names, keys, schemas, files and directories.
FREE_TEXT = {"topics", "topic_pattern", "key", "index", "schema", "schema_file", "reader_schema", "message", "topic"}


@CASE
def test_an_option_refuses_unknown_values(
    cls: type[Any], words: dict[str, str], kind: str, place: Place, part: Any, each: Option, name: str
) -> None:
    """The message has the allowed values, or the form that they have."""
    used: ValueKind = getattr(each, kind)[name]
    if each.name in FREE_TEXT and name not in ("keyHex", "--no-index"):
        assert used.parse("no such") in ("no such", b"no such", ("no such",))
        return
    if name in SWITCHES:
        return
    with pytest.raises(ValueError, match=f"^{re.escape(name)} ") as raised:
        place({name: "no such"})
    message = str(raised.value)
    assert "no such" in message
    assert all(choice in message for choice in used.choices)
    assert "must be" in message


def test_columns_with_a_dictionary_are_columns_of_the_files() -> None:
    """A misspelled column would otherwise be without a dictionary, silently."""
    with pytest.raises(ValueError, match=r"^--dictionary must be columns of key, value, .* or none, got 'nosuch'$"):
        flags_write({"--dictionary": "key,nosuch"})
    assert flags_write({"--dictionary": "none"}).dictionary == ()
    assert flags_write({"--dictionary": "key, value"}).dictionary == ("key", "value")


# Flags with any text as value.
FREE_FLAGS = {"--topic", "--key", "--index", "--output", "--against", "--table", "--catalog", "--schema-registry"} | {
    f"--{side}-{name}" for side in ("key", "value") for name in ("schema", "reader-schema", "message", "subject")
}
FREE_FLAGS |= {"--config", "--group", "--topic-pattern", "--other-config", "--other-topic"}


def test_flags_of_commands_refuse_unknown_values() -> None:
    free = set()
    _, commands = make_parser()
    for name, parser in commands.items():
        if name in ("export", "follow"):
            # The tests above check their flags.
            continue
        for action in parser._actions:
            is_hidden = action.help == argparse.SUPPRESS
            if is_hidden or not action.option_strings or action.nargs == 0 or action.choices is not None:
                continue
            if action.option_strings[-1] in FREE_FLAGS:
                free.add(action.option_strings[-1])
                continue
            with pytest.raises((argparse.ArgumentTypeError, ValueError), match=r"must|no such"):
                action.type("no such")  # type: ignore[operator]
    assert free == FREE_FLAGS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"splitBytes": "0"}, "splitBytes must be at least 1, got 0"),
        (
            {"splitBytes": "8388608t"},
            "splitBytes must be at most 9,223,372,036,854,775,807, got 9,223,372,036,854,775,808",
        ),
        ({"maxRecordBytes": "3g"}, "maxRecordBytes must be 1 to 2147482608, got 3221225472"),
        (
            {"startingTimestamp": "99999999999999999999"},
            "startingTimestamp must be a time in the range of an int64 of milliseconds, got 99999999999999999999",
        ),
        (
            {"startingOffsets": '{"t": {"0": 99999999999999999999}}'},
            "startingOffsets must have numbers in the range of an int64, got ",
        ),
    ],
)
def test_numbers_in_messages_are_readable(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        spark_read(given)


@pytest.mark.parametrize(("cls", "words", "kind", "place", "part"), PLACES)
def test_an_option_has_the_same_default_everywhere(
    cls: type[Any], words: dict[str, str], kind: str, place: Place, part: Any
) -> None:
    made, expected = part(place({})), cls(**others(cls))
    for field in fields(cls):
        if field.name not in ("now", "read", "rows"):
            assert getattr(made, field.name) == getattr(expected, field.name), field.name


def test_names_are_unique_in_each_place() -> None:
    reading = [*options_of(ReadOptions), *ValueOptions.options()]
    for offered in (reading, [*options_of(RowOptions), *options_of(SinkOptions)]):
        names = [name.lower() for each in offered for name in each.spark]
        assert len(names) == len(set(names))
    flags = [flag for each in (*reading, *options_of(WriteOptions)) for flag in each.flags]
    assert len(flags) == len(set(flags))
    # The command line has all flags of the definitions.
    arguments = vars(command_line({}))
    assert {flag.lstrip("-").replace("-", "_") for flag in flags} <= set(arguments)


@pytest.mark.parametrize("name", ["isolation", "crc", "on_error", "include_control"])
def test_decoding_and_reading_have_the_same_options(name: str) -> None:
    (each,) = (each for each in options_of(ReadOptions) if each.name == name)
    default = next(field.default for field in fields(DecodeOptions) if field.name == name)
    signatures = [inspect.signature(function) for function in (kbatch.decode, kbatch.Log.tables)]
    assert [each.default] * 2 == [signature.parameters[name].default for signature in signatures]
    assert each.default == default
    for value in each.kind.choices:
        DecodeOptions(**{name: value})  # type: ignore[arg-type]
    if each.kind.choices:
        for make in (DecodeOptions, ReadOptions):
            with pytest.raises(ValueError, match=r"^") as raised:
                make(**{name: "bad"})  # type: ignore[arg-type]
            assert str(raised.value).startswith(f"{name} must be one of {', '.join(map(repr, each.kind.choices))}, got")


@pytest.mark.parametrize("cls", [ReadOptions, StreamReadOptions, RowOptions, SinkOptions, WriteOptions, FormatOptions])
def test_docstrings_have_all_options(cls: type[Any]) -> None:
    text = inspect.getdoc(cls) or ""
    assert "{options}" not in text
    for field in fields(cls):
        assert f"\n{field.name}" in text
    for each in options_of(cls):
        assert f"\n    {each.help}\n" in f"{text}\n"
        assert each.help


def python_names(title: str, offered: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """Return the arguments of `kbatch.export` for each option; none for options that it does not have."""
    if title in ("Streams", "Writing logs", "Live clusters", "Records of live topics"):
        return {}
    names = {
        "starting": ("start", "start_offset", "start_timestamp"),
        "ending": ("end", "stop_offset", "stop_timestamp"),
    }
    for each in offered:
        name = {"format": "values"}.get(each.name, f"value_{each.name}") if title == "Keys and values" else each.name
        name = each.name if each.name == "schema_registry" else name
        if name in ExportOptions.__annotations__:
            names[each.name] = (name,)
    return names


def page() -> str:
    """The documentation of all options: `python tests/test_options.py > docs/options.md` writes it."""
    parts = [
        "# Options\n",
        "Names of Spark's options may be written in any case. The column Python has the arguments of `kbatch.export`.",
        "Sizes are bytes, or have a unit: `64m`, `1g` (powers of 1024).",
    ]
    for title, text, offered in (
        (
            "Reading",
            '`spark.read.format("kbatch")` and `kbatch export`. `kbatch export` also has `--offsets A:B` and '
            "`--times FROM:TO`, for all\npartitions: see [Ranges](command-line.md#ranges). `--on-error`, `--gaps` and "
            "`--allow-missing-offsets` also take\n`TOPIC=POLICY`: see "
            "[Policies of single topics](export.md#policies-of-single-topics).\n\n"
            "Options of Spark's Kafka source that mean nothing for directories are ignored with a warning, and "
            "internal topics such as\n`__consumer_offsets` are read only if they are named: see "
            "[Reading](spark.md#reading). With `kafka.bootstrap.servers` and no\npath, Spark reads a live cluster: "
            "[its options](spark-live.md#options) are these, except for those about files, and `history`.",
            options_of(ReadOptions),
        ),
        (
            "Keys and values",
            "The options of keys have `key` (`--key-`, `--keys`) in place of `value`. There is one schema registry for "
            "both; see\n[Schema registry](registry.md).",
            [*options_of(FormatOptions, side="value"), *options_of(RegistryOptions)],
        ),
        (
            "Streams",
            '`spark.readStream.format("kbatch")`: the options of reading, except `ending...`, `prune` and `table`, and '
            "these:",
            options_of(StreamReadOptions),
        ),
        (
            "Writing logs",
            '`df.write.format("kbatch")`.',
            [*options_of(RowOptions), *options_of(SinkOptions)],
        ),
        ("Files of an export", "`kbatch export` and `kbatch follow`.", options_of(WriteOptions)),
        ("Exports that follow", "`kbatch follow`.", options_of(FollowOptions)),
        (
            "Live clusters",
            "`kbatch consume` and `kbatch topics`; `kbatch dump`, `stats`, `diff` and `backup` of `kafka://HOST:PORT` "
            "have\n`--config` and `--setting`. See [A live cluster](live-commands.md#a-live-cluster).",
            options_of(BrokerFlags),
        ),
        (
            "Records of live topics",
            "`kbatch consume`, which also has the flags of a [selection](command-line.md#selection), and the options "
            "of keys and values.",
            options_of(ConsumeFlags),
        ),
    ):
        parts.append(f"\n## {title}\n\n{text}\n\n{table_of(offered, python_names(title, offered))}")
    parts.append(
        "\nOptions of a filesystem (a path that is a URL) are `storage.NAME` in Spark, `--storage-option NAME=VALUE` "
        "on the command line. For local paths there is `follow_links=true`, which follows symbolic links inside log "
        "directories.\n"
    )
    return "\n".join(parts)


def test_the_documentation_has_all_options() -> None:
    assert PAGE.read_text() == page()


# -- the module itself


def test_unknown_names_suggest_the_nearest_option() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option 'subscrib', did you mean 'subscribe'\? The options are assign, "
    ):
        parse_options({"path": "x", "subscrib": "a"})
    with pytest.raises(ValueError, match=r"unknown option 'qqq'\. The options are a, B$"):
        refuse_unknown({"qqq", "b"}, ["B", "a"])


def test_errors_of_several_options_use_the_names_of_their_place() -> None:
    for make, message in (
        (lambda: ReadOptions(key_partitions=3), "key_partitions requires key"),
        (lambda: spark_read({"keyPartitions": "3"}), "keyPartitions requires key"),
        (lambda: flags_read({"--key-partitions": "3"}), "--key-partitions requires --key"),
        (lambda: FormatOptions("avro"), "format avro requires schema"),
        (lambda: spark_read({"keyFormat": "avro"}), "keyFormat avro requires keySchema"),
        (lambda: flags_read({"--keys": "avro"}), "--keys avro requires --key-schema"),
        (lambda: flags_write({"--format": "arrow", "--compression": "gzip"}), "--format arrow can be compressed with"),
    ):
        with pytest.raises(ValueError, match=r"^") as raised:
            make()
        assert str(raised.value).startswith(message)


def test_names_of_one_option_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^key and keyHex exclude each other"):
        spark_read({"key": "a", "keyHex": "61"})
    with pytest.raises(ValueError, match=r"^isolationLevel and kafka.isolation.level exclude each other"):
        spark_read({"isolationLevel": "read_committed", "kafka.isolation.level": "read_committed"})
    with pytest.raises(ValueError, match=r"^--starting-offsets excludes --offsets and --times that have this side"):
        flags_read({"--times": "2026-01-01:", "--starting-offsets": '{"a": {"0": 1}}'})
    assert spark_read({"topics": "a", "partitions": "0-2"}).topics == ("a",)


def test_values_with_braces_are_shown_unchanged() -> None:
    assert str(OptionError("{a} must not be {0}", "{b}")) == "a must not be {b}"
    assert OptionError("{a} must not be {0}", "{b}").named({"a": "--a", "b": "no"}) == "--a must not be {b}"


def test_sizes_are_parsed() -> None:
    assert [parse_size(text) for text in ("5", "64m", "64 MiB", "1GB")] == [5, 64 << 20, 64 << 20, 1 << 30]
    for text in ("12 parsecs", "", "m", "٣"):
        with pytest.raises(ValueError, match=r"must be a number of bytes such as 67108864 or 64m, got "):
            parse_size(text)


def test_durations_are_parsed() -> None:
    texts = ("500ms", "30s", "15m", "1h", "2 min", "250", "1d", "7us")
    assert [parse_duration(text) for text in texts] == [0.5, 30, 900, 3600, 120, 0.25, 86400, 7e-6]
    for text in ("soon", "", "1 week", "-1s"):
        with pytest.raises(ValueError, match=r"must be a time such as 500ms, 30s or 15m, got "):
            parse_duration(text)


def test_one_parser_and_one_message_for_codecs_with_levels() -> None:
    levels = {"none": (), "gzip": (*range(1, 10), -1), "zstd": range(-9, 23)}
    texts = ("zstd", "ZSTD:3", "zstd:-5", "gzip:-1", "none", "uncompressed")
    parsed = [("zstd", None), ("zstd", 3), ("zstd", -5), ("gzip", -1), ("none", None), ("none", None)]
    assert [parse_codec_level(text, levels) for text in texts] == parsed
    expected = "must be none, gzip or zstd, optionally with a level (gzip:1 to gzip:9, zstd:-9 to zstd:22), got "
    for text in ("zstd:", "gzip:x", "", "zstd:3:4", "gzip:0", "none:1", "zstd:23", "lz4"):
        with pytest.raises(ValueError, match=re.escape(expected + repr(text))):
            parse_codec_level(text, levels)


def test_options_of_other_dataclasses_are_supported() -> None:
    from dataclasses import dataclass

    @dataclass
    class Own:
        count: int = option(whole_number(1, 9), 3, help="how many", spark="howMany", flag="--how-many")
        bytes: int | None = option(size(0, 100), None, help="100% of it", flag="--bytes")
        other: int = 0

    assert [each.name for each in options_of(Own)] == ["count", "bytes"]
    assert from_strings(options_of(Own), {"howmany": " 4 "}) == ({"count": 4}, {"count": "howMany"})
    parser = argparse.ArgumentParser()
    add_flags(parser, options_of(Own))
    assert "how many (default: 3)" in parser.format_help()
    assert "100% of it" in parser.format_help()
    names = {"count": "--how-many", "bytes": "--bytes"}
    assert given_values(options_of(Own), parser.parse_args(["--bytes", "9"])) == ({"bytes": 9}, names)
    check_options(Own())
    with pytest.raises(OptionError, match=r"^count must be 1 to 9, got 10"):
        check_options(Own(10))
    with pytest.raises(OptionError, match=r"^bytes must be 0 to 100, got 101"):
        check_options(Own(bytes=101))


def test_flags_come_from_option_fields() -> None:
    """`kbatch.cli.flags` makes all but two: argparse prints the version, and `--report` stands for other arguments."""
    made = set()
    for path in Path(kbatch.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                made |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    assert {each for each in made if each.startswith("-")} == {"--version", "--report"}


@pytest.mark.parametrize(
    ("cls", "function"),
    [
        (CompactFlags, kbatch.log.compact_log), (DiffFlags, kbatch.log.compare_logs), (RewriteFlags, rewrite_log),
        (RewriteFlags, Rewriter), (ConvertFlags, Conversion),
    ],
)  # fmt: skip
def test_flags_have_the_defaults_of_functions(cls: type[Any], function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    shared = [each for each in options_of(cls) if each.name in parameters]
    assert shared
    assert [each.default for each in shared] == [parameters[each.name].default for each in shared]


def test_flags_of_value_options() -> None:
    parser = argparse.ArgumentParser()
    add_value_arguments(parser.add_argument_group("formats"))
    assert value_options(parser.parse_args([])) == ValueOptions()


if __name__ == "__main__":
    print(page(), end="")
