"""`kbatch topics` over scripted brokers: topics, partitions, groups, and what a broker does not state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

from kbatch.cli import main
from kbatch.live.assignors import assignment_data
from kbatch.protocol import (
    ApiKey,
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    DescribeLogDirsResponse,
    DescribeProducersResponse,
    ListGroupsResponse,
    OffsetFetchResponse,
)

VERSIONS = {
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
}


class ListedCluster(ScriptedCluster):
    """Two brokers; broker 1 coordinates groups, as (kind, state, owned partitions by member, committed offsets)."""

    groups: dict[str, tuple[str, str, dict[str, list[tuple[str, int]]], dict[tuple[str, int], int]]]

    def _metadata(self, broker: int, message: Any, version: int) -> Any:
        made = super()._metadata(broker, message, version)
        for topic in made.topics:
            topic.is_internal = topic.name.startswith("__")
            for part in topic.partitions:
                part.replica_nodes = [1, 2]
                part.isr_nodes = [1, 2] if part.leader_id == 1 else [part.leader_id] if part.leader_id > 0 else []
        return made

    def _describe_log_dirs(self, broker: int, message: Any, version: int) -> Any:
        cls = DescribeLogDirsResponse
        topics = []
        for topic in message.topics:
            found = []
            for number in topic.partitions:
                log = self.topics[topic.topic][number]
                size = sum(map(len, log.batches)) if log.leader == broker else 7
                found.append(cls.DescribeLogDirsPartition(partition_index=number, partition_size=size))
                # A copy that moves to another directory does not count.
                found.append(
                    cls.DescribeLogDirsPartition(partition_index=number, partition_size=1 << 40, is_future_key=True)
                )
            topics.append(cls.DescribeLogDirsTopic(name=topic.topic, partitions=found))
        return cls(results=[cls.DescribeLogDirsResult(log_dir="/data", topics=topics)])

    def _describe_producers(self, broker: int, message: Any, version: int) -> Any:
        cls = DescribeProducersResponse
        topics = []
        for topic in message.topics:
            parts = []
            for number in topic.partition_indexes:
                log = self.topics[topic.name][number]
                assert log.leader == broker
                states = [
                    cls.ProducerState(producer_id=7000 + i, current_txn_start_offset=offset)
                    for i, offset in enumerate((-1, log.stable))
                ]
                parts.append(cls.PartitionResponse(partition_index=number, active_producers=states))
            topics.append(cls.TopicResponse(name=topic.name, partitions=parts))
        return cls(topics=topics)

    def _list_groups(self, broker: int, message: Any, version: int) -> Any:
        cls = ListGroupsResponse
        listed = self.groups.items() if broker == 1 else ()
        return cls(
            groups=[
                cls.ListedGroup(
                    group_id=name,
                    protocol_type="consumer",
                    group_state=state if version >= 4 else "",
                    group_type=kind if version >= 5 else "",
                )
                for name, (kind, state, _, _) in listed
            ]
        )

    def _describe_groups(self, broker: int, message: Any, version: int) -> Any:
        cls = DescribeGroupsResponse
        groups = []
        for name in message.groups:
            _, state, owners, _ = self.groups[name]
            members = []
            for client, keys in owners.items():
                data = assignment_data(keys)
                members.append(
                    cls.DescribedGroupMember(
                        member_id=client, client_id=client, client_host="/10.0.0.7", member_assignment=data
                    )
                )
            groups.append(
                cls.DescribedGroup(group_id=name, group_state=state, protocol_type="consumer", members=members)
            )
        return cls(groups=groups)

    def _consumer_group_describe(self, broker: int, message: Any, version: int) -> Any:
        cls = ConsumerGroupDescribeResponse
        groups = []
        for name in message.group_ids:
            _, state, owners, _ = self.groups[name]
            members = [
                cls.Member(
                    member_id=client,
                    client_id=client,
                    client_host="/10.0.0.8",
                    assignment=cls.Assignment(
                        topic_partitions=[
                            cls.TopicPartitions(topic_name=topic, partitions=[number]) for topic, number in keys
                        ]
                    ),
                )
                for client, keys in owners.items()
            ]
            groups.append(cls.DescribedGroup(group_id=name, group_state=state, members=members))
        return cls(groups=groups)

    def _offset_fetch(self, broker: int, message: Any, version: int) -> Any:
        cls = OffsetFetchResponse
        assert version >= 8
        groups = []
        for group in message.groups:
            _, _, _, committed = self.groups[group.group_id]
            topics = [
                cls.OffsetFetchResponseTopics(
                    name=topic,
                    partitions=[cls.OffsetFetchResponsePartitions(partition_index=number, committed_offset=offset)],
                )
                for (topic, number), offset in committed.items()
            ]
            groups.append(cls.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return cls(groups=groups)


def partition(count: int, leader: int = 1, **options: Any) -> ScriptedPartition:
    made = ScriptedPartition(leader=leader, **options)
    made.write([b"x" * 100] * count)
    return made


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ListedCluster:
    made = ListedCluster(
        2,
        orders=[partition(10), partition(20, leader=2)],
        payments=[partition(3, stable=3)],
        __consumer_offsets=[partition(1)],
    )
    # The names of keyword arguments have no dashes.
    # The transaction that is open begins with a batch of its own.
    made.topics["payments"][0].write([b"x" * 100] * 2, timestamps=1714543200000)
    made.topics["__consumer_offsets"] = made.topics.pop("--consumer-offsets")
    made.ids["__consumer_offsets"] = made.ids.pop("--consumer-offsets")
    made.versions |= VERSIONS
    made.groups = {
        "etl": ("classic", "Stable", {"one": [("orders", 0)], "two": [("orders", 1)]}, {("orders", 0): 4}),
        "new": ("consumer", "Stable", {"three": [("payments", 0)]}, {("payments", 0): 5, ("gone", 0): 1}),
        "share": ("share", "Empty", {}, {}),
    }
    monkeypatch.setattr("kbatch.live.cluster.connect_socket", made.connect)
    monkeypatch.setenv("COLUMNS", "500")
    return made


Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def topics(cluster: ListedCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, list[str], list[str]]:
        status = main(
            ["topics", "--bootstrap-server", "localhost", "--setting", "default.api.timeout.ms=300", *arguments]
        )
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    return run


def test_topics_are_one_line_each(topics: Run) -> None:
    assert topics() == (
        0,
        [
            "topic     partitions  replicas  offsets  open       size",
            "orders             2         2       30     0    3.3 KiB  1 not in sync",
            "payments           1         2        5     1  667 bytes",
            "",
            "1 open transaction:",
            "  topic-partition  producer  first offset  since (UTC)",
            "  payments-0           7001             3  2024-05-01 06:00:00",
        ],
        [],
    )
    assert "__consumer_offsets           1         2        1" in "\n".join(topics("--internal")[1])


def test_topics_whose_partitions_are_all_in_sync_have_no_column_of_problems(
    topics: Run, cluster: ListedCluster
) -> None:
    for parts in cluster.topics.values():
        for each in parts:
            each.leader = 1
    status, lines, _ = topics()
    assert status == 0
    assert lines[:2] == [
        "topic     partitions  replicas  offsets  open       size",
        "orders             2         2       30     0    3.3 KiB",
    ]


def test_open_transactions_that_a_leader_does_not_state_are_a_dash_and_a_note(
    topics: Run, cluster: ListedCluster
) -> None:
    del cluster.versions[ApiKey.DESCRIBE_PRODUCERS]
    _, lines, errors = topics("payments")
    assert lines[1].split()[-3:] == ["-", "667", "bytes"]
    assert errors[0].startswith("kbatch topics: open transactions are not known: broker ")
    cluster.versions[ApiKey.DESCRIBE_PRODUCERS] = (0, 0)

    def refuse(message: Any) -> None:
        message.topics[0].partitions[0].error_code = 29

    cluster.fail(ApiKey.DESCRIBE_PRODUCERS, Fault(change=refuse))
    _, lines, errors = topics("payments")
    assert "TOPIC_AUTHORIZATION_FAILED" in " ".join(errors)


def test_brokers_are_asked_for_producers_only_where_a_transaction_is_open(topics: Run, cluster: ListedCluster) -> None:
    topics("orders")
    assert cluster.sent(ApiKey.DESCRIBE_PRODUCERS) == []


def test_topics_that_are_named_are_one_line_for_each_partition(topics: Run, cluster: ListedCluster) -> None:
    _, lines, _ = topics("orders")
    sizes = [sum(map(len, each.batches)) for each in cluster.topics["orders"]]
    assert lines == [
        "topic-partition  leader  replicas  isr  first  end  offsets  open     size",
        f"orders-0              1  1,2       all      0   10       10     0  {sizes[0] / 1024:.1f} KiB",
        f"orders-1              2  1,2       2        0   20       20     0  {sizes[1] / 1024:.1f} KiB",
    ]
    _, lines, _ = topics("pay*")
    assert "stable" in lines[0]
    assert lines[1].split()[5:8] == ["5", "3", "5"]
    assert topics("__consumer_offsets")[1][1].startswith("__consumer_offsets-0")


def test_a_partition_without_leader_has_no_offsets(topics: Run, cluster: ListedCluster) -> None:
    cluster.topics["orders"][1].leader = -1
    _, lines, _ = topics("orders")
    assert lines[2].split() == ["orders-1", "none", "1,2", "none", "-", "-", "-", "0", "-"]
    assert topics()[1][1] == "orders             2         2        -     0          -  1 offline"


def test_groups_have_members_committed_offsets_and_lag(topics: Run) -> None:
    _, lines, _ = topics("--groups")
    assert lines[8:] == [
        "group etl: Stable, classic, 2 members, lag 6",
        "  topic-partition  committed  end  lag  member",
        "  orders-0                 4   10    6  one /10.0.0.7",
        "  orders-1                 -   20    -  two /10.0.0.7",
        "",
        "group new: Stable, consumer, 1 member",
        "  topic-partition  committed  end  lag  member",
        "  gone-0                   1    -    -  -",
        "  payments-0               5    5    0  three /10.0.0.8",
        "",
        "group share: Empty, share",
    ]
    _, lines, _ = topics("--groups", "payments")
    assert [line for line in lines if line.startswith("group")] == ["group new: Stable, consumer, 1 member, lag 0"]


def test_groups_of_old_brokers_are_classic(topics: Run, cluster: ListedCluster) -> None:
    cluster.versions[ApiKey.LIST_GROUPS] = (0, 3)
    del cluster.versions[ApiKey.CONSUMER_GROUP_DESCRIBE]
    cluster.groups = {"etl": cluster.groups["etl"]}
    assert "group etl: Stable, classic, 2 members, lag 6" in topics("--groups")[1]


def test_json_is_one_document(topics: Run) -> None:
    status, lines, _ = topics("--groups", "--json", "payments")
    document = json.loads("\n".join(lines))
    assert (status, document["command"], document["exit_status"], document["notes"]) == (0, "topics", 0, [])
    (topic,) = document["topics"]
    (part,) = topic["partitions"]
    assert (topic["name"], topic["internal"]) == ("payments", False)
    assert (part["first"], part["stable"], part["end"], part["offsets"], part["size"]) == (0, 3, 5, 5, 667)
    assert (part["leader"], part["replicas"], part["in_sync"]) == (1, [1, 2], [1, 2])
    assert [(group["name"], group["lag"]) for group in document["groups"]] == [("new", 0)]


@pytest.mark.parametrize("of_request", [True, False])
def test_sizes_without_authorisation_are_dashes_and_a_note(
    topics: Run, cluster: ListedCluster, of_request: bool
) -> None:
    def refuse(message: Any) -> None:
        if of_request:
            message.error_code = 31
        else:
            message.results[0].error_code = 31

    cluster.fail(ApiKey.DESCRIBE_LOG_DIRS, *[Fault(change=refuse)] * 2)
    status, lines, errors = topics("orders")
    assert status == 0
    assert [line.split()[-1] for line in lines[1:]] == ["-", "-"]
    assert len(errors) == 2
    assert "sizes are not known: broker " in errors[0]
    assert "CLUSTER_AUTHORIZATION_FAILED" in errors[0]
    assert "needs the ACL DESCRIBE on the cluster" in errors[0]


def test_a_group_that_may_not_be_described_is_listed_with_a_note(topics: Run, cluster: ListedCluster) -> None:
    def refuse(message: Any) -> None:
        message.groups[0].error_code = 30

    cluster.fail(ApiKey.DESCRIBE_GROUPS, Fault(change=refuse))
    cluster.fail(ApiKey.OFFSET_FETCH, Fault(change=refuse))
    _, lines, errors = topics("--groups")
    assert "group etl: Stable, classic" in lines
    assert len(errors) == 1
    assert "needs the ACL READ on this group" in errors[0]


def test_a_topic_that_does_not_exist_is_an_error_of_one_line(topics: Run) -> None:
    status, lines, errors = topics("ordrs")
    assert (status, lines, len(errors)) == (1, [], 1)
    assert "there is no topic 'ordrs', did you mean 'orders'?" in errors[0]


def test_a_cluster_without_topics_or_groups_is_no_error(topics: Run, cluster: ListedCluster) -> None:
    cluster.topics.clear()
    cluster.groups.clear()
    assert topics("--groups") == (0, ["topic  partitions  replicas  offsets  open  size", "", "no groups"], [])
