"""Translation of one relational statement or expression to PostgreSQL's SQL, with a cache."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from sqlglot import exp

from servicebroker.tsql.collations import DEFAULT_COLLATION
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import SYNTAX_ERROR, TsqlError, syntax_error
from servicebroker.tsql.translation.definitions.object_definitions import translate_definition
from servicebroker.tsql.translation.documents.xml_namespaces import take_namespaces
from servicebroker.tsql.translation.queries import aggregates  # noqa: F401 # registers its writers, as do the modules below
from servicebroker.tsql.translation.queries.assignments import translate_assignment
from servicebroker.tsql.translation.queries.selects import apply_row_limit, translate_query
from servicebroker.tsql.translation.queries.selects_into import find_into, select_into
from servicebroker.tsql.translation.reading.clauses import translate_change
from servicebroker.tsql.translation.reading.grammar_check import check_form
from servicebroker.tsql.translation.reading.optimizer_hints import read_max_recursion
from servicebroker.tsql.translation.reading.parts import read_values
from servicebroker.tsql.translation.reading.syntax_tree import MAX_CACHED_CHARS, Slice, parse_slice, slice_text
from servicebroker.tsql.translation.reading.unsupported_clauses import find_unsupported_clause
from servicebroker.tsql.translation.result import OutputTarget, Translation
from servicebroker.tsql.translation.rows import current_rows  # noqa: F401 # as aggregates
from servicebroker.tsql.translation.text_writer import NeedsParents, Writer, with_offset
from servicebroker.tsql.translation.values import (  # noqa: F401
    date_functions,
    json_functions,
    odbc_functions,
    permission_functions,
    special_functions,
)
from servicebroker.tsql.translation.values.expressions import condition_or_value

__all__ = ["TEMPORARY", "Translation", "tables_of", "translate", "translate_expression"]

_TEMPDB = r"(?:\[?tempdb\]?\s*\.\s*(?:\[?dbo\]?\s*)?\.\s*)?"  # optional before a temporary table
# matches statements that create a temporary table; one of the groups holds its name
TEMPORARY = re.compile(rf"\bINTO\s+{_TEMPDB}(#[\w$#@]+)|\A\s*CREATE\s+TABLE\s+{_TEMPDB}\[?(#[\w$#@]+)", re.IGNORECASE)
_MAX_CACHED_TEXTS = 2000
# an unsupported construct such as CONTAINS parses as a function call and fails with one of these
_CONDITION_EXPECTED_ERROR, _UNKNOWN_FUNCTION_ERROR = 4145, 195
_MAX_SCOPES_PER_TEXT = 4  # sets of scope answers kept for each text
_CHANGE_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_READING_STATEMENTS = frozenset({"SELECT", "UPDATE", "DELETE"})
_DEFINITION_VERBS = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE"})
CacheEntry: TypeAlias = tuple[str, dict[tuple[str, str], object], Any]
_cache: OrderedDict[tuple[str, str, int], list[CacheEntry]] = OrderedDict()


def translate(text: str, scope: Scope) -> Translation:
    """Translate a query, a change of rows, or a definition of a table, view, index, schema or sequence.

    Raises:
        TsqlError: the text is wrong, names a missing object, or is not supported. No other exception is raised.
    """
    translation: Translation = _translate_cached("statement", text, scope)
    return translation


def translate_expression(text: str, scope: Scope) -> Translation:
    """Translate a value or condition to a query of one row and one column. A condition is true, false or null.

    Raises:
        TsqlError: as `translate`.
    """
    translation: Translation = _translate_cached("expression", text, scope)
    return translation


def tables_of(text: str, scope: Scope) -> tuple[str, ...]:
    """Return the quoted PostgreSQL names of the tables that a statement reads or writes, for `scope.columns`.

    Raises:
        TsqlError: as `translate`.
    """
    tables: tuple[str, ...] = _translate_cached("tables", text, scope)
    return tables


def _translate_cached(role: str, text: str, scope: Scope) -> Any:
    """Return a cached translation if the scope gives the same answers as before, or translate the text."""
    entries = None if scope.explains_truncation else _cache.get((role, text, scope.row_limit))
    if entries is not None:
        for database, answers, result in entries:
            if database == scope.database and all(
                _scope_answer(scope, *question) == answer for question, answer in answers.items()
            ):
                return _record_uses(scope, result)
    piece = slice_text(text)
    max_recursion = read_max_recursion(piece.tokens)
    writer = Writer(scope, max_recursion=max_recursion, has_parent_steps=".." in text)
    try:
        try:
            result = _WRITERS[role](writer, piece)
        except NeedsParents:
            writer = Writer(scope, max_recursion=max_recursion, has_parent_steps=True)
            result = _WRITERS[role](writer, piece)
        if isinstance(result, Translation):
            names_tables = bool(writer.table_uses) or any(kind == "columns" for kind, _ in writer.scope_answers)
            result = result._replace(
                uses=tuple(writer.uses),
                tables_read=_tables_read(writer),
                names_tables=names_tables,
                output_target=_output_target(writer),
            )
    except RecursionError:
        raise TsqlError(
            191,
            "Some part of your SQL statement is nested too deeply. Rewrite the query or break it up into smaller "
            "queries.",
            severity=15,
        ) from None
    except TsqlError as error:
        error.is_relative = True
        by_text = error.number in (SYNTAX_ERROR, _CONDITION_EXPECTED_ERROR, _UNKNOWN_FUNCTION_ERROR)
        raise (find_unsupported_clause(piece.tokens) if by_text else None) or error from None
    answers = writer.scope_answers
    if role == "tables":  # the list of tables does not depend on their columns
        answers = {question: answer for question, answer in answers.items() if question[0] != "columns"}
    if len(text) > MAX_CACHED_CHARS or scope.explains_truncation:
        return _record_uses(scope, result)
    _cache[role, text, scope.row_limit] = [(scope.database, answers, result), *(entries or [])][:_MAX_SCOPES_PER_TEXT]
    if len(_cache) > _MAX_CACHED_TEXTS:
        _cache.popitem(last=False)
    return _record_uses(scope, result)


def _record_uses(scope: Scope, result: Any) -> Any:
    """Report the uses of a translation to the scope, if it records them, and return the translation."""
    if scope.recorded_uses is not None and isinstance(result, Translation):
        scope.recorded_uses.update(dict.fromkeys(result.uses))
    return result


def _tables_read(writer: Writer) -> tuple[str, ...]:
    """Return the tables whose rows a statement reads. A table that INSERT only writes is none of them."""
    read_objects = {(use.database, use.schema, use.name) for use in writer.uses if use.statement in _READING_STATEMENTS}
    tables = writer.table_uses.items()
    return tuple(sorted(table for table, use in tables if (use.database, use.schema, use.name) in read_objects))


def _output_target(writer: Writer) -> OutputTarget | None:
    """Return the table whose changed rows the statement returns. None if there is none, or it is a temporary table."""
    target = writer.table_uses.get(writer.output_table)
    if target is None:
        return None
    events = {use.statement for use in writer.uses if use._replace(statement=target.statement, shown="") == target}
    return OutputTarget(writer.output_table, writer.output_name, tuple(sorted(events & _CHANGE_VERBS)))


def _tables(writer: Writer, piece: Slice) -> tuple[str, ...]:
    """Return the tables that a statement asks the scope for."""
    _statement(writer, piece)
    return tuple(name for kind, name in writer.scope_answers if kind == "columns")


def _scope_answer(scope: Scope, kind: str, name: str) -> object:
    """Ask the scope the question that a writer has asked before."""
    if kind == "variable":
        return scope.variables.get(name)
    if kind == "columns":
        return scope.columns.get(name)
    if kind == "table":
        return scope.tables.get(name)
    if kind == "function of users":
        return None if scope.user_functions is None else scope.user_functions.get(name)
    if kind == "body":
        return scope.is_body
    if kind == "type":
        return scope.user_types.get(name)
    if kind == "synonym":
        return scope.synonym(*name.split("\0"))
    if kind == "collation":
        return scope.collations.get(scope.database.lower(), DEFAULT_COLLATION)
    if kind == "module":
        return scope.module
    if kind == "read only":
        return scope.read_only.get(name)
    if kind == "date first":
        return scope.date_first
    if kind == "identity_insert":
        return scope.identity_insert == name
    return name in scope.functions


def _expression(writer: Writer, piece: Slice) -> Translation:
    """Translate a single value or condition."""
    piece = take_namespaces(writer, piece)
    check_form(piece.alone(), "SELECT 1 WHERE")  # refuses a second value and an alias
    (inside,) = read_values(piece)
    if isinstance(inside, exp.Alias):  # name = value, as in IF x = 1 with a column x
        raise TsqlError(207, f"Invalid column name '{inside.alias}'.")
    value = with_offset(writer, condition_or_value(writer, inside))
    text = f"{value.text}::text" if value.is_untyped and value.type is not None else value.text
    return Translation(
        f"SELECT ({text})",
        tuple(writer.parameters),
        "rows",
        ("",),
        (value.type,),
        before=tuple(writer.statements_before),
    )


def _statement(writer: Writer, piece: Slice) -> Translation:
    """Translate a statement by its first word."""
    piece = take_namespaces(writer, piece)
    words = piece.words
    if not words:
        raise syntax_error("", 0)
    first = words[0]
    if first == "WITH":
        main = piece.find("SELECT", *_CHANGE_VERBS, after=1)
        first = words[main] if main is not None else "SELECT"
    if first in _CHANGE_VERBS:
        return translate_change(writer, piece)
    if first in _DEFINITION_VERBS:
        return translate_definition(writer, piece)
    if first not in ("SELECT", "("):
        raise syntax_error(first, piece.line())
    return _query(writer, parse_slice(piece))


def _query(writer: Writer, node: exp.Expression) -> Translation:
    """Translate a query: an assignment, SELECT INTO, or a result set."""
    if not isinstance(node, exp.Query):
        raise syntax_error("SELECT", 0)
    assigned = [isinstance(item, exp.EQ) and isinstance(item.this, exp.Parameter) for item in node.expressions]
    if isinstance(node, exp.Select) and any(assigned):
        return translate_assignment(writer, node)
    target = find_into(node)
    if target is not None:
        return select_into(writer, node, target)
    translated = translate_query(writer, node, outermost=True)
    names = None if translated.outputs is None else tuple(output.name for output in translated.outputs)
    types = None if translated.outputs is None else tuple(output.type for output in translated.outputs)
    text = (
        translated.text if node.args.get("for_") is not None else apply_row_limit(writer, translated.text)
    )  # a document is one row
    return Translation(text, tuple(writer.parameters), "rows", names, types, before=tuple(writer.statements_before))


_WRITERS: dict[str, Callable[[Writer, Slice], Any]] = {
    "statement": _statement,
    "expression": _expression,
    "tables": _tables,
}
