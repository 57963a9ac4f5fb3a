"""Which addresses are asked, and what a request for metadata may change."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from live_reading import QUICK, consumed, partition
from scripted_broker import ScriptedCluster

from kbatch.live import ClientSettings, Cluster, connect_socket
from kbatch.protocol import ApiKey


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-302, KIP-602: as with client.dns.lookup=use_all_dns_ips, the default of Kafka's clients."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        port, free = listening.getsockname()[1], closed.getsockname()[1]
        closed.close()

        def resolved(*arguments: Any, **options: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in (free, port)]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        settings = ClientSettings.of(bootstrap_servers="several.example:9092")
        transport = connect_socket(settings.bootstrap_servers[0], settings)
        listening.accept()[0].close()
        transport.close()


def test_the_bootstrap_servers_are_asked_again_when_no_known_broker_answers() -> None:
    """KIP-899: all brokers of the metadata are gone, and others have come."""
    cluster = ScriptedCluster(3, orders=[partition(5)])
    settings = ClientSettings.of(bootstrap_servers="broker-1,localhost", **QUICK)
    with Cluster(settings, transport=cluster.connect) as client:
        client.topics(["orders"])
        for each in cluster.open:
            each.close()
        # Only the first broker has the second address of the settings.
        cluster.brokers, cluster.refused = [1], {2, 3}
        known = client._brokers
        client._brokers = {number: known[number]._replace(host="gone") for number in known}
        assert [each.name for each in client.topics(["orders"])] == ["orders"]


def test_a_request_for_metadata_creates_no_topic() -> None:
    """KIP-361."""
    cluster = ScriptedCluster(orders=[partition(1)])
    list(consumed(cluster))
    requests = cluster.sent(ApiKey.METADATA)
    assert requests
    assert not any(each.allow_auto_topic_creation for each in requests)
