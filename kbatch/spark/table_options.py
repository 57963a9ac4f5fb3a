"""The options of tables that ``CREATE TABLE ... USING kbatch`` makes.

Spark passes the properties of such a table when it asks for the schema, but no options at all when the table is read
(tried with 4.3). The schema is passed in both cases, so the options are stored in the metadata of its first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from kbatch.plan.cluster_options import is_secret_setting
from kbatch.values.registry_settings import is_registry_setting

__all__ = ["created_options", "read_table_options", "with_options"]

# The metadata of the first column.
_STORED = "kbatch.options"
# Spark writes the options of OPTIONS (...) into the properties of the table twice, once with this prefix.
_TABLE_PREFIX = "option."


def created_options(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options in the properties of a table that is being created; None if these are the options of a reader.

    Spark adds properties such as ``owner``, ``provider``, ``location`` and ``comment``, and the user's TBLPROPERTIES;
    they are not options. ``path`` is the path of OPTIONS or of LOCATION.

    Raises
    ------
    ValueError
        For options of a filesystem, a schema registry or a client's security: they may be secrets, and the metadata of
        columns is copied into files.
    """
    given = {name.lower(): value for name, value in properties.items()}
    if "owner" not in given or given.get("provider", "").lower() != "kbatch":
        return None
    options = {
        name.removeprefix(_TABLE_PREFIX): value for name, value in given.items() if name.startswith(_TABLE_PREFIX)
    }
    if "path" in given:
        options["path"] = given["path"]
    secrets = sorted(
        name for name in options if name.startswith("storage.") or is_registry_setting(name) or is_secret_setting(name)
    )
    if secrets:
        raise ValueError(
            f"{', '.join(secrets)}: a table does not store options of a file system, or settings of a schema "
            "registry or of a client's security, since they may be secrets; give "
            f"them in queries: SELECT ... FROM table WITH (`{secrets[0]}` = '...')"
        )
    return options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a schema that stores the options of its table."""
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), _STORED: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def read_table_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a reader: its own, and if it has no path, also the options that the schema stores."""
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options or "paths" in options:
        return options
    stored = next((field.metadata[_STORED] for field in schema if _STORED in (field.metadata or {})), None)
    return options if stored is None else {**json.loads(stored), **options}
