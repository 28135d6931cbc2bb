"""IS_MEMBER, IS_ROLEMEMBER and IS_SRVROLEMEMBER: what role somebody has."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Sql, Writer, as_text, string, write_value
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import INT, NVARCHAR

_LOGINS = "('sa', 'dbo')"


def _arguments(writer: Writer, nodes: list[exp.Expression], most: int, name: str) -> list[str]:
    if not 1 <= len(nodes) <= most:
        raise TsqlError(189, f"The {name} function requires 1 to {most} arguments.", severity=15)
    return [as_text(write_value(writer, node)) for node in nodes]


def _is_member(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    role, *who = _arguments(writer, nodes, 2, "is_rolemember")
    writer.used["function", "user_name"] = True
    principal = who[0] if who else f"{writer.parameter('user_name', NVARCHAR)}"
    return Sql(f"tsql.is_member({string(writer.scope.database)}, {principal}, {role})", INT)


def _is_server_member(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Who works as dbo of the instance's owner may do everything; other fixed roles have no members."""
    role, *who = _arguments(writer, nodes, 2, "is_srvrolemember")
    login = who[0] if who else writer.parameter("suser_name", NVARCHAR)
    return Sql(f"(lower({role}) IN ('sysadmin', 'public') AND lower({login}) IN {_LOGINS})::integer", INT)


SPECIAL |= {"is_member": _is_member, "is_rolemember": _is_member, "is_srvrolemember": _is_server_member}
