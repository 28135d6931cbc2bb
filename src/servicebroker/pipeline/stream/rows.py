"""Reads messages in a Spark task, as Arrow batches straight from PostgreSQL's binary COPY."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs
from pyspark.sql.datasource import InputPartition

from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.message_columns import COLUMNS, PART
from servicebroker.pipeline.open_database import APPLICATION, OpenInstance
from servicebroker.pipeline.spark_task import batch_of_task
from servicebroker.pipeline.stream import frontier
from servicebroker.pipeline.stream.frontier import GroupPartition, Slice
from servicebroker.pipeline.stream.stream_offsets import BatchEnd, record_batch
from servicebroker.store.connection import for_another_driver
from servicebroker.store.statements import text_of

if TYPE_CHECKING:
    import pyarrow as pa

# The columns that a task reads. It replaces ids by names itself: a join would lose the order, and names cost bytes.
_COLUMNS_TO_READ = (
    "service_id, service_contract_id, message_type_id, conversation_handle::text, conversation_group_id::text, "
    "message_sequence_number, queuing_order, priority, validation::text, "
    f"{MESSAGE_BODY} as message_body, message_enqueue_time"
)
_NAMES_SQL = (  # names by id of services, contracts and message types
    "select service_id, name from servicebroker.services where database_id = {database_id}",
    "select service_contract_id, name from servicebroker.service_contracts where database_id = {database_id}",
    "select message_type_id, name from servicebroker.message_types where database_id = {database_id}",
)


@dataclass
class Part(InputPartition):
    """The work of one task: a partition of the conversation groups in a slice of a queue.

    Attributes:
        archived: read the archive too.
        system_messages: read EndDialog, Error and DialogTimer too.
        source, end: identify the stream's batch, as in `stream_offsets.BatchEnd`; "" for a read without a stream.
    """

    instance: str
    queue: str
    queue_id: int
    database_id: int
    window_slice: Slice
    group: GroupPartition
    archived: bool
    system_messages: bool
    source: str = ""
    end: str = ""

    def to_text(self) -> str:
        """Return the part as a value of the column `part`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Part:
        """Return the part that `to_text` wrote. The types are checked, since numbers are formatted into SQL.

        Raises:
            InstanceError: `to_text` did not write the text, as if a sink gets rows of another source.
        """
        try:
            fields = msgspec.json.decode(text, type=_PartText)
        except msgspec.MsgspecError as problem:
            raise InstanceError(f"The column '{PART}' does not hold a part of a queue: {problem}.") from None
        return cls(**structs.asdict(fields))


class _PartText(Struct, forbid_unknown_fields=True):
    """The fields of `Part` in JSON."""

    instance: str
    queue: str
    queue_id: int
    database_id: int
    window_slice: Slice
    group: GroupPartition
    archived: bool
    system_messages: bool
    source: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    end: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""


def part_row(part: Part) -> pa.RecordBatch:
    """Return a batch of one row, which stands for a part."""
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({PART: [part.to_text()]}, pa.schema([(PART, pa.string())]))


def holds_parts(columns: Sequence[str]) -> bool:
    """True if rows with these columns stand for parts."""
    return list(columns) == [PART]


def messages_for_sink(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages for a sink: each batch unchanged, or the messages of the parts that its rows stand for.

    Raises:
        adbc_driver_manager.Error: PostgreSQL cannot be reached, or a statement failed; Spark repeats the task.
    """
    for batch in batches:
        if holds_parts(batch.schema.names):
            for text in batch.column(0).to_pylist():
                yield from read(Part.from_text(str(text)))
        else:
            yield batch


def read(part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `part`, ordered by queuing_order.

    Raises:
        InstanceError: the server lags behind the server that planned the part; the query has already read a later
            batch; or it has read this batch with another end.
        adbc_driver_manager.Error: PostgreSQL cannot be reached, or a statement failed; Spark repeats the task.
    """
    from adbc_driver_postgresql import dbapi

    with (
        closing(OpenInstance(part.instance, in_task=True)) as instance,
        closing(dbapi.connect(for_another_driver(instance.url, APPLICATION), autocommit=True)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(text_of("rows.read.pin_plans", frontier.PIN_PLANS))
        cursor.fetchall()
        _check_server(cursor, part.window_slice)
        if part.source and (running := batch_of_task()):
            record_batch(cursor, BatchEnd(part.source, *running, part.end))
        tables_of_names = [_names_by_id(cursor, sql.format(database_id=part.database_id)) for sql in _NAMES_SQL]
        kinds = {"archived": part.archived, "system_messages": part.system_messages}
        text = frontier.rows_sql(part.queue_id, part.window_slice, part.group, _COLUMNS_TO_READ, **kinds)
        cursor.execute(text_of("rows.read", text))
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield _with_names(batch, part.queue, tables_of_names)


def _check_server(cursor: Any, window_slice: Slice) -> None:
    """Check that each transaction of the window has ended on this server, which otherwise lacks rows of the window.

    Raises:
        InstanceError: the server lags behind.
    """
    cursor.execute(text_of("rows.check_server", f"select {frontier.FRONTIER}"))
    ((server_frontier,),) = cursor.fetchall()
    if server_frontier < window_slice.hi:
        raise InstanceError(
            "A Spark task has connected to a server that lags behind, as a standby does, and lacks messages of the "
            "batch. Name only the primary in the URL of the instance, or add target_session_attrs=read-write."
        )


def _names_by_id(cursor: Any, sql: str) -> pa.Table:
    """Return a table of ids and names of one kind of object."""
    cursor.execute(text_of("rows.names_by_id", sql))
    table: pa.Table = cursor.fetch_arrow_table()
    return table


def _with_names(batch: pa.RecordBatch, queue: str, tables_of_names: list[pa.Table]) -> pa.RecordBatch:
    """Replace the ids in the first columns by names, and add the queue in front."""
    import pyarrow as pa
    from pyarrow import compute

    names = []
    for ids, names_by_id in zip(batch.columns, tables_of_names, strict=False):
        name_indexes = compute.index_in(ids, value_set=names_by_id.column(0).combine_chunks())
        names.append(names_by_id.column(1).combine_chunks().take(name_indexes))
    columns = [pa.repeat(queue, batch.num_rows), *names, *batch.columns[len(tables_of_names) :]]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())


def arrow_schema() -> pa.Schema:
    """Return the columns of the source in Arrow, as a task must return them to Spark."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "smallint": pa.int16(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in (column.split() for column in COLUMNS.split(", "))])
