"""API keys of Kafka's protocol, and the versions that client and broker have in common."""

from __future__ import annotations

import enum
from typing import Any

from kbatch.protocol.messages import require_message
from kbatch.protocol.schema import message_schemas
from kbatch.public_names import public_in

__all__ = ["ApiKey", "common_versions", "supported_versions"]


@public_in("kbatch.protocol")
class ApiKey(enum.IntEnum):
    """The APIs of Kafka 4.4, by number.

    kbatch reads the messages that clients send to brokers: see `supported_versions`. A number that is not listed
    becomes a member too, with the name ``UNKNOWN_`` and the number.

    Attributes
    ----------
    title : str
        ``ListOffsets`` for ``LIST_OFFSETS``, as in the names of messages.

    Examples
    --------
    >>> from kbatch.protocol import ApiKey
    >>> ApiKey(2), ApiKey(2).title
    (<ApiKey.LIST_OFFSETS: 2>, 'ListOffsets')
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94

    @property
    def title(self) -> str:
        """Name as in the names of messages."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def _missing_(cls, value: object) -> ApiKey | None:
        if not isinstance(value, int):
            return None
        key = int.__new__(cls, value)
        key._value_ = value
        key._name_ = f"UNKNOWN_{value}"
        return key


@public_in("kbatch.protocol")
def supported_versions() -> dict[ApiKey, range]:
    """Return the versions that kbatch reads and writes, by API."""
    return {
        ApiKey(schema.api_key): schema.versions
        for schema in message_schemas().values()
        if schema.api_key is not None and schema.name.endswith("Request")
    }


@public_in("kbatch.protocol")
def common_versions(response: Any) -> dict[ApiKey, int]:
    """Return the highest version that both kbatch and a broker have, by API.

    Parameters
    ----------
    response : Message
        The broker's ``ApiVersionsResponse``.

    Returns
    -------
    dict of ApiKey to int
        Without the APIs that have no version in common.

    Examples
    --------
    >>> from kbatch.protocol import ApiKey, ApiVersionsResponse, common_versions
    >>> fetch = ApiVersionsResponse.ApiVersion(api_key=ApiKey.FETCH, min_version=4, max_version=99)
    >>> common_versions(ApiVersionsResponse(api_keys=[fetch]))
    {<ApiKey.FETCH: 1>: 18}
    """
    require_message("response", response, "an ApiVersionsResponse")
    ours = supported_versions()
    found = {}
    for each in response.api_keys:
        versions = ours.get(ApiKey(each.api_key), range(0))
        highest = min(each.max_version, versions.stop - 1)
        if highest >= max(each.min_version, versions.start) and versions:
            found[ApiKey(each.api_key)] = highest
    return found
