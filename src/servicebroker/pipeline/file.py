"""Reads the pipeline file: TOML, checked key by key. Every error names its line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.toml import parse_toml
from servicebroker.model.wording import cut
from servicebroker.pipeline.decoding import FORMATS, UTF_8, Column
from servicebroker.pipeline.decoding.coercion import EPOCHS
from servicebroker.pipeline.decoding.kinds import has_plain, parse_kind
from servicebroker.pipeline.definition import (
    BAD_BODY_ACTIONS,
    MAX_BODY_BYTES,
    TABLE_FORMATS,
    UNCONFIGURED_ACTIONS,
    DefinitionError,
    MessageRule,
    Pipeline,
    QueueRule,
    check_choice,
    check_table,
)
from servicebroker.pipeline.deletes import DeleteRule
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.schema_registry import checked_url
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, folder_at
from servicebroker.pipeline.variables import mask_values, substitute_variables
from servicebroker.store.connection import is_url

MAX_TRIGGER_S = 31 * 86_400
MAX_FIELD_BYTES = 2**30  # PostgreSQL's limit for a value
MAX_ERROR_CHARACTERS = 1_000  # an error may quote a value of any length

_SOURCE_OPTIONS = {
    "starting_offsets": "startingOffsets",
    "max_messages_per_trigger": "maxMessagesPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
    "min_messages_per_trigger": "minMessagesPerTrigger",
    "min_bytes_per_trigger": "minBytesPerTrigger",
    "max_trigger_delay": "maxTriggerDelay",
    "min_partitions": "minPartitions",
    "partitioning": "partitioning",
    "fail_on_data_loss": "failOnDataLoss",
    "ack": "ack",
    "end_of_stream": "endOfStream",
    "claim_timeout": "claimTimeout",
}


def read_pipeline(path: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Return the pipeline that a file describes. Paths in the file are relative to its folder.

    `environment`: the values for `${NAME}` in the file (`variables.py`).

    Raises:
        InstanceError: the file cannot be read, or does not describe a valid pipeline; the text names the line.
    """
    try:
        text = read_file(path).decode()
    except OSError as problem:
        raise InstanceError(f"The pipeline file '{path}' cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise InstanceError(f"The pipeline file '{path}' is not in UTF-8.") from None
    try:
        return parse_pipeline(text, path.resolve().parent, environment)
    except DefinitionError as problem:
        line = line_of(text, problem.position)
        raise InstanceError(
            f"{path}:{line}: {_path_prefix(problem.position)}{cut(mask_values(str(problem)), MAX_ERROR_CHARACTERS)}."
        ) from None
    except ValueError as problem:
        raise InstanceError(f"{path}: {cut(str(problem), MAX_ERROR_CHARACTERS)}.") from None


def parse_pipeline(text: str, folder: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Return the pipeline that a text describes. Paths in the text are relative to `folder`.

    `environment`: as for `read_pipeline`.

    Raises:
        ValueError: the text is not TOML.
        DefinitionError: the TOML is not a valid pipeline.
    """
    document = TomlTable(substitute_variables(parse_toml(text), environment))
    head = document.table("pipeline")
    pipeline: dict[str, Any] = {
        "name": head.text("name"),
        "warehouse": _folder(head, "warehouse", folder),
        "format": head.choice("format", TABLE_FORMATS),
        "catalog": head.text("catalog", ""),
        "namespace": head.text("namespace", ""),
        "checkpoints": _checkpoints(head, folder) if "checkpoints" in head.values else None,
        "bronze": head.table_name("bronze", "bronze", empty=True),
        "quarantine": head.table_name("quarantine", "quarantine"),
        "unconfigured": head.choice("unconfigured", UNCONFIGURED_ACTIONS),
        "trigger_seconds": head.number("trigger_seconds", 1.0, 0, MAX_TRIGGER_S),
    }
    head.done()
    queues = tuple(_queue(table, folder) for table in document.tables("queue"))
    messages = tuple(_message(table, folder) for table in document.tables("message"))
    document.done()
    return Pipeline(**pipeline, queues=queues, messages=messages)


def _folder(head: TomlTable, key: str, beside: Path) -> Folder:
    try:
        return folder_at(head.text(key), beside)
    except ValueError as problem:
        raise DefinitionError(str(problem), *head.position, key) from None


def _checkpoints(head: TomlTable, beside: Path) -> Folder:
    checkpoints = _folder(head, "checkpoints", beside)
    if isinstance(checkpoints, StoreFolder):
        raise DefinitionError(
            f"checkpoints need a local folder, and '{checkpoints}' is none", *head.position, "checkpoints"
        )
    return checkpoints


def _queue(table: TomlTable, folder: Path) -> QueueRule:
    instance = table.text("instance")
    try:
        location = instance if is_url(instance) else str(folder / instance)
    except InstanceError as problem:
        raise DefinitionError(str(problem).rstrip("."), *table.position, "instance") from None
    options = {option: table.plain(key) for key, option in _SOURCE_OPTIONS.items() if key in table.values}
    rule = QueueRule(
        location,
        table.text("database"),
        table.text("queue"),
        table.text("name", ""),
        options,
    )
    table.done()
    try:
        source_options(rule.source_options())
    except InstanceError as problem:
        wrong_key = next((key for key, option in _SOURCE_OPTIONS.items() if f"'{option}'" in str(problem)), "")
        raise DefinitionError(str(problem).rstrip("."), *table.position, *filter(None, [wrong_key])) from None
    return rule


def _message(table: TomlTable, folder: Path) -> MessageRule:
    columns = table.table("columns", {})
    schema = table.text("schema", "")
    rule = MessageRule(
        table.text("type"),
        table.choice("format", FORMATS, needed=True),
        table.table_name("table", ""),
        tuple(_column(name, columns) for name in columns.values),
        tuple(table.texts("partition_by")),
        tuple(table.texts("key")),
        table.choice("when_bad", BAD_BODY_ACTIONS),
        table.choice("extra_fields", ("ignore", "refuse")) == "refuse",
        table.text("encoding", UTF_8),
        _content(folder / schema, table) if schema else None,
        table.text("message", ""),
        int(table.number("maximum_body", MAX_BODY_BYTES, 1, MAX_FIELD_BYTES)),
        _registry(table),
        table.count("maximum_quarantined"),
        table.text("rescue", ""),
        _delete(table),
    )
    table.done()
    return rule


def _delete(table: TomlTable) -> DeleteRule | None:
    """Return the messages of a rule that delete, by `delete_when` and `delete_key`; None for none."""
    key = table.table("delete_key", {})
    sources = {name: key.text(name) for name in key.values}
    value = table.values.get("delete_when", "")
    if isinstance(value, dict):
        condition = table.table("delete_when")
        path = tuple(condition.texts("field")) if isinstance(value.get("field"), list) else condition.text("field")
        rule = DeleteRule("field", path, condition.scalars("value"), sources)
        condition.done()
        return rule
    when = table.text("delete_when", "")
    if not when and sources:
        raise DefinitionError("delete_key needs delete_when", *key.position)
    if not when:
        return None
    check_choice(when, ("always", "empty"), *table.position, "delete_when")
    return DeleteRule(when, key=sources)


def _registry(table: TomlTable) -> str:
    """Return the URL of a rule's registry; "" without one. `registry = true` reads it from the environment."""
    if not isinstance(table.values.get("registry"), str) and not table.flag("registry"):
        return ""
    try:
        return checked_url("" if table.values["registry"] is True else table.text("registry"))
    except ValueError as problem:
        raise DefinitionError(str(problem), *table.position, "registry") from None


def _column(name: str, table: TomlTable) -> Column:
    """Return the column of `name = "type"`, or of `name = { type, from, optional, round, coerce, epoch }`.

    A "?" after the type makes the column optional.
    """
    value = table.values[name]
    source: str | tuple[str, ...] = ""
    optional = should_round = should_coerce = False
    epoch = ""
    if isinstance(value, dict):
        column_table = table.table(name)
        kind, optional, should_round = (
            column_table.text("type"),
            column_table.flag("optional"),
            column_table.flag("round"),
        )
        should_coerce, epoch = column_table.flag("coerce"), column_table.choice("epoch", ("", *EPOCHS))
        source = (
            tuple(column_table.texts("from")) if isinstance(value.get("from"), list) else column_table.text("from", "")
        )
        column_table.done()
    else:
        kind = table.text(name)
    kind, optional = kind.removesuffix("?"), optional or kind.endswith("?")
    try:
        parsed_kind = parse_kind(kind)
    except ValueError as problem:
        raise DefinitionError(str(problem), *table.position, name) from None
    if should_round and not has_plain(parsed_kind, lambda plain: plain == "timestamp" or plain.startswith("decimal")):
        raise DefinitionError(f"only decimal and timestamp can be rounded, not {kind}", *table.position, name)
    if epoch and not has_plain(parsed_kind, lambda plain: plain == "timestamp"):
        raise DefinitionError(f"only a timestamp has an epoch, not {kind}", *table.position, name)
    return Column(name, kind, optional, source, should_round, should_coerce, epoch)


def _content(path: Path, table: TomlTable) -> bytes:
    try:
        return read_file(path)
    except (OSError, ValueError) as problem:  # ValueError: the string is not a path
        cause = getattr(problem, "strerror", None) or problem
        raise DefinitionError(f"'{path}' cannot be read: {cause}", *table.position, "schema") from None


class TomlTable:
    """A table of the file. It records which keys were read, so that `done` can refuse the others."""

    def __init__(self, values: Mapping[str, Any], *position: str | int) -> None:
        self.values = values
        self.position = position
        self.used: set[str] = set()

    def done(self) -> None:
        """Refuse keys that were not read.

        Raises:
            DefinitionError: there is such a key.
        """
        for key in self.values:
            if key not in self.used:
                known = ", ".join(sorted(self.used))
                raise DefinitionError(f"there is no key '{key}'; there are {known}", *self.position, key)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string. It may be empty only if there is a default."""
        value = self._value(key, str, "a text", default)
        if not value.strip() and default is None:
            raise DefinitionError(f"'{key}' is empty", *self.position, key)
        return str(value)

    def plain(self, key: str) -> str:
        """Return a string, number or boolean as the string of a Spark option."""
        self.used.add(key)
        value = self.values[key]
        return str(value).lower() if isinstance(value, bool) else str(value)

    def texts(self, key: str) -> list[str]:
        """Return a list of strings. A single string is a list of one; a missing key gives an empty list."""
        value = self._value(key, (str, list), "a list of strings", [])
        values = [value] if isinstance(value, str) else value
        if not all(isinstance(item, str) for item in values):
            raise DefinitionError(f"'{key}' must be a list of strings", *self.position, key)
        return list(values)

    def scalars(self, key: str) -> tuple[str, ...]:
        """Return a string, integer or boolean, or each of a list of them, as text in the spelling of JSON."""
        value = self._value(key, (str, int, list), "a text, a whole number, true or false, or a list of them", None)
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int) for item in values):
            raise DefinitionError(
                f"'{key}' must be a list of strings, whole numbers, true or false", *self.position, key
            )
        return tuple(item if isinstance(item, str) else json.dumps(item) for item in values)

    def number(self, key: str, default: float, lowest: float, highest: int) -> float:
        """Return a number from `lowest` to `highest`."""
        value = self._value(key, (int, float), "a number", default)
        if isinstance(value, bool) or not lowest <= value <= highest:
            raise DefinitionError(f"'{key}' must be a number from {lowest:g} to {highest:,}", *self.position, key)
        return float(value)

    def count(self, key: str) -> int | None:
        """Return an integer of at least 0; None for a missing key."""
        if key not in self.values:
            self.used.add(key)
            return None
        value = self._value(key, int, "a whole number", 0)
        if isinstance(value, bool) or value < 0:
            raise DefinitionError(f"'{key}' must be a whole number from 0 on", *self.position, key)
        return int(value)

    def flag(self, key: str) -> bool:
        """Return true or false; false for a missing key."""
        return bool(self._value(key, bool, "true or false", False))

    def choice(self, key: str, choices: tuple[str, ...], *, needed: bool = False) -> str:
        """Return one of `choices`. The first one is the default, unless the key is `needed`."""
        value = self.text(key, None if needed else choices[0])
        check_choice(value, choices, *self.position, key)
        return value

    def table_name(self, key: str, default: str, *, empty: bool = False) -> str:
        """Return the name of a table, which is also the name of its folder. `empty`: "" is allowed."""
        value = self.text(key, default or None)
        if value or not empty:
            check_table(value, *self.position, key)
        return value

    def table(self, key: str, default: Mapping[str, Any] | None = None) -> TomlTable:
        """Return an inner table."""
        return TomlTable(self._value(key, dict, "a table", default), *self.position, key)

    def tables(self, key: str) -> list[TomlTable]:
        """Return a list of tables, empty for a missing key."""
        values = self._value(key, list, f"a list of tables, [[{key}]]", [])
        if not all(isinstance(inner, dict) for inner in values):
            raise DefinitionError(f"'{key}' must be a list of tables, [[{key}]]", *self.position, key)
        return [TomlTable(inner, *self.position, key, number) for number, inner in enumerate(values)]

    def _value(self, key: str, kinds: Any, expected: str, default: Any) -> Any:
        self.used.add(key)
        if key not in self.values:
            if default is None:
                raise DefinitionError(f"'{key}' is missing", *self.position)
            return default
        value = self.values[key]
        if not isinstance(value, kinds):
            raise DefinitionError(f"'{key}' must be {expected}", *self.position, key)
        return value


def line_of(text: str, position: tuple[str | int, ...]) -> int:
    """Return the number (from 1) of the line that defines a position in a TOML document.

    If no line defines it, return the line of the nearest enclosing position.
    """
    best_line = 1
    counts: dict[str, int] = {}
    header_position: tuple[str | int, ...] = ()
    best_depth = -1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            names = [name.strip().strip("\"'") for name in header[2].split(".")]
            if header[1] == "[[":
                counts[names[0]] = counts.get(names[0], -1) + 1
            header_position = (names[0], *([counts[names[0]]] if names[0] in counts else []), *names[1:])
            line_position = header_position
        else:
            key = re.match(r"\s*(\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*(?:=|\.)", line)
            if not key:
                continue
            line_position = (*header_position, key[1].strip("\"'"))
        if line_position == position[: len(line_position)] and len(line_position) > best_depth:
            best_line, best_depth = number, len(line_position)
    return best_line


def _path_prefix(position: tuple[str | int, ...]) -> str:
    """Return the keys that lead to a position, as a prefix for an error: "message 2 columns: "."""
    parts = [f"{part + 1}" if isinstance(part, int) else part for part in position[:-1]]
    return f"{' '.join(parts)}: " if parts else ""
