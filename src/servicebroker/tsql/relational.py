"""From T-SQL to PostgreSQL's SQL, one relational statement or expression at a time."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from sqlglot import exp

from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import SYNTAX, TsqlError, syntax_error
from servicebroker.tsql.translation.definitions.object_definitions import definition
from servicebroker.tsql.translation.documents.xml_namespaces import without_namespaces
from servicebroker.tsql.translation.queries import aggregates  # noqa: F401 # it registers what it writes, as below
from servicebroker.tsql.translation.queries.assignments import assignment
from servicebroker.tsql.translation.queries.selects import limited, query
from servicebroker.tsql.translation.queries.selects_into import into_of, select_into
from servicebroker.tsql.translation.reading.clauses import change
from servicebroker.tsql.translation.reading.foreign_clauses import foreign_clause
from servicebroker.tsql.translation.reading.optimizer_hints import most_levels
from servicebroker.tsql.translation.reading.parts import values_in
from servicebroker.tsql.translation.reading.text_to_tree import LONG, Slice, parsed, read
from servicebroker.tsql.translation.reading.well_formed import check_form
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.rows import current_rows  # noqa: F401 # as aggregates
from servicebroker.tsql.translation.text_writer import Writer
from servicebroker.tsql.translation.values import (  # noqa: F401
    date_functions,
    json_functions,
    permission_functions,
    special_functions,
)
from servicebroker.tsql.translation.values.expressions import condition_or_value

__all__ = ["TEMPORARY", "Translated", "tables_of", "translate", "translate_expression"]

_TEMPDB = r"(?:\[?tempdb\]?\s*\.\s*(?:\[?dbo\]?\s*)?\.\s*)?"  # which may stand before a temporary table
# what makes a temporary table, whose name is in one of the groups
TEMPORARY = re.compile(rf"\bINTO\s+{_TEMPDB}(#[\w$#@]+)|\A\s*CREATE\s+TABLE\s+{_TEMPDB}\[?(#[\w$#@]+)", re.IGNORECASE)
_KEPT = 2000  # texts
# what stands for CONTAINS, for example, is read as a call of a function, and so is the inside of {fn NOW()}
_NO_CONDITION, _NO_FUNCTION = 4145, 195
_SHAPES = 4  # of scopes, for each text
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_LOOKS = frozenset({"SELECT", "UPDATE", "DELETE"})
_DEFINITIONS = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE"})
Entry: TypeAlias = tuple[str, dict[tuple[str, str], object], Any]
_translated: OrderedDict[tuple[str, str, int], list[Entry]] = OrderedDict()


def translate(text: str, scope: Scope) -> Translated:
    """A query, a change of rows, or a definition of a table, view, index, schema or sequence.

    Raises:
        TsqlError: what cannot be read, is not there, or is not supported; never anything else.
    """
    done: Translated = _remembered("statement", text, scope)
    return done


def translate_expression(text: str, scope: Scope) -> Translated:
    """A value or a condition: a query that returns one row with one column. A condition is true, false or null.

    Raises:
        TsqlError: as `translate`.
    """
    done: Translated = _remembered("expression", text, scope)
    return done


def tables_of(text: str, scope: Scope) -> tuple[str, ...]:
    """The quoted PostgreSQL names of the tables that a statement reads or writes: what `scope.columns` should hold.

    Raises:
        TsqlError: as `translate`.
    """
    found: tuple[str, ...] = _remembered("tables", text, scope)
    return found


def _remembered(what: str, text: str, scope: Scope) -> Any:
    """A translation holds for every scope that would have given it the same answers."""
    entries = _translated.get((what, text, scope.most))
    if entries is not None:
        for database, used, done in entries:
            if database == scope.database and all(_answer(scope, *asked) == told for asked, told in used.items()):
                return _noted(scope, done)
    piece = read(text)
    writer = Writer(scope, levels=most_levels(piece.tokens), climbs=".." in text)
    try:
        done = _WRITERS[what](writer, piece)
        if isinstance(done, Translated):
            looks = bool(writer.named) or any(kind == "columns" for kind, _ in writer.used)
            done = done._replace(uses=tuple(writer.uses), reads=_reads(writer), looks=looks)
    except RecursionError:
        raise TsqlError(191, "Some part of your SQL statement is nested too deeply.", severity=15) from None
    except TsqlError as error:
        by_text = error.number in (SYNTAX, _NO_CONDITION, _NO_FUNCTION)
        raise (foreign_clause(piece.tokens) if by_text else None) or error from None
    used = writer.used
    if what == "tables":  # which does not depend on what they hold
        used = {asked: told for asked, told in used.items() if asked[0] != "columns"}
    if len(text) > LONG:
        return _noted(scope, done)
    _translated[what, text, scope.most] = [(scope.database, used, done), *(entries or [])][:_SHAPES]
    if len(_translated) > _KEPT:
        _translated.popitem(last=False)
    return _noted(scope, done)


def _noted(scope: Scope, done: Any) -> Any:
    if scope.noted is not None and isinstance(done, Translated):
        scope.noted.update(dict.fromkeys(done.uses))
    return done


def _reads(writer: Writer) -> tuple[str, ...]:
    """What INSERT writes and does not read is none of them."""
    looked_at = {(use.database, use.schema, use.name) for use in writer.uses if use.statement in _LOOKS}
    found = writer.named.items()
    return tuple(sorted(table for table, use in found if (use.database, use.schema, use.name) in looked_at))


def _tables(writer: Writer, piece: Slice) -> tuple[str, ...]:
    _statement(writer, piece)
    return tuple(name for kind, name in writer.used if kind == "columns")


def _answer(scope: Scope, kind: str, name: str) -> object:
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


def _expression(writer: Writer, piece: Slice) -> Translated:
    piece = without_namespaces(writer, piece)
    check_form(piece.alone(), "SELECT 1 WHERE")  # one value or condition, without a name behind it
    (inside,) = values_in(piece)
    if isinstance(inside, exp.Alias):  # name = value, as in IF x = 1 with a column x
        raise TsqlError(207, f"Invalid column name '{inside.alias}'.")
    value = condition_or_value(writer, inside)
    text = f"{value.text}::text" if value.is_open and value.type is not None else value.text
    return Translated(
        f"SELECT ({text})", tuple(writer.parameters), "rows", ("",), (value.type,), before=tuple(writer.locks)
    )


def _statement(writer: Writer, piece: Slice) -> Translated:
    piece = without_namespaces(writer, piece)
    words = piece.words
    if not words:
        raise syntax_error("", 0)
    first = words[0]
    if first == "WITH":
        main = piece.find("SELECT", *_CHANGES, after=1)
        first = words[main] if main is not None else "SELECT"
    if first in _CHANGES:
        return change(writer, piece)
    if first in _DEFINITIONS:
        return definition(writer, piece)
    if first not in ("SELECT", "("):
        raise syntax_error(first, piece.line())
    return _query(writer, parsed(piece))


def _query(writer: Writer, node: exp.Expression) -> Translated:
    if not isinstance(node, exp.Query):
        raise syntax_error("SELECT", 0)
    assigned = [isinstance(each, exp.EQ) and isinstance(each.this, exp.Parameter) for each in node.expressions]
    if isinstance(node, exp.Select) and any(assigned):
        return assignment(writer, node)
    target = into_of(node)
    if target is not None:
        return select_into(writer, node, target)
    done = query(writer, node, outermost=True)
    names = None if done.outputs is None else tuple(output.name for output in done.outputs)
    types = None if done.outputs is None else tuple(output.type for output in done.outputs)
    text = done.text if node.args.get("for_") is not None else limited(writer, done.text)  # a document is one row
    return Translated(text, tuple(writer.parameters), "rows", names, types, before=tuple(writer.locks))


_WRITERS: dict[str, Callable[[Writer, Slice], Any]] = {
    "statement": _statement,
    "expression": _expression,
    "tables": _tables,
}
