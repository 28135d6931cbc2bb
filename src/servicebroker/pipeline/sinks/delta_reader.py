"""Reads Delta tables in Spark without extra jars: deltalake reads the log, and the tasks read the files by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.pipeline.sinks.storage import Folder, filesystem_of, plain
from servicebroker.pipeline.sinks.tables import TableFile

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


@dataclass
class FilePartition(InputPartition):
    """One file of a table version, for one task. `schema`: the columns to read, a serialized Arrow schema."""

    folder: Folder
    name: str
    partition: dict[str, Any]
    schema: bytes

    @classmethod
    def of(cls, folder: Folder, file: TableFile, schema: pa.Schema) -> FilePartition:
        """Return the partition that reads a file of the table in `folder`, with the columns in `schema`."""
        return cls(folder, file.name, file.partition, schema.serialize().to_pybytes())


_SUPPORTED = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening"}  # reader features of Delta
_UNUSED = {"columnMapping", "deletionVectors"}  # unsupported features, which a table may declare but not use


class DeltaReader(DataSourceReader):
    """Reads a version of a table, by default the newest, with one task for each file.

    `columns`: the columns that Spark has planned with. The table may have more columns by now.
    """

    def __init__(self, folder: Folder, version: int | None, columns: Sequence[str]) -> None:
        self._folder = folder
        self._version = version
        self._columns = columns

    @override
    def partitions(self) -> Sequence[InputPartition]:
        """Return the files of the version."""
        import pyarrow as pa

        table = open_table(self._folder, self._version)
        present = arrow_columns(table)
        for name in self._columns:
            if name not in present.names:
                raise InstanceError(f"The Delta table '{self._folder}' has no column '{name}'.")
        columns = pa.schema([present.field(name) for name in self._columns])
        return [FilePartition.of(self._folder, file, columns) for file in files_of(table)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file, in a task. If there are no files, Spark passes a partition of another class."""
        return read_file(partition) if isinstance(partition, FilePartition) else iter(())


def open_table(folder: Folder, version: int | None = None) -> DeltaTable:
    """Open an existing Delta table.

    Raises:
        InstanceError: there is no table or no such version, or it needs an unsupported feature.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(str(folder), version=version)
        check_readable(folder, table)
    except TableNotFoundError:
        raise InstanceError(f"There is no Delta table in '{folder}'.") from None
    except (DeltaError, OSError, ValueError) as problem:
        raise InstanceError(f"The Delta table '{folder}' cannot be read: {plain(problem)}.") from None
    return table


def version_at(folder: Folder, moment: datetime) -> int:
    """Return the newest version of a table that was committed at `moment` or before.

    Raises:
        InstanceError: there is no table, or its log has no version as old as that.
    """
    times: dict[int, datetime] = {
        entry["version"]: datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
        for entry in open_table(folder).history()
    }
    versions = [version for version, committed in times.items() if committed <= moment]
    if not versions:
        oldest = f"{min(times.values()):%Y-%m-%dT%H:%M:%SZ}"
        raise InstanceError(f"The Delta table '{folder}' has no version as old as that: the oldest is of {oldest}.")
    return max(versions)


def check_readable(folder: Folder, table: DeltaTable) -> None:
    """Refuse a table if its rows are not exactly the rows of its files.

    Raises:
        InstanceError: the table needs a reader feature that this reader does not support.
    """
    import pyarrow as pa

    features = set(table.protocol().reader_features or ())
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        reason = "its columns have other names in its files (column mapping)"
    elif unknown := features - _SUPPORTED - _UNUSED:
        reason = f"it needs features that are not supported here: {', '.join(sorted(unknown))}"
    elif "deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows:
        reason = (
            "rows of its files are marked as deleted elsewhere (deletion vectors): write these files anew, by "
            "REORG TABLE ... APPLY (PURGE), and set delta.enableDeletionVectors to false"
        )
    else:
        return
    raise InstanceError(f"The Delta table '{folder}' cannot be read: {reason}.")


def arrow_columns(table: DeltaTable) -> pa.Schema:
    """Return the table's columns as an Arrow schema."""
    import pyarrow as pa

    columns: Any = table.schema().to_arrow()
    return pa.schema(columns)


def table_schema(folder: Folder, version: int | None) -> StructType:
    """Return the table's columns as a Spark schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_columns(open_table(folder, version)))


def files_of(table: DeltaTable) -> list[TableFile]:
    """Return the files of a table version."""
    import pyarrow as pa

    columns = table.metadata().partition_columns
    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        TableFile(
            *(row["path"], row["size_bytes"], row["num_records"] or 0),
            {name: row[f"partition.{name}"] for name in columns},
            row,
        )
        for row in rows
    ]


def read_file(file: FilePartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with the columns of its partition's schema. A column that the file lacks is null."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    schema = pa.ipc.read_schema(pa.py_buffer(file.schema))
    with filesystem_of(file.folder).open_input_file(file.name) as source, ParquetFile(source) as parquet:
        present = [name for name in schema.names if name in parquet.schema_arrow.names and name not in file.partition]
        for batch in parquet.iter_batches(columns=present, use_threads=False):
            columns = []
            for field in schema:
                if field.name in present:
                    columns.append(batch.column(field.name).cast(field.type))
                else:
                    value = pa.scalar(file.partition.get(field.name), field.type)
                    columns.append(pa.repeat(value, batch.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
