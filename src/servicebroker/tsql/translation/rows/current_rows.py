"""WHERE CURRENT OF: the row that a cursor stands at is found where PostgreSQL keeps it."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.text_to_tree import PLACE, PLACE_OF, read
from servicebroker.tsql.translation.text_writer import Sql, Writer
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
    row = writer.alias(source.alias)
    return Sql(f"concat_ws(' ', {row}.ctid, {row}.xmin, {row}.tableoid::regclass)", NVARCHAR)


def _place_of(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """A place is given to another row once its own has left it: xmin says whether it is still the same one."""
    row = writer.alias(writer.sources[-1][0].alias)
    cursor = writer.parameter(f"{CURRENT_OF}{nodes[0].name.lower()}", NVARCHAR)
    is_there = f"{row}.ctid = split_part({cursor}, ' ', 1)::tid"
    return Sql(f"({is_there} and concat_ws(' ', {row}.ctid, {row}.xmin, {row}.tableoid::regclass) = {cursor})::integer")


SPECIAL |= {PLACE: _place, PLACE_OF: _place_of}
