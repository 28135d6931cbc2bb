"""Table variables of functions: temporary tables of PostgreSQL, which each call of the function finds empty."""

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
    """A table variable: the quoted PostgreSQL name of its table, its columns, and the statements that make it."""

    table: str
    columns: tuple[Column, ...]
    definition: str

    def returned(self) -> str:
        """Its rows as the result of the function."""
        fields = (f"{quote_identifier(column.name)}::{postgres_type(column.type)}" for column in self.columns)
        return f"return query select {', '.join(fields)} from {self.table};"


def define_table_variable(scope: Scope, function: str, statement: DeclareTable) -> TableVariable:
    """What DECLARE @name TABLE (...) makes in the function of this PostgreSQL name.

    The table stays to the end of PostgreSQL's session, so that a table of other columns needs another name.

    Raises:
        TsqlError: as CREATE TABLE.
    """
    table = f'pg_temp."{statement.name[:40]}_{_digest(function + statement.columns)}"'
    inside = replace(scope, tables={"#variable": table}, is_body=False, variables={})
    definition = translate(f"CREATE TABLE #variable {statement.columns}", inside).sql
    piece = slice_text(statement.columns)
    found = read_elements(Writer(inside), table, piece.part(1, len(piece.words) - 1), statement.name)
    return TableVariable(table, tuple(found.columns), definition)


def entry_lines(function: str, tables: Sequence[TableVariable]) -> Iterator[str]:
    """What a function with table variables begins with; they are there once, so that no call runs inside another."""
    if not tables:
        return
    text = "A function with a table variable that calls itself is not supported here. Write a procedure."
    yield f"if current_setting('{_flag(function)}', true) = 'on' then perform tsql.refuse(40515, {quote_string(text)}); end if;"
    yield f"perform set_config('{_flag(function)}', 'on', true);"
    for each in tables:
        yield f"if to_regclass({quote_string(each.table)}) is null then {each.definition};"
        yield f"else truncate {each.table} restart identity; end if;"


def exit_lines(function: str, tables: Sequence[TableVariable]) -> Iterator[str]:
    """What it ends with. An error ends it, too: PostgreSQL takes the setting back."""
    if tables:
        yield f"perform set_config('{_flag(function)}', 'off', true);"


def _flag(function: str) -> str:
    return f"servicebroker.tsql_function_{_digest(function)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
