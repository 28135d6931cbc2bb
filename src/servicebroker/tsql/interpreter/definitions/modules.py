"""Procedures and triggers in the catalog: made, changed, dropped, found; parsed once for each version of their text."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

from servicebroker.engine.security.authorization import authorize, certificate
from servicebroker.engine.security.module_signatures import add_signature, drop_signature, forget_signatures
from servicebroker.engine.security.principals import check_execute_as
from servicebroker.engine.security.tsql_objects import Use, forget, registered
from servicebroker.engine.security.user_certificates import find_certificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.faces import face, telling
from servicebroker.model.names import postgres_name
from servicebroker.model.zero_character import from_postgres, to_postgres
from servicebroker.store.direct import DirectConnection
from servicebroker.store.keys.x509_certificates import is_signed, public_key
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch, run
from servicebroker.store.statements import Rows
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.definitions import triggers, user_types
from servicebroker.tsql.interpreter.definitions.ddl_events import tell_of_dropped, tell_of_module
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.definitions.temporary_procedures import (
    drop_temporary,
    find_temporary,
    is_temporary,
    store_temporary,
)
from servicebroker.tsql.interpreter.execute_as import user_of
from servicebroker.tsql.interpreter.foresight import refuse_unrunnable
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Definition, Function, Name, Procedure, Trigger
from servicebroker.tsql.types import parse_type, type_key

_FIND = (
    "select module_id, definition, execute_as, creator, name, array(select s.thumbprint from "
    "servicebroker.module_signatures s where s.module_id = m.module_id and not s.is_counter) "
    "from servicebroker.tsql_modules m "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3) and kind = $4"
)


class Module(NamedTuple):
    """A procedure as it is called. `user` is whom it works as, None for its caller.

    `signers` are the certificates, by their thumbprints, that have signed it.
    """

    procedure: Procedure
    user: str | None
    name: str
    number: int = 0
    signers: tuple[bytes, ...] = ()
    is_temporary: bool = False


def find_procedure(machine: Machine, name: Name) -> tuple[SessionDatabase, Module] | None:
    """The procedure of that name, in dbo when it says no schema; None when there is none."""
    if is_temporary(name.own):
        found = find_temporary(machine, name.own)
        if found is None:
            return None
        return machine.context.database, Module(parsed(found[1]), None, name.own, found[0], is_temporary=True)
    database = database_of(machine, name)
    module = module_named(machine.connection, database.database_id, name.schema or "dbo", name.own)
    return None if module is None else (database, module)


def module_named(connection: DirectConnection, database_id: int, schema: str, name: str) -> Module | None:
    """The procedure of that name; None when there is none."""
    rows = fetch(connection, "modules.module_named", _FIND, (database_id, schema, name, "P"))
    if not rows:
        return None
    number, text, execute_as, creator, own, signers = rows[0]
    return Module(parsed(text), user_of(execute_as, creator), own, number, tuple(signers))


@functools.lru_cache(maxsize=1024)
def parsed(text: str) -> Procedure:
    """The procedure that the text defines."""
    (statement,) = parse_text(from_postgres(text))
    assert isinstance(statement, Procedure)
    return statement


# ---------------------------------------------------------------- signatures


@defines("ADD", "SIGNATURE")
@defines("DROP", "SIGNATURE")
def _change_signatures(machine: Machine, statement: Definition) -> None:
    """Sign a module, or forget that it was signed.

    Raises:
        BrokerError: 15151 no such module or certificate, or not for who works, 15556 there is no private key, 15557 it
            is signed already, 15558 it is not, 15299 the signature is of something else.
    """
    machine.transactions.check()
    name, database = statement.name, database_of(machine, statement.name)
    rows = fetch(machine.connection, "modules.change_signatures", _SIGNED, (
        database.database_id, name.schema or "dbo", name.own
    ))  # fmt: skip
    if not rows:
        raise BrokerError(15151, "find", "object", str(name))
    number, text = rows[0]
    schema = name.schema or "dbo"
    signers = [certificate(signer["certificate"]) for signer in statement.clauses["signers"]]
    own = registered(f"{schema}.{name.own}")
    with machine.whole():  # also what is asked: it gives the module a number to grant rights on
        machine.context.ask(authorize(database.user, f"{statement.verb} SIGNATURE", own, *signers))
        for signer in statement.clauses["signers"]:
            _sign(machine, database, statement, (number, str(name), text), signer)


_SIGNED = (
    "select module_id, definition from servicebroker.tsql_modules "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)"
)


def _sign(
    machine: Machine,
    database: SessionDatabase,
    statement: Definition,
    module: tuple[int, str, str],
    signer: dict[str, Any],
) -> None:
    number, shown, definition = module
    by, is_counter = signer["certificate"], statement.clauses["counter"]
    found = machine.context.ask(find_certificate("find", database.database_id, by))
    steps = (number, shown, by, found.facts.thumbprint)
    if statement.verb == "DROP":
        database._alone(drop_signature(*steps, is_counter=is_counter))
        return
    text = from_postgres(definition).encode("utf-16-le")
    signature = signer.get("signature")
    if signature is None:
        signature = database.sign_with_certificate(by, text, decryption_password=signer.get("password"))
    else:
        key = public_key(found.facts.der)
        if not isinstance(signature, bytes) or key is None or not is_signed(text, signature, key):
            raise BrokerError(15299, by)
    database._alone(add_signature(*steps, signature, is_counter=is_counter))


# ---------------------------------------------------------------- CREATE, ALTER, DROP


@runs(Procedure)
def _procedure(machine: Machine, statement: Procedure) -> None:
    with machine.context.within(database_of(machine, statement.name)):
        _make_procedure(machine, statement)


def _make_procedure(machine: Machine, statement: Procedure) -> None:
    for parameter in statement.parameters:
        user_types.check_parameter(machine, parameter)
    refuse_unrunnable(statement, machine.queries.user_types)
    if is_temporary(statement.name.own):
        store_temporary(machine, statement)
    else:
        store(machine, statement, "P")


@runs(Trigger)
def _trigger(machine: Machine, statement: Trigger) -> None:
    with machine.context.within(database_of(machine, statement.name)):
        _make_trigger(machine, statement)


def _make_trigger(machine: Machine, statement: Trigger) -> None:
    refuse_unrunnable(statement, machine.queries.user_types)
    name = statement.name
    on_table = Use("CREATE TRIGGER", statement.table.schema or "dbo", statement.table.own, shown=str(name))
    _check_target(machine, statement)
    table = machine.queries.table_named(statement.table)
    machine.allow(on_table, database=database_of(machine, statement.table))
    triggers.check_place(machine, statement, table)
    with machine.whole():
        store(machine, statement, "TR", table)
        if not statement.instead_of:
            machine.queries.define(triggers.capture(table))
        triggers.divert(machine, table)
    triggers.forget(machine)


def _check_target(machine: Machine, trigger: Trigger) -> None:
    """Raises: TsqlError: 2108 the trigger would lie in another database than its table."""
    there = database_of(machine, machine.queries.behind(trigger.table))
    if there.database_id != database_of(machine, trigger.name).database_id:
        raise TsqlError(
            2108, f"Cannot create trigger on '{trigger.table}' as the target is not in the current database."
        )


def store(machine: Machine, statement: Procedure | Function | Trigger, kind: str, table: str | None = None) -> None:
    """Keep the text of a module under its name.

    Raises:
        BrokerError: 262, 2760, 3701 the user may not; 15151 nor act as whom EXECUTE AS names, or there is none.
        TsqlError: 2714 the name is taken, 208 there is nothing to alter.
    """
    machine.transactions.check()
    database = database_of(machine, statement.name)
    schema, own = statement.name.schema or "dbo", statement.name.own
    what = type(statement).__name__.upper()
    found = fetch(machine.connection, "modules.store.find_taken", _TAKEN, (database.database_id, schema, own))
    if found and statement.action != "CREATE":
        machine.allow(Use(f"ALTER {what}", schema, own), database=database)
    elif not isinstance(statement, Trigger):  # which its table was asked for
        machine.allow(Use(f"CREATE {what}", schema, own), database=database)
    execute_as = None if isinstance(statement, Function) else statement.execute_as
    creator, parameters = database.user.name, _parameters(machine, statement)
    works_as = user_of(execute_as, creator)
    if works_as is not None:
        machine.context.ask(check_execute_as(database.user, works_as))
    machine.transactions.guard()
    try:
        _check_name(machine, statement, found, kind, schema)
        if found:
            fetch(
                machine.connection,
                "modules.store.update_module",
                "update servicebroker.tsql_modules set definition = $2, execute_as = $3, parent_table = $4, "
                "creator = $5, parameters = $6, is_disabled = false, "
                "version = nextval('servicebroker.catalog_versions'), "
                f"modify_date = clock_timestamp() where module_id = $1 returning {telling(7)}",
                (found[0][0], to_postgres(statement.text), execute_as, table, creator, parameters, creator, face()),
            )
            run(machine.connection, forget_signatures(found[0][0]))
        else:
            fetch(
                machine.connection,
                "modules.store.insert_module",
                "insert into servicebroker.tsql_modules "
                "(database_id, schema_name, name, kind, definition, execute_as, creator, parent_table, parameters) "
                f"values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning {telling(10)}",
                (
                    *(database.database_id, schema, own, kind, to_postgres(statement.text), execute_as, creator, table),
                    *(parameters, creator, face()),
                ),
            )
    except BaseException:
        machine.transactions.undo()
        raise
    tell_of_module(machine, database, statement, is_new=not found)
    machine.done(0)


def _parameters(machine: Machine, statement: Procedure | Function | Trigger) -> str | None:
    """What sys.parameters shows: of a user's type the name, of another one its whole form."""
    if isinstance(statement, Trigger):
        return None
    told = [
        [each.name, _shown_type(machine, each.type), each.output, each.default is not None]
        for each in statement.parameters
    ]
    if isinstance(statement, Function) and statement.returns is not None:
        told.insert(0, ["", _shown_type(machine, statement.returns), True, False])
    return json.dumps(told)


def _shown_type(machine: Machine, text: str) -> str:
    try:
        return str(parse_type(text))
    except TsqlError:
        return (type_key(text) or text).rpartition(".")[2]


_TAKEN = (
    "select module_id, kind from servicebroker.tsql_modules "
    "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)"
)


def _check_name(
    machine: Machine, statement: Procedure | Function | Trigger, found: Rows, kind: str, schema: str
) -> None:
    """2714 for a name that is taken, 208 for ALTER of what is not there."""
    own = statement.name.own
    if statement.action == "ALTER" and not found:
        raise TsqlError(208, f"Invalid object name '{own}'.", state=6)
    if found and (statement.action == "CREATE" or found[0][1] != kind):
        raise TsqlError(2714, f"There is already an object named '{own}' in the database.", state=3)
    if not found:
        check_no_table(machine, database_of(machine, statement.name), schema, own)


def check_no_table(machine: Machine, database: SessionDatabase, schema: str, own: str) -> None:
    """Raises: TsqlError: 2714 a table, view, queue or sequence has the name."""
    table = f"{quoted(postgres_name(database.name, schema))}.{quoted(postgres_name(own))}"
    if fetch(machine.connection, "modules.check_no_table", "select where to_regclass($1) is not null", (table,)):
        raise TsqlError(2714, f"There is already an object named '{own}' in the database.", state=3)


@defines("DROP", "PROCEDURE")
def _drop_procedure(machine: Machine, statement: Definition) -> None:
    drop_modules(machine, statement, "procedure", "P")


@defines("DROP", "TRIGGER")
def _drop_trigger(machine: Machine, statement: Definition) -> None:
    tables = [
        table
        for name in statement.clauses["names"]
        for (table,) in fetch(machine.connection, "modules.drop_trigger", _PARENT, (
            database_of(machine, name).database_id, name.schema or "dbo", name.own
        ))
    ]  # fmt: skip
    with machine.whole():
        drop_modules(machine, statement, "trigger", "TR")
        for table in tables:
            triggers.divert(machine, table)
    triggers.forget(machine)


_PARENT = (
    "select parent_table from servicebroker.tsql_modules where database_id = $1 and lower(schema_name) = lower($2) "
    "and lower(name) = lower($3) and kind = 'TR'"
)


_SWITCH = (
    "update servicebroker.tsql_modules set is_disabled = $4, modify_date = clock_timestamp() "
    "where kind = 'TR' and database_id = $1 and to_regclass(parent_table) = to_regclass($2) "
    "and (lower(name) = lower($3) or $3 = '') "
    f"returning {telling(5)}"
)


@defines("ENABLE", "TRIGGER")
@defines("DISABLE", "TRIGGER")
def _switch_triggers(machine: Machine, statement: Definition) -> None:
    """Have triggers of a table run, or not; without a name all of them.

    Raises:
        TsqlError: 1088 the table or a trigger is not there, or the user may not; by ALTER TABLE 4902 and 4920.
    """
    machine.transactions.check()
    by_table, database = statement.clauses["by_table"], database_of(machine, statement.name)
    try:
        table = machine.queries.table_named(statement.name)
    except TsqlError:
        raise _not_found(4902 if by_table else 1088, statement.name) from None
    machine.allow(Use("ENABLE TRIGGER", statement.name.schema or "dbo", statement.name.own), database=database)
    with machine.whole():
        machine.transactions.guard()
        try:
            for name in statement.clauses["names"] or [None]:
                wanted = (
                    database.database_id,
                    table,
                    "" if name is None else name.own,
                    statement.verb == "DISABLE",
                    database.user.name,
                    face(),
                )
                if not fetch(machine.connection, "modules.switch_triggers", _SWITCH, wanted) and name is not None:
                    if by_table:
                        text = (
                            f"ALTER TABLE failed because trigger '{name}' on table '{statement.name}' does not exist."
                        )
                        raise TsqlError(4920, text)
                    raise _not_found(1088, name)
        except BaseException:
            machine.transactions.undo()
            raise
        triggers.divert(machine, table)


def _not_found(number: int, name: Name) -> TsqlError:
    return TsqlError(
        number, f'Cannot find the object "{name}" because it does not exist or you do not have permissions.'
    )


def drop_modules(machine: Machine, statement: Definition, what: str, *kinds: str) -> list[Name]:
    """Forget the text of those that DROP names; returns the names of those that were there.

    Raises:
        BrokerError: 3701 the user may not.
        TsqlError: 3701 one is not there.
    """
    machine.transactions.check()
    dropped = []
    for name in statement.clauses["names"]:
        if is_temporary(name.own) and what == "procedure":
            if not drop_temporary(machine, name.own) and not statement.if_exists:
                raise _not_dropped(what, name)
            continue
        database, schema = database_of(machine, name), name.schema or "dbo"
        machine.allow(Use(f"DROP {what.upper()}", schema, name.own), database=database)
        rows = fetch(
            machine.connection,
            "modules.drop_modules",
            "delete from servicebroker.tsql_modules where database_id = $1 and lower(schema_name) = lower($2) "
            f"and lower(name) = lower($3) and kind = any ($4) returning {telling(5)}",
            (database.database_id, schema, name.own, list(kinds), database.user.name, face()),
        )
        if rows:
            dropped.append(name)
            machine.context.ask(forget(database.user, schema, name.own))
            tell_of_dropped(machine, database, what.upper(), name, statement.text)
        elif not statement.if_exists:
            raise _not_dropped(what, name)
    return dropped


def _not_dropped(what: str, name: Name) -> TsqlError:
    return TsqlError(
        3701, f"Cannot drop the {what} '{name}', because it does not exist or you do not have permission.", severity=11,
        state=5,
    )  # fmt: skip
