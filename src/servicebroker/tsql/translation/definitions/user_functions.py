"""Calls of user-defined functions, as values and in FROM."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model import names
from servicebroker.store.queue import quoted
from servicebroker.tsql.scope import UserFunction
from servicebroker.tsql.statement_errors import TsqlError, no_linked_server, unknown_function_error
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Source,
    Sql,
    Writer,
    not_supported,
    postgres_schema,
    quote_identifier,
    typed_text,
    write_value,
)
from servicebroker.tsql.translation.values.casts import cast_value


def postgres_function(database: str, schema: str, name: str) -> str:
    """Return the quoted PostgreSQL name of a function."""
    return f"{postgres_schema(database, schema)}.{quoted(names.postgres_name(name))}"


def scalar_call(writer: Writer, node: exp.Dot) -> Sql:
    """Write schema.name(arguments) as a value.

    Raises:
        TsqlError: 4121 no such function, 40515 $PARTITION, 317 the function returns a table, 313 and 8144 too few or too many arguments.
    """
    name, written_name = _resolve_name(writer, node)
    writer.record_use(name, "EXECUTE")
    function = _find_function(writer, name, written_name)
    if function is not None and function.returns is None:
        raise TsqlError(
            317,
            f"Table-valued function '{written_name}' cannot be used as a value: write SELECT ... FROM {written_name}(...).",
        )
    text = _write_call(writer, name, written_name, function, list(node.expression.expressions))
    return Sql(text, None if function is None else function.returns)


def table_call(writer: Writer, node: exp.Expression, alias: exp.Expression | None, sources: list[Source]) -> str | None:
    """Write schema.name(arguments) AS alias in FROM. Return None for any other node.

    Raises:
        TsqlError: 208 no such function, or a scalar one; 313 and 8144 too few or too many arguments.
    """
    call = _call_in(node)
    if call is None:
        return None
    name, written_name = _resolve_name(writer, node)
    writer.record_use(name, "SELECT")
    function = _find_function(writer, name, written_name, number=208)
    if function is not None and function.returns is not None:
        raise TsqlError(208, f"Invalid object name '{written_name}': the function returns a value, not a table.")
    text = _write_call(writer, name, written_name, function, list(call.expressions))
    alias_name = alias.name if alias is not None and alias.name else _own_name(call)
    renamed = [column_node.name for column_node in (alias.args.get("columns") or [])] if alias is not None else []
    columns = None if function is None else {column.name.lower(): column for column in function.columns}
    if renamed and columns is not None and len(renamed) == len(columns):
        pairs = zip(renamed, columns.values(), strict=True)
        columns = {new.lower(): column._replace(name=new) for new, column in pairs}
    sources.append(Source(alias_name.lower(), columns))
    column_list = f" ({', '.join(quote_identifier(column_name) for column_name in renamed)})" if renamed else ""
    return f"{text} AS {quote_identifier(alias_name)}{column_list}"


def _call_in(node: exp.Expression) -> exp.Anonymous | None:
    call = node.expression if isinstance(node, exp.Dot) else node.this if isinstance(node, exp.Table) else node
    return call if isinstance(call, exp.Anonymous) else None


def _own_name(call: exp.Expression) -> str:
    return call.name.removeprefix(CALL_PREFIX)


def _resolve_name(writer: Writer, node: exp.Expression) -> tuple[str, str]:
    """Return the quoted PostgreSQL name of a function, and its name as written."""
    if not isinstance(node, exp.Dot):
        parts = [part for part in (node.args.get("catalog"), node.args.get("db")) if part]
        parts = [part.name for part in parts]
        call = _call_in(node) or node
    else:
        parts = _qualifiers(node.this)
        call = node.expression
        if not parts:
            raise TsqlError(227, f'"{_own_name(call)}" is not a valid function, property, or field.', severity=15)
    if len(parts) > 2:
        raise no_linked_server(parts[0])
    database = parts[0] if len(parts) == 2 else writer.scope.database
    schema = parts[-1] if parts else ""  # optional for a function in FROM
    function_name = written_name = _own_name(call)
    base = writer.synonym(database, schema or "dbo", function_name)
    if base is not None:
        database, schema, function_name = base.parts
    name = postgres_function(database, schema, function_name)
    elsewhere = database if database.lower() != writer.scope.database.lower() else ""
    writer.table_uses[name] = Use("SELECT", schema or "dbo", function_name, elsewhere)
    return name, ".".join([*parts, written_name])


def _qualifiers(node: exp.Expression) -> list[str]:
    """Return the names before the last dot, empty if an expression stands there."""
    if isinstance(node, exp.Identifier):
        return [node.name]
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        before = _qualifiers(node.this)
        return [*before, node.expression.name] if before else []
    if isinstance(node, exp.Column):
        return [part.name for part in node.parts]
    return []


def _find_function(writer: Writer, name: str, written_name: str, number: int = 4121) -> UserFunction | None:
    """Return the signature of a function, or None if the catalog was not read."""
    functions = writer.scope.user_functions
    function = None if functions is None else functions.get(name)
    writer.scope_answers["function of users", name] = function
    if written_name.upper().startswith("$PARTITION."):
        raise not_supported("$PARTITION", "A partitioned table is one table: compare the column itself.")
    if function is None and functions is not None:
        raise (
            TsqlError(208, f"Invalid object name '{written_name}'.")
            if number == 208
            else unknown_function_error(written_name)
        )
    return function


def _is_default(argument: exp.Expression) -> bool:
    return isinstance(argument, exp.Column) and not argument.table and argument.name.upper() == "DEFAULT"


def _write_call(
    writer: Writer, name: str, written_name: str, function: UserFunction | None, arguments: list[exp.Expression]
) -> str:
    """Write the call with its arguments, converted to the types of the parameters. DEFAULT becomes the default.

    Raises:
        TsqlError: 313 an argument or a default is missing, 8144 there are too many arguments.
    """
    if function is None:
        values = [argument for argument in arguments if not _is_default(argument)]
        return f"{name}({', '.join(typed_text(write_value(writer, argument)) for argument in values)})"
    if len(arguments) < len(function.parameters):
        raise TsqlError(
            313, f"An insufficient number of arguments were supplied for the procedure or function {written_name}."
        )
    if len(arguments) > len(function.parameters):
        raise TsqlError(8144, f"Procedure or function {written_name} has too many arguments specified.", state=2)
    texts = []
    for argument, sql_type, default in zip(arguments, function.parameters, function.defaults, strict=True):
        if _is_default(argument):
            if default is None:
                raise TsqlError(
                    313,
                    f"An insufficient number of arguments were supplied for the procedure or function {written_name}.",
                )
            texts.append(default)
        else:
            texts.append(typed_text(cast_value(write_value(writer, argument), sql_type)))
    return f"{name}({', '.join(texts)})"
