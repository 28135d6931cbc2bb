"""Parts of a statement as trees: one value, one condition, one table, the columns of a list. Nothing may stand beside them."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.reading.syntax_tree import Slice, constant_tree, parse_slice, plain_name, slice_text


def read_value(piece: Slice) -> exp.Expression:
    """The value or condition, without a name, that a piece is.

    Raises:
        TsqlError: 102 it is none, or more than one.
    """
    found = read_values(piece)
    if len(found) != 1 or isinstance(found[0], exp.Alias):
        raise _syntax_error_in(piece)
    return found[0]


def read_values(piece: Slice) -> list[exp.Expression]:
    """The values, perhaps with names, that a piece lists between commas. Raises as `read_value`."""
    known = constant_tree(piece)
    return list(_read_query(piece, "SELECT", "expressions").expressions) if known is None else [known]


def read_condition(piece: Slice) -> exp.Expression:
    """The condition that a piece is. Raises as `read_value`."""
    found: exp.Expression = _read_query(piece, "SELECT 1 WHERE", "expressions", "where").args["where"].this
    return found


def read_table(piece: Slice) -> exp.Table:
    """The table, perhaps with an alias and hints, that a piece names. Raises as `read_value`."""
    found = read_tables(piece).args["from_"].this
    if not isinstance(found, exp.Table) or read_tables(piece).args.get("joins"):
        raise _syntax_error_in(piece)
    return found


def read_tables(piece: Slice) -> exp.Select:
    """A query of the tables, perhaps joined, that a piece names. Raises as `read_value`."""
    return _read_query(piece, "SELECT * FROM", "expressions", "from_", "joins")


def read_names(piece: Slice) -> list[str]:
    """The names of columns that a piece lists between commas. Raises as `read_value`."""
    return [_read_name(each) for each in piece.split()]


def read_common_tables(piece: Slice) -> exp.With:
    """The common table expressions that a piece holds, with the word WITH. Raises as `read_value`."""
    found = parse_slice(slice_text(piece.text + " SELECT 1")).args.get("with_")
    if not isinstance(found, exp.With):
        raise _syntax_error_in(piece)
    return found


def _read_name(piece: Slice) -> str:
    plain = plain_name(piece)
    if plain is not None:
        return plain
    found = read_value(piece)
    if not isinstance(found, exp.Column) or found.table or isinstance(found.this, exp.Star):
        raise _syntax_error_in(piece)
    return str(found.name)


def _read_query(piece: Slice, before: str, *known: str) -> exp.Select:
    """The query that begins with the words `before` and says nothing beyond `known`."""
    found = parse_slice(piece, before)
    said = {name for name, value in found.args.items() if value}
    if not isinstance(found, exp.Select) or not piece.words or not said.issubset(known) or not found.expressions:
        raise _syntax_error_in(piece)
    return found


def _syntax_error_in(piece: Slice) -> Exception:
    return syntax_error(piece.text[:40], piece.line())
