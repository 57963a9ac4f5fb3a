"""What notebooks show of tables, logs, scans and consumers: short, escaped, and without reading more than `repr`."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from golden_logs import LOGS
from live_reading import consumed, partition
from scripted_broker import ScriptedCluster

import kbatch
from kbatch.log import LogList

EVIL = "<script>alert('1')</script>\u202e\x1b[31m"


class Checker(HTMLParser):
    """The tags and the text of HTML without attributes, and so without styles, scripts and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_table() -> kbatch.RecordTable:
    evil = EVIL.encode()
    data = kbatch.encode([evil, None] * 50, keys=[evil] * 100, headers=[[(EVIL, evil)]] * 100, timestamps=0)
    return kbatch.decode(data)


@pytest.fixture
def evil_log(tmp_path: Path) -> kbatch.Log:
    """A log whose directory and values are hostile."""
    directory = tmp_path / "<b>&'-0"
    with kbatch.log.LogWriter(directory) as writer:
        writer.append(kbatch.encode([EVIL.encode()] * 9, timestamps=0, codec="zstd"))
    return kbatch.Log(directory)


OBJECTS: dict[str, Callable[[kbatch.Log], Any]] = {
    "RecordTable": lambda log: evil_table(),
    "ParsedValues": lambda log: evil_table().values_text(),
    "ParsedValues of bad values": lambda log: evil_table().values_json({"a": "bigint"}),
    "Log": lambda log: log,
    "LogList": lambda log: LogList([log] * 100),
    "Segment": lambda log: log.segments[0],
    "Scan": lambda log: kbatch.scan_logs(log.path, topics=[EVIL], start="-1h").filter(pc.field("key") == EVIL.encode()),
    "typed Scan": lambda log: kbatch.scan_logs(log.path, values="json", keys="string"),
    "Consumer": lambda log: consumed(ScriptedCluster(orders=[partition(5)] * 30)),
}
TAGS = {"p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("name", OBJECTS)
def test_html_is_short_and_its_names_and_values_are_escaped(name: str, evil_log: kbatch.Log) -> None:
    shown = OBJECTS[name](evil_log)._repr_html_()
    checked = Checker(shown)
    assert set(checked.tags) <= TAGS
    assert checked.tags.count("tr") <= 15
    assert len(shown) < 8000
    assert not {"\u202e", "\x1b"} & set(shown)
    assert name.split()[-1] in checked.text or "ParsedValues" in checked.text


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened meanwhile."""
    found: list[str] = []
    real_open, real_os_open = builtins.open, os.open

    def counted_open(file: Any, *arguments: Any, **named: Any) -> Any:
        found.append(str(file))
        return real_open(file, *arguments, **named)

    def counted_os_open(path: Any, *arguments: Any, **named: Any) -> int:
        found.append(str(path))
        return real_os_open(path, *arguments, **named)

    monkeypatch.setattr(builtins, "open", counted_open)
    monkeypatch.setattr(io, "open", counted_open)
    monkeypatch.setattr(os, "open", counted_os_open)
    return found


def test_html_of_segments_lists_and_scans_reads_no_file(opened: list[str]) -> None:
    logs = kbatch.find_logs(LOGS)
    scan = kbatch.scan_logs(LOGS, topics="codec-*", values="json")
    # Modules that are imported at the first use are files too.
    shown = [each._repr_html_() for each in (logs, logs[0].segments[0], scan)]
    opened.clear()
    assert [each._repr_html_() for each in (logs, logs[0].segments[0], scan)] == shown
    assert opened == []
    list(logs[0].tables())
    assert opened


def test_html_of_a_log_has_offsets_sizes_and_codec() -> None:
    shown = Checker(kbatch.Log(LOGS / "codec-lz4-0")._repr_html_()).text
    for text in ("2 segments, 62,704 bytes", "offsets: 0 to 3208", "codec of the first batch: lz4", "value: binary"):
        assert text in shown


def test_html_of_a_log_of_a_remote_storage_reads_nothing() -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    try:
        for path in (LOGS / "codec-lz4-0").iterdir():
            files.pipe(f"/html/codec-lz4-0/{path.name}", path.read_bytes())
        log = kbatch.Log("memory://html/codec-lz4-0")
        # Not even the files are there any more.
        files.rm("/html", recursive=True)
        shown = Checker(log._repr_html_()).text
    finally:
        files.store.clear()
    assert "2 segments, 62,704 bytes" in shown
    assert "topic, partition: codec-lz4, 0" in shown
    assert "error" not in shown


def test_html_of_a_list_of_logs_has_the_first_offsets() -> None:
    logs = kbatch.find_logs(LOGS, topics="codec-*")
    checked = Checker(logs._repr_html_())
    assert "offset of the first segment" in checked.text
    assert checked.tags.count("tr") == 6


def test_html_of_a_scan_has_its_choice_of_records_and_the_types_of_columns() -> None:
    scan = kbatch.scan_logs(LOGS, topics=["txn", "codec-*"], partitions=[0], start=5, values="json")
    shown = Checker(scan.filter(pc.field("offset") > 7).select("offset", "value")._repr_html_()).text
    for text in ("topics: txn, codec-*", "partitions: 0", "start: Bound(offset=5)", "filter: (offset > 7)"):
        assert text in shown
    assert shown.endswith("columntypeoffsetint64valuejson")


def test_html_of_parsed_values_has_the_first_values_and_the_first_error() -> None:
    table = kbatch.decode(kbatch.encode([b'{"a": 1}', b"bad", None], timestamps=0))
    shown = Checker(table.values_json({"a": "bigint"})._repr_html_()).text
    assert "3 records, 1 bad" in shown
    assert "type of value: struct<a: int64>" in shown
    assert "first error: " in shown
    assert "{'a': 1}" in shown
    large = kbatch.decode(kbatch.encode([b"x" * 1_000_000] * 9, timestamps=0))
    assert len(large.values_text()._repr_html_()) < 1000


def test_html_of_a_consumer_asks_no_broker() -> None:
    cluster = ScriptedCluster(orders=[partition(5), partition(3)])
    consumer = consumed(cluster)
    asked = len(cluster.requests)
    shown = Checker(consumer._repr_html_())
    assert "2 partitions of 1 topic" in shown.text
    assert "orders" in shown.text
    assert shown.tags.count("tr") == 3
    assert len(cluster.requests) == asked
    list(consumer)
    assert Checker(consumer._repr_html_()).text.endswith("orders00550orders10330")


def test_html_of_a_damaged_log_states_the_error(tmp_path: Path) -> None:
    directory = shutil.copytree(LOGS / "codec-none-0", tmp_path / "t-0", copy_function=shutil.copyfile)
    path = next(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert "error: " in Checker(kbatch.Log(directory)._repr_html_()).text
