"""UPDATE(column), the condition that a trigger asks of the statement that has fired it."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Sql, Writer
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import BIT

UPDATED = "updated "  # before the name of a column: the parameter that says whether the statement has set it


def _updated(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) != 1 or not isinstance(nodes[0], exp.Column):
        raise TsqlError(102, "Incorrect syntax near 'UPDATE'. It takes the name of a column.", severity=15)
    return Sql(writer.parameter(UPDATED + nodes[0].name.lower(), BIT), BIT)


SPECIAL["update"] = _updated
