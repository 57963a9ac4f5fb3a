"""Properties: the ``partition.metadata`` of a log, and the ``meta.properties`` of a log directory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from kbatch.arguments import check_types
from kbatch.log.files.contents import SPACES, integer, malformed, text_lines
from kbatch.log.store.listing import find_file
from kbatch.log.store.names import parse_kafka_uuid
from kbatch.log.store.storage import Entry, Storage
from kbatch.public_names import public_in
from kbatch.settings_text import parse_properties

__all__ = ["PARTITION_METADATA", "PartitionMetadata", "read_meta_properties", "read_partition_metadata", "topic_id_of"]

PARTITION_METADATA = "partition.metadata"


class PartitionMetadata(NamedTuple):
    """The contents of a ``partition.metadata`` file."""

    version: int
    topic_id: uuid.UUID


@public_in("kbatch.log")
def read_partition_metadata(path: str | os.PathLike[str], *, storage: Storage | None = None) -> PartitionMetadata:
    r"""Read a ``partition.metadata`` file (DSK-R12).

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

    Returns
    -------
    PartitionMetadata
        ``topic_id`` is a UUID, stored in the file as URL-safe base64 without padding. As in a broker, files of a later
        version are read as version 0.

    Raises
    ------
    LogDirectoryError
        If the file can't be read or is malformed.

    References
    ----------
    Rules such as DSK-R12 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"version: 0\ntopic_id: a2JhdGNoLXRlc3RzLWJrcg\n")
    ...     file.flush()
    ...     read_partition_metadata(file.name).topic_id
    UUID('6b626174-6368-2d74-6573-74732d626b72')
    """
    check_types(read_partition_metadata, locals())
    path = os.fspath(path)
    lines = text_lines(path, storage)
    fields = []
    for number, name in enumerate(("version:", "topic_id:"), start=1):
        parts = SPACES.split(lines[number - 1]) if len(lines) >= number else []
        if len(parts) != 2 or parts[0] != name:
            raise malformed(path, number, f"'{name} ...'", lines)
        fields.append(parts[1])
    version = integer(path, 1, fields[0], 32)
    if version < 0:
        raise malformed(path, 1, "a version of 0 or later", lines)
    topic_id = parse_kafka_uuid(fields[1])
    if topic_id is None:
        raise malformed(path, 2, "the 22 characters of a topic's id", lines)
    return PartitionMetadata(version, topic_id)


def topic_id_of(storage: Storage, directory: str, listing: Mapping[str, Entry] | None = None) -> uuid.UUID | None:
    """Return the topic's id from the ``partition.metadata`` of a log; None without that file."""
    path = find_file(storage, directory, listing, PARTITION_METADATA)
    return None if path is None else read_partition_metadata(path, storage=storage).topic_id


@public_in("kbatch.log")
def read_meta_properties(path: str | os.PathLike[str], *, storage: Storage | None = None) -> dict[str, str]:
    r"""Read a log directory's ``meta.properties`` (DSK-R10), or another Java properties file.

    Parameters
    ----------
    path : str or path
    storage : Storage, optional
        The filesystem of a URL that needs options, such as that of a segment (`kbatch.Segment.storage`).

    Returns
    -------
    dict
        Such as ``version``, ``cluster.id``, ``node.id`` or ``broker.id``, and ``directory.id``; values are text.

    Raises
    ------
    LogDirectoryError
        If the file can't be read, or has an invalid escape.

    References
    ----------
    Rules such as DSK-R10 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"# a comment\nversion=1\nnode.id=3\n")
    ...     file.flush()
    ...     read_meta_properties(file.name)
    {'version': '1', 'node.id': '3'}
    """
    check_types(read_meta_properties, locals())
    path = os.fspath(path)
    return parse_properties(text_lines(path, storage), path)
