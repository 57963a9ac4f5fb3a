"""The source that the argument of a caller means: files, or a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbatch.log.source import LogSource, SourceLike, source_of
from kbatch.log.store.storage import is_cluster_url
from kbatch.scans.file_source import FileSource

if TYPE_CHECKING:
    from kbatch.live import ClusterSource

__all__ = ["cluster_source", "scanned_source"]


def cluster_source(
    given: SourceLike,
    storage_options: Mapping[str, str] | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> ClusterSource | None:
    """Return the cluster that a URL means; None for other sources, which have no `config`.

    Modules of live topics are imported only for a cluster.
    """
    if isinstance(given, str) and is_cluster_url(given):
        from kbatch.live import ClientSettings, ClusterSource

        if storage_options is not None:
            raise ValueError("storage_options are for URLs of files; config has the settings of a cluster")
        return ClusterSource(ClientSettings.of(config, bootstrap_servers=given))
    if config is not None:
        raise ValueError("config has the settings of a cluster, whose source is kafka://HOST:PORT[,HOST:PORT]")
    return None


def scanned_source(
    given: SourceLike,
    storage_options: Mapping[str, str] | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> LogSource:
    """Return the source that a scan reads."""
    cluster = cluster_source(given, storage_options, config)
    if cluster is not None:
        return cluster
    return given if isinstance(given, LogSource) else FileSource(source_of(given, storage_options))
