"""OUTPUT: columns of inserted and deleted, as a result set or INTO a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.queries.results import UNKNOWN_STAR, Output
from servicebroker.tsql.translation.queries.selects import write_output
from servicebroker.tsql.translation.queries.sources import From, ObjectName, object_name, resolve_table
from servicebroker.tsql.translation.reading.parts import read_names, read_table, read_values
from servicebroker.tsql.translation.reading.syntax_tree import Slice
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.text_writer import Writer, quote_identifier
from servicebroker.tsql.types import SqlType


class Outputs(NamedTuple):
    """A parsed OUTPUT clause, with the second one that returns rows to the caller."""

    expressions: list[exp.Expression]
    into: exp.Table | None
    columns: list[str]  # the columns of the table after INTO
    results: list[exp.Expression]  # the values of the OUTPUT clause after INTO

    def replace_each(self, replace: Callable[[exp.Expression], list[exp.Expression]]) -> Outputs:
        """Replace every expression of both clauses by the expressions that `replace` returns."""
        first, second = ([new for node in nodes for new in replace(node)] for nodes in (self.expressions, self.results))
        return self._replace(expressions=first, results=second)


class Returned(NamedTuple):
    """The columns of RETURNING: those for the table after INTO, then those for the caller."""

    stored: list[Output]
    results: list[Output]

    @property
    def text(self) -> str:
        """RETURNING without its keyword."""
        return ", ".join(output.text for output in [*self.stored, *self.results])

    @property
    def has_unknown_star(self) -> bool:
        """True if a star stands for columns that are not known."""
        return any(output.name == UNKNOWN_STAR for output in self.results)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns for the caller."""
        return tuple(output.name for output in self.results)

    @property
    def types(self) -> tuple[SqlType | None, ...]:
        """The types of the columns for the caller."""
        return tuple(output.type for output in self.results)


def read_outputs(piece: Slice) -> Outputs:
    """Parse an OUTPUT clause without its first keyword, and the second clause that may follow INTO.

    Raises:
        TsqlError: 102 the second clause has an INTO, or a third one follows.
    """
    index = piece.find("INTO")
    listed = piece.part(0, index if index is not None else len(piece.words))
    expressions = read_values(listed)
    if index is None:
        return Outputs(expressions, None, [], [])
    target = piece.part(index + 1, len(piece.words))
    results: list[exp.Expression] = []
    second = target.find("OUTPUT")
    if second is not None:
        results_piece = target.part(second + 1, len(target.words))
        repeated = results_piece.find("INTO", "OUTPUT")
        if repeated is not None:
            raise syntax_error(results_piece.words[repeated], results_piece.line(repeated))
        results = read_values(results_piece)
        target = target.part(0, second)
    columns: list[str] = []
    opening = next((at for at, word in enumerate(target.words) if word == "("), None)
    if opening is not None:
        if target.closing(opening) != len(target.words) - 1:
            raise syntax_error("OUTPUT", piece.line())
        columns = read_names(target.part(opening + 1, len(target.words) - 1))
        target = target.part(0, opening)
    return Outputs(expressions, read_table(target), columns, results)


def write_returning(writer: Writer, outputs: Outputs, from_clause: From, table: str, name: ObjectName) -> Returned:
    """Write the columns of the clauses for a change of `table`. `inserted` and `deleted` must be visible."""
    if outputs.into is None or outputs.results:
        writer.output_table, writer.output_name = table, str(name)

    def write(nodes: list[exp.Expression], *, outermost: bool) -> list[Output]:
        return [output for node in nodes for output in write_output(writer, node, from_clause, outermost=outermost)]

    with writer.without_offsets():
        if outputs.into is None:
            return Returned([], write(outputs.expressions, outermost=True))
        return Returned(write(outputs.expressions, outermost=False), write(outputs.results, outermost=True))


def write_output_into(
    writer: Writer, outputs: Outputs, text: str, returned: Returned, *, prefix: str = "", identity: str = ""
) -> Translation:
    """Write the statement so that its rows go into the table after INTO, and those of a second OUTPUT to the caller.

    `prefix` is the WITH of the statement. `identity` is SQL for the IDENTITY value of a row, which is returned too.

    Raises:
        UnknownColumns: a star of the second OUTPUT stands for unknown columns.
    """
    assert outputs.into is not None
    table = resolve_table(writer, object_name(outputs.into))
    writer.check_changes(table, "INSERT")
    columns = outputs.columns
    table_columns = writer.table_columns(table)
    if not columns and table_columns is not None:
        columns = [
            column.name for column in table_columns.values() if not column.is_identity and not column.is_computed
        ]
    if returned.has_unknown_star:
        raise UnknownColumns("A star in a second OUTPUT")
    names = f" ({', '.join(quote_identifier(name) for name in columns)})" if columns else ""
    stored = [f"c{number}" for number in range(len(returned.stored))]
    results = [f"r{number}" for number in range(len(returned.results))]
    if identity:
        text += f", {identity}"
        results.append("tsql_identity")
    changed = f"changed ({', '.join([*stored, *results])}) AS ({text})"
    insert = f"INSERT INTO {table}{names} SELECT {', '.join(stored)} FROM changed"
    if results:
        whole = f"{changed}, stored AS ({insert}) SELECT {', '.join(results)} FROM changed"
    else:
        whole = f"{changed} {insert}"
    return Translation(
        f"{prefix}, {whole}" if prefix else f"WITH {whole}",
        tuple(writer.parameters),
        "rows" if returned.results else "count",
        returned.names if returned.results else None,
        returned.types if returned.results else None,
        before=tuple(writer.statements_before),
        identity=len(returned.results) if identity else None,
    )
