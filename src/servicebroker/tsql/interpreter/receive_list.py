"""The select list of a RECEIVE: turns messages into a result set, variables, or rows of a table variable.

An item may be any expression over the columns of the queue. A plain column is copied from the message. An expression is
evaluated once for each message, with the columns as variables.
"""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from dataclasses import replace
from datetime import UTC
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.messages import Message
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Expression, Receive, ReceiveItem
from servicebroker.tsql.tokens import QUOTED, WORD, tokenize, unquote
from servicebroker.tsql.translator import translate_expression
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
_ALL_COLUMNS = tuple(ReceiveItem(Expression(name, 0)) for name in COLUMNS)
_VARIABLE_PREFIX = "@receive$"  # cannot be the name of a script's variable
_COLUMN_VARIABLES = {_VARIABLE_PREFIX + name: type_ for name, type_ in COLUMNS.items()}
_OUTER_PARENTHESES = re.compile(r"\s*(?:\(\s*)*=(?:\s*\))*\s*")  # around a column, for which = was substituted
_AGGREGATES = frozenset(
    {"COUNT", "SUM", "AVG", "MIN", "MAX", "COUNT_BIG", "STRING_AGG", "STDEV", "VAR", "CHECKSUM_AGG"}
)


def check_receive_list(machine: Machine, statement: Receive) -> None:
    """Check the list before a message is received.

    Raises:
        TsqlError: 4142 an aggregate, 137 no such variable, 1087 no such table variable, 207 no such column.
    """
    check_item_expressions(statement, machine.queries.scope())
    for item in statement.items:
        if item.variable is not None:
            machine.frame.type_of(item.variable)
    if statement.into is not None:
        _find_table_variable(machine, statement.into)


def check_item_expressions(statement: Receive, scope: Scope) -> None:
    """Check the expressions of the list, without the queue. Raises as `check_receive_list`."""
    _check_aggregates(statement.items)
    for item in _expand_items(statement):
        parsed = _parse_item(item.value.text)
        if not parsed.column:
            translate_expression(
                parsed.text, replace(scope, variables=ChainMap(_COLUMN_VARIABLES, dict(scope.variables)))
            )


def has_only_columns(statement: Receive) -> bool:
    """Return True if the list has plain columns for a result set only, so that delivering the messages cannot fail."""
    items = _expand_items(statement)
    return statement.into is None and all(
        item.variable is None and _parse_item(item.value.text).column for item in items
    )


def _expand_items(statement: Receive) -> tuple[ReceiveItem, ...]:
    """Return the list with * replaced by all columns of the queue."""
    return tuple(
        expanded for item in statement.items for expanded in (_ALL_COLUMNS if item.value.text == "*" else (item,))
    )


def deliver(machine: Machine, statement: Receive, messages: list[Message]) -> None:
    """Deliver the messages as result set, variables, or rows of a table variable."""
    items = _expand_items(statement)
    if items and items[0].variable is not None:
        _assign_variables(machine, items, messages)
    else:
        names = tuple(COLUMNS) if not items else tuple(_column_title(item) for item in items)
        rows = [_evaluate_row(machine, items, message) for message in messages]
        if statement.into is not None:
            _insert_rows(machine, statement.into, names, rows)
        else:
            types = tuple(value.type for value in rows[0]) if rows else _item_types(items, machine.queries.scope())
            machine.emit(ResultSet(names, [tuple(value.value for value in row) for row in rows], types))
    machine.record_success(len(messages))


def _item_types(items: tuple[ReceiveItem, ...], scope: Scope) -> tuple[SqlType | None, ...]:
    """Return the types of the list without a message."""
    if not items:
        return tuple(COLUMNS.values())
    scope = replace(scope, variables=ChainMap(_COLUMN_VARIABLES, dict(scope.variables)))
    types: list[SqlType | None] = []
    for item in items:
        parsed = _parse_item(item.value.text)
        known = None if parsed.column else translate_expression(parsed.text, scope).types
        types.append(COLUMNS[parsed.column] if parsed.column else known[0] if known else None)
    return tuple(types)


def _assign_variables(machine: Machine, items: tuple[ReceiveItem, ...], messages: list[Message]) -> None:
    """Assign the values of the last message. Without a message the variables keep their values."""
    if not messages:
        return
    for item, value in zip(items, _evaluate_row(machine, items, messages[-1]), strict=True):
        machine.frame.assign(item.variable or "", value.value, value.type)


def _evaluate_row(machine: Machine, items: tuple[ReceiveItem, ...], message: Message) -> list[Value]:
    """Return the values of the list for one message."""
    if not items:
        return [_column_value(message, name) for name in COLUMNS]
    values: list[Value] = []
    for item in items:
        parsed = _parse_item(item.value.text)
        if parsed.column:
            values.append(_column_value(message, parsed.column))
        else:
            values.append(_evaluate_item(machine, parsed.text, item, message))
    return values


def _column_value(message: Message, name: str) -> Value:
    """Return a column of a message, the enqueue time as a datetime."""
    value: Any = getattr(message, name)
    if name == "message_enqueue_time" and value is not None:
        value = convert(value.astimezone(UTC).replace(tzinfo=None), None, COLUMNS[name])  # to the millisecond
    return Value(value, COLUMNS[name])


def _evaluate_item(machine: Machine, text: str, item: ReceiveItem, message: Message) -> Value:
    """Evaluate an expression of the list for one message, with its columns as variables of the frame."""
    frame = machine.frame
    names = [name for name in COLUMNS if _VARIABLE_PREFIX + name in text]
    for name in names:
        frame.types[_VARIABLE_PREFIX + name] = COLUMNS[name]
        frame.values[_VARIABLE_PREFIX + name] = _column_value(message, name).value
    try:
        return evaluate(machine, Expression(text, item.value.line))
    finally:
        for name in names:
            del frame.types[_VARIABLE_PREFIX + name], frame.values[_VARIABLE_PREFIX + name]


class _ParsedItem(NamedTuple):
    """A parsed item of the list.

    Attributes:
        column: the column, also in parentheses; "" for another expression.
        text: the item with variables in place of columns.
        title: the name of the column as written.
    """

    column: str
    text: str
    title: str = ""


@functools.lru_cache(maxsize=1024)
def _parse_item(text: str) -> _ParsedItem:
    """Parse an item of the list."""
    tokens = tokenize(text)
    pieces: list[str] = []
    end, index, column_count = 0, 0, 0
    last_index = len(tokens.words) - 1
    while index < last_index:
        is_name = tokens.kinds[index] in (WORD, QUOTED)
        name = unquote(tokens.text(index)).lower() if is_name else ""
        start = tokens.starts[index]
        if is_name and tokens.words[index + 1] == "." and index + 2 < last_index and name not in COLUMNS:
            second = unquote(tokens.text(index + 2)).lower()  # queue.column
            if tokens.kinds[index + 2] in (WORD, QUOTED) and second in COLUMNS:
                name, index = second, index + 2
        if name in COLUMNS and tokens.words[index + 1] != "(":
            pieces += (text[end:start], _VARIABLE_PREFIX + name)
            end = tokens.ends[index]
            column_count += 1
            column, title = name, unquote(tokens.text(index))
        index += 1
    rewritten = "".join(pieces) + text[end:]
    if column_count == 1 and _OUTER_PARENTHESES.fullmatch(rewritten.replace(_VARIABLE_PREFIX + column, "=")):
        return _ParsedItem(column, rewritten, title)
    return _ParsedItem("", rewritten)


def _column_title(item: ReceiveItem) -> str:
    """Return the alias of an item, or the name of its column as written, or ""."""
    return item.alias if item.alias is not None else _parse_item(item.value.text).title


def _check_aggregates(items: tuple[ReceiveItem, ...]) -> None:
    for item in items:
        if _has_aggregate(item.value.text):
            raise TsqlError(4142, "Aggregates are not allowed in the RECEIVE list.", line=item.value.line)


@functools.lru_cache(maxsize=1024)
def _has_aggregate(text: str) -> bool:
    words = tokenize(text).words
    return any(word in _AGGREGATES and following == "(" for word, following in pairwise(words))


def _find_table_variable(machine: Machine, table: str) -> Any:
    """Return the PostgreSQL name of a table variable that may be written.

    Raises:
        TsqlError: 1087 no such table variable, 10700 it is a table-valued parameter.
    """
    postgres_name = machine.frame.tables.get(table)
    if postgres_name is None:
        raise TsqlError(1087, f'Must declare the table variable "{table}".', severity=15)
    if table in machine.frame.caller_tables:
        raise TsqlError(10700, f'The table-valued parameter "{table}" is READONLY and cannot be modified.')
    return postgres_name


def _insert_rows(machine: Machine, table: str, names: tuple[str, ...], rows: list[list[Value]]) -> None:
    """Run INTO @table: insert the rows, converted to the table's columns in their order.

    Raises:
        TsqlError: 1087 no such table variable, 213 another number of columns.
    """
    postgres_name = _find_table_variable(machine, table)
    columns = machine.queries.columns.get(postgres_name, ())
    targets = [column for column in columns if not column.is_identity and not column.is_computed]
    if len(targets) != len(names):
        raise TsqlError(213, "Column name or number of supplied values does not match table definition.")
    for row in rows:
        machine.queries.insert_row(postgres_name, targets, row)
