"""`kbatch.log.compare_logs`: the records of two logs, directories of logs, or live clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from typing_extensions import Unpack

from kbatch.arguments import check_types, suggests_names
from kbatch.live.compared_sources import ComparedLogs, TopicNames, open_sides, paired_logs
from kbatch.log.check.comparison import COMPARED_COLUMNS, compare_inputs
from kbatch.log.check.differences import Comparison, PartitionComparison
from kbatch.log.read_arguments import READ_HINTS, ReadArguments, TableOptions
from kbatch.log.topics import TopicChoice
from kbatch.options import ComparedExtent, Match
from kbatch.public_names import public_in
from kbatch.settings_text import ClientConfig

__all__ = ["compare_logs"]


@public_in("kbatch.log")
@suggests_names(READ_HINTS)
def compare_logs(
    a: ComparedLogs,
    b: ComparedLogs,
    *,
    match: Match = "offset",
    extent: ComparedExtent | None = None,
    digests: bool = False,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    other_topic: str | None = None,
    config: ClientConfig | None = None,
    other_config: ClientConfig | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    on_partition: Callable[[PartitionComparison], None] | None = None,
    **options: Unpack[TableOptions],
) -> Comparison:
    """Compare the records of two logs, directories of logs, or live clusters.

    Records are compared, not batches: codecs, magic and the sizes of batches and segments may differ. Two records are
    equal if their timestamps, keys, values and headers are equal, with headers in the same order. Timestamp types are
    not compared, because a conversion from magic 0 changes them.

    Parameters
    ----------
    a, b : Log, LogList, sequence of Log, ClusterSource, str or path
        Two logs, whose names may differ; or two directories, lists of logs or clusters, which are paired by topic and
        partition. A path is a segment (``.log``), a topic-partition directory or a broker's log directory, local or a
        URL. A cluster is ``kafka://HOST:PORT[,HOST:PORT]``; its topics are fetched once, to the ends that they have
        now. If only one side is a cluster, by default only the topics of the other side are compared.
    match : {"offset", "order", "key"}
        Which records are compared with each other:

        - ``"offset"``: records with the same offset.
        - ``"order"``: the first record of `a` with the first of `b`, the second with the second, and so on, regardless
          of their offsets: for mirrored topics. After a difference, the comparison searches the next 1,024 records of
          each side for a record with the same key, value and headers on both sides, and resumes there; surplus records
          before it count as missing on the other side. Without such a record, these records are compared in order.
        - ``"key"``: the last record of each key, regardless of offsets: for compacted topics. A key whose last record
          is a tombstone (a null value) counts as absent, because compaction removes it later. Records without a key
          are not compared.
    extent : {"common", "all"}, optional
        The offsets to compare with ``match="offset"``: those that both logs have, from the later start to the earlier
        end, or all, so that a record before or after the other log is a difference. Default is "common" if a side is a
        cluster, because retention moves the start of a live log and producers move its end; otherwise "all". Logs
        without a common offset within the bounds of `options` are different, unless neither log has an offset there.
    digests : bool
        Whether to compute digests of the records of each side (`ComparedLog.digest`), to compare with digests from
        other machines or times.
    topics : str, re.Pattern, or iterable of them, optional
        Names and globs of topics; a compiled regular expression must match the whole name.
    partitions : iterable of int, optional
    other_topic : str, optional
        The name in `b` of the only topic, if it is not the name in `a`.
    config, other_config : mapping, str or path, optional
        Settings of Kafka's clients, or a properties file with them, as for `kbatch.consume`, for the clusters `a` and
        `b`. If only one side is a cluster, `config` has its settings.
    storage_options : mapping of str to str, optional
        For URLs of files; see `find_logs`.
    progress : callable, optional
        Called with the number of bytes read so far, of both sides.
    on_partition : callable, optional
        Called with the `PartitionComparison` of each partition when it is complete.
    **options
        As for `Log.tables`, for both sides. By default an error is raised at damage; ``on_error="skip"`` compares the
        remaining records and lists the losses.

    Returns
    -------
    Comparison

    Raises
    ------
    KbatchError
        As for `Log.tables` and `find_logs`; also if offsets do not ascend, with ``match="offset"``.
    BrokerError, AuthenticationError
        As for `kbatch.consume`, if a side is a cluster; also if records are deleted before they are compared.
    ValueError
        If one side is a log and the other is several, a list has a topic-partition twice, or a topic does not exist.

    Notes
    -----
    Memory is bounded by `max_bytes` per side, as in `Log.tables`. With ``match="key"`` it also grows by up to 500 bytes
    for each distinct key, whose records are compared by SipHash-2-4 of 128 bits with a random secret.

    Examples
    --------
    >>> from kbatch.log import compare_logs
    >>> compare_logs("tests/golden/logs/codec-none-0", "tests/golden/logs/codec-none-0").equal
    True
    >>> (result,) = compare_logs("tests/golden/logs/magic0-0", "tests/golden/logs/magic1-0").partitions
    >>> result.matching, result.different, result.only_a, result.only_b
    (0, 110, 3, 0)
    >>> result.first.fields, result.first.a.timestamp, result.first.b.timestamp
    (('timestamp', 'key', 'value'), None, 1700000137500)

    A topic and its mirror in another cluster:

    >>> compare_logs("kafka://a:9092", "kafka://b:9092", topics="orders").equal  # doctest: +SKIP
    True
    """
    check_types(compare_logs, locals())
    if match not in ("offset", "order", "key"):
        raise ValueError(f'match must be "offset", "order" or "key", got {match!r}')
    if extent not in (None, "common", "all"):
        raise ValueError(f'extent must be "common" or "all", got {extent!r}')
    if extent == "common" and match != "offset":
        raise ValueError(f'extent="common" is for match="offset", got match={match!r}')
    arguments = ReadArguments.of(COMPARED_COLUMNS, options)
    names = TopicNames.of(topics, partitions, other_topic)
    done = 0

    def advance(read: int) -> None:
        nonlocal done
        done += read
        if progress is not None:
            progress(done)

    compared = []
    with ExitStack() as closing:
        sides = open_sides((a, b), names, arguments, (config, other_config), storage_options, closing)
        if extent is None and match == "offset" and any(side.is_cluster for side in sides):
            extent = "common"
        for pair in paired_logs(sides, names, arguments):
            common = None
            extents = pair.extents(arguments.decode.isolation) if extent == "common" else [None, None]
            if extents[0] is not None and extents[1] is not None:
                common = pair.limit_to_common((extents[0], extents[1]))
            left, right = pair.inputs()
            result = compare_inputs(left, right, match, advance, digests=digests)
            result.compared_offsets = common
            for side, ends in zip((result.a, result.b), extents, strict=True):
                if side is not None and ends is not None:
                    side.start_offset, side.end_offset = ends
            compared.append(result)
            if on_partition is not None:
                on_partition(result)
    return Comparison(match, compared)
