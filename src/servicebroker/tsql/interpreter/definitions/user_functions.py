"""CREATE, ALTER and DROP FUNCTION. A function is one of PostgreSQL; its T-SQL text is stored beside it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from servicebroker.tsql.context import database_of
from servicebroker.tsql.interpreter.catalog_cache import write_function_note
from servicebroker.tsql.interpreter.definitions.modules import drop_modules, store_module
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.syntax import Definition, Function, Name
from servicebroker.tsql.translation.definitions.function_bodies import (
    body_scope,
    parameter_list,
    read_signature,
    returns_table_sql,
    translate_inline,
    write_body,
)
from servicebroker.tsql.translation.definitions.user_functions import postgres_function
from servicebroker.tsql.translation.text_writer import postgres_schema, quote_string
from servicebroker.tsql.types import postgres_type

if TYPE_CHECKING:
    from servicebroker.engine.security.tsql_objects import Use
    from servicebroker.tsql.scope import Scope


@runs(Function)
def _define_function(machine: Machine, statement: Function) -> None:
    """Create or alter a function: store its text, and define it in PostgreSQL with the permissions of its author."""
    database = database_of(machine, statement.name)
    name = postgres_function(database.name, statement.name.schema, statement.name.object)
    uses: dict[Use, None] = {}
    with machine.atomic():
        store_module(machine, statement, _object_type(statement))
        scope = replace(machine.queries.scope(), recorded_uses=uses)
        definition = "; ".join(_definition(statement, name, scope, database.name))
        machine.queries.authorize(uses, is_module=True)
        machine.queries.define(definition)
    machine.queries.user_functions.invalidate()
    machine.record_success(0)


def _object_type(statement: Function) -> str:
    """Return the type of a function in sys.objects: FN scalar, TF table-valued, IF inline."""
    return "FN" if statement.returns is not None else "TF" if statement.table is not None else "IF"


def _definition(statement: Function, name: str, scope: Scope, database: str) -> Iterator[str]:
    """Yield the statements that create the function in PostgreSQL. The function may call itself."""
    user_function = read_signature(statement, scope)
    function_scope = body_scope(statement, user_function, scope)
    assert scope.user_functions is not None
    functions = ChainMap({name: user_function}, scope.user_functions)  # type: ignore[arg-type] # read only
    function_scope = replace(function_scope, user_functions=functions)
    if _object_type(statement) == "IF":
        text, columns = translate_inline(statement, function_scope)
        language = "sql stable"
    else:
        body = write_body(statement, name, user_function, function_scope)
        text, columns = body.text, body.columns
        language = "plpgsql volatile" if body.has_tables else "plpgsql stable"
    user_function = user_function._replace(columns=columns)
    returns = (
        f"table ({returns_table_sql(columns)})"
        if user_function.returns is None
        else postgres_type(user_function.returns)
    )
    yield f"create schema if not exists {postgres_schema(database, statement.name.schema)}"
    yield f"drop function if exists {name}"
    strict = " strict" if statement.is_strict else ""
    yield (
        f"create function {name}({parameter_list(statement, user_function)}) returns {returns} "
        f"language {language}{strict} as {quote_string(text)}"
    )
    yield f"comment on function {name} is {quote_string(write_function_note(user_function))}"


@defines("DROP", "FUNCTION")
def _drop_function(machine: Machine, statement: Definition) -> None:
    with machine.atomic():
        for name in drop_modules(machine, statement, "function", "FN", "IF", "TF"):
            machine.queries.define(f"drop function if exists {_postgres_name(machine, name)}")
    machine.queries.user_functions.invalidate()
    machine.record_success(0)


def _postgres_name(machine: Machine, name: Name) -> str:
    return postgres_function(database_of(machine, name).name, name.schema, name.object)
