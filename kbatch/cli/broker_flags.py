"""The flags of commands that read a live cluster: its brokers, and the settings of Kafka's clients."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kbatch.cli.flags import NAME_AND_VALUE, UsageError, add_flags, given_options
from kbatch.cli.terminal import print_errors
from kbatch.options import ValueKind, documented, option, options_of

if TYPE_CHECKING:
    from kbatch.live import ClientSettings
    from kbatch.log.topics import TopicChoice

__all__ = [
    "CLIENT_SETTINGS",
    "KAFKA_URL",
    "BrokerFlags",
    "add_broker_flags",
    "as_config",
    "given_settings",
    "live_brokers",
    "live_topics",
    "settings_of",
    "warnings_as_lines",
]

# For the epilog of each command that reads a cluster.
CLIENT_SETTINGS = """\
settings:
  --config is a file of NAME=VALUE lines, such as client.properties, with the names that Kafka's clients in Java or
  librdkafka have; --setting takes precedence. Passwords are read from the file only, because other users can see
  command lines. docs/live-settings.md lists the settings.
"""

KAFKA_URL = "kafka://"
# How messages of `ClientSettings` name what the command line has.
_FLAG_NAMES = {
    "bootstrap_servers": "--bootstrap-server",
    "use the argument isolation": "use --isolation",
    "as keyword arguments or with config=": "with --config",
}
_SECRET = re.compile(r"password|secret|jaas|\.key$|key\.pem")


def _check_servers(text: str) -> None:
    # The value may have a password, so the message does not repeat it. `ClientSettings` checks the rest.
    if not text or re.search(r"[\s@]", text):
        raise ValueError("must be HOST:PORT[,HOST:PORT]")


_SERVERS = ValueKind(str, "localhost:9092", _check_servers, metavar="HOST:PORT")


@documented
@dataclass(frozen=True)
class BrokerFlags:
    """The flags of a cluster.

    Attributes
    ----------
    {options}
    """

    bootstrap_servers: str | None = option(
        _SERVERS, None, flag="--bootstrap-server",
        help="some brokers of the cluster, as HOST:PORT[,HOST:PORT] or kafka://HOST:PORT",
    )  # fmt: skip
    config: str | None = option(
        ValueKind(str, "client.properties", metavar="FILE"), None, flag="--config",
        help="file of settings of Kafka's clients, such as client.properties",
    )  # fmt: skip
    settings: tuple[tuple[str, str], ...] | None = option(
        NAME_AND_VALUE, None, flag="--setting",
        help="a setting of Kafka's clients, such as security.protocol=SSL; may be repeated",
    )  # fmt: skip


def add_broker_flags(parser: argparse._ActionsContainer, *, without_servers: bool = False) -> None:
    """Add the flags of a cluster; `without_servers` for a command that takes a URL of the brokers."""
    options = options_of(BrokerFlags)
    add_flags(parser, options[1:] if without_servers else options)


def given_settings(arguments: argparse.Namespace, servers: str | None = None) -> ClientSettings:
    """Return the settings of the flags, with the addresses of a URL if the command has one; see `settings_of`."""
    return settings_of(given_options(BrokerFlags, arguments), servers)


def settings_of(flags: BrokerFlags, servers: str | None = None, prefix: str = "--") -> ClientSettings:
    """Return the settings of flags, whose names begin with `prefix`, with the addresses of a URL.

    Raises
    ------
    UsageError
        Also for a secret on the command line.
    LogDirectoryError
        If the file of settings cannot be read.
    """
    from kbatch.live import ClientSettings
    from kbatch.live.client_config import read_config

    given: dict[str, Any] = {}
    for name, value in flags.settings or ():
        if _SECRET.search(name.replace("_", ".")) or ("proxy" in name and "@" in value):
            raise UsageError(
                f"{prefix}setting {name}: other users can see command lines; put it into a file, for {prefix}config"
            )
        given[name.replace(".", "_")] = value
    if "group_id" in given:
        raise UsageError(f"{prefix}setting group.id: kbatch consume --group NAME joins a group")
    if (servers := servers or flags.bootstrap_servers) is not None:
        given["bootstrap_servers"] = servers
    config = None if flags.config is None else read_config(flags.config)
    try:
        return ClientSettings.of(config, **given)
    except (TypeError, ValueError) as error:
        message = str(error)
        for argument, flag in _FLAG_NAMES.items():
            message = message.replace(argument, flag.replace("--", prefix))
        raise UsageError(message) from None


def as_config(settings: ClientSettings, group: str | None = None) -> dict[str, Any]:
    """Return settings as the argument ``config`` of `kbatch.consume`.

    A file of settings that names the group of an application does not make a command a member of it.
    """
    found = {each.name: getattr(settings, each.name) for each in fields(settings)}
    given = {each.name: found[each.name] for each in fields(settings) if found[each.name] != each.default}
    given["bootstrap_servers"] = [str(server) for server in settings.bootstrap_servers]
    given.pop("group_id", None)
    if group is None:
        for name in ("auto_offset_reset", "enable_auto_commit"):
            given.pop(name, None)
    return given


def live_topics(settings: ClientSettings, topics: TopicChoice) -> list[str]:
    """Return the names of the topics of a read."""
    from kbatch.live import Cluster
    from kbatch.live.subscription import TopicSubscription

    with Cluster(settings) as cluster:
        return [topic.name for topic in TopicSubscription(cluster, topics).topics]


def live_brokers(paths: Sequence[str], arguments: argparse.Namespace) -> str | None:
    """Return the URL of a cluster among the paths of a command; None if there are only files.

    Raises
    ------
    UsageError
        For a URL with other paths, and for flags of a cluster without a URL.
    """
    found = [path for path in paths if path.startswith(KAFKA_URL)]
    if len(found) > 1 or (found and len(paths) > 1):
        raise UsageError(
            f"a cluster ({KAFKA_URL}HOST:PORT) is read without other paths; several brokers of it are "
            f"{KAFKA_URL}HOST:PORT,HOST:PORT"
        )
    if not found:
        flags = given_options(BrokerFlags, arguments)
        for flag, value in (("--config", flags.config), ("--setting", flags.settings)):
            if value is not None:
                raise UsageError(f"{flag} belongs to a cluster, {KAFKA_URL}HOST:PORT, not to files")
        return None
    return found[0]


@contextmanager
def warnings_as_lines(command: str) -> Iterator[None]:
    """Print the warnings in the block, each as a line on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        # The parser of the arguments has printed the warnings about times.
        warnings.simplefilter("ignore", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_errors(f"kbatch {command}: {message}")
        yield
