"""The tables of fetched batches, which are decoded like the batches of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kbatch.live.fetch_state import NO_END, FetchedBatches
from kbatch.read.committed import decide
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_tables
from kbatch.table import RecordTable

__all__ = ["decided_options", "fetched_tables", "tables_of_part"]


def fetched_tables(batches: FetchedBatches, options: DecodeOptions, max_bytes: int) -> Iterator[RecordTable]:
    """Decode the batches of a partition in a response, from the fetched offset to the end of the read.

    Parameters
    ----------
    batches : FetchedBatches
    options : DecodeOptions
    max_bytes : int
        Limit on a table.
    """
    yield from tables_of_part(batches, 0, len(batches.data), decided_options(batches, options), max_bytes)


def decided_options(batches: FetchedBatches, options: DecodeOptions) -> DecodeOptions:
    """Return the options with the range of offsets, and the decision which batches read_committed withholds."""
    fetch = batches.fetch
    stop = None if fetch.stop == NO_END else fetch.stop
    options = replace(options, start_offset=batches.start, stop_offset=stop)
    # A broker lists no transactions if none was aborted; by markers, transactions that end in a later response would
    # be withheld.
    decided, _ = decide(batches.data, options, batches.aborted or [])
    return decided


def tables_of_part(
    batches: FetchedBatches, start: int, end: int, decided: DecodeOptions, max_bytes: int
) -> Iterator[RecordTable]:
    """Decode the batches of a range of bytes, with the options of `decided_options`."""
    fetch = batches.fetch
    source = f"broker {batches.broker}, {fetch.name}"
    part = batches.data[start:end]
    for table in decode_tables(part, decided, origin=start, source=source, max_bytes=max(max_bytes, 1)):
        yield table._with(topic=fetch.topic, partition=fetch.partition)
        # Frees the table before the next one is decoded.
        del table
