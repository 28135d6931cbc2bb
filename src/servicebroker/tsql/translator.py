"""From T-SQL to PostgreSQL's SQL, one relational statement or expression at a time."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from sqlglot import exp

from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import SYNTAX_ERROR, TsqlError, syntax_error
from servicebroker.tsql.translation.definitions.object_definitions import translate_definition
from servicebroker.tsql.translation.documents.xml_namespaces import take_namespaces
from servicebroker.tsql.translation.queries import aggregates  # noqa: F401 # it registers what it writes, as below
from servicebroker.tsql.translation.queries.assignments import translate_assignment
from servicebroker.tsql.translation.queries.selects import apply_row_limit, translate_query
from servicebroker.tsql.translation.queries.selects_into import find_into, select_into
from servicebroker.tsql.translation.reading.clauses import translate_change
from servicebroker.tsql.translation.reading.grammar_check import check_form
from servicebroker.tsql.translation.reading.optimizer_hints import read_max_recursion
from servicebroker.tsql.translation.reading.parts import read_values
from servicebroker.tsql.translation.reading.syntax_tree import MAX_CACHED_CHARS, Slice, parse_slice, slice_text
from servicebroker.tsql.translation.reading.unsupported_clauses import find_unsupported_clause
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.rows import current_rows  # noqa: F401 # as aggregates
from servicebroker.tsql.translation.text_writer import Writer
from servicebroker.tsql.translation.values import (  # noqa: F401
    date_functions,
    json_functions,
    permission_functions,
    special_functions,
)
from servicebroker.tsql.translation.values.expressions import condition_or_value

__all__ = ["TEMPORARY", "Translation", "tables_of", "translate", "translate_expression"]

_TEMPDB = r"(?:\[?tempdb\]?\s*\.\s*(?:\[?dbo\]?\s*)?\.\s*)?"  # which may stand before a temporary table
# what makes a temporary table, whose name is in one of the groups
TEMPORARY = re.compile(rf"\bINTO\s+{_TEMPDB}(#[\w$#@]+)|\A\s*CREATE\s+TABLE\s+{_TEMPDB}\[?(#[\w$#@]+)", re.IGNORECASE)
_MAX_CACHED_TEXTS = 2000  # texts
# what stands for CONTAINS, for example, is read as a call of a function, and so is the inside of {fn NOW()}
_CONDITION_EXPECTED_ERROR, _UNKNOWN_FUNCTION_ERROR = 4145, 195
_MAX_SCOPES_PER_TEXT = 4  # of scopes, for each text
_CHANGE_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_READING_STATEMENTS = frozenset({"SELECT", "UPDATE", "DELETE"})
_DEFINITION_VERBS = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE"})
CacheEntry: TypeAlias = tuple[str, dict[tuple[str, str], object], Any]
_cache: OrderedDict[tuple[str, str, int], list[CacheEntry]] = OrderedDict()


def translate(text: str, scope: Scope) -> Translation:
    """A query, a change of rows, or a definition of a table, view, index, schema or sequence.

    Raises:
        TsqlError: what cannot be read, is not there, or is not supported; never anything else.
    """
    done: Translation = _translate_cached("statement", text, scope)
    return done


def translate_expression(text: str, scope: Scope) -> Translation:
    """A value or a condition: a query that returns one row with one column. A condition is true, false or null.

    Raises:
        TsqlError: as `translate`.
    """
    done: Translation = _translate_cached("expression", text, scope)
    return done


def tables_of(text: str, scope: Scope) -> tuple[str, ...]:
    """The quoted PostgreSQL names of the tables that a statement reads or writes: what `scope.columns` should hold.

    Raises:
        TsqlError: as `translate`.
    """
    found: tuple[str, ...] = _translate_cached("tables", text, scope)
    return found


def _translate_cached(what: str, text: str, scope: Scope) -> Any:
    """A translation holds for every scope that would have given it the same answers."""
    entries = _cache.get((what, text, scope.row_limit))
    if entries is not None:
        for database, used, done in entries:
            if database == scope.database and all(_scope_answer(scope, *asked) == told for asked, told in used.items()):
                return _record_uses(scope, done)
    piece = slice_text(text)
    writer = Writer(scope, max_recursion=read_max_recursion(piece.tokens), has_parent_steps=".." in text)
    try:
        done = _WRITERS[what](writer, piece)
        if isinstance(done, Translation):
            names_tables = bool(writer.table_uses) or any(kind == "columns" for kind, _ in writer.scope_answers)
            done = done._replace(uses=tuple(writer.uses), tables_read=_tables_read(writer), names_tables=names_tables)
    except RecursionError:
        raise TsqlError(191, "Some part of your SQL statement is nested too deeply.", severity=15) from None
    except TsqlError as error:
        by_text = error.number in (SYNTAX_ERROR, _CONDITION_EXPECTED_ERROR, _UNKNOWN_FUNCTION_ERROR)
        raise (find_unsupported_clause(piece.tokens) if by_text else None) or error from None
    used = writer.scope_answers
    if what == "tables":  # which does not depend on what they hold
        used = {asked: told for asked, told in used.items() if asked[0] != "columns"}
    if len(text) > MAX_CACHED_CHARS:
        return _record_uses(scope, done)
    _cache[what, text, scope.row_limit] = [(scope.database, used, done), *(entries or [])][:_MAX_SCOPES_PER_TEXT]
    if len(_cache) > _MAX_CACHED_TEXTS:
        _cache.popitem(last=False)
    return _record_uses(scope, done)


def _record_uses(scope: Scope, done: Any) -> Any:
    if scope.recorded_uses is not None and isinstance(done, Translation):
        scope.recorded_uses.update(dict.fromkeys(done.uses))
    return done


def _tables_read(writer: Writer) -> tuple[str, ...]:
    """What INSERT writes and does not read is none of them."""
    looked_at = {(use.database, use.schema, use.name) for use in writer.uses if use.statement in _READING_STATEMENTS}
    found = writer.table_uses.items()
    return tuple(sorted(table for table, use in found if (use.database, use.schema, use.name) in looked_at))


def _tables(writer: Writer, piece: Slice) -> tuple[str, ...]:
    _statement(writer, piece)
    return tuple(name for kind, name in writer.scope_answers if kind == "columns")


def _scope_answer(scope: Scope, kind: str, name: str) -> object:
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
    if kind == "read only":
        return scope.read_only.get(name)
    if kind == "identity_insert":
        return scope.identity_insert == name
    return name in scope.functions


def _expression(writer: Writer, piece: Slice) -> Translation:
    piece = take_namespaces(writer, piece)
    check_form(piece.alone(), "SELECT 1 WHERE")  # one value or condition, without a name behind it
    (inside,) = read_values(piece)
    if isinstance(inside, exp.Alias):  # name = value, as in IF x = 1 with a column x
        raise TsqlError(207, f"Invalid column name '{inside.alias}'.")
    value = condition_or_value(writer, inside)
    text = f"{value.text}::text" if value.is_untyped and value.type is not None else value.text
    return Translation(
        f"SELECT ({text})", tuple(writer.parameters), "rows", ("",), (value.type,), before=tuple(writer.locks)
    )


def _statement(writer: Writer, piece: Slice) -> Translation:
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
    if not isinstance(node, exp.Query):
        raise syntax_error("SELECT", 0)
    assigned = [isinstance(each, exp.EQ) and isinstance(each.this, exp.Parameter) for each in node.expressions]
    if isinstance(node, exp.Select) and any(assigned):
        return translate_assignment(writer, node)
    target = find_into(node)
    if target is not None:
        return select_into(writer, node, target)
    done = translate_query(writer, node, outermost=True)
    names = None if done.outputs is None else tuple(output.name for output in done.outputs)
    types = None if done.outputs is None else tuple(output.type for output in done.outputs)
    text = (
        done.text if node.args.get("for_") is not None else apply_row_limit(writer, done.text)
    )  # a document is one row
    return Translation(text, tuple(writer.parameters), "rows", names, types, before=tuple(writer.locks))


_WRITERS: dict[str, Callable[[Writer, Slice], Any]] = {
    "statement": _statement,
    "expression": _expression,
    "tables": _tables,
}
