"""Brokers in this process: a `kbatch.live.Transport` that answers requests, and makes the faults of a test."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import kbatch
from kbatch.live import ClientSettings, ServerAddress
from kbatch.protocol import (
    ApiKey,
    ApiVersionsResponse,
    DescribeConfigsResponse,
    FetchResponse,
    ListOffsetsResponse,
    MessageSplitter,
    MetadataResponse,
    OffsetForLeaderEpochResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    decode_request,
    encode_response,
)

__all__ = ["Fault", "ScriptedCluster", "ScriptedPartition", "ScriptedTransport"]

VERSIONS = {
    ApiKey.FETCH: (4, 16),
    ApiKey.LIST_OFFSETS: (1, 8),
    ApiKey.METADATA: (0, 12),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


@dataclass
class Fault:
    """What happens to one response.

    ``cut`` bytes of it are sent, and then the connection is closed; ``hangs`` means that nothing is sent; ``change``
    changes the message; ``run`` is called before the request is answered.
    """

    cut: int | None = None
    hangs: bool = False
    change: Callable[[Any], None] | None = None
    run: Callable[[], None] | None = None


@dataclass
class ScriptedPartition:
    """Batches with their base offsets; a leader; and what a broker states about the log.

    ``replicas`` has the ids of followers, and the offset after the last record that each of them has. ``last`` is the
    end of the log if compaction has removed the last batches.
    """

    batches: list[bytes] = field(default_factory=list)
    leader: int = 1
    epoch: int = 0
    start: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)
    replicas: dict[int, int] = field(default_factory=dict)
    stable: int | None = None
    last: int | None = None

    @property
    def end(self) -> int:
        if self.last is not None:
            return self.last
        if not self.batches:
            return self.start
        return int(kbatch.scan(self.batches[-1])["last_offset"][-1]) + 1

    def write(self, values: Sequence[bytes], **options: Any) -> None:
        """Append one batch."""
        self.batches.append(kbatch.encode(values, base_offset=self.end, leader_epoch=self.epoch, **options))

    def offset_at(self, time: int) -> int:
        """Return the offset of the first record with a timestamp or a later one, or -1."""
        table = kbatch.decode(b"".join(self.batches))
        late = table.records["offset"][table.records["timestamp"] >= time]
        return int(late[0]) if len(late) else -1

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """Return the aborted transactions that reach an offset or a later one."""
        return self.aborted

    def records(self, offset: int, size: int, end: int) -> bytes:
        """Return batches from an offset on and before another one: at least one, if there is one."""
        found = b""
        for batch in self.batches:
            last = int(kbatch.scan(batch)["last_offset"][-1])
            if last < offset:
                continue
            if last >= end:
                break
            if found and len(found) + len(batch) > size:
                break
            found += batch
        return found


@dataclass
class ScriptedSession:
    """A fetch session: its id, the expected epoch, its partitions in their order, and the news that were sent."""

    number: int
    epoch: int
    parts: dict[Any, Any]
    states: dict[Any, tuple[int, int]] = field(default_factory=dict)


class ScriptedCluster:
    """Brokers 1 to `brokers` on ``broker-1:9092`` and so on, the first one also on ``localhost``.

    `connect` is the argument ``transport``.

    ``faults`` has lists of faults by API, which the next responses get; ``requests`` are those received, as
    (broker id, message); ``refused`` are the ids of brokers that accept no connection. ``racks`` has the racks of
    brokers: leaders send clients with a rack to their replica there (KIP-392). ``max_sessions`` is the number of fetch
    sessions of a broker (KIP-227); ``sessions`` are those that are open. ``compacted`` are the topics with this policy.
    """

    def __init__(self, brokers: int = 1, **topics: list[ScriptedPartition]) -> None:
        self.brokers = list(range(1, brokers + 1))
        self.topics = {name.replace("_", "-"): partitions for name, partitions in topics.items()}
        self.ids = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in self.topics}
        self.versions = dict(VERSIONS)
        self.faults: dict[ApiKey, deque[Fault]] = {}
        self.requests: list[tuple[int, Any]] = []
        self.refused: set[int] = set()
        self.open: list[ScriptedTransport] = []
        self.racks: dict[int, str] = {}
        self.max_sessions = 1000
        self.sessions: dict[tuple[int, int], ScriptedSession] = {}
        self.last_session = 0
        self.throttle_ms = 0
        self.compacted: set[str] = set()
        self.password: bytes | None = None
        self.session_ms = 0
        self.lock = threading.RLock()

    def connect(self, server: ServerAddress, settings: ClientSettings) -> ScriptedTransport:
        number = server.host.removeprefix("broker-")
        broker = int(number) if number.isdigit() else int(server.host == "localhost")
        if broker not in self.brokers or broker in self.refused:
            raise ConnectionRefusedError(111, "Connection refused")
        self.open.append(ScriptedTransport(self, broker))
        return self.open[-1]

    def fail(self, api_key: ApiKey, *faults: Fault) -> None:
        self.faults.setdefault(api_key, deque()).extend(faults)

    def sent(self, api_key: ApiKey) -> list[Any]:
        """Return the requests of an API."""
        return [message for _, message in self.requests if message.schema.api_key == api_key]

    def answer(self, broker: int, request: Any) -> tuple[Any, Fault | None]:
        """Return the response, and the fault that it gets."""
        with self.lock:
            self.requests.append((broker, request.message))
            queue = self.faults.get(request.api_key)
            fault = queue.popleft() if queue else None
            if fault is not None and fault.run is not None:
                fault.run()
            made = getattr(self, f"_{request.api_key.name.lower()}")(broker, request.message, request.version)
            if fault is not None and fault.change is not None:
                fault.change(made)
            return made, fault

    def _api_versions(self, broker: int, message: Any, version: int) -> Any:
        listed = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        ]
        is_old = version > self.versions[ApiKey.API_VERSIONS][1]
        return ApiVersionsResponse(api_keys=listed, error_code=35 if is_old else 0)

    def _metadata(self, broker: int, message: Any, version: int) -> Any:
        cls = MetadataResponse
        nodes = [cls.MetadataResponseBroker(node_id=each, host=f"broker-{each}", port=9092) for each in self.brokers]
        names = list(self.topics) if message.topics is None else [each.name for each in message.topics]
        topics = []
        for name in names:
            if name not in self.topics:
                topics.append(cls.MetadataResponseTopic(name=name, error_code=3))
                continue
            partitions = [
                cls.MetadataResponsePartition(partition_index=i, leader_id=each.leader, leader_epoch=each.epoch)
                for i, each in enumerate(self.topics[name])
            ]
            topics.append(cls.MetadataResponseTopic(name=name, topic_id=self.ids[name], partitions=partitions))
        return cls(brokers=nodes, topics=topics)

    def _list_offsets(self, broker: int, message: Any, version: int) -> Any:
        cls = ListOffsetsResponse
        topics = []
        for topic in message.topics:
            found = []
            for each in topic.partitions:
                log = self.topics[topic.name][each.partition_index]
                offset = log.end if log.stable is None or not message.isolation_level else log.stable
                if each.timestamp == -2:
                    offset = log.start
                elif each.timestamp >= 0:
                    offset = log.offset_at(each.timestamp)
                code = 0 if log.leader == broker else 6
                found.append(
                    cls.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=offset, error_code=code, leader_epoch=log.epoch
                    )
                )
            topics.append(cls.ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return cls(topics=topics)

    def _offset_for_leader_epoch(self, broker: int, message: Any, version: int) -> Any:
        cls = OffsetForLeaderEpochResponse
        topic = message.topics[0]
        part = topic.partitions[0]
        log = self.topics[topic.topic][part.partition]
        end, epoch = log.start, part.leader_epoch
        for batch in log.batches:
            rows = kbatch.scan(batch)
            if rows["partition_leader_epoch"][-1] <= part.leader_epoch:
                end, epoch = int(rows["last_offset"][-1]) + 1, int(rows["partition_leader_epoch"][-1])
        code = 0 if (log.leader, log.epoch) == (broker, part.current_leader_epoch) else 6
        found = cls.EpochEndOffset(partition=part.partition, error_code=code, leader_epoch=epoch, end_offset=end)
        return cls(topics=[cls.OffsetForLeaderTopicResult(topic=topic.topic, partitions=[found])])

    def _fetch(self, broker: int, message: Any, version: int) -> Any:
        parts = {
            (topic.topic, topic.topic_id, each.partition): each for topic in message.topics for each in topic.partitions
        }
        session: ScriptedSession | None = None
        if version >= 7 and message.session_epoch >= 0:
            session, code = self._session(broker, message, parts)
            if code:
                return FetchResponse(error_code=code)
        is_incremental = session is not None and message.session_epoch > 0
        asked = parts if session is None else session.parts
        rest = message.max_bytes
        answered: dict[tuple[str, Any], list[Any]] = {}
        for key, each in list(asked.items()):
            part = self._fetched(broker, key, each, message, rest)
            rest -= len(part.records)
            state = (part.high_watermark, part.log_start_offset)
            if session is not None:
                has_news = session.states.get(key) != state or part.error_code or part.preferred_read_replica >= 0
                session.states[key] = state
                if is_incremental and not (part.records or has_news):
                    continue
                if part.records:
                    # Partitions with records move behind the others.
                    session.parts[key] = session.parts.pop(key)
            answered.setdefault(key[:2], []).append(part)
        return FetchResponse(
            throttle_time_ms=self.throttle_ms,
            session_id=0 if session is None else session.number,
            responses=[
                FetchResponse.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=found)
                for (topic, topic_id), found in answered.items()
            ],
        )

    def _session(self, broker: int, message: Any, parts: dict[Any, Any]) -> tuple[ScriptedSession | None, int]:
        """Return the session of a request, which it begins or changes, or the code of an error."""
        if message.session_epoch == 0:
            self.sessions.pop((broker, message.session_id), None)
            if sum(each == broker for each, _ in self.sessions) >= self.max_sessions:
                return None, 0
            self.last_session += 1
            made = ScriptedSession(self.last_session, 1, dict(parts))
            self.sessions[broker, made.number] = made
            return made, 0
        session = self.sessions.get((broker, message.session_id))
        if session is None:
            return None, 70
        if session.epoch != message.session_epoch:
            return None, 71
        session.epoch += 1
        for topic in message.forgotten_topics_data:
            for number in topic.partitions:
                del session.parts[topic.topic, topic.topic_id, number]
        session.parts.update(parts)
        return session, 0

    def _fetched(self, broker: int, key: tuple[str, Any, int], asked: Any, message: Any, rest: int) -> Any:
        """Return the batches of a partition, or an error."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        part = FetchResponse.PartitionData(partition_index=key[2], records=b"")
        name = key[0] or names.get(key[1])
        if name is None:
            part.error_code = 100
            return part
        log = self.topics[name][key[2]]
        is_leader = log.leader == broker
        end = log.end if is_leader else log.replicas.get(broker, 0)
        part.high_watermark, part.log_start_offset = end, log.start
        part.last_stable_offset = end if log.stable is None else log.stable
        if not is_leader and (broker not in log.replicas or not message.rack_id):
            part.error_code = 6
        elif asked.current_leader_epoch not in (-1, log.epoch):
            part.error_code = 74
        elif not log.start <= asked.fetch_offset <= end:
            part.error_code = 1
        elif is_leader and (closest := self._closest(log, message.rack_id, asked.fetch_offset)) != broker:
            part.preferred_read_replica = closest
        else:
            part.records = log.records(asked.fetch_offset, min(asked.partition_max_bytes, max(rest, 0)), end)
            if message.isolation_level:
                part.aborted_transactions = [
                    FetchResponse.AbortedTransaction(producer_id=producer, first_offset=first)
                    for producer, first in log.aborted_from(asked.fetch_offset)
                ]
        return part

    def _closest(self, log: ScriptedPartition, rack: str, offset: int) -> int:
        """Return the replica in a rack that has an offset, by default the leader."""
        found = [each for each, end in log.replicas.items() if rack and self.racks.get(each) == rack and end >= offset]
        return found[0] if found and self.racks.get(log.leader) != rack else log.leader

    def _describe_configs(self, broker: int, message: Any, version: int) -> Any:
        cls = DescribeConfigsResponse
        results = []
        for each in message.resources:
            policy = cls.DescribeConfigsResourceResult(
                name="cleanup.policy", value="compact" if each.resource_name in self.compacted else "delete"
            )
            result = cls.DescribeConfigsResult(
                resource_type=each.resource_type, resource_name=each.resource_name, configs=[policy]
            )
            results.append(result)
        return cls(results=results)

    def _sasl_handshake(self, broker: int, message: Any, version: int) -> Any:
        mechanisms = ["PLAIN", "OAUTHBEARER"]
        return SaslHandshakeResponse(error_code=0 if message.mechanism in mechanisms else 33, mechanisms=mechanisms)

    def _sasl_authenticate(self, broker: int, message: Any, version: int) -> Any:
        if self.password is None or not bytes(message.auth_bytes).endswith(self.password):
            return SaslAuthenticateResponse(
                error_code=58, error_message="Authentication failed: Invalid username or password"
            )
        return SaslAuthenticateResponse(session_lifetime_ms=self.session_ms)


class ScriptedTransport:
    def __init__(self, cluster: ScriptedCluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker
        self._splitter = MessageSplitter()
        self._ready = threading.Condition()
        self._data = bytearray()
        self._ends = False
        self._timeout = 1.0
        self.is_closed = False

    def send(self, parts: Sequence[Any]) -> None:
        for data in self._splitter.feed(b"".join(parts)):
            request: Any = decode_request(bytes(data))
            message, fault = self._cluster.answer(self._broker, request)
            version = 0 if getattr(message, "error_code", 0) == 35 else request.version
            sent = b"".join(encode_response(message, version, correlation_id=request.header.correlation_id))
            with self._ready:
                if fault is not None and fault.hangs:
                    return
                self._ends = fault is not None and fault.cut is not None
                self._data += sent if fault is None else sent[: fault.cut]
                self._ready.notify()

    def receive_into(self, buffer: memoryview) -> int:
        with self._ready:
            if not self._ready.wait_for(lambda: self._data or self._ends or self.is_closed, self._timeout):
                raise TimeoutError("timed out")
            # Responses arrive in pieces.
            count = min(len(buffer), len(self._data), 1000)
            buffer[:count] = self._data[:count]
            del self._data[:count]
            return count

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds

    def close(self) -> None:
        with self._ready:
            self.is_closed = True
            self._ready.notify()
