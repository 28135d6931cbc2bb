"""The pipeline file: TOML, checked key by key; what is wrong is said with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.toml import parse_toml
from servicebroker.pipeline.decoding import FORMATS, UTF_8, Column
from servicebroker.pipeline.decoding.columns import check_kind, digits
from servicebroker.pipeline.definition import (
    MAXIMUM_BODY,
    TABLE_FORMATS,
    TABLE_NAME,
    UNCONFIGURED,
    WHEN_BAD,
    DefinitionError,
    MessageRule,
    Pipeline,
    QueueRule,
)
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.schema_registry import checked_url
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, folder_at
from servicebroker.store.connection import is_url

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


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline that a file describes. Paths in it are relative to its folder.

    Raises:
        InstanceError: the file cannot be read, or is no such description; with its line.
    """
    try:
        text = read_file(path).decode()
    except OSError as problem:
        raise InstanceError(f"The pipeline file '{path}' cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise InstanceError(f"The pipeline file '{path}' is not in UTF-8.") from None
    try:
        return parse_pipeline(text, path.resolve().parent)
    except DefinitionError as problem:
        line = line_of(text, problem.place)
        raise InstanceError(f"{path}:{line}: {_way(problem.place)}{problem}.") from None
    except ValueError as problem:
        raise InstanceError(f"{path}: {problem}.") from None


def parse_pipeline(text: str, folder: Path) -> Pipeline:
    """The pipeline that a text describes, with paths relative to `folder`.

    Raises:
        ValueError: it is no TOML.
        DefinitionError: it describes no pipeline.
    """
    document = Table(parse_toml(text))
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
        "unconfigured": head.choice("unconfigured", UNCONFIGURED),
        "trigger_seconds": head.number("trigger_seconds", 1.0, 0),
    }
    head.done()
    queues = tuple(_queue(table, folder) for table in document.tables("queue"))
    messages = tuple(_message(table, folder) for table in document.tables("message"))
    document.done()
    return Pipeline(**pipeline, queues=queues, messages=messages)


def _folder(head: Table, key: str, beside: Path) -> Folder:
    try:
        return folder_at(head.text(key), beside)
    except ValueError as problem:
        raise DefinitionError(str(problem), *head.place, key) from None


def _checkpoints(head: Table, beside: Path) -> Folder:
    found = _folder(head, "checkpoints", beside)
    if isinstance(found, StoreFolder):
        raise DefinitionError(f"checkpoints need a local folder, and '{found}' is none", *head.place, "checkpoints")
    return found


def _queue(table: Table, folder: Path) -> QueueRule:
    instance = table.text("instance")
    try:
        place = instance if is_url(instance) else str(folder / instance)
    except InstanceError as problem:
        raise DefinitionError(str(problem).rstrip("."), *table.place, "instance") from None
    options = {ours: table.plain(name) for name, ours in _SOURCE_OPTIONS.items() if name in table.values}
    rule = QueueRule(
        place,
        table.text("database"),
        table.text("queue"),
        table.text("name", ""),
        options,
    )
    table.done()
    try:
        source_options(rule.source_options())
    except InstanceError as problem:
        wrong = next((name for name, ours in _SOURCE_OPTIONS.items() if f"'{ours}'" in str(problem)), "")
        raise DefinitionError(str(problem).rstrip("."), *table.place, *filter(None, [wrong])) from None
    return rule


def _message(table: Table, folder: Path) -> MessageRule:
    columns = table.table("columns", {})
    schema = table.text("schema", "")
    rule = MessageRule(
        table.text("type"),
        table.choice("format", FORMATS, needed=True),
        table.table_name("table", ""),
        tuple(_column(name, columns) for name in columns.values),
        tuple(table.texts("partition_by")),
        tuple(table.texts("key")),
        table.choice("when_bad", WHEN_BAD),
        table.choice("extra_fields", ("ignore", "refuse")) == "refuse",
        table.text("encoding", UTF_8),
        _content(folder / schema, table) if schema else None,
        table.text("message", ""),
        int(table.number("maximum_body", MAXIMUM_BODY, 1)),
        _registry(table),
        table.count("maximum_quarantined"),
    )
    table.done()
    return rule


def _registry(table: Table) -> str:
    """`registry = true` for the one of the environment, or a URL; "" when it is not there."""
    if not isinstance(table.values.get("registry"), str) and not table.flag("registry"):
        return ""
    try:
        return checked_url("" if table.values["registry"] is True else table.text("registry"))
    except ValueError as problem:
        raise DefinitionError(str(problem), *table.place, "registry") from None


def _column(name: str, table: Table) -> Column:
    """`name = "type"`, with a ? behind the type of what may be missing, or a table: type, from, optional, round."""
    given = table.values[name]
    source: str | tuple[str, ...] = ""
    optional = rounds = False
    if isinstance(given, dict):
        inner = table.table(name)
        kind, optional, rounds = inner.text("type"), inner.flag("optional"), inner.flag("round")
        source = tuple(inner.texts("from")) if isinstance(given.get("from"), list) else inner.text("from", "")
        inner.done()
    else:
        kind = table.text(name)
    kind, optional = kind.removesuffix("?"), optional or kind.endswith("?")
    try:
        check_kind(kind)
    except ValueError as problem:
        raise DefinitionError(str(problem), *table.place, name) from None
    if rounds and kind != "timestamp" and digits(kind) is None:
        raise DefinitionError(f"only decimal and timestamp can be rounded, not {kind}", *table.place, name)
    return Column(name, kind, optional, source, rounds)


def _content(path: Path, table: Table) -> bytes:
    try:
        return read_file(path)
    except (OSError, ValueError) as problem:  # ValueError: it is no path at all
        why = getattr(problem, "strerror", None) or problem
        raise DefinitionError(f"'{path}' cannot be read: {why}", *table.place, "schema") from None


class Table:
    """A table of the file that notes which keys were asked for: `done` refuses the others."""

    def __init__(self, values: Mapping[str, Any], *place: str | int) -> None:
        self.values = values
        self.place = place
        self.used: set[str] = set()

    def done(self) -> None:
        """Refuse what nobody has asked for."""
        for key in self.values:
            if key not in self.used:
                known = ", ".join(sorted(self.used))
                raise DefinitionError(f"there is no key '{key}'; there are {known}", *self.place, key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text, not empty unless that is the default."""
        value = self._value(key, str, "a text", default)
        if not value.strip() and default is None:
            raise DefinitionError(f"'{key}' is empty", *self.place, key)
        return str(value)

    def plain(self, key: str) -> str:
        """A text, number or switch, as an option of Spark."""
        self.used.add(key)
        value = self.values[key]
        return str(value).lower() if isinstance(value, bool) else str(value)

    def texts(self, key: str) -> list[str]:
        """A list of texts, empty when it is not there; one text stands for a list of it."""
        value = self._value(key, (str, list), "a list of texts", [])
        values = [value] if isinstance(value, str) else value
        if not all(isinstance(one, str) for one in values):
            raise DefinitionError(f"'{key}' must be a list of texts", *self.place, key)
        return list(values)

    def number(self, key: str, default: float, lowest: float) -> float:
        """A number that is not below `lowest`."""
        value = self._value(key, (int, float), "a number", default)
        if isinstance(value, bool) or not lowest <= value < math.inf:
            raise DefinitionError(f"'{key}' must be a number from {lowest:g} on", *self.place, key)
        return float(value)

    def count(self, key: str) -> int | None:
        """A whole number from 0 on; None when it is not there."""
        if key not in self.values:
            self.used.add(key)
            return None
        value = self._value(key, int, "a whole number", 0)
        if isinstance(value, bool) or value < 0:
            raise DefinitionError(f"'{key}' must be a whole number from 0 on", *self.place, key)
        return int(value)

    def flag(self, key: str) -> bool:
        """true or false; false when it is not there."""
        return bool(self._value(key, bool, "true or false", False))

    def choice(self, key: str, choices: tuple[str, ...], *, needed: bool = False) -> str:
        """One of several texts; the first of them when it is not there, unless it is `needed`."""
        value = self.text(key, None if needed else choices[0])
        if value not in choices:
            raise DefinitionError(f"'{key}' must be one of {', '.join(choices)}, not '{value}'", *self.place, key)
        return value

    def table_name(self, key: str, default: str, *, empty: bool = False) -> str:
        """The name of a table, which is that of a folder too."""
        value = self.text(key, default or None)
        if not (empty and not value) and not TABLE_NAME.fullmatch(value):
            raise DefinitionError(
                f"'{value}' is no name of a table: letters, digits, _ and - make one", *self.place, key
            )
        return value

    def table(self, key: str, default: Mapping[str, Any] | None = None) -> Table:
        """An inner table."""
        return Table(self._value(key, dict, "a table", default), *self.place, key)

    def tables(self, key: str) -> list[Table]:
        """A list of tables, empty when it is not there."""
        found = self._value(key, list, f"a list of tables, [[{key}]]", [])
        if not all(isinstance(one, dict) for one in found):
            raise DefinitionError(f"'{key}' must be a list of tables, [[{key}]]", *self.place, key)
        return [Table(one, *self.place, key, number) for number, one in enumerate(found)]

    def _value(self, key: str, kinds: Any, expected: str, default: Any) -> Any:
        self.used.add(key)
        if key not in self.values:
            if default is None:
                raise DefinitionError(f"'{key}' is missing", *self.place)
            return default
        value = self.values[key]
        if not isinstance(value, kinds):
            raise DefinitionError(f"'{key}' must be {expected}", *self.place, key)
        return value


def line_of(text: str, place: tuple[str | int, ...]) -> int:
    """The line, from 1, where a place of a TOML text is defined; of what stands around it when it is not there."""
    found = 1
    counts: dict[str, int] = {}
    where: tuple[str | int, ...] = ()
    best = -1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            names = [name.strip().strip("\"'") for name in header[2].split(".")]
            if header[1] == "[[":
                counts[names[0]] = counts.get(names[0], -1) + 1
            where = (names[0], *([counts[names[0]]] if names[0] in counts else []), *names[1:])
            here = where
        else:
            key = re.match(r"\s*(\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*(?:=|\.)", line)
            if not key:
                continue
            here = (*where, key[1].strip("\"'"))
        if here == place[: len(here)] and len(here) > best:
            found, best = number, len(here)
    return found


def _way(place: tuple[str | int, ...]) -> str:
    """The keys that lead to a place, for people: [[message]] 2, columns."""
    parts = [f"{part + 1}" if isinstance(part, int) else part for part in place[:-1]]
    return f"{' '.join(parts)}: " if parts else ""
