"""CREATE, ALTER and DROP of broker objects, event notifications, endpoints and databases, through the API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from servicebroker import operations
from servicebroker.engine.security.authorization import authorize
from servicebroker.engine.security.principals import find_owning_login
from servicebroker.model.errors import BrokerError
from servicebroker.model.event_types import SERVER, events_of
from servicebroker.operations.operation import Operation, statement_of
from servicebroker.store.running import execute, fetch
from servicebroker.tsql.collations import DEFAULT_COLLATION
from servicebroker.tsql.context import SessionDatabase, database_of, refuse_in_transaction
from servicebroker.tsql.interpreter.definitions.binding import bind_operation
from servicebroker.tsql.interpreter.definitions.ddl_events import post_definition_event
from servicebroker.tsql.interpreter.evaluation import evaluate_text
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.names import api_name
from servicebroker.tsql.parser.keywords import split_words
from servicebroker.tsql.postgres_errors import from_broker
from servicebroker.tsql.statement_errors import SYNTAX_ERROR, Message, TsqlError, unsupported
from servicebroker.tsql.syntax import Definition

Definer = Callable[[Machine, Definition], None]
DEFINERS: dict[tuple[str, str], Definer] = {}
Refusal = Callable[[Definition], None]
_REFUSALS: dict[tuple[str, str], Refusal] = {}


def defines(keyword: str, kind: str) -> Callable[[Definer], Definer]:
    """Register the decorated function as the runner of statements such as CREATE MESSAGE TYPE."""

    def register(definer: Definer) -> Definer:
        DEFINERS[keyword, kind] = definer
        return definer

    return register


def refuses(keyword: str, kind: str) -> Callable[[Refusal], Refusal]:
    """Register the decorated function as a check of a definition's text, which refuses unsupported clauses."""

    def register(refusal: Refusal) -> Refusal:
        _REFUSALS[keyword, kind] = refusal
        return refusal

    return register


def check_definition(statement: Definition) -> None:
    """Refuse a definition that can never run. `tsql check` calls this too.

    Raises:
        TsqlError: 40515 the definition is not supported.
    """
    refusal = _REFUSALS.get((statement.keyword, statement.kind))
    if refusal is not None:
        refusal(statement)
    if (statement.keyword, statement.kind) not in DEFINERS:
        raise unsupported(
            f"{statement.keyword} {statement.kind}", "See the table of statements in the reference.", statement.line
        )


def _register_operation(operation: type[Operation[Any]]) -> None:
    """Register an operation as the runner of the statement of its name."""
    keyword, kind = statement_of(operation).split(" ", 1)

    @defines(keyword, kind)
    def definer(machine: Machine, statement: Definition) -> None:
        def run_operation() -> None:
            database_of(machine, statement.name).run(bind_operation(machine, statement, operation))

        if keyword == "DROP":
            run_drop(statement, run_operation)
        else:
            run_operation()


for _operation in (
    *(operations.CreateMessageType, operations.AlterMessageType, operations.DropMessageType),
    *(operations.CreateXmlSchemaCollection, operations.AlterXmlSchemaCollection, operations.DropXmlSchemaCollection),
    *(operations.CreateContract, operations.DropContract),
    *(operations.AlterQueue, operations.DropQueue),
    *(operations.CreateService, operations.AlterService, operations.DropService),
    *(operations.CreateBrokerPriority, operations.AlterBrokerPriority, operations.DropBrokerPriority),
    *(operations.CreateRemoteServiceBinding, operations.AlterRemoteServiceBinding, operations.DropRemoteServiceBinding),
    *(operations.CreateRoute, operations.AlterRoute, operations.DropRoute),
    *(operations.DropUser, operations.DropRole),
):
    _register_operation(_operation)


@runs(Definition)
def _define(machine: Machine, statement: Definition) -> None:
    """Run a definition through the function that is registered for its words, and post its event."""
    check_definition(statement)
    with suppress(NothingToDrop):
        DEFINERS[statement.keyword, statement.kind](machine, statement)
        post_definition_event(machine, statement)
    machine.record_success(0)


class NothingToDrop(Exception):
    """DROP IF EXISTS has found no object."""


def run_drop(statement: Definition, drop_object: Callable[[], object]) -> None:
    """Run a DROP.

    Raises:
        NothingToDrop: the object of DROP IF EXISTS does not exist, and nothing was done.
    """
    try:
        drop_object()
    except BrokerError as error:
        if not statement.if_exists or error.number not in (15151, 911, 3701):
            raise
        raise NothingToDrop from None


@defines("CREATE", "QUEUE")
def _create_queue(machine: Machine, statement: Definition) -> None:
    """Run CREATE QUEUE.

    Raises:
        BrokerError: 2760 there is no such schema.
    """
    database, schema = database_of(machine, statement.name), statement.name.schema
    if schema.lower() not in ("", "dbo") and not _has_schema(machine, database, schema):
        raise BrokerError(2760, schema)
    database.run(bind_operation(machine, statement, operations.CreateQueue))


def _has_schema(machine: Machine, database: SessionDatabase, schema: str) -> bool:
    """Check whether a schema was created, or holds queues that a client of another language has made."""
    return bool(
        fetch(
            machine.connection,
            "objects.has_schema",
            "select from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2) union all "
            "select from servicebroker.queues where database_id = $1 and lower(schema_name) = lower($2) limit 1",
            (database.database_id, schema),
        )
    )


# ---------------------------------------------------------------- event notifications


@defines("CREATE", "EVENT NOTIFICATION")
def _create_notification(machine: Machine, statement: Definition) -> None:
    database, on = _notification_target(machine, statement)
    instance = evaluate_text(machine, statement.clauses["broker_instance"]) or ""
    database.run(bind_operation(machine, statement, operations.CreateEventNotification, broker_instance=instance, **on))


@refuses("CREATE", "EVENT NOTIFICATION")
def _check_events(statement: Definition) -> None:
    events_of(statement.clauses["events"], statement.clauses["on"])


@defines("DROP", "EVENT NOTIFICATION")
def _drop_notification(machine: Machine, statement: Definition) -> None:
    database, on = _notification_target(machine, statement)
    for name in statement.clauses["names"]:
        database.run(operations.DropEventNotification(name, **on))


def _notification_target(machine: Machine, statement: Definition) -> tuple[SessionDatabase, dict[str, Any]]:
    """Return the database of an event notification, and the arguments for what it is on."""
    on, queue = statement.clauses["on"], statement.clauses.get("queue")
    if on == SERVER:
        machine.context.require(
            f"{statement.keyword} EVENT NOTIFICATION ON SERVER", "event notification", statement.name.object
        )
    if queue is None:
        return machine.context.database, {"on_server": on == SERVER}
    return database_of(machine, queue), {"on_queue": api_name(queue)}


# ---------------------------------------------------------------- endpoints and databases


def _require_endpoint_permission(machine: Machine, statement: Definition) -> None:
    machine.context.require(f"{statement.keyword} ENDPOINT", "endpoint", statement.name.object)


def _check_endpoint(machine: Machine, statement: Definition) -> None:
    """Check that CREATE or ALTER ENDPOINT may run, and that its owner exists."""
    refuse_in_transaction(machine, f"{statement.keyword} ENDPOINT")
    _require_endpoint_permission(machine, statement)
    owner = statement.clauses.get("authorization")
    if owner is not None:  # only checked: the instance owns all endpoints
        machine.context.ask(find_owning_login(machine.context.server_login, owner))


@defines("CREATE", "ENDPOINT")
def _create_endpoint(machine: Machine, statement: Definition) -> None:
    _check_endpoint(machine, statement)
    _emit_warning(machine, machine.instance.run(bind_operation(machine, statement, operations.CreateEndpoint)))


@refuses("CREATE", "ENDPOINT")
def _check_listener_port(statement: Definition) -> None:
    if "listener_port" not in statement.clauses:
        raise TsqlError(SYNTAX_ERROR, "Incorrect syntax: AS TCP (LISTENER_PORT = ...) is missing.", severity=15)


@defines("ALTER", "ENDPOINT")
def _alter_endpoint(machine: Machine, statement: Definition) -> None:
    _check_endpoint(machine, statement)
    _emit_warning(machine, machine.instance.run(bind_operation(machine, statement, operations.AlterEndpoint)))


def _emit_warning(machine: Machine, warning: str | None) -> None:
    if warning is not None:
        machine.emit(Message(warning))


@defines("DROP", "ENDPOINT")
def _drop_endpoint(machine: Machine, statement: Definition) -> None:
    refuse_in_transaction(machine, "DROP ENDPOINT")
    _require_endpoint_permission(machine, statement)
    run_drop(statement, lambda: machine.instance.run(operations.DropEndpoint(statement.name.object)))


@defines("CREATE", "DATABASE")
def _create_database(machine: Machine, statement: Definition) -> None:
    refuse_in_transaction(machine, "CREATE DATABASE")
    machine.create_database(statement.name.object)
    switches: dict[str, Any] = {
        name: statement.clauses[name] for name in ("enable_broker", "new_broker") if name in statement.clauses
    }
    if "trustworthy" in statement.clauses:
        machine.context.require("SET TRUSTWORTHY")
        switches["trustworthy"] = statement.clauses["trustworthy"]
    if switches:
        machine.context.database_named(statement.name.object).run(operations.AlterDatabase(**switches))
    if statement.clauses.get("collate"):
        _set_collation(machine, statement.name.object, statement.clauses["collate"])


def _set_collation(machine: Machine, database: str, collation: str) -> None:
    execute(machine.connection, "objects.set_collation", _SET_COLLATION, collation, database)
    machine.queries.collations.invalidate()


_SET_COLLATION = "update servicebroker.databases set collation_name = $1 where lower(name) = lower($2)"


@defines("ALTER", "DATABASE")
def _alter_database(machine: Machine, statement: Definition) -> None:
    """Run ALTER DATABASE. The cause of a failure is sent before error 5069."""
    refuse_in_transaction(machine, "ALTER DATABASE")
    try:
        _set_database_options(machine, statement)
    except BrokerError as error:
        failure = TsqlError(5069, "ALTER DATABASE statement failed.")
        failure.cause = from_broker(error)
        raise failure from None


def _set_database_options(machine: Machine, statement: Definition) -> None:
    clauses = dict(statement.clauses)
    clauses.pop("ignored", None)
    collation = clauses.pop("collate", None)
    database = _database_to_alter(machine, statement.name.object)
    if "trustworthy" in clauses:
        machine.context.require("SET TRUSTWORTHY")
    if any(name not in ("no_wait", "rollback_after") for name in clauses):
        database.run(operations.AlterDatabase(**clauses))
    else:  # all clauses are without effect, but need the permission
        machine.context.ask(authorize(database.user, "ALTER DATABASE"))
    if collation is not None:
        _set_collation(machine, database.name, collation or DEFAULT_COLLATION)


def _database_to_alter(machine: Machine, name: str) -> SessionDatabase:
    """Return the database of ALTER DATABASE.

    Raises:
        BrokerError: 5011 the database does not exist, or the current principal has no user in it.
    """
    if name.upper() == "CURRENT":
        return machine.context.database
    try:
        return machine.context.database_named(name)
    except BrokerError as error:
        if error.number not in (911, 916):
            raise
        raise BrokerError(5011, name) from None


# options without effect: they are in force anyway, or are settings of PostgreSQL
IGNORED_OPTIONS = split_words(
    "RECOVERY SINGLE_USER MULTI_USER RESTRICTED_USER ONLINE AUTO_CLOSE AUTO_SHRINK "
    "AUTO_CREATE_STATISTICS AUTO_UPDATE_STATISTICS AUTO_UPDATE_STATISTICS_ASYNC PAGE_VERIFY COMPATIBILITY_LEVEL "
    "ALLOW_SNAPSHOT_ISOLATION READ_COMMITTED_SNAPSHOT DB_CHAINING QUOTED_IDENTIFIER ANSI_NULLS ANSI_PADDING "
    "ANSI_WARNINGS ANSI_NULL_DEFAULT ARITHABORT CONCAT_NULL_YIELDS_NULL NUMERIC_ROUNDABORT RECURSIVE_TRIGGERS "
    "CURSOR_CLOSE_ON_COMMIT CURSOR_DEFAULT PARAMETERIZATION DATE_CORRELATION_OPTIMIZATION DELAYED_DURABILITY "
    "TARGET_RECOVERY_TIME QUERY_STORE CONTAINMENT FILESTREAM DEFAULT_LANGUAGE "
    "ACCELERATED_DATABASE_RECOVERY ADD REMOVE MODIFY"
)


_DEFAULT_ADVICE = "Change the setting in PostgreSQL."
_REPLICATION_ADVICE = "PostgreSQL's replication does that: see the page on mirrored services."
_ADVICE = {
    "PARTNER": _REPLICATION_ADVICE,
    "WITNESS": _REPLICATION_ADVICE,
    "HADR": _REPLICATION_ADVICE,
    "CHANGE_TRACKING": "Use a trigger.",
}


@refuses("ALTER", "DATABASE")
def _check_options(statement: Definition) -> None:
    """Refuse options of ALTER DATABASE that would change something, but cannot be set here."""
    for option in statement.clauses.get("ignored", ()):
        if option.split()[0] not in IGNORED_OPTIONS:
            first_word, *_ = option.split()
            raise unsupported(
                f"ALTER DATABASE SET {first_word}", _ADVICE.get(first_word, _DEFAULT_ADVICE), statement.line
            )
        if option == "RECURSIVE_TRIGGERS ON":
            advice = "Leave it out: no trigger fires itself directly. Triggers of two tables may fire each other."
            raise unsupported(f"ALTER DATABASE SET {option}", advice, statement.line)


_SYSTEM_DATABASES = frozenset(("master", "model", "msdb", "tempdb"))


@defines("DROP", "DATABASE")
def _drop_database(machine: Machine, statement: Definition) -> None:
    """Run DROP DATABASE for each name.

    Raises:
        TsqlError: 3708 a database of the system, 3702 the current database, 3701 no such database.
    """
    refuse_in_transaction(machine, "DROP DATABASE")
    for name in statement.clauses["names"]:
        if name.lower() in _SYSTEM_DATABASES:
            raise TsqlError(3708, f"Cannot drop the database '{name}' because it is a system database.")
        if name.lower() == machine.database.name.lower():
            raise TsqlError(3702, f'Cannot drop database "{name}" because it is currently in use.')
        with suppress(NothingToDrop) if len(statement.clauses["names"]) > 1 else nullcontext():
            try:
                run_drop(statement, lambda name=name: machine.drop_database(name))  # type: ignore[misc]
            except BrokerError as error:
                if error.number != 911:
                    raise
                raise TsqlError(
                    3701, f"Cannot drop the database '{name}', because it does not exist or you do not have "
                    "permission.", severity=11,
                ) from None  # fmt: skip
