"""Fetch responses to tables of their records."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array
from kbatch.error_codes import ErrorCode
from kbatch.errors import LimitExceededError
from kbatch.escaping import counted
from kbatch.format import DEFAULT_LIMITS, Limits
from kbatch.protocol.messages import require_message
from kbatch.public_names import public_in
from kbatch.read.budget import table_limit
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.decoding import decode_array
from kbatch.table import RecordTable

__all__ = ["FetchedPartition", "aborted_transactions", "decode_fetch"]

# The memory of a table besides its rows and data: its objects, and the pages that its rows begin and end in.
_TABLE_BYTES = 20 << 10
_EMPTY_TABLE_BYTES = 3 << 10


@public_in("kbatch.protocol")
class FetchedPartition(NamedTuple):
    """A partition of a fetch response.

    Attributes
    ----------
    topic : str
        From version 13 on a response has only `topic_id`: empty unless `topic_names` has the name.
    topic_id : UUID
    partition : int
    error : ErrorCode
    high_watermark, last_stable_offset, log_start_offset : int
    table : RecordTable
        Without rows after an error.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    table: RecordTable


@public_in("kbatch.protocol")
def aborted_transactions(partition: Any) -> list[tuple[int, int]] | None:
    """Return the aborted transactions of a partition as `kbatch.decode` takes them.

    Parameters
    ----------
    partition : Message
        A ``FetchResponse.PartitionData``.

    Returns
    -------
    list of (producer id, first offset), or None
        None if the response has no list: the request was not one of read_committed.
    """
    require_message("partition", partition, "a partition of a FetchResponse")
    listed = partition.aborted_transactions
    return None if listed is None else [(each.producer_id, each.first_offset) for each in listed]


def _aborted_pairs(partition: Any) -> Iterable[tuple[int, int]] | None:
    """Return `aborted_transactions` one by one: there may be a million."""
    listed = partition.aborted_transactions
    return None if listed is None else ((each.producer_id, each.first_offset) for each in listed)


def _fetch_offsets(request: Any) -> dict[tuple[str, uuid.UUID, int], int]:
    return {
        (topic.topic, topic.topic_id, each.partition): each.fetch_offset
        for topic in request.topics
        for each in topic.partitions
    }


@public_in("kbatch.protocol")
def decode_fetch(
    response: Any,
    *,
    request: Any = None,
    topic_names: Mapping[uuid.UUID, str] | None = None,
    isolation: Isolation = "read_uncommitted",
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError = "raise",
    threads: int = 1,
    limits: Limits | None = None,
    columns: Sequence[str] | None = None,
) -> list[FetchedPartition]:
    """Decode the records of a fetch response.

    Parameters
    ----------
    response : Message
        A ``FetchResponse``.
    request : Message, optional
        The ``FetchRequest``. With it, records before the fetch offset are dropped: a broker returns complete batches
        (FCH-R3).
    topic_names : mapping of UUID to str, optional
        Names of topics by id, such as ``Conversation.topic_names``.
    isolation : {"read_uncommitted", "read_committed"}
        With "read_committed", the list of aborted transactions in the response decides which records are dropped, or
        the markers in the records if the response has no list.
    include_control, crc, on_error, threads, limits, columns
        As for `kbatch.decode`. ``Limits(max_table_bytes=...)`` is the limit of all tables together, and of one view.

    Returns
    -------
    list of FetchedPartition
        In the order of the response.

    Raises
    ------
    KbatchError
        As `kbatch.decode` does; the message begins with the topic and partition, as in ``orders-3``.

    References
    ----------
    Rules such as FCH-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.protocol import FetchResponse, decode_fetch
    >>> partition = FetchResponse.PartitionData(partition_index=3, records=memoryview(kbatch.encode([b"a", b"b"])))
    >>> topic = FetchResponse.FetchableTopicResponse(topic="orders", partitions=[partition])
    >>> [fetched] = decode_fetch(FetchResponse(responses=[topic]))
    >>> fetched.topic, fetched.partition, fetched.error, len(fetched.table)
    ('orders', 3, <ErrorCode.NONE: 0>, 2)
    """
    require_message("response", response, "a FetchResponse")
    if request is not None:
        require_message("request", request, "a FetchRequest")
    check_types(decode_fetch, locals())
    starts = _fetch_offsets(request) if request is not None else {}
    options = DecodeOptions(
        isolation=isolation,
        include_control=include_control,
        crc=crc,
        on_error=on_error,
        threads=threads,
        limits=limits if limits is not None else DEFAULT_LIMITS,
        columns=columns,
    )
    limit = table_limit(options.limits)
    found: list[FetchedPartition] = []
    for topic in response.responses:
        topic_name = topic.topic or (topic_names or {}).get(topic.topic_id, "")
        for each in topic.partitions:
            name = f"{topic_name or topic.topic_id}-{each.partition_index}"
            if options.used_bytes > limit:
                raise LimitExceededError(
                    f"{name}: the tables of the {counted(len(found), 'partition')} before this one take more than "
                    f"{limit} bytes of memory; fetch fewer partitions at a time, or raise Limits(max_table_bytes=...)",
                    source=name,
                )
            table = decode_array(
                byte_array(each.records if each.records is not None else b""),
                replace(options, start_offset=starts.get((topic.topic, topic.topic_id, each.partition_index))),
                _aborted_pairs(each) if isolation == "read_committed" else None,
                name,
            )
            if table._memory is not None:
                options.used_bytes = limit - table._memory.rest
            options.used_bytes += _TABLE_BYTES if each.records else _EMPTY_TABLE_BYTES
            found.append(
                FetchedPartition(
                    topic=topic_name,
                    topic_id=topic.topic_id,
                    partition=each.partition_index,
                    error=ErrorCode(each.error_code),
                    high_watermark=each.high_watermark,
                    last_stable_offset=each.last_stable_offset,
                    log_start_offset=each.log_start_offset,
                    table=table,
                )
            )
    # The header rows and the view of each table have to fit next to all tables.
    rest = max(limit - options.used_bytes, 0)
    for i, each in enumerate(found):
        found[i] = each._replace(table=_with_rest(each.table, rest))
    return found


def _with_rest(table: RecordTable, rest: int) -> RecordTable:
    """Return a table whose header rows and views may take `rest` bytes; as for `decode`, its source has no name."""
    memory = table._memory
    return table._with(source=None, memory=memory and memory._replace(rest=rest, headers=rest))
