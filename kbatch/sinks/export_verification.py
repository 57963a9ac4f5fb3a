"""`kbatch.verify_export`: verifies by offsets that an output has every record of its logs exactly once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbatch.arguments import check_types
from kbatch.log import find_logs
from kbatch.log.discovery import root_list
from kbatch.log.source import LogSource
from kbatch.log.store.storage import is_url
from kbatch.public_names import public_in
from kbatch.records.display import changed_repr
from kbatch.settings_text import ClientConfig
from kbatch.sinks.exports import exported_cluster
from kbatch.sinks.offset_windows import FileOffsets, VerifiedLog
from kbatch.sinks.output_offsets import ExportOutput, open_output
from kbatch.sinks.outputs import open_place
from kbatch.sinks.partition_check import ExportFinding, PartitionCheck, PartitionVerification

__all__ = ["ExportVerification", "verify_export"]


@public_in("kbatch")
@dataclass
class ExportVerification:
    """The result of a verification.

    Attributes
    ----------
    out : str
    partitions : list of PartitionVerification

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = kbatch.export("tests/golden/logs/txn-0", out, engine="local", isolation="read_committed")
    ...     found = kbatch.verify_export(out, "tests/golden/logs/txn-0")
    >>> found.damaged, [finding.text for finding in found.findings]
    (False, ['the export is 9 offsets behind the log; it continues at offset 362'])
    """

    out: str
    partitions: list[PartitionVerification] = field(default_factory=list)

    def __repr__(self) -> str:
        return changed_repr(self)

    @property
    def findings(self) -> list[ExportFinding]:
        """The findings of all topic-partitions."""
        return [finding for each in self.partitions for finding in each.findings]

    @property
    def damaged(self) -> bool:
        """Whether records are missing or duplicated, or rows belong to no commit."""
        return any(finding.damage for finding in self.findings)


@public_in("kbatch")
def verify_export(
    out: str | os.PathLike[str],
    against: str | os.PathLike[str] | LogSource | Iterable[str | os.PathLike[str]],
    *,
    config: ClientConfig | None = None,
    table: str | None = None,
    catalog: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_finding: Callable[[ExportFinding], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportVerification:
    """Verify that an output of exports has every record of its logs exactly once.

    The column ``offset`` of the data files is compared with the offsets of the logs that commits cover, under the
    isolation level of each commit. No other column is read.

    Parameters
    ----------
    out : str or path
        A directory or URL of Parquet or Arrow files, a Delta table, or the directory of an Iceberg table's files.
    against : str or path, iterable of them, or ClusterSource
        The log directories that were exported, or copies of them; or a cluster, as for `export`.
    config : str, path or mapping, optional
        For a cluster: the settings of Kafka's clients, as for `kbatch.consume`.
    table, catalog : str, optional
        For an Iceberg table, as for `export`.
    storage_options : mapping of str to str, optional
        For URLs.
    on_finding : callable, optional
        Called with each finding when its topic-partition has been compared.
    progress : callable, optional
        Called with the bytes of the logs read so far, and all bytes.

    Returns
    -------
    ExportVerification

    Raises
    ------
    LogDirectoryError
        If `out` is not the output of an export or a file of it cannot be read, or there are no logs.
    BrokerError, AuthenticationError
        As for `kbatch.consume`, from a cluster.
    MissingDependencyError
        If pyarrow or the library of the table is not installed.

    Notes
    -----
    Records that cannot be compared are listed as notes: records that the log no longer has, because of retention,
    compaction or damage; records that the export has not reached; and records of a log that was truncated or recreated
    since. For such ranges, the number of rows is compared with the number of records in the commits.

    Examples
    --------
    >>> import tempfile
    >>> import kbatch
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = kbatch.export("tests/golden/logs/codec-zstd-0", out, engine="local")
    ...     kbatch.verify_export(out, "tests/golden/logs/codec-zstd-0").damaged
    False
    """
    check_types(verify_export, locals())
    place = open_place(os.fspath(out), dict(storage_options or {}))
    output = open_output(place, table, catalog)
    names = sorted(output.covered.keys() | output.files.keys())
    with contextlib.ExitStack() as stack:
        logs = _opened_logs(against, config, storage_options, names, stack)
        return _verified(output, place.url, names, logs, on_finding, progress)


def _opened_logs(
    against: Any,
    config: ClientConfig | None,
    storage_options: Mapping[str, str] | None,
    names: Sequence[tuple[str, int]],
    stack: contextlib.ExitStack,
) -> dict[tuple[str, int], VerifiedLog]:
    """Return the logs by topic and partition; `stack` closes connections."""
    source = exported_cluster(against, "against", config)
    if source is not None:
        if source.history:
            raise ValueError("against a cluster all records are fetched; give the log directories without the cluster")
        from kbatch.sinks.cluster_input import opened_partitions

        return opened_partitions(source, names, stack)
    roots = [os.fspath(each) for each in root_list(against, "against")]
    found = find_logs(roots, storage_options=storage_options if any(map(is_url, roots)) else None)
    return {(log.topic or "", log.partition or 0): FileOffsets(log) for log in found}


def _verified(
    output: ExportOutput,
    out: str,
    names: Sequence[tuple[str, int]],
    logs: Mapping[tuple[str, int], VerifiedLog],
    on_finding: Callable[[ExportFinding], None] | None,
    progress: Callable[[int, int], None] | None,
) -> ExportVerification:
    """Compare each topic-partition."""
    total = sum(logs[name].size for name in names if name in logs)
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        if progress is not None:
            progress(min(read, total), total)

    result = ExportVerification(out)
    for name in names:
        part = PartitionCheck(output, name, logs.get(name), count).run()
        result.partitions.append(part)
        if on_finding is not None:
            for finding in part.findings:
                on_finding(finding)
    return result
