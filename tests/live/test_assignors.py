"""The assignors of the classic protocol: who gets which partitions."""

from __future__ import annotations

import random

import pytest

from kbatch.live.assignors import GroupSubscription, assignment_data, divide, partitions_of, subscription_data
from kbatch.live.group_settings import assignor_names
from kbatch.protocol import JoinGroupResponse

COOPERATIVE = "cooperative-sticky"


def member(
    name: str, *topics: str, owned: list[tuple[str, int]] | None = None, generation: int = -1, **more: str
) -> GroupSubscription:
    return GroupSubscription(name, more.get("instance"), list(topics), owned or [], generation)


def test_ranges_are_contiguous_and_the_first_members_get_more() -> None:
    found = divide("range", [member("b", "t", "u"), member("a", "t", "u")], {"t": 3, "u": 3})
    assert found == {"a": [("t", 0), ("t", 1), ("u", 0), ("u", 1)], "b": [("t", 2), ("u", 2)]}


def test_static_members_are_first_and_in_the_order_of_their_instance_ids() -> None:
    """So that they keep their partitions when they return with other member ids (KIP-345)."""
    members = [member("a", "t"), member("z", "t", instance="1"), member("c", "t", instance="2")]
    assert divide("range", members, {"t": 3}) == {"z": [("t", 0)], "c": [("t", 1)], "a": [("t", 2)]}


def test_round_robin_gives_the_partitions_of_all_topics_in_turn() -> None:
    found = divide("roundrobin", [member("a", "t", "u"), member("b", "u")], {"t": 2, "u": 3, "other": 1})
    assert found == {"a": [("t", 0), ("t", 1), ("u", 1)], "b": [("u", 0), ("u", 2)]}


def test_a_partition_that_moves_is_given_to_nobody_before_its_owner_has_given_it_up() -> None:
    """KIP-429."""
    owned = [("t", number) for number in range(4)]
    found = divide(COOPERATIVE, [member("a", "t", owned=owned, generation=1), member("b", "t")], {"t": 4})
    assert found == {"a": [("t", 0), ("t", 1)], "b": []}
    found = divide(COOPERATIVE, [member("a", "t", owned=found["a"], generation=2), member("b", "t")], {"t": 4})
    assert found == {"a": [("t", 0), ("t", 1)], "b": [("t", 2), ("t", 3)]}


def test_of_two_claims_that_of_the_newer_generation_counts_and_of_equal_ones_none() -> None:
    members = [member("a", "t", owned=[("t", 0)], generation=3), member("b", "t", owned=[("t", 0)], generation=4)]
    assert divide(COOPERATIVE, members, {"t": 1}) == {"a": [], "b": [("t", 0)]}
    members[0] = members[0]._replace(generation=4)
    assert sum(map(len, divide(COOPERATIVE, members, {"t": 1}).values())) == 1


@pytest.mark.parametrize("seed", range(30))
def test_cooperative_rebalances_end_balanced_with_each_partition_at_one_member(seed: int) -> None:
    chosen = random.Random(seed)
    counts = {topic: chosen.randint(1, 12) for topic in "tuv"[: chosen.randint(1, 3)]}
    is_equal = seed % 2 == 0
    owned: dict[str, list[tuple[str, int]]] = {}
    for generation in range(8):
        names = [f"m{each}" for each in range(chosen.randint(1, 6))]
        topics = {
            name: [*counts] if is_equal else chosen.sample([*counts], chosen.randint(1, len(counts))) for name in names
        }
        for _ in range(2 if is_equal else 4):
            previous = {name: owned.get(name, []) for name in names}
            members = [
                member(
                    name,
                    *topics[name],
                    owned=[key for key in previous[name] if key[0] in topics[name]],
                    generation=generation,
                )
                for name in names
            ]
            owned = divide(COOPERATIVE, members, counts)
            for name, keys in owned.items():
                others = {
                    key for other, each in previous.items() if other != name for key in each if key[0] in topics[other]
                }
                assert not others & set(keys)
        given = [key for keys in owned.values() for key in keys]
        taken = {topic for each in topics.values() for topic in each}
        assert sorted(given) == sorted((topic, n) for topic in taken for n in range(counts[topic]))
        if is_equal:
            sizes = [len(keys) for keys in owned.values()]
            assert max(sizes) - min(sizes) <= 1


def test_subscriptions_and_assignments_are_written_and_read() -> None:
    keys = [("t", 0), ("t", 2), ("u", 1)]
    joined = JoinGroupResponse.JoinGroupResponseMember(
        member_id="a", group_instance_id="i", metadata=subscription_data(["u", "t"], keys, 5)
    )
    assert GroupSubscription.of(joined) == GroupSubscription("a", "i", ["t", "u"], keys, 5)
    assert partitions_of(assignment_data(keys)) == set(keys)
    assert partitions_of(b"") == frozenset()


def test_a_later_version_is_read_as_the_highest_known_one_and_version_1_has_its_generation_in_its_data() -> None:
    data = subscription_data(["t"], [("t", 0)], 5)
    joined = JoinGroupResponse.JoinGroupResponseMember(member_id="a", metadata=b"\0\x09" + data[2:] + b"more")
    assert GroupSubscription.of(joined).owned == [("t", 0)]
    old = b"\0\1" + data[2 : len(data) - 6]
    joined.metadata = old
    assert GroupSubscription.of(joined).generation == 5


def test_assignors_are_named_as_by_librdkafka_or_by_the_classes_of_java() -> None:
    assert assignor_names(["org.apache.kafka.clients.consumer.RangeAssignor", "roundrobin", "range"]) == (
        "range",
        "roundrobin",
    )
    with pytest.raises(ValueError, match="must be some of range, roundrobin, cooperative-sticky, got 'sticky'"):
        assignor_names(["sticky"])
    with pytest.raises(ValueError, match="must be some of"):
        assignor_names([])
