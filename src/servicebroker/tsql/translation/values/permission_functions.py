"""HAS_PERMS_BY_NAME and fn_my_permissions: permissions of the current principal.

The session computes their results, which become parameters.
"""

from __future__ import annotations

import json

from sqlglot import exp

from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import PERMISSIONS, Sql, Writer, not_supported
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import INT

CURRENT_DATABASE = "="


def permissions_parameter(writer: Writer, name: str, nodes: list[exp.Expression]) -> str:
    """Return the name of the parameter that holds the result that the session has computed.

    Raises:
        TsqlError: 40515 an argument that is neither a constant, a variable nor DB_NAME().
    """
    return PERMISSIONS + json.dumps([name, *(_encode_argument(writer, name, node) for node in nodes)])


def _encode_argument(writer: Writer, name: str, node: exp.Expression) -> str | None:
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.National) or (isinstance(node, exp.Literal) and node.is_string):
        return "'" + node.name
    if isinstance(node, exp.Parameter):
        variable = "@" + node.name.lower()
        writer.variable_type(variable)
        return variable
    if (
        isinstance(node, exp.Anonymous)
        and node.name.lower().removeprefix(CALL_PREFIX) == "db_name"
        and not node.expressions
    ):
        return CURRENT_DATABASE
    raise not_supported(f"{name} of an expression", "Use constants or variables.")


def _has_perms_by_name(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not 3 <= len(nodes) <= 5:
        raise argument_count_error("has_perms_by_name", 3, 5)
    if not all(isinstance(node, exp.Null) for node in nodes[3:]):
        raise not_supported("A permission on columns", "Check the permission on the table.")
    return Sql(writer.parameter(permissions_parameter(writer, "HAS_PERMS_BY_NAME", nodes[:3]), INT), INT)


def _my_permissions(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    raise not_supported("FN_MY_PERMISSIONS as a value", "It returns a table. Use it in FROM.")


SPECIAL |= {"has_perms_by_name": _has_perms_by_name, "fn_my_permissions": _my_permissions}
