"""`read_logs`: a DataFrame of records, with a condition that reduces what is read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from kbatch.arguments import check_types
from kbatch.bounds import Domain
from kbatch.log.discovery import root_list
from kbatch.log.pruning import pruning_of
from kbatch.options import to_strings
from kbatch.plan.cluster_options import parse_source
from kbatch.public_names import public_in
from kbatch.spark.datasource import KbatchDataSource, register
from kbatch.spark.driver.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read_logs"]

# Columns whose values come from the directory name of a topic-partition.
_OF_DIRECTORIES = {"topic", "partition"}


@public_in("kbatch.spark")
def read_logs(
    spark: SparkSession,
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    where: str | Column | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return the records of log directories as a DataFrame, and read only what a condition and columns need.

    The result is the same as that of ``spark.read.format("kbatch").options(**options).load(path).filter(where)
    .select(*columns)``, whose filter and projection reduce the rows and columns after everything has been read.

    Parameters
    ----------
    spark : SparkSession
        The data source is registered with it.
    path : str or path, or iterable of them
        Log directories, topic-partition directories or ``.log`` files; or the URL ``kafka://HOST:PORT`` of a live
        cluster, with ``subscribe`` and settings such as ``kafka.security.protocol`` among the options.
    where : str or Column, optional
        A condition in SQL or as a column. Parts that are joined by AND and compare topic, partition or offset with
        constants, timestamp with a lower bound, or the key with a value exclude topic-partitions, segments and batches.
        Other parts exclude nothing. The whole condition is always applied to the records.
    columns : sequence of str, optional
        The columns of the result; an empty list for a count.
    options : mapping of str to object, optional
        Options of the data source, such as ``{"subscribe": "orders", "includeHeaders": True}``.

    Returns
    -------
    DataFrame

    Raises
    ------
    ValueError
        For an unknown option, or a value that an option cannot have.
    AnalysisException
        For a condition or columns that Spark does not accept.

    Notes
    -----
    A condition such as ``timestamp < TIMESTAMP'2026-03-02'`` excludes nothing before it is applied: a later record may
    have a smaller timestamp. The option ``endingTimestamp`` stops at the first record with this timestamp or a later
    one, as in Spark's Kafka source.

    If only topic and partition are needed, as for ``read_logs(spark, path, columns=[]).count()``, kbatch sends the
    number of records to Spark instead of the records. Batches are checked as in any other read. Without `columns`, a
    count builds all columns: Python data sources of Spark have no column pruning.

    Over Spark Connect a condition is applied, but excludes nothing, since the client cannot examine its plan. Use
    options there.

    Examples
    --------
    >>> import kbatch.spark
    >>> recent = kbatch.spark.read_logs(
    ...     spark, "/data/kafka", where="topic = 'orders' AND timestamp >= now() - INTERVAL 1 HOUR"
    ... )  # doctest: +SKIP
    >>> kbatch.spark.read_logs(spark, "/data/kafka", columns=[]).count()  # doctest: +SKIP
    24000000
    """
    check_types(read_logs, locals())
    register(spark)
    paths = [os.fspath(each) for each in root_list(path)]
    given = to_strings(options or {})
    if len(paths) == 1:
        given["path"] = paths[0]
    else:
        given["paths"] = json.dumps(paths)
    # Errors in options are raised here, and not as the text of an error of Spark.
    _, read = parse_source(given)
    is_remote = is_connect(spark)
    schema = None if is_remote and read.values.parsed else KbatchDataSource(given).schema()
    if schema is not None:
        needed: set[str] | None = set(schema.names)
        if where is not None and not is_remote:
            probe = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema).filter(where)
            given |= _pruning_options(probe, given)
            needed = _columns_needed(probe, columns)
        elif where is None and columns is not None:
            needed = set(columns)
        schema = _part_of(schema, needed)
    reader = spark.read.format("kbatch").options(**given)
    if read.table == "records" and schema is not None and _OF_DIRECTORIES.issuperset(schema.names):
        frame = _unrolled(reader.option("table", "counts").load())
    else:
        frame = (reader if schema is None else reader.schema(schema)).load()
    if where is not None:
        frame = frame.filter(where)
    return frame if columns is None else frame.select(*columns)


def _unrolled(counts: DataFrame) -> DataFrame:
    """Return topic and partition of each record. Spark repeats the rows only as far as a query needs them."""
    each = counts.selectExpr("topic", "partition", "explode(sequence(1, int(records)))")
    return each.select("topic", "partition")


def _pruning_options(probe: DataFrame, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for what the condition of an empty DataFrame excludes."""
    from kbatch.spark.conditions import excluded_by

    domains = excluded_by(probe)
    found = {"prune": pruning_of(domains).to_json()}
    logging.getLogger(__name__).debug("the condition excludes all but %s", found["prune"])
    names = {name.lower() for name in given}
    keys = set(domains.get("key", Domain()).members or ())
    texts = domains.get("text of key", Domain()).members or frozenset()
    keys |= {text.encode() for text in texts}
    # U+FFFD may be the replacement for bytes that are not UTF-8.
    is_text = not any("\ufffd" in text for text in texts)
    if len(keys) == 1 and is_text and not names & {"key", "keyhex"}:
        found["keyHex"] = keys.pop().hex()
    return found


def _columns_needed(probe: DataFrame, columns: Sequence[str] | None) -> set[str] | None:
    from kbatch.spark.conditions import columns_used

    used = columns_used(probe)
    return None if columns is None or used is None else {*columns, *used}


def _part_of(schema: StructType, needed: set[str] | None) -> StructType:
    """Return the fields of a schema that are needed; all of them if one is not among them, which Spark then reports."""
    if needed is None:
        return schema
    names = {name.lower() for name in needed}
    if not names <= {name.lower() for name in schema.names}:
        return schema
    return StructType([field for field in schema if field.name.lower() in (names or _OF_DIRECTORIES)])
