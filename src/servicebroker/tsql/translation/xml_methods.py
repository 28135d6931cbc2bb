"""The methods of xml: value(), query(), exist() and nodes()."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.translation.writer import Source, Sql, Writer, refused


def method(writer: Writer, node: exp.Dot) -> Sql:
    """A method of a value."""
    raise refused("A method of xml")


def nodes_of(writer: Writer, node: exp.Expression, alias: exp.Expression | None, sources: list[Source]) -> str | None:
    """nodes() in FROM; None for something else."""
    return None
