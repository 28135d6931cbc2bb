"""OUTPUT: columns of inserted and deleted, as a result set or INTO a table."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.queries.selects import write_output
from servicebroker.tsql.translation.queries.sources import From, object_name, resolve_table
from servicebroker.tsql.translation.reading.parts import read_names, read_table, read_values
from servicebroker.tsql.translation.reading.syntax_tree import Slice
from servicebroker.tsql.translation.text_writer import Writer, not_supported, quote_identifier


class Outputs(NamedTuple):
    """A parsed OUTPUT clause."""

    expressions: list[exp.Expression]
    into: exp.Table | None
    columns: list[str]  # of the table after INTO


def read_outputs(piece: Slice) -> Outputs:
    """Parse an OUTPUT clause without its keyword."""
    place = piece.find("INTO")
    listed = piece.part(0, place if place is not None else len(piece.words))
    expressions = read_values(listed)
    if place is None:
        return Outputs(expressions, None, [])
    target = piece.part(place + 1, len(piece.words))
    if target.find("OUTPUT") is not None:
        raise not_supported("A second OUTPUT", "Write OUTPUT ... INTO alone, and select from its table.")
    columns: list[str] = []
    opening = next((at for at, word in enumerate(target.words) if word == "("), None)
    if opening is not None:
        if target.closing(opening) != len(target.words) - 1:
            raise syntax_error("OUTPUT", piece.line())
        columns = read_names(target.part(opening + 1, len(target.words) - 1))
        target = target.part(0, opening)
    return Outputs(expressions, read_table(target), columns)


def write_returning(writer: Writer, outputs: Outputs, from_clause: From) -> list[Output]:
    """Write the columns of the clause. `inserted` and `deleted` must be visible."""
    with writer.without_offsets():
        return [
            output
            for node in outputs.expressions
            for output in write_output(writer, node, from_clause, outermost=outputs.into is None)
        ]


def write_output_into(writer: Writer, outputs: Outputs, text: str, returned: list[Output]) -> str:
    """Write the statement so that its rows go into the table after INTO."""
    assert outputs.into is not None
    table = resolve_table(writer, object_name(outputs.into))
    writer.check_changes(table, "INSERT")
    columns = outputs.columns
    table_columns = writer.table_columns(table)
    if not columns and table_columns is not None:
        columns = [
            column.name for column in table_columns.values() if not column.is_identity and not column.is_computed
        ]
    names = f" ({', '.join(quote_identifier(name) for name in columns)})" if columns else ""
    fields = ", ".join(f"c{number}" for number in range(len(returned)))
    return f"WITH changed ({fields}) AS ({text}) INSERT INTO {table}{names} SELECT {fields} FROM changed"
