"""Messages of a batch, sorted into tables: bronze, one for each rule, and quarantine. Arrow in, Arrow out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column, Decoder, Undecodable
from servicebroker.pipeline.decoding.columns import digits
from servicebroker.pipeline.definition import ORIGIN, MessageRule, Pipeline, QueueRule, StopError
from servicebroker.pipeline.sinks.places import only_at

if TYPE_CHECKING:
    import pyarrow as pa

SYSTEM = (names.ERROR, names.END_DIALOG, names.DIALOG_TIMER)
UNCONFIGURED = "unconfigured type"
TOO_LARGE = "too large"

_MESSAGE = (
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
BRONZE = (*_MESSAGE, Column("landed_at", "timestamp"))
QUARANTINE = (*BRONZE, Column("reason", "string"), Column("detail", "string"))


class Bad(NamedTuple):
    """A conversation that is to be ended because one of its messages cannot be read."""

    conversation_handle: str
    reason: str
    detail: str


@dataclass
class Sorted:
    """Rows by table, and which conversations are to be ended."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns of a table."""
    import pyarrow as pa

    types = _types()
    fields: list[tuple[str, pa.DataType]] = []
    for column in columns:
        places = digits(column.kind)
        fields.append((column.name, pa.decimal128(*places) if places else types[column.kind]))
    return pa.schema(fields)


def kind_of(arrow: pa.DataType) -> str:
    """The name of a column's type, as a pipeline file says it; Arrow's own name where there is none."""
    import pyarrow as pa

    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return next((kind for kind, known in _types().items() if known == arrow), str(arrow))


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
    """The columns of one of the pipeline's tables."""
    if table == pipeline.bronze:
        return BRONZE
    if table == pipeline.quarantine:
        return QUARANTINE
    (rule,) = (rule for rule in pipeline.messages if rule.table == table)
    return (*rule.decoder().columns, *ORIGIN)


class Sorter:
    """Sorts what comes from one queue of a pipeline."""

    def __init__(self, pipeline: Pipeline, queue: QueueRule) -> None:
        self._pipeline = pipeline
        self._queue = queue
        self._decoders: dict[str, Decoder] = {rule.table: rule.decoder() for rule in pipeline.messages}
        self._silent = {*SYSTEM, queue.options.get("endOfStream", "EndOfStream")}

    def sort(self, messages: pa.RecordBatch | pa.Table, now: datetime) -> Sorted:
        """Rows for each table that gets any.

        Raises:
            StopError: a message cannot be read, and its rule says stop.
        """
        import pyarrow as pa
        from pyarrow import compute

        table = pa.table(messages)
        found = Sorted()
        if self._pipeline.bronze:
            found.tables[self._pipeline.bronze] = self._as_they_are(table, now)
        quarantined: list[pa.Table] = []
        named: Any = table.column("message_type_name")
        types = compute.fill_null(named, "")
        kinds: list[Any] = compute.unique(types).to_pylist()
        for message_type in kinds:
            rule = self._pipeline.rule(message_type)
            if rule is None and (message_type in self._silent or self._pipeline.unconfigured == "bronze"):
                continue
            these = table.filter(compute.equal(types, pa.scalar(message_type)))
            quarantined += self._read(rule, these, now, found) if rule else self._unread(these, now)
        if quarantined:
            found.tables[self._pipeline.quarantine] = pa.concat_tables(quarantined)
        return found

    def reread(self, rule: MessageRule, messages: pa.Table) -> tuple[pa.Table, list[int]]:
        """Rows of the rule's table for what can be read now, and the places of those messages."""
        return _decoded(rule, self._decoders[rule.table], messages, self._queue.label)[:2]

    def read_again(self, rule: MessageRule, messages: pa.Table, now: datetime) -> tuple[pa.Table, pa.Table]:
        """Rows of the rule's table, and what cannot be read as rows of quarantine, whatever the rule says follows."""
        import pyarrow as pa

        rows, _, refused = _decoded(rule, self._decoders[rule.table], messages, self._queue.label)
        unread = only_at(messages, pa.array(refused, pa.int64()))
        return rows, self._quarantined(unread, list(refused.values()), now)

    def _read(self, rule: MessageRule, messages: pa.Table, now: datetime, found: Sorted) -> list[pa.Table]:
        """The messages of one rule: rows into `found`; what cannot be read is returned."""
        import pyarrow as pa

        rows, _, refused = _decoded(rule, self._decoders[rule.table], messages, self._queue.label)
        if rows.num_rows:
            found.tables[rule.table] = rows
        if not refused:
            return []
        if rule.when_bad == "stop":
            place, problem = next(iter(refused.items()))
            raise StopError(_stopped(messages, place, problem))
        bad = only_at(messages, pa.array(refused, pa.int64()))
        if rule.when_bad == "end conversation":
            handles: list[Any] = bad.column("conversation_handle").to_pylist()
            why = ((problem.reason, problem.detail) for problem in refused.values())
            found.bad += [Bad(handle, *problem) for handle, problem in zip(handles, why, strict=True)]
        return [self._quarantined(bad, list(refused.values()), now)]

    def _unread(self, messages: pa.Table, now: datetime) -> list[pa.Table]:
        message_type = messages.column("message_type_name")[0].as_py()
        problem = Undecodable(UNCONFIGURED, f"the pipeline has no rule for '{message_type}'")
        if self._pipeline.unconfigured == "stop":
            raise StopError(_stopped(messages, 0, problem))
        return [self._quarantined(messages, [problem] * messages.num_rows, now)]

    def _as_they_are(self, messages: pa.Table, now: datetime) -> pa.Table:
        import pyarrow as pa

        schema = arrow_schema(BRONZE)
        count = messages.num_rows
        given = {
            **{name: messages.column(name) for name in messages.schema.names},
            "queue": pa.repeat(self._queue.label, count),
            "landed_at": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
        }
        return pa.table({name: given[name] for name in schema.names}).cast(schema)

    def _quarantined(self, messages: pa.Table, problems: list[Undecodable], now: datetime) -> pa.Table:
        import pyarrow as pa

        rows = self._as_they_are(messages, now)
        rows = rows.append_column("reason", pa.array([problem.reason for problem in problems], pa.string()))
        return rows.append_column("detail", pa.array([_safe(problem.detail) for problem in problems], pa.string()))


def _decoded(
    rule: MessageRule, reader: Decoder, messages: pa.Table, label: str
) -> tuple[pa.Table, list[int], dict[int, Undecodable]]:
    """Rows of the rule's table, the places of their messages, and by place why the others cannot be read."""
    import pyarrow as pa

    values: list[list[Any]] = []
    places: list[int] = []
    refused: dict[int, Undecodable] = {}
    for place, body in enumerate(messages.column("message_body")):
        try:
            values.append(_decode(rule, reader, body.as_py()))
            places.append(place)
        except Undecodable as problem:
            refused[place] = problem
    own = arrow_schema(tuple(reader.columns))
    columns: list[Any] = [pa.array([row[number] for row in values], field.type) for number, field in enumerate(own)]
    known = messages.select([name for name in messages.schema.names if name != "message_body"])
    read = known.take(pa.array(places, pa.int64())) if refused else known
    enqueued = read.column("message_enqueue_time")
    origin: list[Any] = [
        pa.repeat(label, read.num_rows),
        read.column("conversation_handle"),
        read.column("message_sequence_number"),
        read.column("queuing_order"),
        enqueued,
        enqueued.cast(pa.timestamp("us", "UTC")).cast(pa.date32()),
    ]
    schema = arrow_schema((*reader.columns, *ORIGIN))
    return pa.Table.from_arrays([*columns, *origin], names=schema.names).cast(schema), places, refused


def _decode(rule: MessageRule, reader: Decoder, body: bytes | None) -> list[Any]:
    if body is not None and len(body) > rule.maximum_body:
        raise Undecodable(TOO_LARGE, f"{len(body)} bytes, of which {rule.maximum_body} are allowed")
    try:
        return reader.decode(body)
    except (Undecodable, MemoryError, InstanceError):  # the last one: a registry cannot be asked, so nobody knows
        raise
    except Exception as problem:  # no body may end the query: the same batch would come again for ever
        raise Undecodable("malformed", f"{type(problem).__name__} {problem}") from None


def _stopped(messages: pa.Table, place: int, problem: Undecodable) -> str:
    row = messages.select(["message_type_name", "conversation_handle", "message_sequence_number"]).slice(place, 1)
    message_type, handle, number = (column[0].as_py() for column in row.columns)
    return (
        f"Message {number} of the conversation {handle}, of the type '{message_type}', cannot be read ({problem}), and "
        "the pipeline says stop: change the rule, or end the conversation."
    )


def _safe(detail: str) -> str:
    return detail.encode(errors="replace").decode()[:1000]


def now_in_utc() -> datetime:
    """The time of landing."""
    return datetime.now(UTC)
