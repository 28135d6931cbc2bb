"""Messages as Arrow batches, read by a task straight from PostgreSQL's binary COPY."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.connecting import APPLICATION, OpenInstance
from servicebroker.pipeline.message_columns import COLUMNS, PART
from servicebroker.pipeline.spark_task import batch_of_task
from servicebroker.pipeline.stream import frontier
from servicebroker.pipeline.stream.frontier import Share, Slice
from servicebroker.pipeline.stream.stream_offsets import BatchEnd, note_batch
from servicebroker.store.connection import for_another_driver
from servicebroker.store.statements import text_of

if TYPE_CHECKING:
    import pyarrow as pa

# The ids become names in the task: joins would cost the order, and the names the width of the wire.
_WIRE = (
    "service_id, service_contract_id, message_type_id, conversation_handle::text, conversation_group_id::text, "
    "message_sequence_number, queuing_order, priority, validation::text, "
    f"{MESSAGE_BODY} as message_body, message_enqueue_time"
)
_LABELS = (
    "select service_id, name from servicebroker.services where database_id = {database_id}",
    "select service_contract_id, name from servicebroker.service_contracts where database_id = {database_id}",
    "select message_type_id, name from servicebroker.message_types where database_id = {database_id}",
)


@dataclass
class Part(InputPartition):
    """What one task reads: a share of the conversation groups in a slice of the queue.

    `archived`: of its archive too; `system_messages`: EndDialog, Error and DialogTimer too. `source` and `end`: of the
    stream's batch, as `stream_offsets.BatchEnd` has them.
    """

    instance: str
    queue: str
    queue_id: int
    database_id: int
    piece: Slice
    share: Share
    archived: bool
    system_messages: bool
    source: str = ""
    end: str = ""

    def to_text(self) -> str:
        """The part as a value of the column `part`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Part:
        """The part that `to_text` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"piece": Slice(*fields["piece"]), "share": Share(*fields["share"])})


def announced(part: Part) -> pa.RecordBatch:
    """One row that stands for a part."""
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({PART: [part.to_text()]}, pa.schema([(PART, pa.string())]))


def holds_parts(columns: Sequence[str]) -> bool:
    """Whether rows with these columns stand for parts."""
    return list(columns) == [PART]


def delivered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages that a sink is given: as they are, or those of the parts that it is given.

    Raises:
        adbc_driver_manager.Error: PostgreSQL cannot be reached or gave up; Spark tries the task again.
    """
    for batch in batches:
        if holds_parts(batch.schema.names):
            for text in batch.column(0).to_pylist():
                yield from read(Part.from_text(str(text)))
        else:
            yield batch


def read(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of `part`, ordered by queuing_order.

    Raises:
        InstanceError: this is another server than the one that has planned it, and has not all of it; the query has
            read another batch under this number, or a later one.
        adbc_driver_manager.Error: PostgreSQL cannot be reached or gave up; Spark tries the task again.
    """
    from adbc_driver_postgresql import dbapi

    with (
        closing(OpenInstance(part.instance, in_task=True)) as instance,
        closing(dbapi.connect(for_another_driver(instance.url, APPLICATION), autocommit=True)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(text_of("rows.read.pin_plans", frontier.PIN_PLANS))
        cursor.fetchall()
        _check_server(cursor, part.piece)
        if part.source and (running := batch_of_task()):
            note_batch(cursor, BatchEnd(part.source, *running, part.end))
        labels = [_labels(cursor, sql.format(database_id=part.database_id)) for sql in _LABELS]
        kinds = {"archived": part.archived, "system_messages": part.system_messages}
        text = frontier.rows(part.queue_id, part.piece, part.share, _WIRE, **kinds)
        cursor.execute(text_of("rows.read", text))
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield _named(batch, part.queue, labels)


def _check_server(cursor: Any, piece: Slice) -> None:
    """Refuse a server on which not every transaction of the window has ended: what it lacks would be acknowledged."""
    cursor.execute(text_of("rows.check_server", f"select {frontier.FRONTIER}"))
    ((here,),) = cursor.fetchall()
    if here < piece.hi:
        raise InstanceError(
            "The server that a task has reached is behind the one that has planned its batch, as a standby is, and "
            "would give a part of it: name the primary alone in the URL of the instance, or add "
            "target_session_attrs=read-write."
        )


def _labels(cursor: Any, sql: str) -> pa.Table:
    cursor.execute(text_of("rows.labels", sql))
    table: pa.Table = cursor.fetch_arrow_table()
    return table


def _named(batch: pa.RecordBatch, queue: str, labels: list[pa.Table]) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import compute

    names = []
    for ids, known in zip(batch.columns, labels, strict=False):
        places = compute.index_in(ids, value_set=known.column(0).combine_chunks())
        names.append(known.column(1).combine_chunks().take(places))
    columns = [pa.repeat(queue, batch.num_rows), *names, *batch.columns[len(labels) :]]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())


def arrow_schema() -> pa.Schema:
    """The columns of the source, as Spark wants them from a task."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "smallint": pa.int16(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in (column.split() for column in COLUMNS.split(", "))])
