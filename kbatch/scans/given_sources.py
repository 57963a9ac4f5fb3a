"""Turns the argument `source` of a caller into a source: files, or a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from kbatch.log.source import LogSource, SourceLike, source_of
from kbatch.log.store.storage import is_cluster_url
from kbatch.scans.file_source import FileSource
from kbatch.settings_text import ClientConfig

if TYPE_CHECKING:
    from kbatch.live import ClusterSource

__all__ = ["cluster_source", "scanned_source"]

# Copies of the logs of a cluster.
HistoryLike: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"


def cluster_source(
    given: SourceLike,
    storage_options: Mapping[str, str] | None,
    config: ClientConfig | None,
    *,
    history: HistoryLike = None,
    include_expired: bool = False,
) -> ClusterSource | None:
    """Return the cluster of a URL; None for other sources, which have no `config` and no history.

    Modules of live topics are imported only for a cluster.
    """
    if isinstance(given, str) and is_cluster_url(given):
        from kbatch.live import ClientSettings, ClusterSource

        if storage_options is not None and history is None:
            raise ValueError("storage_options are for URLs of files; config has the settings of a cluster")
        return ClusterSource(
            ClientSettings.of(config, bootstrap_servers=given),
            history=history,
            include_expired=include_expired,
            storage_options=storage_options,
        )
    if config is not None:
        raise ValueError("config has the settings of a cluster, whose source is kafka://HOST:PORT[,HOST:PORT]")
    if history is not None or include_expired:
        name = "history" if history is not None else "include_expired"
        raise ValueError(f"{name} belongs to a cluster, kafka://HOST:PORT; kbatch.live.ClusterSource takes it itself")
    return None


def scanned_source(
    given: SourceLike,
    storage_options: Mapping[str, str] | None,
    config: ClientConfig | None,
    *,
    history: HistoryLike = None,
    include_expired: bool = False,
) -> LogSource:
    """Return the source that a scan reads."""
    cluster = cluster_source(given, storage_options, config, history=history, include_expired=include_expired)
    source = given if cluster is None else cluster
    if not isinstance(source, LogSource):
        return FileSource(source_of(source, storage_options))
    if getattr(source, "history", ()):
        from kbatch.scans.history_source import HistorySource

        return HistorySource(cast("ClusterSource", source))
    return source
