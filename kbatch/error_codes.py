"""Error codes of Kafka's protocol: number, name, meaning, and whether a retry may help."""

from __future__ import annotations

import enum

from kbatch.public_names import public_in

__all__ = ["ErrorCode"]

_RETRY = True
_FINAL = False


@public_in("kbatch")
class ErrorCode(enum.IntEnum):
    """Error codes of requests and partitions, as of Kafka 4.4.

    A number that is not listed becomes a member too, with the name ``UNKNOWN_`` and the number.

    Attributes
    ----------
    description : str
        Meaning of the code.
    retriable : bool
        Whether the same request may succeed later, perhaps after an update of the client's metadata.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.ErrorCode(6)
    <ErrorCode.NOT_LEADER_OR_FOLLOWER: 6>
    >>> kbatch.ErrorCode.REQUEST_TIMED_OUT.retriable
    True
    >>> kbatch.ErrorCode(4711)
    <ErrorCode.UNKNOWN_4711: 4711>
    >>> try:
    ...     kbatch.accept_batch(kbatch.encode([b"v"]), 0, kbatch.TopicConfig(max_message_bytes=10))
    ... except kbatch.RefusedError as error:
    ...     error.code
    <ErrorCode.MESSAGE_TOO_LARGE: 10>
    """

    description: str
    retriable: bool

    def __new__(cls, number: int, retriable: bool = False, description: str = "") -> ErrorCode:
        """Create a member from its number and attributes."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.description = description
        code.retriable = retriable
        return code

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        code = int.__new__(cls, value)
        code._value_ = value
        code._name_ = f"UNKNOWN_{value}"
        code.description = "A code that this version of kbatch does not know."
        code.retriable = False
        return code

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "The broker failed without stating a reason."
    NONE = 0, _FINAL, "No error."
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "The offset is before the start or after the end of the partition's log."
    CORRUPT_MESSAGE = 2, _RETRY, "A record batch is damaged, or a record lacks the key that a compacted topic demands."
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRY, "The broker does not have this partition."
    INVALID_FETCH_SIZE = 4, _FINAL, "The fetch size is negative or too small."
    LEADER_NOT_AVAILABLE = 5, _RETRY, "An election of the partition's leader is under way."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        _RETRY,
        "The broker is not the leader of the partition or, if any replica may answer, not a replica.",
    )
    REQUEST_TIMED_OUT = 7, _RETRY, "The broker did not finish within the timeout of the request."
    BROKER_NOT_AVAILABLE = 8, _FINAL, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, _RETRY, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, _FINAL, "A record batch is larger than max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "The controller has been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "The text stored with an offset is longer than offset.metadata.max.bytes."
    NETWORK_EXCEPTION = 13, _RETRY, "The connection ended before the response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, _RETRY, "No coordinator is available."
    NOT_COORDINATOR = 16, _RETRY, "The broker is not the coordinator of the group or transactional id."
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "The topic's name is not allowed, or clients may not write to the topic."
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "The record batches are larger than a segment of the log."
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "Fewer replicas are in sync than min.insync.replicas demands."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        _RETRY,
        "The records were appended, but fewer replicas than min.insync.replicas have them.",
    )
    INVALID_REQUIRED_ACKS = 21, _FINAL, "The value of acks is not -1, 0 or 1."
    ILLEGAL_GENERATION = 22, _FINAL, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "No assignor or protocol type is common to all members of the group."
    INVALID_GROUP_ID = 24, _FINAL, "The group id is empty or not allowed."
    UNKNOWN_MEMBER_ID = 25, _FINAL, "The group does not have this member."
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "The session timeout is outside of the range that the broker allows."
    REBALANCE_IN_PROGRESS = 27, _FINAL, "The group is rebalancing: the member has to join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "The committed offsets are too large for the offsets topic."
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "The client may not use the topic."
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "The client may not use the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "The client may not perform this operation on the cluster."
    INVALID_TIMESTAMP = 32, _FINAL, "A timestamp is outside of the range that the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, _FINAL, "The request is not allowed in this state of the authentication."
    UNSUPPORTED_VERSION = 35, _FINAL, "The broker does not have this version of the API."
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, _FINAL, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "The replication factor is less than 1 or exceeds the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "The assignment of replicas to brokers is not valid."
    INVALID_CONFIG = 40, _FINAL, "A setting is not valid."
    NOT_CONTROLLER = 41, _RETRY, "The broker is not the active controller."
    INVALID_REQUEST = 42, _FINAL, "The request is malformed, or its fields contradict each other."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "The request needs a newer message format than the topic has."
    POLICY_VIOLATION = 44, _FINAL, "A policy of the cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        _FINAL,
        "The sequence number of a batch does not continue the sequence of the producer's last batch.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "The batch was appended before."
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "The producer's epoch is older than the one the broker knows."
    INVALID_TXN_STATE = 48, _FINAL, "The transaction is not in a state that allows the request."
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "The transaction timeout is longer than transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "Another request of the same transaction is still in progress."
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "The client may not use the transactional id."
    SECURITY_DISABLED = 54, _FINAL, "The cluster has no authorizer."
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "The operation was skipped because another operation of the request failed."
    KAFKA_STORAGE_ERROR = 56, _RETRY, "The broker cannot read or write one of its disks."
    LOG_DIR_NOT_FOUND = 57, _FINAL, "The broker does not have this log directory."
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "The authentication failed."
    UNKNOWN_PRODUCER_ID = (
        59,
        _FINAL,
        "The broker has no state of this producer, for instance because its records have expired.",
    )
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "A reassignment of the partition is already in progress."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "The broker does not know this delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "The client is neither owner nor renewer of the delegation token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _FINAL,
        "Delegation tokens cannot be requested on this kind of connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "The client may not use delegation tokens in this way."
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "The kind of principal is not supported."
    NON_EMPTY_GROUP = 68, _FINAL, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, _FINAL, "There is no group with this id."
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "The broker does not have this fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "The epoch is not the next one of the fetch session."
    LISTENER_NOT_FOUND = 72, _RETRY, "The leader has no listener with the name of the client's listener."
    TOPIC_DELETION_DISABLED = 73, _FINAL, "Topics cannot be deleted on this cluster."
    FENCED_LEADER_EPOCH = 74, _RETRY, "The leader epoch of the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "The leader epoch of the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "The client cannot read the codec of the records."
    STALE_BROKER_EPOCH = 77, _FINAL, "The broker epoch is out of date: the broker has registered again."
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "A new leader does not know its high watermark yet."
    MEMBER_ID_REQUIRED = 79, _FINAL, "The member has to join again with the member id from the response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRY, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "The group has the maximum number of members."
    FENCED_INSTANCE_ID = 82, _FINAL, "Another member has taken over the static member's id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRY, "No replica is both eligible as leader and available."
    ELECTION_NOT_NEEDED = 84, _RETRY, "The partition already has the leader that an election would choose."
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "No reassignment of the partition is in progress."
    GROUP_SUBSCRIBED_TO_TOPIC = (
        86,
        _FINAL,
        "A member of the group subscribes to the topic whose offsets are to be deleted.",
    )
    INVALID_RECORD = 87, _FINAL, "A record failed the broker's validation."
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "An open transaction may still change the committed offsets."
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "A quota is exceeded."
    PRODUCER_FENCED = 90, _FINAL, "A newer producer with the same transactional id exists."
    RESOURCE_NOT_FOUND = 91, _FINAL, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, _FINAL, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "The credentials do not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, _FINAL, "Sender and receiver disagree about the voters of the quorum."
    INVALID_UPDATE_VERSION = 95, _FINAL, "The feature level is not allowed."
    FEATURE_UPDATE_FAILED = 96, _FINAL, "The cluster could not change the feature levels."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "The broker does not have the snapshot."
    POSITION_OUT_OF_RANGE = 99, _FINAL, "The position is outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, _RETRY, "The broker does not have a topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "The broker is not registered."
    INCONSISTENT_TOPIC_ID = 103, _RETRY, "The topic ids of the request and of the log differ."
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "The request names another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "The coordinator does not know the transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "The fetch session uses topic ids in some requests and names in others."
    INELIGIBLE_REPLICA = 107, _FINAL, "A replica is not eligible for the set of replicas in sync."
    NEW_LEADER_ELECTED = 108, _FINAL, "The change succeeded, and the partition has a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "The records at this offset are in tiered storage only."
    FENCED_MEMBER_EPOCH = (
        110,
        _FINAL,
        "The group has a later epoch of the member: the member has to give up its partitions and join again.",
    )
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "Another member still uses the static member's id."
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "The group does not have this assignor."
    STALE_MEMBER_EPOCH = 113, _FINAL, "The member has to repeat the request with its current epoch."
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "The request is for another kind of server: a broker, or a controller."
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "This kind of server is not supported yet."
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "The subscription of the metrics has changed or does not exist."
    TELEMETRY_TOO_LARGE = 118, _FINAL, "The metrics are larger than the broker allows."
    INVALID_REGISTRATION = 119, _FINAL, "The controller refuses the registration of the broker."
    TRANSACTION_ABORTABLE = (
        120,
        _FINAL,
        "The transaction failed; after an abort the transactional id can be used again.",
    )
    INVALID_RECORD_STATE = 121, _FINAL, "The record is not in a state that can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "The broker does not have this share session."
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "The epoch is not the next one of the share session."
    FENCED_STATE_EPOCH = 124, _FINAL, "The state epoch of the share group is out of date."
    INVALID_VOTER_KEY = 125, _FINAL, "The key of the voter differs from the key that the receiver knows."
    DUPLICATE_VOTER = 126, _FINAL, "The voter is already a member of the quorum."
    VOTER_NOT_FOUND = 127, _FINAL, "The voter is not a member of the quorum."
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "The client has to connect to its bootstrap servers again for new metadata."
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "The topology of the streams application is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "A later epoch of the streams topology is known."
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRY, "The broker has the maximum number of share sessions."
    GROUP_DELETION_FAILED = 134, _FINAL, "The group could not be deleted; the error message of the response says why."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (
        135,
        _FINAL,
        "The description of the streams topology could not be processed; the error message of the response says why.",
    )
    CONTROLLER_ID_NOT_REGISTERED = 136, _FINAL, "The controller is not registered."
