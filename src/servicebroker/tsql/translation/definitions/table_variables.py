"""Table variables of functions: temporary tables that are empty at the start of each call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from servicebroker.tsql.scope import Column, Scope
from servicebroker.tsql.syntax import DeclareTable
from servicebroker.tsql.translation.definitions.table_columns import read_elements
from servicebroker.tsql.translation.reading.syntax_tree import slice_text
from servicebroker.tsql.translation.text_writer import Writer, quote_identifier, quote_string
from servicebroker.tsql.translator import translate
from servicebroker.tsql.types import postgres_type


class TableVariable(NamedTuple):
    """A table variable: the quoted name of its PostgreSQL table, its columns, and the statements that create it."""

    table: str
    columns: tuple[Column, ...]
    definition: str

    def returned(self) -> str:
        """Return the statement that returns its rows as the result of the function."""
        fields = (f"{quote_identifier(column.name)}::{postgres_type(column.type)}" for column in self.columns)
        return f"return query select {', '.join(fields)} from {self.table};"


def define_table_variable(scope: Scope, function: str, statement: DeclareTable) -> TableVariable:
    """Return the table for DECLARE @name TABLE (...) in a function, given by PostgreSQL name.

    The table lives until PostgreSQL's session ends. So its name depends on its columns.

    Raises:
        TsqlError: see CREATE TABLE.
    """
    table = f'pg_temp."{statement.name[:40]}_{_digest(function + statement.columns)}"'
    definition_scope = replace(scope, tables={"#variable": table}, is_body=False, variables={})
    definition = translate(f"CREATE TABLE #variable {statement.columns}", definition_scope).sql
    piece = slice_text(statement.columns)
    table_elements = read_elements(Writer(definition_scope), table, piece.part(1, len(piece.words) - 1), statement.name)
    return TableVariable(table, tuple(table_elements.columns), definition)


def entry_lines(function: str, tables: Sequence[TableVariable]) -> Iterator[str]:
    """Yield the first statements of a function with table variables.

    They refuse recursion, since all calls share the tables.
    """
    if not tables:
        return
    text = "A function with a table variable that calls itself is not supported here. Write a procedure."
    yield f"if current_setting('{_flag(function)}', true) = 'on' then perform tsql.refuse(40515, {quote_string(text)}); end if;"
    yield f"perform set_config('{_flag(function)}', 'on', true);"
    for variable in tables:
        yield f"if to_regclass({quote_string(variable.table)}) is null then {variable.definition};"
        yield f"else truncate {variable.table} restart identity; end if;"


def exit_lines(function: str, tables: Sequence[TableVariable]) -> Iterator[str]:
    """Yield the last statements of the function. After an error, PostgreSQL itself restores the setting."""
    if tables:
        yield f"perform set_config('{_flag(function)}', 'off', true);"


def _flag(function: str) -> str:
    return f"servicebroker.tsql_function_{_digest(function)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
