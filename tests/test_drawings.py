"""The drawings of the documentation are those of the script, and show the format as it is."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import drawings
import pytest
from svg_drawing import Drawing

import kbatch
from kbatch.format import BATCH_HEADER_SIZE, CRC_START, MAGIC_AT, MAX_TIMESTAMP_AT

DOCS = drawings.IMAGES.parent


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_the_committed_drawing_is_that_of_the_script(name: str) -> None:
    assert (drawings.IMAGES / f"{name}.svg").read_text() == drawings.DRAWINGS[name]().svg()


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_drawing_is_on_a_page_needs_nothing_else_and_has_a_text(name: str) -> None:
    path = drawings.IMAGES / f"{name}.svg"
    root = ET.fromstring(path.read_text())
    texts = {each.tag.rpartition("}")[2]: each.text for each in root}
    assert texts["title"]
    assert texts["desc"]
    assert not re.search(r"href|url\((?!#)|<script|@import", path.read_text())
    assert path.stat().st_size < 50_000
    pages = [page for page in DOCS.rglob("*.md") if f"images/{name}.svg)" in page.read_text()]
    assert len(pages) == 1


def test_the_fields_of_the_drawn_header_are_those_of_a_batch() -> None:
    starts, position = {}, 0
    for name, size, _ in drawings.BATCH_FIELDS:
        starts[name] = position
        position += size
    assert position == BATCH_HEADER_SIZE
    assert (starts["magic"], starts["attributes"], starts["maxTimestamp"]) == (MAGIC_AT, CRC_START, MAX_TIMESTAMP_AT)
    assert next(name for name, _, covered in drawings.BATCH_FIELDS if covered) == "attributes"
    data = kbatch.encode([b"v", b"w"], timestamps=5, producer_id=7, producer_epoch=8, base_sequence=9, leader_epoch=3)
    for name, form, value in [
        ("partitionLeaderEpoch", ">i", 3), ("producerId", ">q", 7), ("producerEpoch", ">h", 8),
        ("baseSequence", ">i", 9), ("recordCount", ">i", 2), ("lastOffsetDelta", ">i", 1), ("baseTimestamp", ">q", 5),
    ]:  # fmt: skip
        assert struct.unpack_from(form, data, starts[name]) == (value,)


def test_the_drawn_log_gives_the_drawn_records() -> None:
    ids = {"A": 1001, "B": 1002, "C": 1003}
    log = b""
    for offset, entry in enumerate(drawings.LOG):
        name, _, marker = entry.partition(" ")
        producer = {"producer_id": ids[name], "producer_epoch": 0} if name in ids else {}
        if marker in ("commit", "abort"):
            log += kbatch.encode_marker(marker, offset=offset, timestamp=1, **producer)
        else:
            more = {"base_sequence": 0, "transactional": True} if producer else {}
            log += kbatch.encode([b"v"], timestamps=1, base_offset=offset, **producer, **more)
    table = kbatch.decode(log, isolation="read_committed")
    assert table.records["offset"].tolist() == [0, 1, 4, 5]
    assert table.last_stable_offset == drawings.LAST_STABLE


def test_text_that_leaves_its_box_or_the_drawing_is_an_error() -> None:
    drawing = Drawing(100, 50, "title", "description")
    with pytest.raises(ValueError, match=r"'a long text' needs .* of 40"):
        drawing.box(0, 0, 40, 20, "a long text")
    with pytest.raises(ValueError, match="leaves the drawing"):
        drawing.text(60, 20, "a long text")


@pytest.mark.parametrize("page", [DOCS / "format.md", DOCS / "transactions-and-damage.md", DOCS / "architecture.md"])
def test_a_page_of_explanation_has_a_drawing(page: Path) -> None:
    assert re.search(r"!\[[^\]]{20,}\]\(images/[\w-]+\.svg\)", page.read_text())
