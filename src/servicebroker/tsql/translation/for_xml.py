"""FOR XML."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.translation.writer import Writer, refused
from servicebroker.tsql.types import SqlType


def for_xml(writer: Writer, node: exp.Expression, clause: exp.Expression) -> tuple[str, SqlType]:
    """A query as one document."""
    raise refused("FOR XML")
