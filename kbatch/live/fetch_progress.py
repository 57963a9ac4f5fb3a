"""How fetch responses advance partitions: their positions, and the replicas to fetch from next."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array, scan_part
from kbatch.error_codes import ErrorCode
from kbatch.format import BatchStatus
from kbatch.live.broker_errors import BrokerError, refusal_error
from kbatch.live.compacted_ends import QUIET_SECONDS
from kbatch.live.counters import FetchCounts
from kbatch.live.fetch_state import (
    MIN_PARTITION_BYTES,
    NO_END,
    FetchedBatches,
    FetchEvent,
    FetchLimits,
    PartitionFetch,
    ResponseSlot,
)
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part

__all__ = ["FetchProgress", "ResponseContext"]

# The size of a response without its records: fields of partitions, and lists of aborted transactions.
_RESPONSE_FIELDS = 16 << 20


class ResponseContext(NamedTuple):
    """A response: the broker, its memory, the reports about it, and the seconds from the request to the response."""

    server: str
    slot: ResponseSlot
    event: FetchEvent
    seconds: float


class FetchProgress:
    """Advances partitions by the responses of one broker.

    Parameters
    ----------
    broker : int
    sizes : FetchLimits
    options : DecodeOptions
        How the batches will be decoded.
    counts : FetchCounts
    """

    def __init__(self, broker: int, sizes: FetchLimits, options: DecodeOptions, counts: FetchCounts) -> None:
        self._broker = broker
        self._sizes = sizes
        self._options = options
        self._counts = counts

    @property
    def max_size(self) -> int:
        """The maximum size of a response, whose first batch may be larger than requested."""
        largest = self._options.limits.max_batch_bytes or max(self._options.limits.max_decompressed_bytes, 64 << 20)
        return min(self._sizes.response_bytes + largest + _RESPONSE_FIELDS, (1 << 31) - 1)

    def advance(self, fetch: PartitionFetch, part: Any, context: ResponseContext, *, is_first: bool) -> None:
        """Advance a partition that is in a response.

        Parameters
        ----------
        fetch : PartitionFetch
        part : Message
            A ``FetchResponse.PartitionData``.
        context : ResponseContext
        is_first : bool
            Whether the broker has read this partition first, so that it sends at least one whole batch.

        Raises
        ------
        BrokerError
            If the error is final.
        """
        if fetch.is_stopped:
            # The next request omits it.
            return
        if part.error_code:
            self._counts.errors += 1
            self._recover(fetch, part, context.server)
            context.event.lost.append(fetch)
            return
        fetch.high_watermark = part.high_watermark
        is_committed = self._options.isolation == "read_committed"
        fetch.end_offset = part.last_stable_offset if is_committed else part.high_watermark
        data = byte_array(part.records if part.records is not None else b"")
        if len(data):
            self._take(fetch, part, data, context, is_first)
        else:
            self.wait(fetch, context)
        if part.preferred_read_replica not in (-1, self._broker) and id(fetch) not in context.event.gone:
            # From a leader, -1 means the leader; from another replica, that it may still be read (KIP-392).
            fetch.replica = part.preferred_read_replica
            fetch.replica_until = time.monotonic() + self._sizes.replica_seconds
            context.event.moved.append(fetch)

    def wait(self, fetch: PartitionFetch, context: ResponseContext) -> None:
        """Note that a response has no records for a partition."""
        if fetch.is_stopped or fetch.stop >= NO_END:
            fetch.waited = 0.0
            return
        fetch.waited += context.seconds
        if fetch.position >= fetch.stop:
            return
        is_quiet = fetch.waited > QUIET_SECONDS and fetch.end_offset >= fetch.stop and not fetch.is_questioned
        if is_quiet or fetch.waited > self._sizes.timeout:
            context.event.stalled.append(fetch)

    def _take(
        self, fetch: PartitionFetch, part: Any, data: npt.NDArray[np.uint8], context: ResponseContext, is_first: bool
    ) -> None:
        """Report the batches of a partition, and move its position past them."""
        self._counts.bytes += len(data)
        fetch.waited = 0.0
        fetch.lost = None
        framing = _framed(data, fetch.position, self._options)
        following = self._following(fetch, part, data, framing, context.server, is_first)
        if following is None:
            return
        if framing.following is not None and self._options.on_error == "skip":
            # Damage after the last valid batch is fetched again, with the batches after it.
            data = data[: framing.end]
        context.slot.hold()
        aborted = part.aborted_transactions
        listed = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
        context.event.batches.append(
            FetchedBatches(
                fetch,
                context.server,
                data,
                fetch.position,
                listed,
                context.slot,
                framing.end,
                following,
                framing.epoch,
                framing.is_damaged,
            )
        )
        fetch.position = following
        fetch.last_epoch = framing.epoch
        fetch.may_begin_later = False
        fetch.needed_bytes = 0
        fetch.soft_bytes = min(4 * fetch.soft_bytes, NO_END)
        if fetch.position >= fetch.stop:
            context.event.finished.append(fetch)

    def _following(
        self,
        fetch: PartitionFetch,
        part: Any,
        data: npt.NDArray[np.uint8],
        framing: _Framing,
        broker: str,
        is_first: bool,
    ) -> int | None:
        """Return the offset to fetch next; None if these batches must be fetched again, with others after them."""
        following, is_damaged = framing.following, framing.is_damaged
        if is_damaged and self._options.on_error == "raise":
            return fetch.position if following is None else following
        if is_damaged and self._options.on_error == "stop":
            return fetch.stop
        if following is not None:
            return following
        if is_damaged and fetch.needed_bytes > len(data):
            # The broker has no more batches, so no data after the damage can be read.
            return int(max(part.high_watermark, fetch.position + 1))
        if fetch.needed_bytes >= self.max_size or (not is_damaged and is_first):
            raise BrokerError(
                f"broker {broker}, {fetch.name}: the response to a fetch of offset {fetch.position} has "
                f"{len(data)} bytes and no valid batch from there on, so that the next offset is unknown; begin the "
                "read at a later offset",
                broker=broker,
                topic=fetch.topic,
                partition=fetch.partition,
            )
        if is_damaged:
            # The header of a damaged batch may have a wrong offset. The next valid batch shows where the damage ends.
            fetch.needed_bytes = min(max(4 * len(data), MIN_PARTITION_BYTES), self.max_size)
        else:
            # The broker has truncated the batch, which it does not do for the first partition of a request.
            fetch.needed_bytes = max(fetch.needed_bytes, 1)
        return None

    def _recover(self, fetch: PartitionFetch, part: Any, broker: str) -> None:
        """Record an error of a partition that new metadata may resolve; raise any other."""
        code = ErrorCode(part.error_code)
        error = refusal_error(
            code, f"fetch of offset {fetch.position}", broker=broker, topic=fetch.topic, partition=fetch.partition
        )
        is_leader = fetch.replica != self._broker
        # Another replica may have fewer records than the leader, or older ones.
        fetch.is_out_of_range = is_leader and code == ErrorCode.OFFSET_OUT_OF_RANGE
        if not code.retriable and code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise error
        fetch.replica = -1
        fetch.lost = error


class _Framing(NamedTuple):
    """The end of the valid batches of a response, the offset after them, and whether there is damage.

    `epoch` is the leader epoch of the last valid batch, or -1.
    """

    end: int
    following: int | None
    is_damaged: bool
    epoch: int = -1


def _framed(data: npt.NDArray[np.uint8], position: int, options: DecodeOptions) -> _Framing:
    """Find the last valid batch that ends after the offset `position`.

    Under ``on_error="raise"`` decoding fails at damage, so only lengths are verified here.
    """
    if options.on_error == "raise":
        scanned = scan_part(data)
        batches, is_damaged = scanned.batches, scanned.finding is not None
    else:
        framing = replace(options, framing_only=True, on_error="skip", start_offset=None, stop_offset=None, threads=1)
        table = decode_part(data, framing)
        batches, is_damaged = table.batches[BatchStatus.sound(table.batches["status"])], bool(table.losses)
    if not len(batches) or batches["last_offset"][-1] < position:
        return _Framing(0, None, is_damaged)
    last = batches[-1]
    end, following = int(last["position"] + last["size"]), int(last["last_offset"]) + 1
    return _Framing(end, following, is_damaged, int(last["partition_leader_epoch"]))
