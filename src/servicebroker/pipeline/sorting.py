"""Sorts the messages of a batch into tables: bronze, one table for each rule, and quarantine. Arrow in, Arrow out.

Bronze is the raw table, with every message unchanged. Quarantine has the unreadable messages, each with its error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column, Decoder, Undecodable
from servicebroker.pipeline.decoding.kinds import Array, Field, Kind, Map, Plain, Struct, decimal_digits, parse_kind
from servicebroker.pipeline.definition import ORIGIN, MessageRule, Pipeline, QueueRule, StopError
from servicebroker.pipeline.deletes import DeleteDecoder
from servicebroker.pipeline.sinks.row_selection import select_rows

if TYPE_CHECKING:
    import pyarrow as pa

SYSTEM_TYPES = (names.ERROR, names.END_DIALOG, names.DIALOG_TIMER)
UNCONFIGURED_REASON = "unconfigured type"
TOO_LARGE_REASON = "too large"

_MAX_DETAIL_CHARACTERS = 1000  # the part of an error that the quarantine table has

MESSAGE = (  # columns of the source
    Column("queue", "string"),
    Column("service_name", "string"),
    Column("service_contract_name", "string"),
    Column("message_type_name", "string"),
    Column("conversation_handle", "string"),
    Column("conversation_group_id", "string"),
    Column("message_sequence_number", "long"),
    Column("queuing_order", "long"),
    Column("priority", "integer"),
    Column("validation", "string"),
    Column("message_body", "binary"),
    Column("message_enqueue_time", "timestamp"),
)
BRONZE = (*MESSAGE, Column("landed_at", "timestamp"))
QUARANTINE = (*BRONZE, Column("reason", "string"), Column("detail", "string"))


class ConversationFailure(NamedTuple):
    """A conversation to end with an error, because one of its messages is unreadable."""

    conversation_handle: str
    reason: str
    detail: str


@dataclass
class SortedRows:
    """Rows by table name, and the conversations to end."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    failures: list[ConversationFailure] = field(default_factory=list)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    import pyarrow as pa

    return pa.schema([(column.name, arrow_type(parse_kind(column.kind))) for column in columns])


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type for a column type. In a nested type, every inner value may be null."""
    import pyarrow as pa

    match kind:
        case Array():
            return pa.list_(pa.field("element", arrow_type(kind.item.kind)))
        case Map():
            return pa.map_(pa.string(), arrow_type(kind.value.kind))
        case Struct():
            return pa.struct([(field.name, arrow_type(field.kind)) for field in kind.fields])
        case Plain():
            precision_and_scale = decimal_digits(kind.name)
            return pa.decimal128(*precision_and_scale) if precision_and_scale else _types()[kind.name]


def kind_of(arrow: pa.DataType) -> str:
    """Return the type name for an Arrow type, as in a pipeline file; Arrow's own name if there is no such type."""
    return str(_kind_of(arrow))


def _kind_of(arrow: pa.DataType) -> Kind:
    import pyarrow as pa

    if pa.types.is_decimal(arrow):
        return Plain(f"decimal({arrow.precision},{arrow.scale})")
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        return Map(Field("", _kind_of(arrow.item_type)))
    if pa.types.is_list(arrow):
        return Array(Field("", _kind_of(arrow.value_type)))
    if pa.types.is_struct(arrow):
        return Struct(tuple(Field(field.name, _kind_of(field.type)) for field in arrow))
    return Plain(next((kind for kind, known in _types().items() if known == arrow), str(arrow)))


def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "json": pa.string(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }


def columns_of(pipeline: Pipeline, table: str) -> tuple[Column, ...]:
    """Return the columns of one of the pipeline's tables."""
    if table == pipeline.bronze:
        return BRONZE
    if table == pipeline.quarantine:
        return QUARANTINE
    if deleted_from := pipeline.table_with_tombstones(table):
        rule = _row_rule(pipeline, deleted_from)
        readable = {column.name: column for column in rule.decoder().columns}
        return (*(readable[name] for name in rule.body_key), *ORIGIN)
    return (*_row_rule(pipeline, table).decoder().columns, *ORIGIN)


def _row_rule(pipeline: Pipeline, table: str) -> MessageRule:
    rule = pipeline.row_rule(table)
    assert rule is not None
    return rule


class Sorter:
    """Sorts the messages of one queue of a pipeline."""

    def __init__(self, pipeline: Pipeline, queue: QueueRule) -> None:
        self._pipeline = pipeline
        self._queue = queue
        self._decoders = {rule.message_type: _RuleDecoder.of(pipeline, rule) for rule in pipeline.messages}
        self._control_types = {*SYSTEM_TYPES, queue.options.get("endOfStream", "EndOfStream")}

    def sort(self, messages: pa.RecordBatch | pa.Table, now: datetime) -> SortedRows:
        """Return the rows for each table that gets some. `now`: the value of the column landed_at.

        Raises:
            StopError: a message is unreadable, and its rule says "stop".
        """
        import pyarrow as pa
        from pyarrow import compute

        table = pa.table(messages)
        sorted_rows = SortedRows()
        if self._pipeline.bronze:
            sorted_rows.tables[self._pipeline.bronze] = self._bronze_rows(table, now)
        quarantined: list[pa.Table] = []
        type_names: Any = table.column("message_type_name")
        types = compute.fill_null(type_names, "")
        distinct_types: list[Any] = compute.unique(types).to_pylist()
        for message_type in distinct_types:
            rule = self._pipeline.rule(message_type)
            if rule is None and (message_type in self._control_types or self._pipeline.unconfigured == "bronze"):
                continue
            rows_of_type = table.filter(compute.equal(types, pa.scalar(message_type)))
            if rule:
                quarantined += self._add_rows(rule, rows_of_type, now, sorted_rows)
            else:
                quarantined += self._quarantine_unconfigured(rows_of_type, now)
        if quarantined:
            sorted_rows.tables[self._pipeline.quarantine] = pa.concat_tables(quarantined)
        return sorted_rows

    def decode(self, rule: MessageRule, messages: pa.Table) -> Decoded:
        """Return the rows and the deletes of a rule's messages. Ignores `when_bad`."""
        return self._decoders[rule.message_type].decode(messages, self._queue.label)

    def decode_or_quarantine(self, rule: MessageRule, messages: pa.Table, now: datetime) -> tuple[Decoded, pa.Table]:
        """Return the rows and the deletes, and quarantine rows for the unreadable messages. Ignores `when_bad`."""
        import pyarrow as pa

        decoded = self.decode(rule, messages)
        unreadable = select_rows(messages, pa.array(decoded.errors, pa.int64()))
        return decoded, self._quarantined(unreadable, list(decoded.errors.values()), now)

    def _add_rows(
        self, rule: MessageRule, messages: pa.Table, now: datetime, sorted_rows: SortedRows
    ) -> list[pa.Table]:
        """Add rows and deletes of one rule to `sorted_rows`, and return quarantine rows for unreadable messages."""
        import pyarrow as pa

        rows, deletes, _, errors = self.decode(rule, messages)
        if rows is not None and rows.num_rows:
            sorted_rows.tables[rule.table] = rows
        if deletes is not None and deletes.num_rows:
            tombstones = self._pipeline.tombstones(rule.table)
            more = sorted_rows.tables.get(tombstones)
            sorted_rows.tables[tombstones] = deletes if more is None else pa.concat_tables([more, deletes])
        if not errors:
            return []
        if rule.when_bad == "stop":
            index, problem = next(iter(errors.items()))
            raise StopError(_stop_message(messages, index, problem))
        unreadable = select_rows(messages, pa.array(errors, pa.int64()))
        if rule.when_bad == "end conversation":
            handles: list[Any] = unreadable.column("conversation_handle").to_pylist()
            reasons = ((problem.reason, problem.detail) for problem in errors.values())
            sorted_rows.failures += [
                ConversationFailure(handle, *problem) for handle, problem in zip(handles, reasons, strict=True)
            ]
        return [self._quarantined(unreadable, list(errors.values()), now)]

    def _quarantine_unconfigured(self, messages: pa.Table, now: datetime) -> list[pa.Table]:
        message_type = messages.column("message_type_name")[0].as_py()
        problem = Undecodable(UNCONFIGURED_REASON, f"the pipeline has no rule for '{message_type}'")
        if self._pipeline.unconfigured == "stop":
            raise StopError(_stop_message(messages, 0, problem))
        return [self._quarantined(messages, [problem] * messages.num_rows, now)]

    def _bronze_rows(self, messages: pa.Table, now: datetime) -> pa.Table:
        import pyarrow as pa

        schema = arrow_schema(BRONZE)
        count = messages.num_rows
        columns = {
            **{name: messages.column(name) for name in messages.schema.names},
            "queue": pa.repeat(self._queue.label, count),
            "landed_at": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
        }
        return pa.table({name: columns[name] for name in schema.names}).cast(schema)

    def _quarantined(self, messages: pa.Table, problems: list[Undecodable], now: datetime) -> pa.Table:
        import pyarrow as pa

        rows = self._bronze_rows(messages, now)
        rows = rows.append_column("reason", pa.array([problem.reason for problem in problems], pa.string()))
        return rows.append_column("detail", pa.array([_safe(problem.detail) for problem in problems], pa.string()))


class Decoded(NamedTuple):
    """The decoded messages of a rule.

    Attributes:
        rows: rows of the rule's table; None for a rule that only deletes.
        deletes: rows of the tombstone table; None for a rule that deletes nothing.
        indexes: the indexes of the readable messages.
        errors: the errors of the unreadable messages, by index.
    """

    rows: pa.Table | None
    deletes: pa.Table | None
    indexes: list[int]
    errors: dict[int, Undecodable]


@dataclass(frozen=True)
class _RuleDecoder:
    """Decodes the messages of a rule.

    Attributes:
        rows: decoder of rows; None for a rule that only deletes.
        delete: decoder of the messages that delete; None for none.
        tombstones: columns of the tombstone table.
    """

    rule: MessageRule
    rows: Decoder | None
    delete: DeleteDecoder | None = None
    tombstones: tuple[Column, ...] = ()

    @classmethod
    def of(cls, pipeline: Pipeline, rule: MessageRule) -> _RuleDecoder:
        rows = rule.decoder() if rule.has_rows else None
        if rule.delete is None:
            return cls(rule, rows)
        delete = rule.delete_decoder(_row_rule(pipeline, rule.table))
        return cls(rule, rows, delete, columns_of(pipeline, pipeline.tombstones(rule.table)))

    def decode(self, messages: pa.Table, label: str) -> Decoded:
        """Decode messages of the queue `label`."""
        rows: dict[int, list[Any]] = {}
        deletes: dict[int, list[Any]] = {}
        errors: dict[int, Undecodable] = {}
        for index, value in enumerate(messages.column("message_body")):
            body = value.as_py()
            decode = partial(_decode, self.rule, body=body)
            try:
                if self.delete is not None and self.delete.matches(body, decode):
                    deletes[index] = self.delete.decode(decode)
                elif self.rows is not None:
                    rows[index] = decode(self.rows)
            except Undecodable as problem:
                errors[index] = problem
        return Decoded(
            None if self.rows is None else _table((*self.rows.columns, *ORIGIN), rows, messages, label),
            None if self.delete is None else _table(self.tombstones, deletes, messages, label),
            sorted([*rows, *deletes]),
            errors,
        )


def _table(columns: tuple[Column, ...], values: dict[int, list[Any]], messages: pa.Table, label: str) -> pa.Table:
    """Return rows with the values of their own columns, by the index of their message, and the columns of `ORIGIN`."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    own_values: list[Any] = [
        pa.array([row[number] for row in values.values()], schema.field(number).type)
        for number in range(len(columns) - len(ORIGIN))
    ]
    own_messages = messages.select([name for name in messages.schema.names if name != "message_body"])
    if len(values) < messages.num_rows:
        own_messages = own_messages.take(pa.array(list(values), pa.int64()))
    enqueued = own_messages.column("message_enqueue_time")
    origin: list[Any] = [
        pa.repeat(label, own_messages.num_rows),
        own_messages.column("conversation_handle"),
        own_messages.column("message_sequence_number"),
        own_messages.column("queuing_order"),
        enqueued,
        enqueued.cast(pa.timestamp("us", "UTC")).cast(pa.date32()),
    ]
    return pa.Table.from_arrays([*own_values, *origin], names=schema.names).cast(schema)


def _decode(rule: MessageRule, decoder: Decoder, *, body: bytes | None) -> list[Any]:
    if body is not None and len(body) > rule.maximum_body:
        raise Undecodable(TOO_LARGE_REASON, f"{len(body)} bytes, of which {rule.maximum_body} are allowed")
    try:
        return decoder.decode(body)
    except (Undecodable, MemoryError, InstanceError):  # InstanceError: the registry is down, so the body may be valid
        raise
    except Exception as problem:  # otherwise the error ends the query, which reads the body again after each restart
        raise Undecodable("malformed", f"{type(problem).__name__} {problem}") from None


def _stop_message(messages: pa.Table, index: int, problem: Undecodable) -> str:
    row = messages.select(["message_type_name", "conversation_handle", "message_sequence_number"]).slice(index, 1)
    message_type, handle, number = (column[0].as_py() for column in row.columns)
    return (
        f"Message {number} of the conversation {handle}, of the type '{message_type}', cannot be read ({problem}), and "
        "the pipeline says stop: change the rule, or end the conversation."
    )


def _safe(detail: str) -> str:
    return detail.encode(errors="replace").decode()[:_MAX_DETAIL_CHARACTERS]


def write_time() -> datetime:
    """Return the present time, for the column landed_at."""
    return datetime.now(UTC)
