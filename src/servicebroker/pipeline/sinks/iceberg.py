"""Iceberg tables that take each batch once: one commit adds the batch's snapshot and records the batch in a property.

The catalog accepts a commit only if no other commit came after the table was read. The rules: "Iceberg" in
docs/reference/pipeline-file.md; the reasons: decision 533.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.pipeline.sinks.parquet import DataFile, divide_rows, write_parquet
from servicebroker.pipeline.sinks.storage import Folder, filesystem_of, flush, folder_at, names_in, plain
from servicebroker.pipeline.sinks.tables import RULE_METADATA, Batch, Conflict, TableFile, is_rule_column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

DOC = "servicebroker: of a rule"  # comment of a column that comes from a rule, not from another writer
BATCH = "servicebroker.batch."  # prefix of a property of the table and the snapshot; the query id follows
_ID, _DOC = b"PARQUET:field_id", b"doc"  # metadata keys of Arrow fields, from pyiceberg and Parquet
_FOREIGN = {"pyiceberg", "requests", "sqlalchemy", "pydantic_core"}  # packages whose errors are those of a catalog
_SMALL_FILE_BYTES = 64 * 1024 * 1024  # smaller files are merged, into files of at most twice this size


@dataclass(frozen=True)
class IcebergLocation:
    """A table's catalog and name. `folder`: location of its files, used only if this process creates the table."""

    catalog: str
    names: tuple[str, ...]
    folder: Folder
    kind: ClassVar[str] = "Iceberg"

    @override
    def __str__(self) -> str:
        return ".".join((self.catalog, *self.names))

    def exists(self) -> bool:
        """True if the catalog has the table."""
        with self._readable():
            return bool(catalog(self.catalog).table_exists(self.names))

    def open(self) -> IcebergVersion:
        """Return the newest version of the table."""
        from pyiceberg.exceptions import NoSuchTableError

        with self._readable():
            try:
                return IcebergVersion(str(self), catalog(self.catalog).load_table(self.names))
            except NoSuchTableError:
                raise InstanceError(f"There is no Iceberg table '{self}'.") from None

    def open_or_create(self, columns: pa.Schema, partition_by: Sequence[str]) -> IcebergVersion:
        """Return the newest version of the table. A missing table is created, with its namespace."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        if not self.exists():
            schema = pyarrow_to_schema(_numbered(columns))
            fields = [
                PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
                for number, name in enumerate(partition_by)
            ]
            location = str(self.folder.absolute() if isinstance(self.folder, Path) else self.folder)
            creation_by_another_writer = contextlib.suppress(NamespaceAlreadyExistsError, TableAlreadyExistsError)
            with self._readable():
                with creation_by_another_writer:
                    if not catalog(self.catalog).namespace_exists(self.names[:-1]):  # the check needs no CREATE right
                        catalog(self.catalog).create_namespace(self.names[:-1])
                with creation_by_another_writer:
                    catalog(self.catalog).create_table(self.names, schema, location, PartitionSpec(*fields))
        return self.open()

    @contextlib.contextmanager
    def raising_instance_errors(self) -> Iterator[None]:
        """Turn errors of pyiceberg into an InstanceError."""
        with self._problems("changed"):
            yield

    def overwrite(self, rows: pa.Table) -> None:
        """Commit a snapshot with exactly these rows. Columns that the table lacks are added."""
        from servicebroker.pipeline.sinks.tables import commit_with_retry, open_or_alter

        def change() -> None:
            table = open_or_alter(self, rows.schema, (), rows.schema.names)
            table.replace_files(table.files(), table.write(rows))

        with self.raising_instance_errors():
            commit_with_retry(self, change)

    def merge_files(self) -> tuple[int, int]:
        """Merge the small files of each partition."""
        import pyarrow as pa

        table = self.open()
        removed, added = [], []
        for files in table.small_files():
            rows = [pa.Table.from_batches(table.read(file, table.columns), table.columns) for file in files]
            removed += files
            added += table.write(pa.concat_tables(rows))
        if removed:
            table.replace_files(removed, added)
        return len(removed), len(added)

    def remove_files(self, keep_hours: float, *, with_orphans: bool) -> int:
        """Expire old snapshots, and delete the files that no other snapshot names."""
        oldest = datetime.now(UTC) - timedelta(hours=keep_hours)
        table = self.open()
        before = table.named_files()
        with _conflicts():
            table.table.maintenance.expire_snapshots().older_than(oldest).commit()
        table = self.open()
        after = table.named_files()
        unnamed = before - after
        if with_orphans:
            unnamed |= table.find_orphans(after, oldest.timestamp())
        for file in unnamed:
            with contextlib.suppress(FileNotFoundError):
                table.table.io.delete(file)
        return len(unnamed)

    def _readable(self) -> contextlib.AbstractContextManager[None]:
        return self._problems("read")

    @contextlib.contextmanager
    def _problems(self, participle: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # a catalog raises errors of its protocol, driver and store
            if isinstance(problem, InstanceError | Conflict) or not _is_foreign(problem):
                raise
            text = plain(problem) or type(problem).__name__
            raise InstanceError(f"The Iceberg table '{self}' cannot be {participle}: {text}.") from None


def _is_foreign(problem: Exception) -> bool:
    """True if a catalog, its driver or a store raised the error, or the driver is missing. Other errors are bugs."""
    if isinstance(problem, ModuleNotFoundError):  # for a missing pyiceberg, the command names the extra to install
        return not (problem.name or "").startswith("pyiceberg")
    package = type(problem).__module__.partition(".")[0]
    return isinstance(problem, OSError | ValueError) or package in _FOREIGN


@lru_cache(maxsize=10)
def catalog(name: str) -> Catalog:
    """Return the catalog with this name in pyiceberg's settings. Each process opens a catalog once.

    Raises:
        InstanceError: the settings have no such catalog, or it cannot be reached.
    """
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **{"py-io-impl": "servicebroker.pipeline.sinks.iceberg_files.TableFiles"})
    except Exception as problem:  # see `_problems`
        if not _is_foreign(problem):
            raise
        raise InstanceError(
            f"The Iceberg catalog '{name}' cannot be opened: {plain(problem)}. Configure it for pyiceberg in "
            f"the environment, PYICEBERG_CATALOG__{name.upper()}__URI, or in ~/.pyiceberg.yaml."
        ) from None


@dataclass(frozen=True)
class IcebergVersion:
    """A version of an Iceberg table: its newest snapshot at the time of reading."""

    name: str
    table: Table

    @cached_property
    def columns(self) -> pa.Schema:
        """The table's columns, with their field ids in the metadata that Parquet files use."""
        return columns_of(self.table.schema())

    @property
    def partition_by(self) -> list[str]:
        """The partition columns. A column with a transform is described as "transform of column"."""
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
        """Return the files of the snapshot. Unlike Delta's, they contain the partition columns."""
        return [self._file(task) for task in self._tasks.values()]

    def _file(self, task: FileScanTask) -> TableFile:
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import PrimitiveType, TimestamptzType
        from pyiceberg.utils.datetime import micros_to_timestamptz

        statistics: dict[str, Any] = {}
        for field in self.table.schema().fields:
            for edge, bounds in (("min", task.file.lower_bounds), ("max", task.file.upper_bounds)):
                if isinstance(field.field_type, PrimitiveType) and (bound := (bounds or {}).get(field.field_id)):
                    value: Any = from_bytes(field.field_type, bound)
                    is_time = isinstance(field.field_type, TimestamptzType)
                    statistics[f"{edge}.{field.name}"] = micros_to_timestamptz(value) if is_time else value
        file = task.file
        return TableFile(file.file_path, file.file_size_in_bytes, file.record_count, {}, statistics)

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that are not deleted."""
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        wanted = self.table.schema().select(*schema.names)
        scan = ArrowScan(self.table.metadata, self.table.io, wanted, AlwaysTrue())
        for batch in scan.to_record_batches([self._tasks[file.name]]):
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write files into the table's data folder, one for each partition."""
        return self._written(rows, self.columns)

    def _written(self, rows: pa.Table, columns: pa.Schema) -> list[DataFile]:
        import pyarrow as pa

        schema = pa.schema([columns.field(name) for name in rows.schema.names])
        files: list[DataFile] = []
        for _, part_rows in divide_rows(rows, self.partition_by):
            files += write_parquet(iter(part_rows.to_batches()), self._folder("data"), schema)
        return files

    def _folder(self, inner: str) -> Folder:
        return folder_at(f"{self.table.location()}/{inner}", Path.cwd())

    def last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table's properties; None if there is none."""
        number = self.table.properties.get(f"{BATCH}{query}")
        return None if number is None else int(number)

    def make_batch_durable(self, query: str) -> None:
        """Do nothing: all files of a commit are durable before the catalog accepts it."""

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """Commit a snapshot with the files and the batch."""
        self.replace_files([], files, batch)

    def replace_files(self, removed: list[TableFile], added: list[DataFile], batch: Batch | None = None) -> None:
        """Commit a snapshot with the files `added` in place of `removed`. It must directly follow this version."""
        self._commit([file.name for file in removed], lambda changes: added, batch)

    def alter_columns(self, columns: pa.Schema) -> bool:
        """Add columns and promote types, by Iceberg's schema evolution.

        Returns False, and changes nothing, if a type cannot be promoted.
        """
        if self._unpromotable(columns):
            return False
        with _conflicts(), self._changes() as changes:
            self._evolve(changes, columns)
        return True

    def replace_content(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """Commit a schema and a snapshot together. A column that changes its type is replaced by a new column.

        Raises:
            InstanceError: a column whose type changes is a partition column.
        """
        for name in self._unpromotable(columns):
            if name in self.partition_by:
                raise InstanceError(
                    f"The column '{name}' partitions the Iceberg table '{self.name}' and cannot get another type: give "
                    "the rule a table of another name."
                )

        def write_files(changes: Transaction) -> list[DataFile]:
            self._evolve(changes, columns)
            numbered = columns_of(changes.table_metadata.schema())
            return [file for part in parts for file in self._written(part, numbered)]

        self._commit(list(self._tasks), write_files, None)

    def small_files(self) -> list[list[TableFile]]:
        """Return groups of small files to merge. All files of a group belong to one partition."""
        groups_by_partition: dict[tuple[Any, ...], list[list[TableFile]]] = {}
        for task in self._tasks.values():
            if task.file.file_size_in_bytes < _SMALL_FILE_BYTES:
                groups = groups_by_partition.setdefault((task.file.spec_id, task.file.partition), [[]])
                if sum(file.size for file in groups[-1]) > _SMALL_FILE_BYTES:
                    groups.append([])
                groups[-1].append(self._file(task))
        return [files for groups in groups_by_partition.values() for files in groups if len(files) > 1]

    def named_files(self) -> set[str]:
        """Return all files that a snapshot or a metadata file names, including these metadata files."""
        metadata, io = self.table.metadata, self.table.io
        names = {self.table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        for snapshot in metadata.snapshots:
            manifests = [manifest for manifest in snapshot.manifests(io) if manifest.manifest_path not in names]
            names |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
            for manifest in manifests:
                names |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}
        return names

    def find_orphans(self, named_files: set[str], before: float) -> set[str]:
        """Return files in the table's folder that are not among `named_files`, and were written before `before`.

        `before` is a time in seconds since 1970. Only base names are compared, since writers spell folders differently.
        """
        known = {name.rpartition("/")[2] for name in named_files}
        return {
            f"{self.table.location()}/{inner}/{name}"
            for inner, ending in (("data", ".parquet"), ("metadata", ".avro"), ("metadata", ".metadata.json"))
            for name in names_in(self._folder(inner), ending, before=before)
            if name not in known
        }

    def _commit(
        self, removed: list[str], write_files: Callable[[Transaction], list[DataFile]], batch: Batch | None
    ) -> None:
        properties = {f"{BATCH}{batch[0]}": str(batch[1])} if batch else {}
        with _conflicts(), self._changes() as changes:
            files = write_files(changes)
            for folder in {file.folder for file in files}:
                flush(folder)
            if properties:
                changes.set_properties(properties)
            if removed or files or batch:  # also for a batch without files: only a snapshot asserts its predecessor
                update = changes.update_snapshot(properties)
                with update.overwrite() if removed else update.fast_append() as snapshot:
                    for name in removed:
                        snapshot.delete_data_file(self._tasks[name].file)
                    for file in files:
                        snapshot.append_data_file(self._manifest_entry(file, changes.table_metadata))

    def _changes(self) -> Transaction:
        """Return a transaction without automatic retries: a retry must first read the commits that intervened.

        The setting changes only this process's copy of the metadata, not the table's properties.
        """
        metadata = self.table.metadata
        properties = {**metadata.properties, "commit.retry.num-retries": "0"}
        self.table.metadata = metadata.model_copy(update={"properties": properties})
        return self.table.transaction()

    def _unpromotable(self, columns: pa.Schema) -> list[str]:
        """Return the names of columns whose type Iceberg cannot promote to the type in `columns`."""
        present = self.columns
        return [
            field.name
            for field in columns
            if field.name in present.names and not _promotes(present.field(field.name).type, field.type)
        ]

    def _evolve(self, changes: Transaction, columns: pa.Schema) -> None:
        """Give the table's schema these columns."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        present, unpromotable = self.columns, self._unpromotable(columns)
        types = {field.name: field.type for field in present}
        changed_fields = [field for field in columns if field.name not in types or field.type != types[field.name]]
        with changes.update_schema() as update:
            for name in present.names:
                if name not in columns.names or name in unpromotable:
                    update.delete_column(name)
            for field in pyarrow_to_schema(_numbered(pa.schema(changed_fields))).fields:
                if field.name in present.names and field.name not in unpromotable:
                    update.update_column(field.name, field.field_type)
                else:
                    update.add_column(field.name, field.field_type, field.doc)

    def _manifest_entry(self, file: DataFile, metadata: TableMetadata) -> Any:
        """Return the manifest entry of a file, for a snapshot.

        Raises:
            InstanceError: the file's columns are not the table's any more.
        """
        from pyarrow.parquet import ParquetFile
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata, parquet_path_to_id_mapping
        from pyiceberg.manifest import DataFile as IcebergDataFile
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.partitioning import partition_record_value
        from pyiceberg.typedef import Record

        schema, spec = metadata.schema(), metadata.spec()
        with filesystem_of(file.folder).open_input_file(file.name) as source, ParquetFile(source) as parquet:
            numbers = {field.name: (field.metadata or {}).get(_ID) for field in columns_of(schema)}
            if any((field.metadata or {}).get(_ID) != numbers.get(field.name) for field in parquet.schema_arrow):
                raise InstanceError(
                    f"The Iceberg table '{self.name}' was rebuilt while a batch was written: repeat the batch."
                )
            partition_rows = parquet.iter_batches(batch_size=1, columns=self.partition_by, use_threads=False)
            partition_values: dict[str, Any] = next(partition_rows).to_pylist()[0]
            ids = parquet_path_to_id_mapping(schema)
            statistics = data_file_statistics_from_parquet_metadata(
                parquet.metadata, _statistics(parquet.metadata, ids, schema, metadata.properties), ids
            )
        values = [
            partition_record_value(field, partition_values[name], schema)
            for field, name in zip(spec.fields, self.partition_by, strict=True)
        ]
        return IcebergDataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.table.location()}/data/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _statistics(metadata: Any, ids: dict[str, int], schema: Schema, properties: dict[str, str]) -> Any:
    """Return the plan for a file's statistics. Columns without statistics in the file, such as bodies, get none."""
    from pyiceberg.io.pyarrow import compute_statistics_plan, match_metrics_mode

    plan = compute_statistics_plan(schema, properties)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if not column.is_stats_set:
                column_plan = plan[ids[column.path_in_schema]]
                plan[column_plan.field_id] = replace(column_plan, mode=match_metrics_mode("none"))
    return plan


def columns_of(schema: Schema) -> pa.Schema:
    """Return an Iceberg schema in Arrow, with field ids, and with `RULE_METADATA` on columns from a rule."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    fields: list[Any] = []
    for field in schema_to_pyarrow(schema):
        metadata: dict[bytes | str, bytes | str] = {**dict[Any, Any](field.metadata or {})}
        if metadata.get(_DOC) == DOC.encode():
            metadata |= RULE_METADATA
        fields.append(field.with_type(_rebuilt(field.type, _with_small_offsets)).with_metadata(metadata))
    return pa.schema(fields)


def _with_small_offsets(field: pa.Field[Any]) -> pa.Field[Any]:
    """Replace pyiceberg's types large_string and large_binary by string and binary, which the rows have."""
    import pyarrow as pa

    kinds: dict[Any, Any] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return field.with_type(kinds.get(field.type, field.type))


def _numbered(columns: pa.Schema) -> pa.Schema:
    """Return columns with field ids, and with the comment `DOC` on columns from a rule.

    Fields in nested types get ids too. The ids are provisional: the catalog assigns its own.
    """
    import pyarrow as pa

    numbers = itertools.count(1)

    def with_id(field: pa.Field[Any]) -> pa.Field[Any]:
        return field.with_metadata({_ID: str(next(numbers))})

    numbered = [with_id(field) for field in columns]
    return pa.schema(
        [
            new.with_type(_rebuilt(field.type, with_id)).with_metadata(
                {**dict[Any, Any](new.metadata or {}), **({_DOC: DOC} if is_rule_column(field) else {})}
            )
            for field, new in zip(columns, numbered, strict=True)
        ]
    )


def _rebuilt(arrow: pa.DataType, change: Callable[[pa.Field[Any]], pa.Field[Any]]) -> pa.DataType:
    """Apply `change` to all fields inside a nested type, from the outside in, or to a plain type itself."""
    import pyarrow as pa

    def inner(field: pa.Field[Any]) -> pa.Field[Any]:
        changed = change(field)
        return changed.with_type(_rebuilt(changed.type, change)) if _is_nested(changed.type) else changed

    nested: Any = arrow
    rebuilt: Any = None
    if pa.types.is_struct(arrow):
        rebuilt = pa.struct([inner(field) for field in nested])
    elif pa.types.is_map(arrow):
        entries: Any = (inner(nested.key_field), inner(nested.item_field))
        rebuilt = pa.map_(*entries)
    elif pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        rebuilt = pa.list_(inner(nested.value_field))
    if rebuilt is not None:
        return cast("pa.DataType", rebuilt)
    return cast("pa.DataType", change(pa.field("", arrow)).type)


def _is_nested(arrow: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(arrow))


def _promotes(old: pa.DataType, new: pa.DataType) -> bool:
    """True if Iceberg can read files of the old type as the new one."""
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
