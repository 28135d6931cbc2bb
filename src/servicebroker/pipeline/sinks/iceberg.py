"""An Iceberg table that a batch lands in once: its snapshot and the table's properties name the batch in one commit.

The catalog takes a commit only where the table is still as it was looked at. The rules: "Iceberg" in
docs/reference/pipeline-file.md; why they are so: decision 263.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sinks.parquet import DataFile, divided, write_parquet
from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, folder_at, names_in, plain
from servicebroker.pipeline.sinks.tables import OWN, Batch, Conflict, TableFile, is_own

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

DOC = "servicebroker: of a rule"  # marks a column that no other writer has added
BATCH = "servicebroker.batch."  # and the query: a property of the table, its number in the snapshot too
_ID, _DOC = b"PARQUET:field_id", b"doc"  # metadata of Arrow's fields, as pyiceberg and Parquet have them
_SMALL = 64 * 1024 * 1024  # bytes: files below it are merged, into such of at most twice as many


@dataclass(frozen=True)
class IcebergPlace:
    """A table's name in a catalog; `folder` is where its files go when it is made here."""

    catalog: str
    names: tuple[str, ...]
    folder: Folder
    kind: ClassVar[str] = "Iceberg"

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.names))

    def is_there(self) -> bool:
        """Whether the catalog has it."""
        with self._asked():
            return bool(catalog(self.catalog).table_exists(self.names))

    def open(self) -> OpenIceberg:
        """Its newest snapshot."""
        from pyiceberg.exceptions import NoSuchTableError

        with self._asked():
            try:
                return OpenIceberg(str(self), catalog(self.catalog).load_table(self.names))
            except NoSuchTableError:
                raise InstanceError(f"There is no Iceberg table '{self}'.") from None

    def made(self, columns: pa.Schema, partition_by: Sequence[str]) -> OpenIceberg:
        """Its newest snapshot; with its namespace it is made where there is none."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        if not self.is_there():
            schema = pyarrow_to_schema(_numbered(columns))
            fields = [
                PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
                for number, name in enumerate(partition_by)
            ]
            location = str(self.folder.absolute() if isinstance(self.folder, Path) else self.folder)
            somebody_was_faster = contextlib.suppress(NamespaceAlreadyExistsError, TableAlreadyExistsError)
            with self._asked():
                with somebody_was_faster:
                    if not catalog(self.catalog).namespace_exists(self.names[:-1]):  # which needs no right to make one
                        catalog(self.catalog).create_namespace(self.names[:-1])
                with somebody_was_faster:
                    catalog(self.catalog).create_table(self.names, schema, location, PartitionSpec(*fields))
        return self.open()

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """What pyiceberg refuses, as a sentence."""
        with self._problems("changed"):
            yield

    def overwrite(self, rows: pa.Table) -> None:
        """A snapshot with these rows, in the columns that the table has or gets now."""
        from servicebroker.pipeline.sinks.tables import committed, opened

        def change() -> None:
            table = opened(self, rows.schema, (), rows.schema.names)
            table.exchange(table.files(), table.write(rows))

        with self.said():
            committed(self, change)

    def merge_files(self) -> tuple[int, int]:
        """Small files of one partition become one."""
        import pyarrow as pa

        table = self.open()
        gone, come = [], []
        for files in table.small():
            rows = [pa.Table.from_batches(table.read(file, table.columns), table.columns) for file in files]
            gone += files
            come += table.write(pa.concat_tables(rows))
        if gone:
            table.exchange(gone, come)
        return len(gone), len(come)

    def remove_files(self, keep_hours: float, *, left_over: bool) -> int:
        """Snapshots that are old enough expire, and the files that only they have go."""
        oldest = datetime.now(UTC) - timedelta(hours=keep_hours)
        table = self.open()
        before = table.named()
        with _conflicts():
            table.table.maintenance.expire_snapshots().older_than(oldest).commit()
        table = self.open()
        after = table.named()
        unnamed = before - after
        if left_over:
            unnamed |= table.left_over(after, oldest.timestamp())
        for file in unnamed:
            with contextlib.suppress(FileNotFoundError):
                table.table.io.delete(file)
        return len(unnamed)

    def _asked(self) -> contextlib.AbstractContextManager[None]:
        return self._problems("read")

    @contextlib.contextmanager
    def _problems(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # a catalog raises what its protocol, its driver and its store do
            if isinstance(problem, InstanceError | Conflict) or not _is_others(problem):
                raise
            said = plain(problem) or type(problem).__name__
            raise InstanceError(f"The Iceberg table '{self}' cannot be {done}: {said}.") from None


def _is_others(problem: Exception) -> bool:
    """Whether a catalog, its driver or a store has raised it, not a mistake of ours."""
    return isinstance(problem, OSError | ValueError) or type(problem).__module__.partition(".")[0] in (
        "pyiceberg",
        "requests",
        "sqlalchemy",
        "pydantic_core",
    )


@lru_cache(maxsize=10)
def catalog(name: str) -> Catalog:
    """The catalog that pyiceberg's settings know by this name; one for a process.

    Raises:
        InstanceError: they know none, or it cannot be reached.
    """
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **{"py-io-impl": "servicebroker.pipeline.sinks.iceberg_files.TableFiles"})
    except Exception as problem:  # see `_problems`
        if not _is_others(problem):
            raise
        raise InstanceError(
            f"The Iceberg catalog '{name}' cannot be opened: {plain(problem)}. pyiceberg knows it by the environment, "
            f"PYICEBERG_CATALOG__{name.upper()}__URI, or ~/.pyiceberg.yaml."
        ) from None


@dataclass(frozen=True)
class OpenIceberg:
    """A table as it was when it was looked at."""

    name: str
    table: Table

    @cached_property
    def columns(self) -> pa.Schema:
        """Its columns with their numbers, as Parquet has them."""
        return columns_of(self.table.schema())

    @property
    def partition_by(self) -> list[str]:
        """The columns that divide it; what another transform makes of one is told with it."""
        schema = self.table.schema()
        return [
            schema.find_column_name(field.source_id) or field.name
            if str(field.transform) == "identity"
            else f"{field.transform} of {schema.find_column_name(field.source_id)}"
            for field in self.table.spec().fields
        ]

    @cached_property
    def _tasks(self) -> dict[str, FileScanTask]:
        return {task.file.file_path: task for task in self.table.scan().plan_files()}

    def files(self) -> list[TableFile]:
        """The files of the snapshot. Columns that divide the table stand in them like others."""
        return [self._file(task) for task in self._tasks.values()]

    def _file(self, task: FileScanTask) -> TableFile:
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import PrimitiveType, TimestamptzType
        from pyiceberg.utils.datetime import micros_to_timestamptz

        told: dict[str, Any] = {}
        for field in self.table.schema().fields:
            for edge, bounds in (("min", task.file.lower_bounds), ("max", task.file.upper_bounds)):
                if isinstance(field.field_type, PrimitiveType) and (bound := (bounds or {}).get(field.field_id)):
                    value: Any = from_bytes(field.field_type, bound)
                    is_time = isinstance(field.field_type, TimestamptzType)
                    told[f"{edge}.{field.name}"] = micros_to_timestamptz(value) if is_time else value
        file = task.file
        return TableFile(file.file_path, file.file_size_in_bytes, file.record_count, {}, told)

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a file that are not deleted."""
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        wanted = self.table.schema().select(*schema.names)
        scan = ArrowScan(self.table.metadata, self.table.io, wanted, AlwaysTrue())
        for batch in scan.to_record_batches([self._tasks[file.name]]):
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Files in the table's folder of data, one for each partition."""
        return self._written(rows, self.columns)

    def _written(self, rows: pa.Table, columns: pa.Schema) -> list[DataFile]:
        import pyarrow as pa

        schema = pa.schema([columns.field(name) for name in rows.schema.names])
        found: list[DataFile] = []
        for _, these in divided(rows, self.partition_by):
            found += write_parquet(iter(these.to_batches()), self._folder("data"), schema)
        return found

    def _folder(self, inner: str) -> Folder:
        return folder_at(f"{self.table.location()}/{inner}", Path.cwd())

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that the table's properties know."""
        landed = self.table.properties.get(f"{BATCH}{query}")
        return None if landed is None else int(landed)

    def keep(self, query: str) -> None:
        """Nothing: a catalog takes a commit when all of it is durable."""

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """A snapshot with the files and the batch."""
        self.exchange([], files, batch)

    def exchange(self, gone: list[TableFile], come: list[DataFile], batch: Batch | None = None) -> None:
        """A snapshot without some files and with others, right behind this one."""
        self._commit([file.name for file in gone], lambda changes: come, batch)

    def gets(self, columns: pa.Schema) -> bool:
        """By Iceberg's own evolution: new columns, and types that it promotes."""
        if self._replaced(columns):
            return False
        with _conflicts(), self._changes() as changes:
            self._evolve(changes, columns)
        return True

    def become(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """A schema and a snapshot in one commit. A column of another type is a new one of the same name.

        Raises:
            InstanceError: such a column divides the table.
        """
        for name in self._replaced(columns):
            if name in self.partition_by:
                raise InstanceError(
                    f"The column '{name}' divides the Iceberg table '{self.name}' and cannot get another type: give "
                    "the rule a table of another name."
                )

        def come(changes: Transaction) -> list[DataFile]:
            self._evolve(changes, columns)
            numbered = columns_of(changes.table_metadata.schema())
            return [file for part in parts for file in self._written(part, numbered)]

        self._commit(list(self._tasks), come, None)

    def small(self) -> list[list[TableFile]]:
        """Files that are better one: of one partition, in some order."""
        found: dict[tuple[Any, ...], list[list[TableFile]]] = {}
        for task in self._tasks.values():
            if task.file.file_size_in_bytes < _SMALL:
                groups = found.setdefault((task.file.spec_id, task.file.partition), [[]])
                if sum(file.size for file in groups[-1]) > _SMALL:
                    groups.append([])
                groups[-1].append(self._file(task))
        return [files for groups in found.values() for files in groups if len(files) > 1]

    def named(self) -> set[str]:
        """All files that a snapshot names, or the table as it is or was."""
        metadata, io = self.table.metadata, self.table.io
        found = {self.table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        for snapshot in metadata.snapshots:
            manifests = [one for one in snapshot.manifests(io) if one.manifest_path not in found]
            found |= {snapshot.manifest_list, *(one.manifest_path for one in manifests)}
            found |= {entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(io)}
        return found

    def left_over(self, named: set[str], before: float) -> set[str]:
        """Files in the table's folder that nobody names, by names alone: writers spell folders in several ways."""
        known = {name.rpartition("/")[2] for name in named}
        return {
            f"{self.table.location()}/{inner}/{name}"
            for inner, ending in (("data", ".parquet"), ("metadata", ".avro"), ("metadata", ".metadata.json"))
            for name in names_in(self._folder(inner), ending, before=before)
            if name not in known
        }

    def _commit(self, gone: list[str], come: Callable[[Transaction], list[DataFile]], batch: Batch | None) -> None:
        properties = {f"{BATCH}{batch[0]}": str(batch[1])} if batch else {}
        with _conflicts(), self._changes() as changes:
            files = come(changes)
            for folder in {file.folder for file in files}:
                flush(folder)
            if properties:
                changes.set_properties(properties)
            if gone or files or batch:  # a batch without files too: only a snapshot asserts what it stands behind
                update = changes.update_snapshot(properties)
                with update.overwrite() if gone else update.fast_append() as snapshot:
                    for name in gone:
                        snapshot.delete_data_file(self._tasks[name].file)
                    for file in files:
                        snapshot.append_data_file(self._described(file, changes.table_metadata))

    def _changes(self) -> Transaction:
        """A transaction that is not tried again by itself: what has come in between is looked at first.

        The setting is that of our copy alone; what the table says to others stays.
        """
        known = self.table.metadata
        properties = {**known.properties, "commit.retry.num-retries": "0"}
        self.table.metadata = known.model_copy(update={"properties": properties})
        return self.table.transaction()

    def _replaced(self, columns: pa.Schema) -> list[str]:
        """Columns that get a type which Iceberg does not promote theirs to."""
        there = self.columns
        return [
            field.name
            for field in columns
            if field.name in there.names and not _promotes(there.field(field.name).type, field.type)
        ]

    def _evolve(self, changes: Transaction, columns: pa.Schema) -> None:
        """Give the table's schema these columns."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        there, replaced = self.columns, self._replaced(columns)
        differ = [
            field for field in columns if field.name not in there.names or field.type != there.field(field.name).type
        ]
        with changes.update_schema() as update:
            for name in there.names:
                if name not in columns.names or name in replaced:
                    update.delete_column(name)
            for field in pyarrow_to_schema(_numbered(pa.schema(differ))).fields:
                if field.name in there.names and field.name not in replaced:
                    update.update_column(field.name, field.field_type)
                else:
                    update.add_column(field.name, field.field_type, field.doc)

    def _described(self, file: DataFile, metadata: TableMetadata) -> Any:
        """A file as a snapshot names it.

        Raises:
            InstanceError: its columns are not the table's any more.
        """
        from pyarrow.parquet import ParquetFile
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata, parquet_path_to_id_mapping
        from pyiceberg.manifest import DataFile as Described
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.partitioning import partition_record_value
        from pyiceberg.typedef import Record

        schema, spec = metadata.schema(), metadata.spec()
        with files_in(file.folder).open_input_file(file.name) as source, ParquetFile(source) as parquet:
            numbers = {field.name: (field.metadata or {}).get(_ID) for field in columns_of(schema)}
            if any((field.metadata or {}).get(_ID) != numbers.get(field.name) for field in parquet.schema_arrow):
                raise InstanceError(
                    f"The Iceberg table '{self.name}' was made anew while a batch was written, which has to come again."
                )
            divides = parquet.iter_batches(batch_size=1, columns=self.partition_by, use_threads=False)
            first: dict[str, Any] = next(divides).to_pylist()[0]
            ids = parquet_path_to_id_mapping(schema)
            told = data_file_statistics_from_parquet_metadata(
                parquet.metadata, _statistics(parquet.metadata, ids, schema, metadata.properties), ids
            )
        values = [
            partition_record_value(field, first[name], schema)
            for field, name in zip(spec.fields, self.partition_by, strict=True)
        ]
        return Described.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.table.location()}/data/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **told.to_serialized_dict(),
        )


def _statistics(told: Any, ids: dict[str, int], schema: Schema, properties: dict[str, str]) -> Any:
    """What is to be taken from a file's statistics: bodies have none."""
    from pyiceberg.io.pyarrow import compute_statistics_plan, match_metrics_mode

    found = compute_statistics_plan(schema, properties)
    for group in range(told.num_row_groups):
        for number in range(told.num_columns):
            column = told.row_group(group).column(number)
            if not column.is_stats_set:
                one = found[ids[column.path_in_schema]]
                found[one.field_id] = replace(one, mode=match_metrics_mode("none"))
    return found


def columns_of(schema: Schema) -> pa.Schema:
    """Columns of Iceberg in Arrow, with their numbers, and the mark of those of rules."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    kinds: dict[Any, Any] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    found: list[Any] = []
    for field in schema_to_pyarrow(schema):
        metadata: dict[bytes | str, bytes | str] = {**dict[Any, Any](field.metadata or {})}
        if metadata.get(_DOC) == DOC.encode():
            metadata |= OWN
        found.append(field.with_type(kinds.get(field.type, field.type)).with_metadata(metadata))
    return pa.schema(found)


def _numbered(columns: pa.Schema) -> pa.Schema:
    """Columns with numbers, which the catalog gives anew, and the mark of those of rules."""
    import pyarrow as pa

    return pa.schema(
        [
            field.with_metadata({_ID: str(number), **({_DOC: DOC} if is_own(field) else {})})
            for number, field in enumerate(columns, 1)
        ]
    )


def _promotes(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether files with one type are read as the other, by Iceberg's rules."""
    import pyarrow as pa

    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return old == new or (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


@contextlib.contextmanager
def _conflicts() -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException

    try:
        yield
    except CommitFailedException as problem:
        raise Conflict(str(problem)) from None
