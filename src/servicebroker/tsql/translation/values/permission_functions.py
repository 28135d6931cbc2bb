"""HAS_PERMS_BY_NAME and fn_my_permissions: what who works may do. The session answers; a statement names what is asked."""

from __future__ import annotations

import json

from sqlglot import exp

from servicebroker.tsql.function_table import wrong_count
from servicebroker.tsql.translation.reading.text_to_tree import MARK
from servicebroker.tsql.translation.text_writer import PERMISSIONS, Sql, Writer, refused
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import INT

DATABASE = "="


def asked(writer: Writer, name: str, nodes: list[exp.Expression]) -> str:
    """The parameter of the session that answers.

    Raises:
        TsqlError: 40515 for an argument that each row would give anew.
    """
    return PERMISSIONS + json.dumps([name, *(_told(writer, name, node) for node in nodes)])


def _told(writer: Writer, name: str, node: exp.Expression) -> str | None:
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.National) or (isinstance(node, exp.Literal) and node.is_string):
        return "'" + node.name
    if isinstance(node, exp.Parameter):
        variable = "@" + node.name.lower()
        writer.variable_type(variable)
        return variable
    if isinstance(node, exp.Anonymous) and node.name.lower().removeprefix(MARK) == "db_name" and not node.expressions:
        return DATABASE
    raise refused(f"{name} of an expression", "Give it constants or variables.")


def _has_perms_by_name(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not 3 <= len(nodes) <= 5:
        raise wrong_count("has_perms_by_name", 3, 5)
    if not all(isinstance(node, exp.Null) for node in nodes[3:]):
        raise refused("A permission on columns", "Ask for the table.")
    return Sql(writer.parameter(asked(writer, "HAS_PERMS_BY_NAME", nodes[:3]), INT), INT)


def _my_permissions(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    raise refused("FN_MY_PERMISSIONS as a value", "It is a table: write it in FROM.")


SPECIAL |= {"has_perms_by_name": _has_perms_by_name, "fn_my_permissions": _my_permissions}
