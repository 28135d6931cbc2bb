"""What RECEIVE makes of its messages: a result set, variables, or rows of a table variable.

The list of RECEIVE may hold any expression over the columns of the queue. Columns alone are taken as they are; an
expression is evaluated once for each message, with the columns as variables.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from dataclasses import replace
from datetime import UTC
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from servicebroker.model.messages import Message
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.interpreter.simple import Value
from servicebroker.tsql.relational import translate_expression
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Expression, Receive, ReceiveItem
from servicebroker.tsql.tokens import QUOTED, WORD, tokenize, unquoted
from servicebroker.tsql.types import SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_GUID, _BIG, _INT = SqlType("uniqueidentifier"), SqlType("bigint"), SqlType("int")
_NAME = SqlType("nvarchar", 256)
COLUMNS: dict[str, SqlType] = {
    "status": SqlType("tinyint"),
    "priority": SqlType("tinyint"),
    "queuing_order": _BIG,
    "conversation_group_id": _GUID,
    "conversation_handle": _GUID,
    "message_sequence_number": _BIG,
    "service_name": SqlType("nvarchar", 512),
    "service_id": _INT,
    "service_contract_name": _NAME,
    "service_contract_id": _INT,
    "message_type_name": _NAME,
    "message_type_id": _INT,
    "validation": SqlType("nchar", 2),
    "message_body": SqlType("varbinary", -1),
    "message_enqueue_time": SqlType("datetime"),
}
_ALL = tuple(ReceiveItem(Expression(name, 0)) for name in COLUMNS)
_PREFIX = "@receive$"  # no variable of a script is called so by chance
_VARIABLES = {_PREFIX + name: of for name, of in COLUMNS.items()}
_AGGREGATES = frozenset(
    {"COUNT", "SUM", "AVG", "MIN", "MAX", "COUNT_BIG", "STRING_AGG", "STDEV", "VAR", "CHECKSUM_AGG"}
)


def check_list(machine: Machine, statement: Receive) -> None:
    """What can be refused before a message is taken.

    Raises:
        TsqlError: 4142 an aggregate, 137 no such variable, 1087 no such table variable, 207 no such column.
    """
    check_items(statement, machine.queries.scope())
    for item in statement.items:
        if item.variable is not None:
            machine.frame.type_of(item.variable)
    if statement.into is not None:
        _target(machine, statement.into)


def check_items(statement: Receive, scope: Scope) -> None:
    """What can be refused before anybody looks at the queue: its columns are known. Raises as `check_list`."""
    _check_aggregates(statement.items)
    for item in _listed(statement):
        name, rewritten = _understood(item.value.text)
        if not name:
            translate_expression(rewritten, replace(scope, variables=ChainMap(_VARIABLES, dict(scope.variables))))


def cannot_fail(statement: Receive) -> bool:
    """Whether the list is of columns alone, which are shown as they are."""
    items = _listed(statement)
    return statement.into is None and all(item.variable is None and _understood(item.value.text)[0] for item in items)


def _listed(statement: Receive) -> tuple[ReceiveItem, ...]:
    """The list with the columns of the queue where * stands beside other entries."""
    return tuple(each for item in statement.items for each in (_ALL if item.value.text == "*" else (item,)))


def deliver(machine: Machine, statement: Receive, messages: list[Message]) -> None:
    """Give the messages to where the statement wants them."""
    items = _listed(statement)
    if items and items[0].variable is not None:
        _assign(machine, items, messages)
    else:
        names = tuple(COLUMNS) if not items else tuple(_title(item) for item in items)
        rows = [_row(machine, items, message) for message in messages]
        if statement.into is not None:
            _insert(machine, statement.into, names, rows)
        else:
            machine.say(ResultSet(names, [tuple(value.value for value in row) for row in rows]))
    machine.done(len(messages))


def _assign(machine: Machine, items: tuple[ReceiveItem, ...], messages: list[Message]) -> None:
    """Without a message the variables keep what they have; with several, the last one counts."""
    if not messages:
        return
    for item, value in zip(items, _row(machine, items, messages[-1]), strict=True):
        machine.frame.assign(item.variable or "", value.value, value.type)


def _row(machine: Machine, items: tuple[ReceiveItem, ...], message: Message) -> list[Value]:
    if not items:
        return [_column(message, name) for name in COLUMNS]
    found: list[Value] = []
    for item in items:
        name, rewritten = _understood(item.value.text)
        found.append(_column(message, name) if name else _evaluated(machine, rewritten, item, message))
    return found


def _column(message: Message, name: str) -> Value:
    value: Any = getattr(message, name)
    if name == "message_enqueue_time" and value is not None:
        value = convert(value.astimezone(UTC).replace(tzinfo=None), None, COLUMNS[name])  # to the millisecond
    return Value(value, COLUMNS[name])


def _evaluated(machine: Machine, text: str, item: ReceiveItem, message: Message) -> Value:
    frame = machine.frame
    names = [name for name in COLUMNS if _PREFIX + name in text]
    for name in names:
        frame.types[_PREFIX + name] = COLUMNS[name]
        frame.values[_PREFIX + name] = _column(message, name).value
    try:
        return evaluate(machine, Expression(text, item.value.line))
    finally:
        for name in names:
            del frame.types[_PREFIX + name], frame.values[_PREFIX + name]


@functools.lru_cache(maxsize=1024)
def _understood(text: str) -> tuple[str, str]:
    """The column that the text is, or the text with variables for its columns."""
    tokens = tokenize(text)
    pieces: list[str] = []
    end, at, columns = 0, 0, 0
    last = len(tokens.words) - 1
    while at < last:
        is_name = tokens.kinds[at] in (WORD, QUOTED)
        name = unquoted(tokens.text(at)).lower() if is_name else ""
        start = tokens.starts[at]
        if is_name and tokens.words[at + 1] == "." and at + 2 < last and name not in COLUMNS:
            second = unquoted(tokens.text(at + 2)).lower()  # queue.column
            if tokens.kinds[at + 2] in (WORD, QUOTED) and second in COLUMNS:
                name, at = second, at + 2
        if name in COLUMNS and tokens.words[at + 1] != "(":
            pieces += (text[end:start], _PREFIX + name)
            end = tokens.ends[at]
            columns += 1
            only = name
        at += 1
    rewritten = "".join(pieces) + text[end:]
    if columns == 1 and rewritten.strip() == _PREFIX + only:
        return only, rewritten
    return "", rewritten


def _title(item: ReceiveItem) -> str:
    if item.alias is not None:
        return item.alias
    name, _ = _understood(item.value.text)
    return unquoted(item.value.text.split(".")[-1].strip()) if name else ""


def _check_aggregates(items: tuple[ReceiveItem, ...]) -> None:
    for item in items:
        if _has_aggregate(item.value.text):
            raise TsqlError(4142, "Aggregates are not allowed in the RECEIVE list.", line=item.value.line)


@functools.lru_cache(maxsize=1024)
def _has_aggregate(text: str) -> bool:
    words = tokenize(text).words
    return any(word in _AGGREGATES and following == "(" for word, following in pairwise(words))


def _target(machine: Machine, table: str) -> Any:
    made = machine.frame.tables.get(table)
    if made is None:
        raise TsqlError(1087, f'Must declare the table variable "{table}".', severity=15)
    if table in machine.frame.lent:
        raise TsqlError(10700, f'The table-valued parameter "{table}" is READONLY and cannot be modified.')
    return made


def _insert(machine: Machine, table: str, names: tuple[str, ...], rows: list[list[Value]]) -> None:
    """INTO @table: its columns take those of the list in their order, converted.

    Raises:
        TsqlError: 1087 no such table variable, 213 another number of columns.
    """
    made = _target(machine, table)
    columns = machine.queries.columns.get(made, ())
    targets = [column for column in columns if not column.is_identity and not column.is_computed]
    if len(targets) != len(names):
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.")
    for row in rows:
        machine.queries.insert(made, targets, row)
