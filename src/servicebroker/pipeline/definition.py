"""What a pipeline is: queues, how the bodies of each message type are read, and the tables they land in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import UTF_8, Column, Decoder, RegisteredDecoder, check_given, decoder
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, folder_at

COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,120}")
TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}")
WHEN_BAD = ("go on", "end conversation", "stop")
UNCONFIGURED = ("bronze", "quarantine", "stop")
TABLE_FORMATS = ("delta", "parquet", "iceberg")
ANALYTICS = "analytics"  # the table that `servicebroker pipeline report` writes
MAXIMUM_BODY = 16 * 1024 * 1024  # bytes that are decoded, unless a rule says otherwise

# columns that every typed table has behind its own; a partition may be named by them
ORIGIN = (
    Column("_queue", "string"),
    Column("_conversation_handle", "string"),
    Column("_message_sequence_number", "long"),
    Column("_queuing_order", "long"),
    Column("_message_enqueue_time", "timestamp"),
    Column("_date", "date"),
)


class DefinitionError(InstanceError):
    """What is wrong with a pipeline; `place` is the way to it in its file, keys and numbers from 0."""

    def __init__(self, sentence: str, *place: str | int) -> None:
        super().__init__(sentence)
        self.place = place


class StopError(InstanceError):
    """A message cannot be read, and its rule says stop: its queue is not read again before somebody has acted."""


class OldCheckpoint(InstanceError):
    """A checkpoint does not know a batch that a table has: its queue is not read before somebody has removed it."""


@dataclass(frozen=True)
class QueueRule:
    """A queue that is read. `name` stands in the column `_queue`; `options` are further ones of the Spark source."""

    instance: str
    database: str
    queue: str
    name: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tells it from the other queues of the pipeline."""
        return self.name or f"{self.database}.{self.queue}"

    def source_options(self) -> dict[str, str]:
        """All options of the Spark source."""
        return {**self.options, "instance": self.instance, "database": self.database, "queue": self.queue}


@dataclass(frozen=True)
class MessageRule:
    """How bodies of one message type are read, and the table they land in.

    Attributes:
        message_type: its name.
        format: one of `servicebroker.pipeline.decoding.FORMATS`.
        table: name of the table.
        columns: what is taken out of a body.
        partition_by: columns by whose values the table is divided.
        key: columns that name a row: a later message replaces what an earlier one has put there.
        when_bad: what follows when a body cannot be read, beside its quarantine.
        refuse_extra: whether a field that no column takes makes a body unreadable.
        encoding: of text.
        schema: content of the JSON Schema, XSD, Avro schema or Protobuf descriptor set.
        message: full name of the Protobuf message.
        maximum_body: bytes; what is longer is not read.
        registry: URL of the schema registry that has the schemas which bodies name; "" for bodies that name none.
        maximum_quarantined: messages of the type that may go into quarantine in one run; None for any number.
    """

    message_type: str
    format: str
    table: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    when_bad: str = "go on"
    refuse_extra: bool = False
    encoding: str = UTF_8
    schema: bytes | None = None
    message: str = ""
    maximum_body: int = MAXIMUM_BODY
    registry: str = ""
    maximum_quarantined: int | None = None

    def decoder(self) -> Decoder:
        """What reads the bodies.

        Raises:
            ValueError: the rule cannot be followed.
        """
        if self.registry:
            from servicebroker.pipeline.schema_registry import find

            if self.message:
                raise ValueError("beside a registry bodies say themselves which message they are: leave it out")
            check_given(self.format, (), message="", encoding=self.encoding, refuse_extra=False)
            return RegisteredDecoder(
                *(self.format, self.columns, partial(find, self.registry)),
                reader=self.schema,
                refuse_extra=self.refuse_extra,
            )
        return decoder(
            self.format,
            self.columns,
            schema=self.schema,
            message=self.message,
            encoding=self.encoding,
            refuse_extra=self.refuse_extra,
        )


@dataclass(frozen=True)
class Pipeline:
    """A whole pipeline, checked when it is made.

    Attributes:
        name: of its queries.
        warehouse: folder of the tables, local or in an object store.
        queues: what is read; a query each.
        messages: one rule for each message type.
        format: of the tables, one of TABLE_FORMATS.
        catalog, namespace: where tables of Iceberg are registered; pyiceberg's settings know the catalog by its name.
        checkpoints: local folder of the checkpoints; "_checkpoints" in the warehouse when it is not given.
        bronze: name of the table that gets every message as it is; "" for none.
        quarantine: name of the table for what cannot be read.
        unconfigured: what becomes of types that have no rule.
        trigger_seconds: pause between batches when it runs continuously.

    Raises:
        DefinitionError: something does not go together.
    """

    name: str
    warehouse: Folder
    queues: tuple[QueueRule, ...]
    messages: tuple[MessageRule, ...] = ()
    format: str = "delta"
    catalog: str = ""
    namespace: str = ""
    checkpoints: Path | None = None
    bronze: str = "bronze"
    quarantine: str = "quarantine"
    unconfigured: str = "bronze"
    trigger_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not self.queues:
            raise DefinitionError("a pipeline needs at least one queue")
        if (self.format == "iceberg") != bool(self.catalog and self.namespace):
            raise DefinitionError(
                "tables of Iceberg need both catalog and namespace, and others neither", "pipeline", "format"
            )
        checkpoints = [self.checkpoint(rule) for rule in self.queues]
        for number, queue in enumerate(self.queues):
            if checkpoints[number] in checkpoints[:number]:
                raise DefinitionError(
                    f"'{queue.label}' would share its checkpoint with another queue: give one another name",
                    *("queue", number),
                )
        if self.unconfigured == "bronze" and not self.bronze:
            raise DefinitionError(
                'without a bronze table, unconfigured must be "quarantine" or "stop"', "pipeline", "unconfigured"
            )
        tables = [self.bronze, self.quarantine, ANALYTICS]
        seen: list[str] = []
        for number, rule in enumerate(self.messages):
            if rule.message_type in seen:
                raise DefinitionError(f"'{rule.message_type}' has a rule already", "message", number, "type")
            seen.append(rule.message_type)
            if rule.table in tables:
                raise DefinitionError(f"the table '{rule.table}' is another one's", "message", number, "table")
            tables.append(rule.table)
            _check_rule(rule, number, self.format)

    def rule(self, message_type: str) -> MessageRule | None:
        """The rule of a message type, if it has one."""
        return next((rule for rule in self.messages if rule.message_type == message_type), None)

    def folder(self, table: str) -> Folder:
        """Where a table lives."""
        return self.warehouse / table

    def checkpoint(self, queue: QueueRule) -> Path:
        """Where the query of a queue notes how far it has come."""
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", queue.label)
        folder = self.checkpoints or self.warehouse / "_checkpoints"
        if isinstance(folder, StoreFolder):
            raise DefinitionError(
                f"beside tables at '{self.warehouse}' the checkpoints need a local folder: say it as checkpoints",
                *("pipeline", "warehouse"),
            )
        return folder / safe

    def table_names(self) -> list[str]:
        """Every table, bronze first."""
        return [*filter(None, [self.bronze]), *(rule.table for rule in self.messages), self.quarantine]

    def to_text(self) -> str:
        """Return the pipeline as JSON, for an option of a Spark sink."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        checkpoints = None if self.checkpoints is None else str(self.checkpoints)
        return msgspec.json.encode(values | {"warehouse": str(self.warehouse), "checkpoints": checkpoints}).decode()

    @classmethod
    def from_text(cls, text: str) -> Pipeline:
        """Return the pipeline that `to_text` wrote. The text is data: whoever chooses it runs no code.

        Raises:
            InstanceError: `to_text` wrote no such text, or another version did.
        """
        try:
            values = msgspec.json.decode(text, type=_text_type())
        except msgspec.MsgspecError as problem:
            raise InstanceError(
                f"The option 'pipeline' of the sink is not one that this version of servicebroker writes: {problem}. "
                "Start the query with 'servicebroker pipeline run'."
            ) from None
        found = {one.name: getattr(values, one.name) for one in fields(cls)}
        checkpoints = None if values.checkpoints is None else Path(values.checkpoints)
        try:
            return cls(**found | {"warehouse": folder_at(values.warehouse, Path()), "checkpoints": checkpoints})
        except ValueError as problem:
            raise InstanceError(f"The option 'pipeline' of the sink: {problem}.") from None


_FOLDERS = {"warehouse": str, "checkpoints": str | None}  # types in the text


def _text_type() -> type[Any]:
    """Return the type of the JSON that `Pipeline.to_text` writes: its fields, with folders as text."""
    hints = get_type_hints(Pipeline) | _FOLDERS
    return msgspec.defstruct("PipelineText", [(one.name, hints[one.name]) for one in fields(Pipeline)])


def _check_rule(rule: MessageRule, number: int, table_format: str) -> None:
    try:
        columns = rule.decoder().columns
    except ValueError as problem:
        raise DefinitionError(str(problem), "message", number, "schema" if rule.schema else "format") from None
    names = [column.name for column in columns]
    for name in names:
        if not COLUMN_NAME.fullmatch(name):
            raise DefinitionError(
                f"'{name}' is no name of a column: letters, digits and _ make one", "message", number, "columns", name
            )
    spelled = [name.lower() for name in (*names, *(column.name for column in ORIGIN))]
    for name in names:
        if spelled.count(name.lower()) > 1:
            raise DefinitionError(
                f"the column '{name}' is there twice, upper and lower case being the same to most readers",
                *("message", number, "columns"),
            )
    for column in rule.partition_by:
        if column not in [*names, "_queue", "_date"]:
            raise DefinitionError(f"there is no column '{column}' to divide by", "message", number, "partition_by")
    kinds = {column.name: column for column in columns}
    for column in rule.partition_by:
        if table_format == "delta" and column in kinds and kinds[column].kind == "binary":
            raise DefinitionError(
                f"a table of Delta cannot be divided by '{column}', which is binary: its log has these values as texts",
                *("message", number, "partition_by"),
            )
    for column in rule.key:
        if column not in kinds or kinds[column].is_optional:
            raise DefinitionError(f"the key needs a column '{column}' that is never null", "message", number, "key")
    if table_format == "parquet" and (rule.key or rule.partition_by):
        raise DefinitionError(
            "tables of Parquet files know no key and no partitions: use Delta",
            *("message", number, "key" if rule.key else "partition_by"),
        )
