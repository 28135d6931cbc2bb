"""Creates, alters, drops, finds and signs procedures, functions and triggers. Each definition is parsed once."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

from servicebroker.engine.security.authorization import authorize, certificate
from servicebroker.engine.security.module_signatures import add_signature, drop_signature, forget_signatures
from servicebroker.engine.security.principals import check_execute_as
from servicebroker.engine.security.tsql_objects import Use, forget, look_up_registered
from servicebroker.engine.security.user_certificates import find_certificate
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import postgres_name
from servicebroker.model.zero_character import from_postgres, to_postgres
from servicebroker.store.direct import DirectConnection
from servicebroker.store.keys.x509_certificates import is_signed, public_key
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch, run
from servicebroker.store.statements import Rows
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.definitions import triggers, user_types
from servicebroker.tsql.interpreter.definitions.ddl_events import post_drop_event, post_module_event
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.definitions.temporary_procedures import (
    drop_temporary,
    find_temporary,
    is_temporary,
    store_temporary,
)
from servicebroker.tsql.interpreter.execute_as import module_user
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.static_checks import check_module_body
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Definition, Function, Name, Procedure, Trigger
from servicebroker.tsql.types import parse_type, type_key

_FIND_MODULE = (
    "select module_id, definition, execute_as, creator, name, array(select s.thumbprint from "
    "servicebroker.module_signatures s where s.module_id = m.module_id and not s.is_counter) "
    "from servicebroker.tsql_modules m "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3) and kind = $4"
)


class Module(NamedTuple):
    """A procedure to call. `user` is the user with whose rights it runs, None for the caller.

    `signers` are the thumbprints of the certificates that signed it.
    """

    procedure: Procedure
    user: str | None
    name: str
    object_id: int = 0
    signers: tuple[bytes, ...] = ()
    is_temporary: bool = False


class _SignedModule(NamedTuple):
    """A module to sign: its object_id, its name as written in the statement, and its definition."""

    object_id: int
    shown_name: str
    definition: str


def find_procedure(machine: Machine, name: Name) -> tuple[SessionDatabase, Module] | None:
    """Return a procedure and its database; None if no such procedure exists. The default schema is dbo."""
    if is_temporary(name.object):
        temporary = find_temporary(machine, name.object)
        if temporary is None:
            return None
        procedure = parse_procedure(temporary.text)
        return machine.context.database, Module(procedure, None, name.object, temporary.object_id, is_temporary=True)
    database = database_of(machine, name)
    module = find_module(machine.connection, database.database_id, name.schema or "dbo", name.object)
    return None if module is None else (database, module)


def find_module(connection: DirectConnection, database_id: int, schema: str, name: str) -> Module | None:
    """Return a procedure by its name; None if no such procedure exists."""
    rows = fetch(connection, "modules.find_module", _FIND_MODULE, (database_id, schema, name, "P"))
    if not rows:
        return None
    object_id, text, execute_as, creator, shown_name, signers = rows[0]
    return Module(parse_procedure(text), module_user(execute_as, creator), shown_name, object_id, tuple(signers))


def find_function(machine: Machine, name: Name) -> Function | None:
    """Return a scalar function by its name; None if no such function exists. The default schema is dbo."""
    if is_temporary(name.object):
        return None
    database = database_of(machine, name)
    key = (database.database_id, name.schema or "dbo", name.object, "FN")
    rows = fetch(machine.connection, "modules.find_function", _FIND_MODULE, key)
    return _parse_function(rows[0][1]) if rows else None


@functools.lru_cache(maxsize=256)
def _parse_function(text: str) -> Function:
    (statement,) = parse_text(from_postgres(text))
    assert isinstance(statement, Function)
    return statement


@functools.lru_cache(maxsize=1024)
def parse_procedure(text: str) -> Procedure:
    """Parse the definition of a procedure."""
    (statement,) = parse_text(from_postgres(text))
    assert isinstance(statement, Procedure)
    return statement


# ---------------------------------------------------------------- signatures


@defines("ADD", "SIGNATURE")
@defines("DROP", "SIGNATURE")
def _change_signatures(machine: Machine, statement: Definition) -> None:
    """Run ADD SIGNATURE or DROP SIGNATURE.

    Raises:
        BrokerError: 15151 no such module or certificate, or no permission; 15556 there is no private key, 15557 the
            module is already signed, 15558 it is not signed, 15299 the signature is not of this definition.
    """
    machine.transactions.check_not_doomed()
    name, database = statement.name, database_of(machine, statement.name)
    rows = fetch(machine.connection, "modules.change_signatures", _FIND_SIGNED_MODULE, (
        database.database_id, name.schema or "dbo", name.object
    ))  # fmt: skip
    if not rows:
        raise BrokerError(15151, "find", "object", str(name))
    object_id, text = rows[0]
    module = _SignedModule(object_id, str(name), text)
    schema = name.schema or "dbo"
    signers = [certificate(signer["certificate"]) for signer in statement.clauses["signers"]]
    securable = look_up_registered(f"{schema}.{name.object}")
    with machine.atomic():  # the permission check itself registers the module as a securable
        machine.context.ask(authorize(database.user, f"{statement.keyword} SIGNATURE", securable, *signers))
        for signer in statement.clauses["signers"]:
            _change_signature(machine, database, statement, module, signer)


_FIND_SIGNED_MODULE = (
    "select module_id, definition from servicebroker.tsql_modules "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)"
)


def _change_signature(
    machine: Machine,
    database: SessionDatabase,
    statement: Definition,
    module: _SignedModule,
    signer: dict[str, Any],
) -> None:
    """Add the signature of one certificate to a module, or drop it. Raises as `_change_signatures`."""
    certificate_name, is_counter = signer["certificate"], statement.clauses["counter"]
    certificate = machine.context.ask(find_certificate("find", database.database_id, certificate_name))
    arguments = (module.object_id, module.shown_name, certificate_name, certificate.facts.thumbprint)
    if statement.keyword == "DROP":
        database._run_in_transaction(drop_signature(*arguments, is_counter=is_counter))
        return
    text = from_postgres(module.definition).encode("utf-16-le")
    signature = signer.get("signature")
    if signature is None:
        signature = database.sign_with_certificate(certificate_name, text, decryption_password=signer.get("password"))
    else:
        key = public_key(certificate.facts.der)
        if not isinstance(signature, bytes) or key is None or not is_signed(text, signature, key):
            raise BrokerError(15299, certificate_name)
    database._run_in_transaction(add_signature(*arguments, signature, is_counter=is_counter))


# ---------------------------------------------------------------- CREATE, ALTER, DROP


@runs(Procedure)
def _procedure(machine: Machine, statement: Procedure) -> None:
    with machine.context.within(database_of(machine, statement.name)):
        _create_procedure(machine, statement)


def _create_procedure(machine: Machine, statement: Procedure) -> None:
    for parameter in statement.parameters:
        user_types.check_parameter(machine, parameter)
    check_module_body(statement, machine.queries.user_types)
    if is_temporary(statement.name.object):
        store_temporary(machine, statement)
    else:
        store_module(machine, statement, "P")


@runs(Trigger)
def _trigger(machine: Machine, statement: Trigger) -> None:
    with machine.context.within(database_of(machine, statement.name)):
        _create_trigger(machine, statement)


def _create_trigger(machine: Machine, statement: Trigger) -> None:
    """Store a trigger, and install the PostgreSQL triggers that capture or divert the changes of its table."""
    check_module_body(statement, machine.queries.user_types)
    name = statement.name
    on_table = Use("CREATE TRIGGER", statement.table.schema or "dbo", statement.table.object, shown=str(name))
    _check_target(machine, statement)
    table = machine.queries.find_table(statement.table)
    machine.authorize(on_table, database=database_of(machine, statement.table))
    triggers.check_target(machine, statement, table)
    with machine.atomic():
        store_module(machine, statement, "TR", table)
        if not statement.instead_of:
            machine.queries.define(triggers.capture_sql(table))
        triggers.install_diversions(machine, table)
    triggers.invalidate(machine)


def _check_target(machine: Machine, trigger: Trigger) -> None:
    """Refuse a trigger in another database than its table.

    Raises:
        TsqlError: 2108 the table is in another database.
    """
    table_database = database_of(machine, machine.queries.resolve_synonym(trigger.table))
    if table_database.database_id != database_of(machine, trigger.name).database_id:
        raise TsqlError(
            2108, f"Cannot create trigger on '{trigger.table}' as the target is not in the current database."
        )


def store_module(
    machine: Machine, statement: Procedure | Function | Trigger, kind: str, table: str | None = None
) -> None:
    """Store the definition of a module under its name.

    Raises:
        BrokerError: 262, 2760 or 3701 the user has no permission; 15151 EXECUTE AS names a missing user, or one that
            this user may not impersonate.
        TsqlError: 2714 the name is taken, 208 there is nothing to alter.
    """
    machine.transactions.check_not_doomed()
    database = database_of(machine, statement.name)
    schema, name = statement.name.schema or "dbo", statement.name.object
    kind_word = type(statement).__name__.upper()
    existing = fetch(
        machine.connection, "modules.store_module.find_taken", _FIND_NAME, (database.database_id, schema, name)
    )
    if existing and statement.action != "CREATE":
        machine.authorize(Use(f"ALTER {kind_word}", schema, name), database=database)
    elif not isinstance(statement, Trigger):  # the permission on the trigger's table was checked before
        machine.authorize(Use(f"CREATE {kind_word}", schema, name), database=database)
    execute_as = None if isinstance(statement, Function) else statement.execute_as
    creator, parameters = database.user.name, _describe_parameters(machine, statement)
    module_user_name = module_user(execute_as, creator)
    if module_user_name is not None:
        machine.context.ask(check_execute_as(database.user, module_user_name))
    machine.transactions.set_guard()
    try:
        _check_name_free(machine, statement, existing, kind, schema)
        if existing:
            fetch(
                machine.connection,
                "modules.store_module.update_module",
                "update servicebroker.tsql_modules set definition = $2, execute_as = $3, parent_table = $4, "
                "creator = $5, parameters = $6, is_disabled = false, "
                "version = nextval('servicebroker.catalog_versions'), "
                f"modify_date = clock_timestamp() where module_id = $1 returning {audit_context_sql(7)}",
                (
                    existing[0][0],
                    to_postgres(statement.text),
                    execute_as,
                    table,
                    creator,
                    parameters,
                    creator,
                    client_kind(),
                ),
            )
            run(machine.connection, forget_signatures(existing[0][0]))
        else:
            fetch(
                machine.connection,
                "modules.store_module.insert_module",
                "insert into servicebroker.tsql_modules "
                "(database_id, schema_name, name, kind, definition, execute_as, creator, parent_table, parameters) "
                f"values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning {audit_context_sql(10)}",
                (
                    *(database.database_id, schema, name, kind, to_postgres(statement.text), execute_as, creator),
                    *(table, parameters, creator, client_kind()),
                ),
            )
    except BaseException:
        machine.transactions.undo_statement()
        raise
    post_module_event(machine, database, statement, is_new=not existing)
    machine.record_success(0)


def _describe_parameters(machine: Machine, statement: Procedure | Function | Trigger) -> str | None:
    """Return the parameters for sys.parameters as JSON: name, type, OUTPUT, default.

    A user type is shown by its name. A trigger has none: None.
    """
    if isinstance(statement, Trigger):
        return None
    descriptions = [
        [parameter.name, _shown_type(machine, parameter.type), parameter.output, parameter.default is not None]
        for parameter in statement.parameters
    ]
    if isinstance(statement, Function) and statement.returns is not None:
        descriptions.insert(0, ["", _shown_type(machine, statement.returns), True, False])
    return json.dumps(descriptions)


def _shown_type(machine: Machine, text: str) -> str:
    try:
        return str(parse_type(text))
    except TsqlError:
        return (type_key(text) or text).rpartition(".")[2]


_FIND_NAME = (
    "select module_id, kind from servicebroker.tsql_modules "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)"
)


def _check_name_free(
    machine: Machine, statement: Procedure | Function | Trigger, existing: Rows, kind: str, schema: str
) -> None:
    """Refuse a name that is taken, and ALTER of a missing module.

    Raises:
        TsqlError: 2714 the name is taken, 208 the module to alter does not exist.
    """
    name = statement.name.object
    if statement.action == "ALTER" and not existing:
        raise TsqlError(208, f"Invalid object name '{name}'.", state=6)
    if existing and (statement.action == "CREATE" or existing[0][1] != kind):
        raise TsqlError(2714, f"There is already an object named '{name}' in the database.", state=3)
    if not existing:
        check_no_relation(machine, database_of(machine, statement.name), schema, name)


def check_no_relation(machine: Machine, database: SessionDatabase, schema: str, name: str) -> None:
    """Refuse the name of a table, view, queue or sequence.

    Raises:
        TsqlError: 2714 such a relation exists.
    """
    table = f"{quoted(postgres_name(database.name, schema))}.{quoted(postgres_name(name))}"
    if fetch(machine.connection, "modules.check_no_relation", "select where to_regclass($1) is not null", (table,)):
        raise TsqlError(2714, f"There is already an object named '{name}' in the database.", state=3)


@defines("DROP", "PROCEDURE")
def _drop_procedure(machine: Machine, statement: Definition) -> None:
    drop_modules(machine, statement, "procedure", "P")


@defines("DROP", "TRIGGER")
def _drop_trigger(machine: Machine, statement: Definition) -> None:
    tables = [
        table
        for name in statement.clauses["names"]
        for (table,) in fetch(machine.connection, "modules.drop_trigger", _FIND_PARENT_TABLE, (
            database_of(machine, name).database_id, name.schema or "dbo", name.object
        ))
    ]  # fmt: skip
    with machine.atomic():
        drop_modules(machine, statement, "trigger", "TR")
        for table in tables:
            triggers.install_diversions(machine, table)
    triggers.invalidate(machine)


_FIND_PARENT_TABLE = (
    "select parent_table from servicebroker.tsql_modules where database_id = $1 and lower(schema_name) = lower($2) "
    "and lower(name) = lower($3) and kind = 'TR'"
)


_SWITCH_TRIGGERS = (
    "update servicebroker.tsql_modules set is_disabled = $4, modify_date = clock_timestamp() "
    "where kind = 'TR' and database_id = $1 and to_regclass(parent_table) = to_regclass($2) "
    "and (lower(name) = lower($3) or $3 = '') "
    f"returning {audit_context_sql(5)}"
)


@defines("ENABLE", "TRIGGER")
@defines("DISABLE", "TRIGGER")
def _switch_triggers(machine: Machine, statement: Definition) -> None:
    """Run ENABLE TRIGGER or DISABLE TRIGGER, for all triggers of the table if no name is given.

    Raises:
        TsqlError: 1088 the table or a trigger does not exist, or no permission; 4902 and 4920 for ALTER TABLE.
    """
    machine.transactions.check_not_doomed()
    by_table, database = statement.clauses["by_table"], database_of(machine, statement.name)
    try:
        table = machine.queries.find_table(statement.name)
    except TsqlError:
        raise _object_not_found(4902 if by_table else 1088, statement.name) from None
    machine.authorize(Use("ENABLE TRIGGER", statement.name.schema or "dbo", statement.name.object), database=database)
    with machine.atomic():
        machine.transactions.set_guard()
        try:
            for name in statement.clauses["names"] or [None]:
                parameters = (
                    database.database_id,
                    table,
                    "" if name is None else name.object,
                    statement.keyword == "DISABLE",
                    database.user.name,
                    client_kind(),
                )
                if (
                    not fetch(machine.connection, "modules.switch_triggers", _SWITCH_TRIGGERS, parameters)
                    and name is not None
                ):
                    if by_table:
                        message = (
                            f"ALTER TABLE failed because trigger '{name}' on table '{statement.name}' does not exist."
                        )
                        raise TsqlError(4920, message)
                    raise _object_not_found(1088, name)
        except BaseException:
            machine.transactions.undo_statement()
            raise
        triggers.install_diversions(machine, table)


def _object_not_found(number: int, name: Name) -> TsqlError:
    return TsqlError(
        number, f'Cannot find the object "{name}" because it does not exist or you do not have permissions.'
    )


def drop_modules(machine: Machine, statement: Definition, kind_word: str, *kinds: str) -> list[Name]:
    """Delete the modules that a DROP names. Return the names of those that existed.

    Raises:
        BrokerError: 3701 the user may not.
        TsqlError: 3701 a module does not exist.
    """
    machine.transactions.check_not_doomed()
    dropped = []
    for name in statement.clauses["names"]:
        if is_temporary(name.object) and kind_word == "procedure":
            if not drop_temporary(machine, name.object) and not statement.if_exists:
                raise _cannot_drop(kind_word, name)
            continue
        database, schema = database_of(machine, name), name.schema or "dbo"
        machine.authorize(Use(f"DROP {kind_word.upper()}", schema, name.object), database=database)
        rows = fetch(
            machine.connection,
            "modules.drop_modules",
            "delete from servicebroker.tsql_modules where database_id = $1 and lower(schema_name) = lower($2) "
            f"and lower(name) = lower($3) and kind = any ($4) returning {audit_context_sql(5)}",
            (database.database_id, schema, name.object, list(kinds), database.user.name, client_kind()),
        )
        if rows:
            dropped.append(name)
            machine.context.ask(forget(database.user, schema, name.object))
            post_drop_event(machine, database, kind_word.upper(), name, statement.text)
        elif not statement.if_exists:
            raise _cannot_drop(kind_word, name)
    return dropped


def _cannot_drop(kind_word: str, name: Name) -> TsqlError:
    return TsqlError(
        3701, f"Cannot drop the {kind_word} '{name}', because it does not exist or you do not have permission.",
        severity=11, state=5,
    )  # fmt: skip
