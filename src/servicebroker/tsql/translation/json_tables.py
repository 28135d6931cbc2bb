"""OPENJSON."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.translation.writer import Source, Writer, refused


def open_json(writer: Writer, node: exp.OpenJSON, alias: exp.Expression | None, sources: list[Source]) -> str:
    """OPENJSON in FROM."""
    raise refused("OPENJSON")
