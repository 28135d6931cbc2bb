"""WHERE CURRENT OF: the row that a cursor stands at is found where PostgreSQL keeps it."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.text_to_tree import PLACE, PLACE_OF, read
from servicebroker.tsql.translation.text_writer import Sql, Writer, string
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import NVARCHAR

CURRENT_OF = "current of "  # before the name of a cursor: the parameter that says where its row stands
_NOT_OF_ONE_ROW = ("GROUP", "UNION", "EXCEPT", "INTERSECT", "HAVING")


def with_places(query: str) -> str | None:
    """The query of a cursor with a last column for where each row stands; None for one whose rows stand nowhere."""
    piece = read(query)
    words = piece.words
    from_ = piece.find("FROM")
    if words[:1] != ["SELECT"] or from_ is None or words[1] in ("DISTINCT", "TOP") or piece.find(*_NOT_OF_ONE_ROW):
        return None
    return f"{piece.part(0, from_).text}, {PLACE}() AS tsql_place {piece.part(from_, len(words)).text}"


def _place(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    (source, *others) = writer.sources[-1]
    if others or not source.table or source.is_catalog or source.table.startswith(("sys.", "tsql.")):
        raise TsqlError(16929, "The cursor is READ ONLY.")
    return Sql(f"{writer.alias(source.alias)}.ctid::text", NVARCHAR)


def _place_of(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Changes of a row leave it at another place: the newest one counts."""
    source = writer.sources[-1][0]
    cursor = writer.parameter(f"{CURRENT_OF}{nodes[0].name.lower()}", NVARCHAR)
    newest = f"(SELECT currtid2({string(source.table)}, {cursor}::tid))"
    return Sql(f"({writer.alias(source.alias)}.ctid = {newest})::integer")


SPECIAL |= {PLACE: _place, PLACE_OF: _place_of}
