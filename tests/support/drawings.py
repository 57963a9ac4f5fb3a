"""The drawings of the documentation: ``python tests/support/drawings.py`` writes ``docs/images/*.svg``.

``python tests/support/drawings.py DIRECTORY`` also writes them as PNG, light and dark, which shows how they look.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from svg_drawing import Drawing

IMAGES = Path(__file__).parents[2] / "docs" / "images"

# The header of a batch of magic 2: names of Kafka, sizes, and whether the CRC covers the field.
BATCH_FIELDS = [
    ("baseOffset", 8, False),
    ("batchLength", 4, False),
    ("partitionLeaderEpoch", 4, False),
    ("magic", 1, False),
    ("crc", 4, None),
    ("attributes", 2, True),
    ("lastOffsetDelta", 4, True),
    ("baseTimestamp", 8, True),
    ("maxTimestamp", 8, True),
    ("producerId", 8, True),
    ("producerEpoch", 2, True),
    ("baseSequence", 4, True),
    ("recordCount", 4, True),
]


def segment_drawing() -> Drawing:
    """A segment file, a batch, its header to scale, and a record."""
    drawing = Drawing(
        900, 590, "From a segment file to a record",
        "A segment file is a sequence of batches. A batch of magic 2 has a header of 61 bytes and a payload of "
        "records, which may be compressed. The checksum covers byte 21 to the end of the batch.",
    )  # fmt: skip
    drawing.text(24, 30, "00000000000000000000.log", style="mono", bold=True)
    drawing.text(224, 30, "a segment file: batches, one after the other", style="muted")
    x = 24.0
    for number, (width, name) in enumerate([(150, "0 to 41"), (190, "42 to 57"), (120, "58"), (240, "59 to 130")]):
        drawing.box(
            x, 42, width, 34, f"offset{'s' if 'to' in name else ''} {name}", kind="blue" if number == 1 else "plain"
        )
        x += width
    drawing.box(x, 42, 152, 34, "a partial batch", dashed=True)
    drawing.line((174, 76), (24, 112), dashed=True)
    drawing.line((364, 76), (876, 112), dashed=True)
    drawing.box(24, 112, 240, 40, "header: 61 bytes", kind="blue", bold=True)
    drawing.box(264, 112, 612, 40, "payload: the records, compressed as a whole or not at all", kind="green", bold=True)
    drawing.line((24, 152), (24, 176), dashed=True)
    drawing.line((264, 152), (876, 176), dashed=True)
    cell, top, left = 53.25, 192, 24
    position = 0
    for name, size, covered in BATCH_FIELDS:
        kind = {True: "green", False: "plain", None: "orange"}[covered]
        end = position + size
        label = name
        while position < end:
            row, column = divmod(position, 16)
            count = min(end - position, 16 - column)
            at = left + column * cell, top + row * 40
            shown = label if count * cell > len(label) * 12 * 0.62 else ""
            drawing.box(*at, count * cell, 34, shown, kind=kind, size=12, style="mono", radius=0)
            drawing.text(at[0] + 3, at[1] + 9, str(position), size=10, style="muted")
            label = "" if shown else label
            position += count
    drawing.box(left + 13 * cell, top + 120, 3 * cell, 34, "records ...", kind="green", size=12, style="mono", radius=0)
    drawing.text(left + 13 * cell + 3, top + 129, "61", size=10, style="muted")
    drawing.text(
        24, 374, "16 bytes per row; the small number is the position of the first byte.", size=12, style="muted"
    )
    for x, kind, text in [
        (438, "plain", "not covered by the checksum"),
        (648, "orange", "checksum"),
        (748, "green", "covered by it"),
    ]:
        drawing.box(x, 363, 14, 14, kind=kind)
        drawing.text(x + 20, 374, text, size=12)
    _record(drawing)
    return drawing


def _record(drawing: Drawing) -> None:
    drawing.text(24, 416, "a record", bold=True)
    drawing.text(90, 416, "all integers but the attributes are varints; -1 as a length is null", style="muted")
    x = 24.0
    fields = [
        (64, ("length",)), (82, ("attributes", "1 byte")), (108, ("timestamp", "delta")), (74, ("offset", "delta")),
        (74, ("key", "length")), (96, ("key",)), (74, ("value", "length")), (150, ("value",)),
        (66, ("header", "count")), (64, ("headers",)),
    ]  # fmt: skip
    for width, lines in fields:
        kind = "purple" if lines[0] in ("key", "value", "headers") and len(lines) == 1 else "plain"
        drawing.box(x, 428, width, 44, *lines, kind=kind, size=12)
        x += width
    drawing.text(24, 512, "a header of a record", bold=True)
    drawing.arrow((844, 472), (844, 536), (560, 536))
    x = 24.0
    for width, lines in [
        (90, ("key", "length")), (150, ("key",)), (90, ("value", "length")), (206, ("value",)),
    ]:  # fmt: skip
        drawing.box(x, 522, width, 44, *lines, kind="purple" if len(lines) == 1 else "plain", size=12)
        x += width
    drawing.text(574, 556, "a key is never null, a value may be", size=12, style="muted")


def message_set_drawing() -> Drawing:
    """A message of magic 0 or 1, and a wrapper with messages inside."""
    drawing = Drawing(
        900, 420, "Message sets of magic 0 and 1",
        "A message of magic 0 or 1 has its offset, size, checksum, magic, attributes, in magic 1 a timestamp, then key "
        "and value. A compressed set is one message, the wrapper, whose value holds the other messages.",
    )  # fmt: skip
    drawing.text(24, 30, "a message", bold=True)
    drawing.text(
        108, 30, "with the position of each field; the checksum is a CRC-32 from the magic to the end", style="muted"
    )
    x = 24.0
    fields = [
        (112, "offset", "0"), (64, "size", "8"), (64, "crc", "12"), (60, "magic", "16"), (92, "attributes", "17"),
        (112, "timestamp", "18"), (84, "key length", "26 (18)"), (72, "key", ""), (98, "value length", ""),
        (94, "value", ""),
    ]  # fmt: skip
    for width, name, at in fields:
        kind = {"timestamp": "orange", "key": "purple", "value": "purple", "crc": "plain"}.get(name, "plain")
        drawing.box(x, 42, width, 38, name, kind=kind, size=12, dashed=name == "timestamp")
        drawing.text(x + 3, 94, at, size=11, style="muted")
        x += width
    drawing.text(390, 112, "only in magic 1", size=12, style="orange-text")

    drawing.text(24, 156, "a compressed set is one message: the wrapper", bold=True)
    drawing.box(24, 170, 852, 224, kind="plain")
    drawing.box(40, 184, 216, 44, "wrapper", "offset of the last message", kind="blue", bold=True, size=12)
    drawing.box(268, 184, 200, 44, "attributes", "codec: gzip, snappy or lz4", kind="blue", size=12)
    drawing.box(480, 184, 384, 44, "value: the messages, compressed together", kind="green", size=12)
    drawing.line((480, 228), (250, 264), dashed=True)
    drawing.line((864, 228), (864, 264), dashed=True)
    for number in range(4):
        x = 250 + number * 153.5
        drawing.box(x, 264, 150, 34, f"message {number + 1}", kind="green", size=12)
    for row, (magic, inner, wrapper) in enumerate(
        [("magic 0", (40, 41, 42, 43), 43), ("magic 1", (0, 1, 2, 3), 43)]
    ):  # fmt: skip
        y = 324 + row * 42
        drawing.text(40, y, magic, bold=True)
        drawing.text(104, y, f"wrapper {wrapper}", style="mono")
        for number, offset in enumerate(inner):
            drawing.text(250 + number * 153.5 + 75, y, str(offset), style="mono", anchor="middle")
    drawing.text(104, 341, "stored offsets are absolute", size=11, style="muted")
    drawing.text(104, 383, "relative: absolute = wrapper - last + stored, here 43 - 3 + stored", size=11, style="muted")
    return drawing


def index_drawing() -> Drawing:
    """How an offset and a time are found by the index files."""
    drawing = Drawing(
        900, 330, "Index files of a segment",
        "The offset index maps some offsets to positions in the segment file, the time index maps some timestamps to "
        "offsets. A lookup takes the last entry before the searched one, and scans batch headers from there.",
    )  # fmt: skip
    drawing.text(24, 34, ".timeindex", style="mono", bold=True)
    drawing.text(24, 52, "12 bytes per entry", size=12, style="muted")
    drawing.text(330, 34, ".index", style="mono", bold=True)
    drawing.text(330, 52, "8 bytes per entry", size=12, style="muted")
    times = [("12:00:04", "+41"), ("12:00:31", "+118"), ("12:01:10", "+205")]
    offsets = [("+41", "4096"), ("+118", "8310"), ("+205", "12544")]
    for row in range(3):
        y = 64 + row * 32
        kind = "orange" if row == 1 else "plain"
        drawing.box(24, y, 120, 28, times[row][0], kind=kind, style="mono", radius=0)
        drawing.box(144, y, 90, 28, times[row][1], kind=kind, style="mono", radius=0)
        drawing.box(330, y, 90, 28, offsets[row][0], kind=kind, style="mono", radius=0)
        drawing.box(420, y, 110, 28, offsets[row][1], kind=kind, style="mono", radius=0)
    drawing.text(24, 178, "largest timestamp so far, offset", size=12, style="muted")
    drawing.text(330, 178, "offset, position in the .log file", size=12, style="muted")
    drawing.arrow((234, 110), (330, 110))
    drawing.text(560, 84, "The first record since 12:00:40", size=13, bold=True)
    drawing.text(560, 106, "1. The last entry before that time: +118.", size=12)
    drawing.text(560, 126, "2. Its batch is at byte 8310 or after it.", size=12)
    drawing.text(560, 146, "3. Read batch headers from there on.", size=12)
    drawing.text(560, 166, "Offsets are relative to the name of the segment.", size=12, style="muted")
    drawing.text(24, 228, ".log", style="mono", bold=True)
    x = 24.0
    for width, name, kind in [
        (104, "", "plain"), (92, "", "plain"), (120, "+41", "plain"), (118, "", "plain"), (140, "+118", "orange"),
        (96, "", "plain"), (110, "+205", "plain"), (72, "", "plain"),
    ]:  # fmt: skip
        drawing.box(x, 240, width, 34, *([name] if name else []), kind=kind, style="mono")
        x += width
    drawing.arrow((530, 110), (546, 110), (546, 206), (458, 206), (458, 238))
    drawing.text(462, 290, "8310", size=11, style="muted")
    drawing.arrow((500, 302), (640, 302))
    drawing.text(650, 306, "headers are read", size=12, style="muted")
    return drawing


# Of the log in the drawing of transactions: the producer of each offset, and whether it is a marker.
LOG = ["A", "A", "B", "B", "A", "-", "A commit", "B", "B abort", "C", "A", "C", "A commit", "-"]
LAST_STABLE = 9


def transactions_drawing() -> Drawing:
    """A log with interleaved transactions, and what read_committed returns of it."""
    drawing = Drawing(
        900, 400, "Transactions in a log",
        "Fourteen offsets of three producers and of records outside of transactions. The transaction of producer C is "
        "open, so the last stable offset is 9, its first offset. read_committed returns offsets 0, 1, 4 and 5.",
    )  # fmt: skip
    left, cell = 150, 52
    kinds = {"A": "blue", "B": "orange", "C": "purple", "-": "plain"}
    lanes = {"A": 118, "B": 160, "C": 202, "-": 244}
    drawing.text(24, 40, "offset", style="muted")
    drawing.text(24, 74, "the log", bold=True)
    for name, text in [("A", "producer A"), ("B", "producer B"), ("C", "producer C"), ("-", "no transaction")]:
        drawing.text(24, lanes[name] + 19, text)
    for first, last, producer in [(0, 6, "A"), (2, 8, "B"), (10, 12, "A")]:
        y = lanes[producer] + 15
        drawing.line((left + first * cell + 24, y), (left + last * cell + 24, y), kind=kinds[producer])
    y = lanes["C"] + 15
    drawing.line((left + LAST_STABLE * cell + 24, y), (left + 14 * cell - 4, y), kind="purple", dashed=True)
    for offset, entry in enumerate(LOG):
        producer, _, marker = entry.partition(" ")
        x = left + offset * cell
        shown = marker or ("" if producer == "-" else producer)
        drawing.text(x + 24, 40, str(offset), style="mono", anchor="middle")
        kind, text = kinds[producer], [marker] if marker else []
        drawing.box(x, 52, cell - 4, 34, *([shown] if shown else []), kind=kind, bold=bool(marker), size=11)
        drawing.box(x, lanes[producer], cell - 4, 30, *text, kind=kind, bold=True, size=11)
        if not marker:
            drawing.text(x + 24, lanes[producer] + 20, "data", size=11, anchor="middle")
    _returned(drawing, left, cell)
    x = left + LAST_STABLE * cell - 2
    drawing.line((x, 24), (x, 364), kind="red", dashed=True)
    drawing.text(
        876, 384, "last stable offset: 9, where the first open transaction begins",
        size=12, style="red-text", anchor="end",
    )  # fmt: skip
    return drawing


def _returned(drawing: Drawing, left: int, cell: int) -> None:
    drawing.text(24, 310, "read_uncommitted", size=12)
    drawing.text(24, 346, "read_committed", size=12, bold=True)
    for offset, entry in enumerate(LOG):
        producer, _, marker = entry.partition(" ")
        if not marker:
            drawing.box(left + offset * cell, 290, cell - 4, 30, str(offset), style="mono", kind="green")
            if offset < LAST_STABLE:
                aborted = producer == "B"
                text = [] if aborted else [str(offset)]
                kind = "plain" if aborted else "green"
                drawing.box(left + offset * cell, 326, cell - 4, 30, *text, style="mono", kind=kind, dashed=aborted)
    drawing.text(left + LAST_STABLE * cell + 12, 346, "withheld until C has ended", size=12, style="muted")


def damage_drawing() -> Drawing:
    """A flipped byte in a payload and in a length, and where reading resumes."""
    drawing = Drawing(
        900, 420, "A flipped byte, and where reading resumes",
        "A batch with a flipped byte in its payload is skipped by its length. With a flipped byte in its length, the "
        "next header is searched byte by byte. Both times one batch is lost, and the loss is listed.",
    )  # fmt: skip
    batches = [(24, 190, "batch 1"), (214, 230, "batch 2"), (444, 170, "batch 3"), (614, 262, "batch 4")]
    for top, title, at in [(24, "a flipped byte in the payload", 404), (156, "a flipped byte in the length", 219)]:
        drawing.text(24, top + 10, title, bold=True)
        for x, width, name in batches:
            bad = name == "batch 2"
            drawing.box(x, top + 24, width, 38, kind="red" if bad else "plain")
            drawing.box(x, top + 24, 62, 38, "header", kind="red" if bad else "blue")
            drawing.text(x + 62 + (width - 62) / 2, top + 48, name, size=12, anchor="middle")
        drawing.line((at, top + 18), (at, top + 68), kind="red")
        drawing.text(at + 6, top + 18, "1 bit", size=11, style="red-text")
    drawing.arrow((214, 104), (214, 116), (444, 116), (444, 90))
    drawing.text(
        452,
        112,
        "wrong checksum; the length leads to the next header",
        size=12,
        style="muted",
    )
    drawing.arrow((214, 236), (214, 248), (800, 248), (800, 222))
    drawing.text(808, 244, "no header", size=12, style="muted")
    for x in range(226, 440, 12):
        drawing.line((x, 256), (x, 266))
    drawing.arrow((214, 261), (444, 261), (444, 222))
    drawing.text(452, 270, "search for valid length, magic and checksum", size=12, style="muted")
    drawing.text(24, 312, "returned", bold=True)
    for x, width, name in batches:
        bad = name == "batch 2"
        text = "a loss: position, length, base offset, reason" if bad else f"records of {name}"
        if bad:
            drawing.box(x, 324, width, 38, "table.losses", "position, length, reason", kind="red", dashed=True, size=11)
        else:
            drawing.box(x, 324, width, 38, text, kind="green")
    drawing.text(
        24, 392, "on_error=\"skip\": one bit costs one batch. Reading resumes only at a batch whose checksum is right.",
        size=12, style="muted",
    )  # fmt: skip
    return drawing


def architecture_drawing() -> Drawing:
    """The data flow from bytes to tables, with the folders of the package."""
    drawing = Drawing(
        900, 520, "Data flow",
        "Bytes of buffers, log directories and live clusters are framed, verified, decompressed and parsed into a "
        "RecordTable, whose views are NumPy, Arrow and pandas; scans, sinks and Spark read Arrow. Columns are encoded "
        "into batches and written as logs.",
    )  # fmt: skip
    drawing.text(24, 34, "bytes", bold=True)
    for row, (name, folder) in enumerate(
        [("buffer, stream", "read/"), ("log directory, object store", "log/"), ("live cluster", "live/, protocol/")]
    ):
        y = 46 + row * 62
        drawing.box(24, y, 206, 50, name, folder, bold=True)
        drawing.arrow((230, y + 25), (244, y + 25), (244, 133), (258, 133))
    drawing.text(258, 34, "batches", bold=True)
    drawing.text(326, 34, "batches/ and kernels/, without the GIL", size=12, style="muted")
    for number, (name, text) in enumerate(
        [
            ("framing", "headers to rows"),
            ("checksums", "CRC-32C, CRC-32"),
            ("codecs", "gzip to zstd"),
            ("kernels", "records to rows"),
        ]
    ):
        x = 258 + number * 158
        drawing.box(x, 104, 140, 58, name, text, kind="blue", bold=True)
        if number < 3:
            drawing.arrow((x + 140, 133), (x + 158, 133))
    drawing.text(258, 184, "kbatch.scan", size=11, style="mono muted")
    drawing.text(790, 184, "kbatch.decode", size=11, style="mono muted", anchor="end")
    drawing.arrow((802, 162), (802, 232))
    drawing.text(790, 214, "read/", size=12, style="muted", anchor="end")
    drawing.box(612, 232, 264, 62, "RecordTable", "records, batches, headers, data", kind="green", bold=True, size=13)
    drawing.box(360, 232, 200, 62, "committed records", "transactions/", bold=True)
    drawing.arrow((612, 250), (560, 250))
    drawing.arrow((560, 276), (612, 276))
    drawing.box(612, 330, 264, 50, "Arrow, pandas, NumPy", "records/; typed columns: values/", kind="green", bold=True)
    drawing.arrow((744, 294), (744, 330))
    outputs = [
        ("Polars, DuckDB", "scans/", 24, 150), ("Parquet, Delta, Iceberg", "sinks/", 196, 180),
        ("Spark", "spark/", 398, 150),
    ]  # fmt: skip
    drawing.line((612, 355), (99, 355))
    for name, folder, x, width in outputs:
        drawing.box(x, 386, width, 50, name, folder, kind="purple", bold=True)
        drawing.arrow((x + width / 2, 355), (x + width / 2, 386))
    drawing.text(24, 348, "tasks of one planner: plan/", size=12, style="muted")
    drawing.text(24, 470, "and back", bold=True)
    path = [
        ("columns", "", 110, 100),
        ("encode, compress, checksum", "write/", 230, 216),
        ("convert, recompress", "rewrite/", 466, 160),
        ("log directory", "log/write/", 646, 150),
    ]
    for number, (name, folder, x, width) in enumerate(path):
        drawing.box(x, 452, width, 44, *([name, folder] if folder else [name]), kind="orange", bold=bool(folder))
        if number:
            before = path[number - 1]
            drawing.arrow((before[2] + before[3], 474), (x, 474))
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "format-segment": segment_drawing,
    "format-message-set": message_set_drawing,
    "format-index": index_drawing,
    "transactions": transactions_drawing,
    "damage": damage_drawing,
    "architecture": architecture_drawing,
}


def main() -> None:
    """Write the drawings; with a directory, pictures of them too."""
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg())
    if sys.argv[1:]:
        from browser import Browser

        with Browser() as browser:
            for name in DRAWINGS:
                for scheme in ("light", "dark"):
                    out = Path(sys.argv[1]) / f"{name}-{scheme}.png"
                    browser.picture(IMAGES / f"{name}.svg", out, 900, scheme, DRAWINGS[name]().height)


if __name__ == "__main__":
    main()
