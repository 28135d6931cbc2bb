"""What a query gives, for whatever has one inside: values, conditions, FROM, documents.

A query is written by `selects.py`, which writes values in its turn: so it is found by the kind of its node.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import HANDLERS, QUERY_ROLE, Writer, node_not_supported
from servicebroker.tsql.types import SqlType

UNKNOWN_STAR = "\0*"  # the name of an output that stands for columns which nobody knows


class Output(NamedTuple):
    """A column of a result: the name in its own spelling, '' for none; `text` is ready for the list of SELECT.

    `source` is the table, as the query calls it in lower case, that a column comes from unchanged; `column` what is
    known of it there.
    """

    name: str
    text: str
    type: SqlType | None
    source: str = ""
    column: Column | None = None

    @property
    def is_null(self) -> bool:
        """Whether it is NULL in every row, as it is written."""
        return self.text.startswith("NULL AS ")


class Query(NamedTuple):
    """A query in PostgreSQL. `outputs` is None when a star stands for columns that nobody knows."""

    text: str
    outputs: list[Output] | None


def write_query(writer: Writer, node: exp.Expression) -> Query:
    """A query inside another statement.

    Raises:
        TsqlError: 40515 for what is not translated.
    """
    handler = HANDLERS.get((QUERY_ROLE, type(node)))
    if handler is None:
        raise node_not_supported(node)
    found = handler(writer, node)
    assert isinstance(found, Query)
    return found


def select_text(writer: Writer, node: exp.Expression) -> str:
    """A query inside another statement."""
    return write_query(writer, node).text


def output_types(writer: Writer, node: exp.Expression) -> list[SqlType | None] | None:
    """The types of the columns of a query, None when a star hides them."""
    outputs = _dry_run(writer, node)
    return None if outputs is None else [output.type for output in outputs]


def _dry_run(writer: Writer, node: exp.Expression) -> list[Output] | None:
    """The outputs of a query that is written elsewhere: nothing of this writing stays."""
    parameters, locks = list(writer.parameters), list(writer.locks)
    try:
        return write_query(writer, node).outputs
    finally:
        writer.parameters[:], writer.locks[:] = parameters, locks


def columns_of(outputs: list[Output] | None) -> dict[str, Column] | None:
    """The columns of a query by their names in lower case, None when one of their types is not known."""
    if outputs is None or any(output.type is None for output in outputs):
        return None
    return {output.name.lower(): Column(output.name, output.type) for output in outputs if output.type is not None}


def check_named(outputs: list[Output] | None, renamed: list[str], name: str) -> None:
    """Raises: TsqlError: 8155 a column of what is read as a table has no name."""
    places = [place for place, each in enumerate(outputs or [], 1) if not each.name]
    if places and not renamed:
        raise TsqlError(8155, f"No column name was specified for column {places[0]} of '{name}'.", state=2)


def output_name(node: exp.Expression) -> tuple[str, exp.Expression]:
    """The name of a column of a result, and the expression; `'name' = expression` names it too."""
    if isinstance(node, exp.Alias):
        return node.alias, node.this
    if isinstance(node, exp.Subquery) and node.alias:  # name = (SELECT ...)
        inside = node.copy()
        inside.set("alias", None)
        return node.alias, inside
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Literal | exp.National) and node.this.name:
        return node.this.name, node.expression
    if isinstance(node, exp.Column):
        return node.name, node
    return "", node
