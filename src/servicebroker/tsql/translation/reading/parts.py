"""Parts of a statement as trees: a value, a condition, a table, a list of columns.

Any other text in the part is an error.
"""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.reading.syntax_tree import Slice, constant_tree, parse_slice, plain_name, slice_text


def read_value(piece: Slice) -> exp.Expression:
    """Parse a single value or condition without an alias.

    Raises:
        TsqlError: 102 the text is not a value, or more than one.
    """
    values = read_values(piece)
    if len(values) != 1 or isinstance(values[0], exp.Alias):
        raise _syntax_error_in(piece)
    return values[0]


def read_values(piece: Slice) -> list[exp.Expression]:
    """Parse a list of values with optional aliases. Raises as `read_value`."""
    constant = constant_tree(piece)
    return list(_read_query(piece, "SELECT", "expressions").expressions) if constant is None else [constant]


def read_condition(piece: Slice) -> exp.Expression:
    """Parse a condition. Raises as `read_value`."""
    condition: exp.Expression = _read_query(piece, "SELECT 1 WHERE", "expressions", "where").args["where"].this
    return condition


def read_table(piece: Slice) -> exp.Table:
    """Parse a table with optional alias and hints. Raises as `read_value`."""
    table = read_tables(piece).args["from_"].this
    if not isinstance(table, exp.Table) or read_tables(piece).args.get("joins"):
        raise _syntax_error_in(piece)
    return table


def read_tables(piece: Slice) -> exp.Select:
    """Parse tables and joins, returned as a query of them. Raises as `read_value`."""
    return _read_query(piece, "SELECT * FROM", "expressions", "from_", "joins")


def read_names(piece: Slice) -> list[str]:
    """Parse a list of column names. Raises as `read_value`."""
    return [_read_name(part) for part in piece.split()]


def read_common_tables(piece: Slice) -> exp.With:
    """Parse common table expressions, with their WITH. Raises as `read_value`."""
    with_ = parse_slice(slice_text(piece.text + " SELECT 1")).args.get("with_")
    if not isinstance(with_, exp.With):
        raise _syntax_error_in(piece)
    return with_


def _read_name(piece: Slice) -> str:
    """Return the column name that a piece consists of."""
    plain = plain_name(piece)
    if plain is not None:
        return plain
    column = read_value(piece)
    if not isinstance(column, exp.Column) or column.table or isinstance(column.this, exp.Star):
        raise _syntax_error_in(piece)
    return str(column.name)


def _read_query(piece: Slice, before: str, *allowed: str) -> exp.Select:
    """Parse a query that begins with the words `before`, and refuse clauses other than `allowed`."""
    query = parse_slice(piece, before)
    clauses = {name for name, value in query.args.items() if value}
    if not isinstance(query, exp.Select) or not piece.words or not clauses.issubset(allowed) or not query.expressions:
        raise _syntax_error_in(piece)
    return query


def _syntax_error_in(piece: Slice) -> Exception:
    return syntax_error(piece.text[:40], piece.line())
