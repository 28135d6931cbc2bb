"""A pipeline as a value: its queues, a rule for each message type, and the tables into which the rows are written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import short_repr
from servicebroker.pipeline.decoding import FORMATS, UTF_8, Column, Decoder, RegisteredDecoder, check_arguments, decoder
from servicebroker.pipeline.decoding.kinds import is_nested
from servicebroker.pipeline.deletes import DELETE_CONDITIONS, KEY_ORIGIN, TOMBSTONES_SUFFIX, DeleteDecoder, DeleteRule
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, folder_at

COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,120}")
TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}")
BAD_BODY_ACTIONS = ("go on", "end conversation", "stop")
UNCONFIGURED_ACTIONS = ("bronze", "quarantine", "stop")
TABLE_FORMATS = ("delta", "parquet", "iceberg")
ANALYTICS = "analytics"  # the table that `servicebroker pipeline report` writes
MAX_CHECKPOINT_NAME_CHARACTERS = 200  # file systems allow 255 bytes, and files beside it have longer names
MAX_BODY_BYTES = 16 * 1024 * 1024  # default of a rule's `maximum_body`; a larger body goes to quarantine

# Columns that each rule's table has after the columns of the rule; `partition_by` may name them.
ORIGIN = (
    Column("_queue", "string"),
    Column("_conversation_handle", "string"),
    Column("_message_sequence_number", "long"),
    Column("_queuing_order", "long"),
    Column("_message_enqueue_time", "timestamp"),
    Column("_date", "date"),
)


class DefinitionError(InstanceError):
    """A mistake in a pipeline. `position` is the path to it in the file: keys, and list indexes from 0."""

    def __init__(self, sentence: str, *position: str | int) -> None:
        super().__init__(sentence)
        self.position = position


class StopError(InstanceError):
    """An unreadable message whose rule says "stop". The queue is not read until the rule or the message is changed."""


class OldCheckpoint(InstanceError):
    """A checkpoint that lacks a batch that a table already has.

    The queue is not read until an operator removes the checkpoint.
    """


@dataclass(frozen=True)
class QueueRule:
    """A queue to read. `name` is the value of the column `_queue`, `options` are those of the Spark source."""

    instance: str
    database: str
    queue: str
    name: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the queue in the pipeline."""
        return self.name or f"{self.database}.{self.queue}"

    def source_options(self) -> dict[str, str]:
        """Return all options of the Spark source."""
        return {**self.options, "instance": self.instance, "database": self.database, "queue": self.queue}


@dataclass(frozen=True)
class MessageRule:
    """A rule: the format of the bodies of one message type, the columns to read, and the table for the rows.

    Attributes:
        message_type: name of the message type.
        format: one of `servicebroker.pipeline.decoding.FORMATS`.
        table: name of the table.
        columns: the values to read from a body.
        partition_by: columns that partition the table.
        key: columns that identify a row: a later message replaces the row of an earlier one.
        when_bad: one of `BAD_BODY_ACTIONS`; an unreadable body goes to quarantine in any case.
        refuse_extra: a body with a field that no column reads is unreadable.
        encoding: encoding of text bodies.
        schema: content of the JSON Schema, XSD, Avro schema or Protobuf descriptor set.
        message: full name of the Protobuf message.
        maximum_body: size limit in bytes; a larger body is not decoded.
        rescue: name of the column for fields that no other column reads; "" for none.
        registry: URL of the schema registry, for bodies that begin with the number of their schema; "" for none.
        maximum_quarantined: maximum number of messages of this type in quarantine per run; None for no limit.
        delete: the messages that delete a row; None for none. If every message does, the rule has no rows, and `table`
            is the table of another rule.
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
    maximum_body: int = MAX_BODY_BYTES
    registry: str = ""
    maximum_quarantined: int | None = None
    rescue: str = ""
    delete: DeleteRule | None = None

    @property
    def has_rows(self) -> bool:
        """True if messages of the rule become rows. False if all of them delete rows of another rule."""
        return self.delete is None or self.delete.when != "always"

    @property
    def body_key(self) -> list[str]:
        """The key columns that are in the body of a message."""
        return [name for name in self.key if name not in KEY_ORIGIN]

    def decoder_of(self, columns: tuple[Column, ...]) -> Decoder:
        """Return a decoder for other columns of the same bodies. Other fields are ignored.

        Raises:
            ValueError: the body cannot have the columns.
        """
        return replace(self, columns=columns, refuse_extra=False, rescue="").decoder()

    def delete_decoder(self, row_rule: MessageRule) -> DeleteDecoder:
        """Return a decoder for the messages that delete rows. `row_rule`: the rule that writes the rows.

        Raises:
            ValueError: the bodies cannot have the key, or the field that decides.
        """
        assert self.delete is not None
        delete = self.delete
        if self.format in ("text", "binary") and delete.when == "field":
            raise ValueError(f"a body of {self.format} has no fields")
        readable = {column.name: column for column in (row_rule if self.has_rows else self).decoder().columns}
        columns = tuple(
            readable[name]._replace(source=delete.key[name]) if name in delete.key else readable[name]
            for name in row_rule.body_key
        )
        has_fields = self.format not in ("text", "binary")
        return DeleteDecoder(
            delete,
            columns,
            None if not columns else self.decoder_of(columns) if has_fields else self.decoder(),
            self.decoder_of((delete.condition,)) if delete.when == "field" else None,
        )

    def decoder(self) -> Decoder:
        """Return a decoder for the bodies.

        Raises:
            ValueError: the rule contradicts itself, or its schema is invalid.
        """
        if self.registry:
            from servicebroker.pipeline.schema_registry import fetch_schema

            if self.message:
                raise ValueError("with a registry each body names its message: leave message out")
            registered = RegisteredDecoder(
                *(self.format, self.columns, partial(fetch_schema, self.registry)),
                reader=self.schema,
                refuse_extra=self.refuse_extra,
                rescue=self.rescue,
            )
            check_arguments(
                *(self.format, self.columns),
                message="",
                encoding=self.encoding,
                refuse_extra=self.refuse_extra,
                rescue=self.rescue,
            )
            return registered
        return decoder(
            self.format,
            self.columns,
            schema=self.schema,
            message=self.message,
            encoding=self.encoding,
            refuse_extra=self.refuse_extra,
            rescue=self.rescue,
        )


@dataclass(frozen=True)
class Pipeline:
    """A pipeline. The constructor checks that its parts fit together.

    Attributes:
        name: prefix of the names of its Spark queries.
        warehouse: folder of the tables, local or in an object store.
        queues: the queues to read, one Spark query each.
        messages: one rule for each message type.
        format: format of the tables, one of `TABLE_FORMATS`.
        catalog, namespace: pyiceberg's catalog (by its name in pyiceberg's settings) and namespace for Iceberg tables.
        checkpoints: local folder of the checkpoints; None for "_checkpoints" in the warehouse.
        bronze: name of the table that gets every message unchanged; "" for none.
        quarantine: name of the table for unreadable messages.
        unconfigured: one of `UNCONFIGURED_ACTIONS`, for message types without a rule.
        trigger_seconds: pause between batches of a continuous run.

    Raises:
        DefinitionError: two parts contradict each other.
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
        check_choice(self.format, TABLE_FORMATS, "pipeline", "format")
        check_choice(self.unconfigured, UNCONFIGURED_ACTIONS, "pipeline", "unconfigured")
        if self.bronze:
            check_table(self.bronze, "pipeline", "bronze")
        check_table(self.quarantine, "pipeline", "quarantine")
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
        message_types: list[str] = []
        for number, rule in enumerate(self.messages):
            if rule.message_type in message_types:
                raise DefinitionError(f"'{rule.message_type}' has a rule already", "message", number, "type")
            message_types.append(rule.message_type)
            if rule.has_rows and rule.table in tables:
                raise DefinitionError(f"the table '{rule.table}' has another use already", "message", number, "table")
            tables += [rule.table] if rule.has_rows else []
            _check_rule(rule, number, self.format)
        for number, rule in enumerate(self.messages):
            if rule.delete:
                _check_delete(rule, rule.delete, self.row_rule(rule.table), number)
            tombstones = self.tombstones(rule.table)
            if tombstones and tombstones in tables:
                raise DefinitionError(f"the table '{tombstones}' has another use already", "message", number, "table")

    def rule(self, message_type: str) -> MessageRule | None:
        """Return the rule of a message type; None if it has none."""
        return next((rule for rule in self.messages if rule.message_type == message_type), None)

    def row_rule(self, table: str) -> MessageRule | None:
        """Return the rule whose messages become rows of a table; None if there is none."""
        return next((rule for rule in self.messages if rule.table == table and rule.has_rows), None)

    def rules_of(self, table: str) -> list[MessageRule]:
        """Return the rules whose messages add or delete rows of a table."""
        return [rule for rule in self.messages if rule.table == table]

    def tombstones(self, table: str) -> str:
        """Return the name of the table with the deleted keys of a table; "" if no rule deletes from the table."""
        return f"{table}{TOMBSTONES_SUFFIX}" if any(rule.delete for rule in self.rules_of(table)) else ""

    def table_with_tombstones(self, tombstones: str) -> str:
        """Return the table whose deleted keys are in the table `tombstones`; "" if that is another kind of table."""
        return next((rule.table for rule in self.messages if self.tombstones(rule.table) == tombstones), "")

    def queue_labelled(self, label: str) -> QueueRule:
        """Return the queue with a label.

        Raises:
            InstanceError: the pipeline has no such queue.
        """
        for queue in self.queues:
            if queue.label == label:
                return queue
        raise InstanceError(f"The pipeline has no queue {short_repr(label)}.")

    def folder(self, table: str) -> Folder:
        """Return the folder of a table."""
        return self.warehouse / table

    def checkpoint(self, queue: QueueRule) -> Path:
        """Return the folder of the Spark checkpoint for a queue."""
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", queue.label)
        if len(safe) > MAX_CHECKPOINT_NAME_CHARACTERS or not safe.strip("."):
            raise DefinitionError(
                f"{short_repr(queue.label)} cannot be the name of a checkpoint's folder: give the queue another name",
                *("queue", self.queues.index(queue)),
            )
        folder = self.checkpoints or self.warehouse / "_checkpoints"
        if isinstance(folder, StoreFolder):
            raise DefinitionError(
                f"with tables at '{self.warehouse}' the checkpoints need a local folder: set it as checkpoints",
                *("pipeline", "warehouse"),
            )
        return folder / safe

    def table_names(self) -> list[str]:
        """Return the names of all tables, bronze first."""
        tables = [
            name
            for rule in self.messages
            if rule.has_rows
            for name in (rule.table, self.tombstones(rule.table))
            if name
        ]
        return [*filter(None, [self.bronze]), *tables, self.quarantine]

    def to_text(self) -> str:
        """Return the pipeline as JSON, for an option of a Spark sink."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        checkpoints = None if self.checkpoints is None else str(self.checkpoints)
        return msgspec.json.encode(values | {"warehouse": str(self.warehouse), "checkpoints": checkpoints}).decode()

    @classmethod
    def from_text(cls, text: str) -> Pipeline:
        """Return the pipeline that `to_text` wrote. The text is JSON, so that loading it cannot run code.

        Raises:
            InstanceError: `to_text` of this version did not write the text.
        """
        try:
            values = msgspec.json.decode(text, type=_text_type())
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as problem:
            raise InstanceError(
                f"The sink's option 'pipeline' was not written by this version of servicebroker: {problem}. "
                "Start the query with 'servicebroker pipeline run'."
            ) from None
        fields_of_pipeline = {attribute.name: getattr(values, attribute.name) for attribute in fields(cls)}
        checkpoints = None if values.checkpoints is None else Path(values.checkpoints)
        try:
            return cls(
                **fields_of_pipeline | {"warehouse": folder_at(values.warehouse, Path()), "checkpoints": checkpoints}
            )
        except ValueError as problem:
            raise InstanceError(f"The option 'pipeline' of the sink: {problem}.") from None


_FOLDERS = {"warehouse": str, "checkpoints": str | None}  # types in JSON of the fields that are folders


def _text_type() -> type[Any]:
    """Return the type of the JSON from `Pipeline.to_text`: the fields of `Pipeline`, with folders as strings."""
    hints = get_type_hints(Pipeline) | _FOLDERS
    return msgspec.defstruct(
        "PipelineText",
        [(attribute.name, hints[attribute.name]) for attribute in fields(Pipeline)],
        forbid_unknown_fields=True,
    )


def check_choice(value: str, choices: tuple[str, ...], *position: str | int) -> None:
    """Check that a value is one of the choices. The error does not list an empty choice.

    Raises:
        DefinitionError: the value is not a choice.
    """
    if value not in choices:
        known = ", ".join(filter(None, choices))
        raise DefinitionError(f"'{position[-1]}' must be one of {known}, not {short_repr(value)}", *position)


def check_table(name: str, *position: str | int) -> None:
    """Check that a name is valid for a table, whose folder in the warehouse it names.

    Raises:
        DefinitionError: the name is invalid.
    """
    if not TABLE_NAME.fullmatch(name):
        raise DefinitionError(f"{short_repr(name)} is not a table name: use letters, digits, _ and -", *position)


def _check_rule(rule: MessageRule, number: int, table_format: str) -> None:
    check_choice(rule.format, FORMATS, "message", number, "format")
    check_choice(rule.when_bad, BAD_BODY_ACTIONS, "message", number, "when_bad")
    check_table(rule.table, "message", number, "table")
    if rule.maximum_body < 1:
        raise DefinitionError("'maximum_body' must be a number from 1 on", "message", number, "maximum_body")
    if rule.maximum_quarantined is not None and rule.maximum_quarantined < 0:
        raise DefinitionError(
            "'maximum_quarantined' must be a whole number from 0 on", "message", number, "maximum_quarantined"
        )
    if rule.registry:
        from servicebroker.pipeline.schema_registry import checked_url

        try:
            checked_url(rule.registry)
        except ValueError as problem:
            raise DefinitionError(str(problem), "message", number, "registry") from None
    try:
        columns = rule.decoder().columns
    except ValueError as problem:
        raise DefinitionError(str(problem), "message", number, "schema" if rule.schema else "format") from None
    names = [column.name for column in columns]
    for name in names:
        if not COLUMN_NAME.fullmatch(name):
            raise DefinitionError(
                f"'{name}' is not a valid column name: use letters, digits and _", "message", number, "columns", name
            )
    lower_case_names = [name.lower() for name in (*names, *(column.name for column in ORIGIN))]
    for name in names:
        if lower_case_names.count(name.lower()) > 1:
            raise DefinitionError(
                f"the column '{name}' is there twice: most readers ignore case",
                *("message", number, "columns"),
            )
    for column in rule.partition_by:
        if column not in [*names, "_queue", "_date"]:
            raise DefinitionError(f"there is no column '{column}' to partition by", "message", number, "partition_by")
    kinds = {column.name: column for column in columns}
    for column in rule.partition_by:
        if table_format == "delta" and column in kinds and kinds[column].kind == "binary":
            raise DefinitionError(
                f"a Delta table cannot be partitioned by '{column}', which is binary: its log has values as texts",
                *("message", number, "partition_by"),
            )
    for key in ("partition_by", "key"):
        for column in getattr(rule, key):
            if column in kinds and is_nested(kinds[column].kind):
                raise DefinitionError(
                    f"'{column}' is a {kinds[column].kind}, which has no order", "message", number, key
                )
    for column in rule.key:
        is_in_body = column in kinds and not kinds[column].is_optional
        if rule.has_rows and column not in KEY_ORIGIN and not is_in_body:
            raise DefinitionError(f"the key needs a column '{column}' that is never null", "message", number, "key")
    if table_format == "parquet" and (rule.key or rule.partition_by):
        raise DefinitionError(
            "a table of Parquet files has no key and no partitions: use Delta",
            *("message", number, "key" if rule.key else "partition_by"),
        )


def _check_delete(rule: MessageRule, delete: DeleteRule, row_rule: MessageRule | None, number: int) -> None:
    check_choice(delete.when, DELETE_CONDITIONS, "message", number, "delete_when")
    if row_rule is None:
        raise DefinitionError(
            f"no other rule writes rows into the table '{rule.table}', so nothing can be deleted there",
            *("message", number, "table"),
        )
    if not row_rule.key:
        raise DefinitionError(
            f"only a table with a key loses rows: give the rule of '{rule.table}' a key",
            "message",
            number,
            "delete_when",
        )
    if delete.when == "empty" and row_rule.body_key:
        raise DefinitionError(
            f"a message without a body has no '{row_rule.body_key[0]}', only {' and '.join(KEY_ORIGIN)}",
            *("message", number, "delete_when"),
        )
    if delete.when == "field" and not (delete.path and delete.values):
        raise DefinitionError("the field and the value that delete a row are missing", "message", number, "delete_when")
    if delete.when != "field" and (delete.path or delete.values or delete.key):
        raise DefinitionError(
            "delete_key is for messages that a field tells: it and the value are missing",
            "message",
            number,
            "delete_when",
        )
    for name in delete.key:
        if name not in row_rule.body_key:
            raise DefinitionError(f"'{name}' is not a column of the key", "message", number, "delete_key")
    if delete.when == "always":
        _check_columns_of_delete(rule, row_rule, number)
    try:
        rule.delete_decoder(row_rule)
    except ValueError as problem:
        raise DefinitionError(str(problem), "message", number, "delete_when") from None


def _check_columns_of_delete(rule: MessageRule, row_rule: MessageRule, number: int) -> None:
    """Check a rule whose messages all delete: its columns are those of the key."""
    for name in ("partition_by", "rescue"):
        if getattr(rule, name):
            raise DefinitionError("a rule that only deletes has no rows: leave it out", "message", number, name)
    if rule.key not in ((), row_rule.key):
        raise DefinitionError(f"the key of the table is {', '.join(row_rule.key)}", "message", number, "key")
    kinds = {column.name: column.kind for column in row_rule.decoder().columns}
    columns = {column.name: column for column in rule.decoder().columns}
    for name in row_rule.body_key:
        if name not in columns or columns[name].is_optional:
            raise DefinitionError(f"the key needs a column '{name}' that is never null", "message", number, "columns")
        if columns[name].kind != kinds[name]:
            raise DefinitionError(
                f"'{name}' is {kinds[name]} in the rows of the table", "message", number, "columns", name
            )
    for column in rule.columns:
        if column.name not in row_rule.body_key:
            raise DefinitionError(
                f"a rule that only deletes may read only columns of its key, and '{column.name}' is none",
                *("message", number, "columns", column.name),
            )
