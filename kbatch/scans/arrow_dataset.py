"""A scan as a dataset of Arrow, for engines that push columns and filters down to datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from kbatch.scans.scanned_records import ScannedRecords

__all__ = ["LogDataset", "LogScanner"]

# The only file of the dataset for code that does not use its methods, such as Acero: opening it names the way out.
_NO_FILE = "no file: use LogDataset.scanner() or kbatch.Scan.reader()"


class LogScanner:
    """The rows and columns of a query on a dataset, with the methods of `pyarrow.dataset.Scanner`.

    Parameters
    ----------
    scan : Scan
    """

    def __init__(self, scan: ScannedRecords) -> None:
        self._scan = scan

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the columns."""
        return self._scan.schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the columns."""
        return self._scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader that decodes as it is read."""
        return self._scan.reader()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches."""
        return iter(self._scan.reader())

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return self._scan.to_arrow()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows."""
        return self._scan.head(num_rows)

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self._scan.count()

    def take(self, indices: object) -> pa.Table:
        """Return the rows with some indices; reads all rows."""
        return self.to_table().take(indices)


class LogDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """The records of a scan as a dataset, which `Scan.dataset` returns.

    DuckDB and `polars.scan_pyarrow_dataset` call `scanner` and `to_batches` with the columns and the filter of a query.

    Parameters
    ----------
    scan : Scan
    """

    def __init__(self, scan: ScannedRecords) -> None:
        # Code of C++ that does not call the methods below finds one file, which does not exist, and raises.
        file_format, filesystem = ds.IpcFileFormat(), pyarrow.fs.LocalFileSystem()
        fragment = file_format.make_fragment(_NO_FILE, filesystem)
        super().__init__([fragment], scan.schema, file_format, filesystem)
        self._scan = scan

    def __repr__(self) -> str:
        return f"<LogDataset of {self._scan!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LogDataset cannot be pickled; make it in the process that reads it")

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> LogScanner:
        """Return a scanner of some columns and of the rows for which a filter is true.

        Parameters
        ----------
        columns : sequence of str, optional
            Default is all of them.
        filter : pyarrow.compute.Expression, optional
        **options
            Of `pyarrow.dataset.Dataset.scanner`, which concern its speed and are ignored.
        """
        if isinstance(columns, dict):
            raise TypeError("columns must be names; expressions are not supported")
        scan = self._scan if filter is None else self._scan._narrowed(filter)
        return LogScanner(scan if columns is None else scan.select(columns))

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of `scanner(columns, filter)`."""
        return self.scanner(columns, filter).to_batches()

    def to_table(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **options: Any
    ) -> pa.Table:
        """Return the table of `scanner(columns, filter)`."""
        return self.scanner(columns, filter).to_table()

    def head(
        self,
        num_rows: int,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pa.Table:
        """Return the first `num_rows` rows of `scanner(columns, filter)`."""
        return self.scanner(columns, filter).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of rows."""
        return self.scanner(None, filter).count_rows()

    def take(
        self,
        indices: object,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pa.Table:
        """Return the rows with some indices; reads all rows."""
        return self.scanner(columns, filter).take(indices)

    def filter(self, expression: pc.Expression) -> LogDataset:
        """Return a dataset of the rows for which a condition is true too."""
        return LogDataset(self._scan._narrowed(expression))

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise: the schema of records is fixed."""
        raise NotImplementedError("the schema of a LogDataset is fixed; Scan.select() chooses columns")

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raise: there are no fragments."""
        raise NotImplementedError("a LogDataset has no fragments: scanner() reads it in parallel and in order")

    def sort_by(self, sorting: object, **options: Any) -> ds.InMemoryDataset:
        """Return all rows in memory, sorted."""
        return self._in_memory().sort_by(sorting, **options)

    def join(self, right_dataset: object, keys: object, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Join all rows in memory; as `pyarrow.dataset.Dataset.join`."""
        return self._in_memory().join(right_dataset, keys, *arguments, **options)

    def join_asof(self, right_dataset: object, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Join all rows in memory; as `pyarrow.dataset.Dataset.join_asof`."""
        return self._in_memory().join_asof(right_dataset, *arguments, **options)

    def _in_memory(self) -> ds.InMemoryDataset:
        return ds.InMemoryDataset(self.to_table())
