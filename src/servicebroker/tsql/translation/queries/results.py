"""The columns that a query returns, for code with a nested query: values, conditions, FROM, documents.

`selects.py` writes queries and imports the code that writes values. So nested queries find their writer by node type.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.collations import Collation
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import NODE_WRITERS, QUERY_ROLE, Sql, Writer, node_not_supported
from servicebroker.tsql.types import SqlType

UNKNOWN_STAR = "\0*"  # name of an output that stands for unknown columns


class Output(NamedTuple):
    """A column of a result. `name` keeps its spelling, '' for none. `text` is ready for the select list.

    `source` is the alias, in lower case, of the table that the column is taken from unchanged, `column` the column
    there. `value` is the SQL of the value alone, "" if it is not known.
    """

    name: str
    text: str
    type: SqlType | None
    source: str = ""
    column: Column | None = None
    value: str = ""
    collation: Collation | None = None

    def as_sql(self, text: str) -> Sql:
        """Return an expression of this type and collation."""
        return Sql(text, self.type, collation=self.collation)

    @property
    def is_null(self) -> bool:
        """True for a literal NULL."""
        return self.text.startswith("NULL AS ")


class Query(NamedTuple):
    """A query in PostgreSQL. `outputs` is None if a star stands for unknown columns."""

    text: str
    outputs: list[Output] | None


def write_query(writer: Writer, node: exp.Expression) -> Query:
    """Write a nested query.

    Raises:
        TsqlError: 40515 not supported.
    """
    handler = NODE_WRITERS.get((QUERY_ROLE, type(node)))
    if handler is None:
        raise node_not_supported(node)
    translated = handler(writer, node)
    assert isinstance(translated, Query)
    return translated


def select_text(writer: Writer, node: exp.Expression) -> str:
    """Write a nested query, and return its text only."""
    return write_query(writer, node).text


def output_types(writer: Writer, node: exp.Expression) -> list[SqlType | None] | None:
    """Return the types of a query's columns, None if a star hides them."""
    outputs = query_outputs(writer, node)
    return None if outputs is None else [output.type for output in outputs]


def query_outputs(writer: Writer, node: exp.Expression) -> list[Output] | None:
    """Return the outputs of a query, without adding its parameters and locks to the statement.

    None if a star hides them.
    """
    parameters, locks = list(writer.parameters), list(writer.statements_before)
    try:
        return write_query(writer, node).outputs
    finally:
        writer.parameters[:], writer.statements_before[:] = parameters, locks


def columns_of(outputs: list[Output] | None) -> dict[str, Column] | None:
    """Return the columns of a query by name in lower case, None if a type is unknown."""
    if outputs is None or any(output.type is None for output in outputs):
        return None
    return {
        output.name.lower(): derived_column(output.name, output.type, output)
        for output in outputs
        if output.type is not None
    }


def derived_column(name: str, sql_type: SqlType, output: Output) -> Column:
    """Return the column that a derived table has for an output."""
    return Column(name, sql_type, collation=output.collation.name if output.collation is not None else "")


def check_named(outputs: list[Output] | None, renamed: list[str], name: str) -> None:
    """Check that each column of a derived table has a name.

    Raises:
        TsqlError: 8155 a column has no name.
    """
    indexes = [index for index, output in enumerate(outputs or [], 1) if not output.name]
    if indexes and not renamed:
        raise TsqlError(8155, f"No column name was specified for column {indexes[0]} of '{name}'.", state=2)


def output_name(node: exp.Expression) -> tuple[str, exp.Expression]:
    """Return the name of a result column and its expression. `'name' = expression` is a name too.

    A column in parentheses keeps its name.
    """
    if isinstance(node, exp.Alias):
        return node.alias, node.this
    if isinstance(node, exp.Subquery) and node.alias:  # name = (SELECT ...)
        inside = node.copy()
        inside.set("alias", None)
        return node.alias, inside
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Literal | exp.National) and node.this.name:
        return node.this.name, node.expression
    inner = node.unnest()
    if isinstance(inner, exp.Column):
        return inner.name, inner
    return "", node
