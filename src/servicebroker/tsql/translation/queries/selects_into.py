"""SELECT ... INTO: a new table of what a query returns."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.selects import query
from servicebroker.tsql.translation.queries.sources import object_name, table_name
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.text_writer import Writer, refused
from servicebroker.tsql.types import VARIANT

TEMPORARY = 'pg_temp."{}"'  # where a temporary table stands that the session has not named


def into_of(node: exp.Expression) -> exp.Table | None:
    """The table after INTO, which stands in the first query of a UNION."""
    while isinstance(node, exp.SetOperation):
        node = node.this
    into = node.args.get("into")
    return into.this if into is not None and isinstance(into.this, exp.Table) else None


def select_into(writer: Writer, node: exp.Expression, target: exp.Table) -> Translated:
    """The table is made and filled in one statement, and what it returns is the count of rows.

    Raises:
        TsqlError: 1038 for a column without a name.
    """
    own = object_name(target)
    name = own.name.lower()
    if name.startswith("#"):
        table = writer.temporary(name) or TEMPORARY.format(name.replace('"', '""'))
    elif name.startswith("@"):
        raise refused("SELECT INTO a table variable", "Use INSERT INTO ... SELECT.")
    else:
        table = table_name(writer, own)
    writer.check_changes(table, "CREATE TABLE")
    done = query(writer, node, outermost=False, into=table)
    if done.outputs is not None and any(not output.name for output in done.outputs):
        raise TsqlError(
            1038,
            "An object or column name is missing or empty. For SELECT INTO statements, verify each column has a name.",
            severity=15,
        )
    if VARIANT in [output.type for output in done.outputs or ()]:
        raise refused("SELECT INTO with a column of sql_variant", "Create the table, then INSERT.")
    kind = "TEMPORARY TABLE" if name.startswith("#") else "TABLE"
    text = f"CREATE {kind} {table} AS {done.text}"
    return Translated(text, tuple(writer.parameters), "count", before=tuple(writer.locks))
