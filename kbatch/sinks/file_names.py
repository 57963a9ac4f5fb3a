"""The names of the files of a run. Tasks choose them, so that the driver does not move files into place."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from urllib.parse import unquote

from kbatch.sinks.outputs import OutputPlace

__all__ = ["EXPORT_PREFIX", "LOSSES", "LOSSES_SUFFIX", "TRANSACTIONS", "FileNames", "log_of", "run_of"]

# Readers ignore names that begin with an underscore.
LOSSES = "_losses"
# The directories of side tables and summaries of the runs to a table.
EXPORT_PREFIX = "_export-"
TRANSACTIONS = "_transactions"
# Not ".parquet": DuckDB and Polars read all files that `OUT/**/*.parquet` matches as data, also below a directory whose
# name begins with an underscore.
LOSSES_SUFFIX = ".parq"

# The characters that Spark escapes in names of partition directories (ExternalCatalogUtils.escapePathName).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
# Two numbers, the run and a random part, or only the run. Parts are matched by position: an id may have only digits.
_RUN_FILE = re.compile(
    r"(?:^|/)part-(?:[0-9]+-[0-9]+-([0-9a-f]{8})-[0-9a-f]{8}|([0-9a-f]{8}))\.(?:parquet|arrow|parq)$"
)

_LOG_DIRECTORY = re.compile(r"topic=([^/]+)/partition=([0-9]{1,10})/")


@dataclass(frozen=True)
class FileNames:
    """Where tasks write, and the names of their files; picklable.

    Attributes
    ----------
    place : OutputPlace
        The directory to which names are relative; it must exist on a mounted file system.
    run : str
        The run's id.
    data, side : str
        Prefixes of data files and of side tables, empty or ending with a slash.
    """

    place: OutputPlace
    run: str
    data: str = ""
    side: str = ""

    def data_file(self, log: tuple[str, int], date: str | None, first_offset: int, task: int, suffix: str) -> str:
        """Return a new name for a data file of a topic-partition, with the first offset known when it is opened.

        Each attempt of a task gets different names, and a file counts only if its report reaches the driver.
        """
        topic, partition = log
        directory = f"{self.data}topic={_escape(topic)}/partition={partition}"
        if date is not None:
            directory += f"/date={date}"
        return f"{directory}/part-{first_offset:020d}-{task:05d}-{self.run}-{uuid.uuid4().hex[:8]}{suffix}"

    def losses_file(self, task: int, number: int) -> str:
        """Return a new name for the losses of the `number`-th topic-partition of a task; names sort like the logs."""
        unique = uuid.uuid4().hex[:8]
        return f"{self.side}{LOSSES}/part-{task:05d}-{number:05d}-{self.run}-{unique}{LOSSES_SUFFIX}"

    @property
    def transactions_file(self) -> str:
        """The file that lists withheld transactions."""
        return f"{self.side}{TRANSACTIONS}/part-{self.run}{LOSSES_SUFFIX}"


def run_of(name: str) -> str | None:
    """Return the id of the run that has written a file; None for files of other origin.

    Examples
    --------
    >>> from kbatch.sinks.file_names import run_of
    >>> run_of("topic=t/partition=0/part-00000000000000000000-00003-0a1b2c3d-99887766.parquet")
    '0a1b2c3d'
    """
    found = _RUN_FILE.search(name)
    return None if found is None else found[1] or found[2]


def log_of(name: str) -> tuple[str, int] | None:
    """Return the topic and partition of a data file from its directories; None for files of other origin.

    Examples
    --------
    >>> from kbatch.sinks.file_names import log_of
    >>> log_of("topic=t/partition=0/part-00000000000000000000-00003-0a1b2c3d-99887766.parquet")
    ('t', 0)
    """
    found = _LOG_DIRECTORY.match(name)
    return None if found is None else (unquote(found[1]), int(found[2]))


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
