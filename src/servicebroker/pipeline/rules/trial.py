"""Tests rules with example messages: decodes each message, and compares the result with the expected one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.toml import parse_toml
from servicebroker.overriding import override
from servicebroker.pipeline.decoding import Column, Undecodable
from servicebroker.pipeline.decoding.columns import convert, convert_column
from servicebroker.pipeline.decoding.json_number import JsonNumber
from servicebroker.pipeline.definition import ORIGIN, DefinitionError, Pipeline, StopError
from servicebroker.pipeline.file import TomlTable, line_of
from servicebroker.pipeline.sorting import MESSAGE, Sorter, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # enqueue time of example messages
_ORIGIN_NAMES = frozenset(column.name for column in ORIGIN)


def _row_text(row: Any) -> str:
    """Return a row, or one of its values, as JSON."""
    return json.dumps(row, default=_json_text, ensure_ascii=False)


def _json_text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


class Trial(NamedTuple):
    """The result of decoding a message.

    Attributes:
        table: the rule's table, if it gets or loses a row; otherwise "".
        row: the values of the rule's columns; None without a row.
        deleted: the key of the row to delete; None if the message deletes nothing.
        reason, detail: reason and detail in quarantine; "" if the message is readable.
        stops: the message is unreadable, and its rule says "stop". `detail` has the error.
    """

    table: str = ""
    row: dict[str, Any] | None = None
    reason: str = ""
    detail: str = ""
    stops: bool = False
    deleted: dict[str, Any] | None = None

    @override
    def __str__(self) -> str:
        if self.stops:
            return f"stops the queue: {self.detail}"
        if self.reason:
            return f"quarantine: {self.reason}: {self.detail}"
        if self.deleted is not None:
            return f"{self.table}: deletes {_row_text(self.deleted)}"
        return f"{self.table}: {_row_text(self.row)}" if self.row is not None else "no table of a rule"

    def to_json(self) -> dict[str, Any]:
        """Return the trial as values of JSON. Decimals and times become strings, and bytes become Base64."""
        row = None if self.row is None else json.loads(_row_text(self.row))
        deleted = None if self.deleted is None else json.loads(_row_text(self.deleted))
        return {**self._asdict(), "row": row, "deleted": deleted}


@dataclass(frozen=True)
class Example:
    """An example message, with the expected result.

    Attributes:
        index: index of the example in its file, from 0.
        row: expected values of some columns; None if no row is expected.
        delete: expected values of some key columns of the row to delete; None if no delete is expected.
        quarantine: string that "reason: detail" must contain; None if the message must be readable.
    """

    index: int
    name: str
    message_type: str
    body: bytes
    row: Mapping[str, Any] | None = None
    quarantine: str | None = None
    delete: Mapping[str, Any] | None = None

    @property
    def has_expectation(self) -> bool:
        """True if the example has an expected result."""
        return any(expected is not None for expected in (self.row, self.quarantine, self.delete))


def try_message(pipeline: Pipeline, message_type: str, body: bytes | str | Mapping[str, Any] | list[Any]) -> Trial:
    """Decode a message with the rules of a pipeline. A mapping or a list is encoded as JSON.

    Nothing is started or connected to, except the schema registry of a rule.
    """
    if isinstance(body, Mapping | list):
        body = json.dumps(body)
    content = body.encode() if isinstance(body, str) else body
    try:
        sorted_rows = Sorter(pipeline, pipeline.queues[0]).sort(_batch(message_type, content), _TIME)
    except StopError as problem:
        return Trial(detail=str(problem), stops=True)
    if pipeline.quarantine in sorted_rows.tables:
        (quarantined,) = sorted_rows.tables[pipeline.quarantine].to_pylist()
        return Trial(reason=quarantined["reason"], detail=quarantined["detail"])
    rule = pipeline.rule(message_type)
    if rule is None:
        return Trial()
    if rule.table in sorted_rows.tables:
        return Trial(rule.table, _values(sorted_rows.tables[rule.table], _ORIGIN_NAMES))
    tombstones = sorted_rows.tables[pipeline.tombstones(rule.table)]
    row_rule = pipeline.row_rule(rule.table)
    assert row_rule is not None
    return Trial(rule.table, deleted=_values(tombstones, _ORIGIN_NAMES - {*row_rule.key}))


def _values(rows: pa.Table, hidden: frozenset[str]) -> dict[str, Any]:
    """Return the values of the only row, without the columns `hidden`."""
    (row,) = rows.to_pylist()
    return {name: value for name, value in row.items() if name not in hidden}


def _batch(message_type: str, body: bytes) -> pa.Table:
    import pyarrow as pa

    values = {
        "message_type_name": message_type,
        "conversation_handle": "00000000-0000-0000-0000-000000000000",
        "message_sequence_number": 0,
        "queuing_order": 1,
        "message_body": body,
        "message_enqueue_time": _TIME,
    }
    return pa.Table.from_pylist([values], schema=arrow_schema(MESSAGE))


def read_examples(path: Path) -> list[Example]:
    """Return the examples of a TOML file: `[[example]]` with type, body or file, and row, delete or quarantine.

    Raises:
        InstanceError: the file cannot be read, or an example is invalid; the text names the line.
    """
    try:
        text = read_file(path).decode()
        document = TomlTable(parse_toml(text))
        examples = [_example(number, table, path.parent) for number, table in enumerate(document.tables("example"))]
        document.done()
    except DefinitionError as problem:
        raise InstanceError(f"{path}:{line_of(text, problem.position)}: {problem}.") from None
    except OSError as problem:
        raise InstanceError(f"The file '{path}' cannot be read: {problem.strerror}.") from None
    except ValueError as problem:
        raise InstanceError(f"{path}: {problem}.") from None
    return examples


def _example(number: int, table: TomlTable, folder: Path) -> Example:
    if ("body" in table.values) == ("file" in table.values):
        raise DefinitionError("an example needs either body or file", *table.position)
    body = table.text("body", "").encode()
    if "file" in table.values:
        try:
            body = read_file(folder / table.text("file"))
        except OSError as problem:
            raise DefinitionError(f"the file cannot be read: {problem.strerror}", *table.position, "file") from None
    example = Example(
        number,
        table.text("name", f"example {number + 1}"),
        table.text("type"),
        body,
        table.table("row").values if "row" in table.values else None,
        table.text("quarantine") if "quarantine" in table.values else None,
        table.table("delete").values if "delete" in table.values else None,
    )
    if sum(expected is not None for expected in (example.row, example.quarantine, example.delete)) > 1:
        raise DefinitionError("a message gets a row, deletes one, or goes to quarantine, not both", *table.position)
    table.done()
    return example


def find_differences(pipeline: Pipeline, example: Example, trial: Trial) -> Iterator[str]:
    """Yield a predicate, such as "has no row", for each difference between a trial and its example."""
    if example.quarantine is not None:
        if not trial.reason:
            yield f"is not in quarantine ({trial})"
        elif example.quarantine not in f"{trial.reason}: {trial.detail}":
            yield f"is in quarantine for another reason than '{example.quarantine}' ({trial.reason}: {trial.detail})"
    expected, values = (example.row, trial.row) if example.delete is None else (example.delete, trial.deleted)
    if expected is None:
        return
    if values is None:
        yield f"{'has no row' if example.delete is None else 'deletes nothing'} ({trial})"
        return
    rule = pipeline.rule(example.message_type)
    columns = {column.name: column for column in (*rule.decoder().columns, *ORIGIN)} if rule else {}
    for name, wanted in expected.items():
        if name not in columns or name not in values:
            yield f"cannot have '{name}': there is no such column"
            continue
        try:
            value = _expected(columns[name], wanted)
        except Undecodable as problem:
            yield f"cannot have this value: {problem.detail}"
            continue
        if value != values[name]:
            yield f"has {name} = {_row_text(values[name])}, not {_row_text(value)}"


def _expected(column: Column, value: Any) -> Any:
    """Convert a TOML value to the type of the column. In a column that is not a string, "" stands for NULL."""
    if value == "" and column.kind != "string":
        return None
    lenient = Column(column.name, column.kind, column.is_optional, rounds=column.rounds, coerces=True)
    return convert_column(lenient, _exact(value), convert)


def _exact(value: Any) -> Any:
    """Replace the floats in a TOML value by the shortest decimal numbers that Python prints for them."""
    if isinstance(value, float):
        return JsonNumber(repr(value))
    if isinstance(value, dict):
        return {key: _exact(inner) for key, inner in value.items()}
    return [_exact(item) for item in value] if isinstance(value, list) else value
