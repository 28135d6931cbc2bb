"""Functions of T-SQL whose arguments are not plain values, but for dates: IS_MEMBER and its kin
too; and those that are not here.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.text_to_tree import MARK
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    as_text,
    closed_text,
    refused,
    string,
    unsupported,
    value_of,
    write_value,
)
from servicebroker.tsql.translation.values.alternatives import alike
from servicebroker.tsql.translation.values.conversions import converted
from servicebroker.tsql.translation.values.functions import SPECIAL, argument, check_count, session_value
from servicebroker.tsql.translation.values.patterns import expression as pattern_expression
from servicebroker.tsql.translation.values.plain_functions import DECIMAL_38, SESSION
from servicebroker.tsql.types import INT, NVARCHAR, VARBINARY


def _isnull(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "isnull")
    first, second = (write_value(writer, node) for node in nodes)
    if first.type is not None and second.type is not None and first.type != second.type:
        second = converted(second, first.type._replace(length=-1) if first.is_open else first.type)
    return Sql(f"COALESCE({closed_text(first)}, {closed_text(second)})", first.type or second.type)


def _choose(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise TsqlError(189, "The choose function requires 2 to 255 arguments.", severity=15)
    index = argument(write_value(writer, nodes[0]), "i")
    kind, texts = alike([write_value(writer, node) for node in nodes[1:]])
    branches = " ".join(f"WHEN {number} THEN {text}" for number, text in enumerate(texts, 1))
    return Sql(f"(CASE {index} {branches} END)", kind)


def _concat(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise TsqlError(189, "The concat function requires 2 to 254 arguments.", severity=15)
    values = [write_value(writer, node) for node in nodes]
    texts = [f"COALESCE({argument(value, 's')}, '')" for value in values]
    return Sql("(" + " || ".join(texts) + ")", NVARCHAR)


def _patindex(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "patindex")
    pattern = nodes[0]
    text = argument(write_value(writer, nodes[1]), "s")
    written = pattern.this if isinstance(pattern, exp.Literal | exp.National) else None
    if isinstance(written, str) and written.startswith("%"):
        return Sql(f"tsql.patindex({string(pattern_expression(written)[1:].removeprefix('.*'))}, {text})", INT)
    return Sql(f"tsql.patindex_of({argument(write_value(writer, pattern), 's')}, {text})", INT)


_HASHES = {"md5": "md5", "sha2_256": "sha256", "sha2_512": "sha512"}


def _hashbytes(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "hashbytes")
    algorithm = nodes[0].name.lower() if isinstance(nodes[0], exp.Literal | exp.National) else ""
    if algorithm not in _HASHES:
        raise refused(f"HASHBYTES with {algorithm or 'a variable'}", "Use 'SHA2_256', 'SHA2_512' or 'MD5'.")
    value = converted(write_value(writer, nodes[1]), VARBINARY).text
    if algorithm == "md5":
        return Sql(f"decode(md5({value}), 'hex')", VARBINARY)
    return Sql(f"{_HASHES[algorithm]}({value})", VARBINARY)


def _global(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    name = nodes[0].name
    if name not in SESSION:
        raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15)
    return session_value(writer, name)


def _json_modify(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "json_modify")
    document, path, value = (write_value(writer, node) for node in nodes)
    is_json = isinstance(nodes[2], exp.Anonymous) and nodes[2].name.lower() == MARK + "json_query"
    if value.is_open and value.type is None:
        new = "NULL::jsonb"
    elif is_json:
        new = f"{value.text}::jsonb"
    elif value.type is not None and value.type.name == "bit":
        new = f"to_jsonb({value.text} <> 0)"
    else:
        new = f"to_jsonb({closed_text(value)})"
    return Sql(f"tsql.json_modify({argument(document, 's')}, {argument(path, 's')}, {new})", NVARCHAR)


def _ident_current(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "ident_current")
    name = argument(write_value(writer, nodes[0]), "s")
    return Sql(f"tsql.ident_current({string(writer.scope.database)}, {name})", DECIMAL_38)


def _not_here(name: str, instead: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    def refuse(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        raise refused(name, instead)

    return refuse


SPECIAL |= {
    "isnull": _isnull,
    "choose": _choose,
    "concat": _concat,
    "patindex": _patindex,
    "hashbytes": _hashbytes,
    "global": _global,
    "json_modify": _json_modify,
    "ident_current": _ident_current,
    "soundex": _not_here("SOUNDEX", "Compare the strings themselves."),
    "identity": _not_here("IDENTITY() in SELECT INTO", "Create the table with an IDENTITY column, then INSERT."),
    "string_split": _not_here("STRING_SPLIT as a value", "It is a table: write it in FROM."),
}


@value_of(exp.Trim)
def _trim(writer: Writer, node: exp.Trim) -> Sql:
    value = argument(write_value(writer, node.this), "s")
    signs = node.args.get("expression")
    if node.args.get("position") or node.args.get("collation"):
        raise unsupported(node, "Use LTRIM and RTRIM.")
    removed = argument(write_value(writer, signs), "s") if signs is not None else string(" ")
    return Sql(f"btrim({value}, {removed})", NVARCHAR)


# those of SQL Server, and the roles of PostgreSQL that own the instance
_ADMINISTRATORS = (
    "SELECT 'sa' UNION ALL SELECT 'dbo' UNION ALL SELECT lower(r.rolname) FROM pg_roles r "
    "JOIN pg_namespace n ON pg_has_role(r.oid, n.nspowner, 'usage') WHERE n.nspname = 'servicebroker'"
)


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
    return Sql(f"(lower({role}) IN ('sysadmin', 'public') AND lower({login}) IN ({_ADMINISTRATORS}))::integer", INT)


SPECIAL |= {"is_member": _is_member, "is_rolemember": _is_member, "is_srvrolemember": _is_server_member}
