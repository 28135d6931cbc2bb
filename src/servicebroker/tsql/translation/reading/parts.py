"""Parts of a statement as trees: one value, one condition, one table, the columns of a list. Nothing may stand beside them."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.reading.text_to_tree import Slice, constant, parsed, plain_name, read


def value_in(piece: Slice) -> exp.Expression:
    """The value or condition, without a name, that a piece is.

    Raises:
        TsqlError: 102 it is none, or more than one.
    """
    found = values_in(piece)
    if len(found) != 1 or isinstance(found[0], exp.Alias):
        raise _wrong(piece)
    return found[0]


def values_in(piece: Slice) -> list[exp.Expression]:
    """The values, perhaps with names, that a piece lists between commas. Raises as `value_in`."""
    known = constant(piece)
    return list(_query(piece, "SELECT", "expressions").expressions) if known is None else [known]


def condition_in(piece: Slice) -> exp.Expression:
    """The condition that a piece is. Raises as `value_in`."""
    found: exp.Expression = _query(piece, "SELECT 1 WHERE", "expressions", "where").args["where"].this
    return found


def table_in(piece: Slice) -> exp.Table:
    """The table, perhaps with an alias and hints, that a piece names. Raises as `value_in`."""
    found = tables_in(piece).args["from_"].this
    if not isinstance(found, exp.Table) or tables_in(piece).args.get("joins"):
        raise _wrong(piece)
    return found


def tables_in(piece: Slice) -> exp.Select:
    """A query of the tables, perhaps joined, that a piece names. Raises as `value_in`."""
    return _query(piece, "SELECT * FROM", "expressions", "from_", "joins")


def names_in(piece: Slice) -> list[str]:
    """The names of columns that a piece lists between commas. Raises as `value_in`."""
    return [_name(each) for each in piece.split()]


def common_in(piece: Slice) -> exp.With:
    """The common table expressions that a piece holds, with the word WITH. Raises as `value_in`."""
    found = parsed(read(piece.text + " SELECT 1")).args.get("with_")
    if not isinstance(found, exp.With):
        raise _wrong(piece)
    return found


def _name(piece: Slice) -> str:
    plain = plain_name(piece)
    if plain is not None:
        return plain
    found = value_in(piece)
    if not isinstance(found, exp.Column) or found.table or isinstance(found.this, exp.Star):
        raise _wrong(piece)
    return str(found.name)


def _query(piece: Slice, before: str, *known: str) -> exp.Select:
    """The query that begins with the words `before` and says nothing beyond `known`."""
    found = parsed(piece, before)
    said = {name for name, value in found.args.items() if value}
    if not isinstance(found, exp.Select) or not piece.words or not said.issubset(known) or not found.expressions:
        raise _wrong(piece)
    return found


def _wrong(piece: Slice) -> Exception:
    return syntax_error(piece.text[:40], piece.line())
