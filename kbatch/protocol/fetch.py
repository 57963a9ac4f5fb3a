"""Fetch responses to tables of their records."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from kbatch.arguments import check_types
from kbatch.error_codes import ErrorCode
from kbatch.format import Limits
from kbatch.protocol.messages import require_message
from kbatch.read.decode_options import Crc, Isolation, OnError
from kbatch.read.decoding import decode
from kbatch.table import RecordTable

__all__ = ["FetchedPartition", "aborted_transactions", "decode_fetch"]


class FetchedPartition(NamedTuple):
    """A partition of a fetch response.

    Attributes
    ----------
    topic : str
        Empty from version 13 on, where `topic_id` names the topic.
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


def _fetch_offsets(request: Any) -> dict[tuple[str, uuid.UUID, int], int]:
    return {
        (topic.topic, topic.topic_id, each.partition): each.fetch_offset
        for topic in request.topics
        for each in topic.partitions
    }


def decode_fetch(
    response: Any,
    *,
    request: Any = None,
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
    isolation : {"read_uncommitted", "read_committed"}
        With "read_committed", the list of aborted transactions in the response decides which records are dropped, or
        the markers in the records if the response has no list.
    include_control, crc, on_error, threads, limits, columns
        As for `kbatch.decode`.

    Returns
    -------
    list of FetchedPartition
        In the order of the response.

    Raises
    ------
    KbatchError
        As `kbatch.decode` does.

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
    return [
        FetchedPartition(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partition=each.partition_index,
            error=ErrorCode(each.error_code),
            high_watermark=each.high_watermark,
            last_stable_offset=each.last_stable_offset,
            log_start_offset=each.log_start_offset,
            table=decode(
                each.records if each.records is not None else b"",
                isolation=isolation,
                aborted=aborted_transactions(each) if isolation == "read_committed" else None,
                include_control=include_control,
                crc=crc,
                on_error=on_error,
                start_offset=starts.get((topic.topic, topic.topic_id, each.partition_index)),
                threads=threads,
                limits=limits,
                columns=columns,
            ),
        )
        for topic in response.responses
        for each in topic.partitions
    ]
