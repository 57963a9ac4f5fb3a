"""The settings of a client as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypedDict

from kbatch.keywords import describes
from kbatch.live.tokens import TokenProvider

__all__ = ["ClientArguments"]


@describes()
class ClientArguments(TypedDict, total=False):
    """The settings of a client as keyword arguments: the names of Kafka's clients, with underscores.

    Attributes
    ----------
    bootstrap_servers : str or iterable of str
        Some brokers, as ``HOST:PORT``, or a URL ``kafka://HOST:PORT[,HOST:PORT]``. Required, here or in `config`.
    client_id : str, default "kbatch"
        The name in the broker's logs and quotas.
    security_protocol : {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}, default "PLAINTEXT"
        Whether connections are encrypted (SSL), and whether the client authenticates (SASL).
    sasl_mechanism : str, default ""
        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM or GSSAPI.
    sasl_username : str, default None
        The name of the user, for PLAIN and SCRAM.
    sasl_password : str, default None
        The password of the user, for PLAIN and SCRAM.
    sasl_jaas_config : str, default None
        The login module and its options, as for Java clients, in place of the other SASL settings.
    sasl_kerberos_service_name : str, default "kafka"
        The first part of the brokers' principals, for GSSAPI.
    sasl_kerberos_keytab : str or path, default None
        The keytab of the client, for GSSAPI. Default is the ticket of ``kinit``.
    sasl_kerberos_principal : str, default None
        The principal of the client, with a keytab.
    sasl_oauthbearer_token : callable, default None
        A function that returns a token, for OAUTHBEARER.
    sasl_oauthbearer_client_id : str, default None
        The id of the client, for client credentials of OpenID Connect.
    sasl_oauthbearer_client_secret : str, default None
        The secret of the client, for client credentials of OpenID Connect.
    sasl_oauthbearer_scope : str, default None
        The scope of the token, for client credentials of OpenID Connect.
    sasl_oauthbearer_token_endpoint_url : str, default None
        The URL that issues tokens, for client credentials of OpenID Connect.
    ssl_ca_location : str or path, default None
        A file or directory of trusted CA certificates. Default is the system's certificates.
    ssl_ca_pem : str, default None
        The trusted CA certificates as text.
    ssl_certificate_location : str or path, default None
        The certificate of the client, for mutual TLS.
    ssl_key_location : str or path, default None
        The key of the client, for mutual TLS.
    ssl_key_password : str, default None
        The password of the key.
    ssl_endpoint_identification_algorithm : {"https", "none"}, default "https"
        Whether the host name of each broker is verified.
    enable_ssl_certificate_verification : bool, default True
        Whether the certificate of each broker is verified.
    socks5_proxy : str, default None
        ``socks5://[USER:PASSWORD@]HOST:PORT``; the proxy resolves the names of brokers.
    request_timeout_ms : int, default 30000
        The time without a byte of a response after which a request fails.
    default_api_timeout_ms : int, default 60000
        The time without success after which a read fails.
    socket_connection_setup_timeout_ms : int, default 10000
        The time-out of a connection attempt, and of reaching any broker of the cluster.
    reconnect_backoff_ms : int, default 50
        The first pause between attempts to connect.
    reconnect_backoff_max_ms : int, default 1000
        The longest pause between attempts to connect.
    retry_backoff_ms : int, default 100
        The first pause before looking for a new leader.
    metadata_max_age_ms : int, default 300000
        How often a read that follows looks for new partitions, and asks a leader for the closest replica.
    fetch_max_bytes : int, default None
        The maximum size of a response. Default follows from `max_bytes`.
    max_partition_fetch_bytes : int, default None
        The maximum size of a partition in a response. Default follows from `max_bytes`.
    fetch_min_bytes : int, default 1
        The number of bytes for which a broker waits.
    fetch_max_wait_ms : int, default 500
        The longest time that a broker waits for records.
    group_id : str, default None
        The same as `group`.
    group_instance_id : str, default None
        The id of a static member of the group.
    group_protocol : {"classic", "consumer"}, default None
        The protocol of the group (KIP-848). Default is "consumer" if the broker supports it, else "classic".
    group_remote_assignor : str, default None
        An assignor of the broker, with the protocol "consumer". Default is the broker's.
    partition_assignment_strategy : str or iterable of str, default None
        Some of range, roundrobin and cooperative-sticky, with the protocol "classic". Default is cooperative-sticky.
    session_timeout_ms : int, default 45000
        The time without a heartbeat after which a member is removed, with the protocol "classic".
    heartbeat_interval_ms : int, default 3000
        The time between heartbeats, with the protocol "classic".
    max_poll_interval_ms : int, default 300000
        The longest time between two requests of the reader.
    auto_offset_reset : {"earliest", "latest", "none"}, default None
        Where a partition without a committed offset begins.
    enable_auto_commit : bool, default None
        The same as `auto_commit`.
    client_rack : str, default None
        The rack or zone of the client, which reads from the closest replica.
    """

    bootstrap_servers: str | Iterable[str]
    client_id: str
    security_protocol: str
    sasl_mechanism: str
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    sasl_kerberos_service_name: str
    sasl_kerberos_keytab: str | os.PathLike[str] | None
    sasl_kerberos_principal: str | None
    sasl_oauthbearer_token: TokenProvider | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    ssl_ca_location: str | os.PathLike[str] | None
    ssl_ca_pem: str | None
    ssl_certificate_location: str | os.PathLike[str] | None
    ssl_key_location: str | os.PathLike[str] | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: str
    enable_ssl_certificate_verification: bool
    socks5_proxy: str | None
    request_timeout_ms: int
    default_api_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    retry_backoff_ms: int
    metadata_max_age_ms: int
    fetch_max_bytes: int | None
    max_partition_fetch_bytes: int | None
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str | None
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Iterable[str] | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: str | None
    enable_auto_commit: bool | None
    client_rack: str | None
