"""The database that a definition names, read before the translation, which runs in that database."""

from __future__ import annotations

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.translation.reading.piece_reader import PieceReader
from servicebroker.tsql.translation.reading.syntax_tree import slice_text


def database_of_definition(text: str) -> str:
    """Return the database that CREATE or ALTER names before its object. For an index it is that of the table.

    "" means the current database. Temporary tables, which belong to no database, and unreadable text, which the
    translation refuses, return "" too.
    """
    try:
        name = _name(PieceReader(slice_text(text)))
    except TsqlError:
        return ""
    return "" if name is None or name.server or name.object.startswith("#") else name.database


def _name(reader: PieceReader) -> Name | None:
    reader.at = 1
    reader.take("OR", "ALTER")
    if reader.take_any("TABLE", "VIEW", "SEQUENCE"):
        return reader.name()
    while reader.take_any("UNIQUE", "CLUSTERED", "NONCLUSTERED"):
        pass
    if not reader.take("INDEX"):
        return None
    reader.identifier()
    return reader.name() if reader.take("ON") else None
