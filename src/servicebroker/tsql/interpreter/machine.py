"""The machine runs the statements of a session: it dispatches them, handles errors, and decides what an error ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from servicebroker.api.network import drop_database
from servicebroker.api.pipelined import DeferredDialogs
from servicebroker.engine.catalog.databases import create_database
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.catalog.read_only import check_writable
from servicebroker.engine.security.principals import add_role_member, create_user
from servicebroker.engine.security.tsql_objects import Use, authorize_uses, check_definitions
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.names import postgres_name
from servicebroker.model.security.permissions import DBO_ID, User
from servicebroker.operations.databases import DropDatabase
from servicebroker.operations.principals import AddRoleMember, CreateUser
from servicebroker.store.direct import DirectConnection, run_command
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch, in_transaction
from servicebroker.store.server_errors import affects_transaction
from servicebroker.store.statements import Steps
from servicebroker.tsql.collations import ignores_case
from servicebroker.tsql.date_texts import DATE_ORDER, US_ENGLISH, DateSettings
from servicebroker.tsql.interpreter.call_frame import CallFrame, ExitReason, Jump
from servicebroker.tsql.interpreter.implicit_transactions import begin_implicitly
from servicebroker.tsql.interpreter.procedures.session_functions import SessionFunctions, session_number
from servicebroker.tsql.interpreter.transactions import Transactions
from servicebroker.tsql.postgres_errors import from_broker, from_postgres
from servicebroker.tsql.results import Listener, RowCount, ScriptOutput
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Label, Relational, SetOption, Statement
from servicebroker.tsql.types import SqlType, parse_type, type_key

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance
    from servicebroker.tsql.context import Context, SessionDatabase
    from servicebroker.tsql.interpreter.cursors import Cursor
    from servicebroker.tsql.interpreter.queries import Queries

S = TypeVar("S", bound=Statement)
Runner = Callable[["Machine", Any], ExitReason | None]
RUNNERS: dict[type[Statement], Runner] = {}

MAX_NESTING_LEVEL = 32
_XML_ERRORS = (6335, 6359, 6365, *range(9400, 9481))  # text that is not well-formed XML
# errors that end the batch and roll its transaction back: failed conversions, deadlocks, work in a doomed transaction
_BATCH_ABORTING_ERRORS = frozenset({241, 242, 244, 245, 248, 295, 1205, 3930, 3960, 8114, 8169, *_XML_ERRORS})
# statements whose errors do the same, as SQL Server's documentation says of definitions such as CREATE TABLE
_BATCH_ABORTING_DEFINITIONS = frozenset({"CREATE TABLE", "ALTER TABLE"})
_UNSUPPORTED_ERROR = 40515  # a refusal of this server alone: the next statement runs
# errors of syntax and of missing names: they end the procedure or dynamic SQL, and its caller goes on
_SCOPE_ENDING_ERRORS = frozenset({102, 137, 156, 195, 207, 208, 1087, 4104})
# the errors among them that the parser finds; XACT_ABORT does not apply, since nothing has run
_PARSE_ERRORS = frozenset({102, 137, 156, 195, 1087})


@functools.lru_cache(maxsize=1024)
def _parse_type_cached(text: str) -> SqlType:
    return parse_type(text)


_SCHEMAS_OF_DATABASE = """
select postgres_schema from servicebroker.queues join servicebroker.databases d using (database_id)
 where lower(d.name) = lower($1)
union
select postgres_schema from servicebroker.tsql_schemas join servicebroker.databases d using (database_id)
 where lower(d.name) = lower($1)
union
select $2 where exists (select from servicebroker.databases d where lower(d.name) = lower($1))
"""


class AppLock(NamedTuple):
    """An application lock that the session has taken with sp_getapplock."""

    key: str
    is_shared: bool


class Cancelled(BaseException):
    """The owner of the session has cancelled the batch. No CATCH block runs."""


class BatchAborted(Exception):
    """Skip the rest of the batch. The error was already sent to the listener."""


class ScopeAborted(Exception):
    """Skip the rest of the called procedure or dynamic SQL. Its caller continues."""


class CallAborted(Exception):
    """End a call whose result set the enclosing EXEC ... WITH RESULT SETS refuses. No CATCH block in the call runs.

    Attributes:
        listener: the listener of that EXEC, by which it recognizes its own exception.
        error: the error that the EXEC raises.
    """

    def __init__(self, listener: object, error: TsqlError) -> None:
        super().__init__(error.text)
        self.listener, self.error = listener, error


def runs(
    kind: type[S],
) -> Callable[[Callable[[Machine, S], ExitReason | None]], Callable[[Machine, S], ExitReason | None]]:
    """Register the decorated function as the runner of one kind of statement."""

    def register(runner: Callable[[Machine, S], ExitReason | None]) -> Callable[[Machine, S], ExitReason | None]:
        RUNNERS[kind] = runner
        return runner

    return register


class Machine:
    """The state of a running session: frames, transaction, options, and the values of the @@ functions.

    Attributes:
        instance: the instance that the session works in.
        connection: the session's own connection.
        context: the database and the principal that statements work in; see `context.py`.
        frames: one for the batch and one for each open call, the innermost last.
        frame: the innermost frame.
        rowcount, error_number, identity: @@ROWCOUNT, @@ERROR, @@IDENTITY.
        scope_identity: SCOPE_IDENTITY(). A called module or dynamic SQL leaves the caller's value unchanged.
        caught_errors: the errors of the CATCH blocks that are running, the innermost last.
        try_depth: the number of open TRY blocks.
        isolation: the level of SET TRANSACTION ISOLATION LEVEL.
        closes_cursors: SET CURSOR_CLOSE_ON_COMMIT is ON.
        cursor_rows: @@CURSOR_ROWS, the row count of the cursor that was opened last.
        context_info: the value of SET CONTEXT_INFO, 128 bytes.
        session_context: the values of sp_set_session_context by key, as sql_variant.
        read_only_context: the keys of `session_context` that may not change any more.
        xml_documents: the documents of sp_xml_preparedocument by handle.
        xml_document_count: the number of handles that the session has been given.
        row_limit: the value of SET ROWCOUNT, 0 for no limit.
        dates: the settings of SET DATEFORMAT, DATEFIRST and LANGUAGE.
        is_implicit: SET IMPLICIT_TRANSACTIONS is ON.
        is_noexec: SET NOEXEC is ON. Every statement but SET NOEXEC is skipped.
        app_locks: the session's locks of sp_getapplock, in the order taken.
        result_sets_depth: the number of open EXEC ... WITH RESULT SETS, each of which may refuse a result set.
        next_statement: the statement that runs after the current one succeeds; None if unknown.
        cancelled: set by another thread to end the batch at its next statement.
    """

    def __init__(self, instance: Instance, connection: DirectConnection, listener: Listener) -> None:
        self.instance = instance
        self.connection = connection
        self.transactions: Transactions = Transactions(connection, DeferredDialogs(instance, connection))
        self.listener = listener
        self.context: Context
        self.queries: Queries
        self.frames: list[CallFrame] = []
        self.frame: CallFrame = CallFrame()
        self.functions = SessionFunctions(self)
        self.rowcount: int = 0
        self.error_number: int = 0
        self.identity: object = None
        self.scope_identity: object = None
        self.caught_errors: list[TsqlError] = []
        self.try_depth = 0
        self.trigger_level: int = 0
        self.cursors: dict[str, Cursor] = {}
        self.fetch_status: int = 0
        self.closes_cursors = False
        self.cursor_rows: int = 0
        self.context_info: bytes | None = None
        self.session_context: dict[str, str | None] = {}
        self.read_only_context: set[str] = set()
        self.xml_documents: dict[int, str] = {}
        self.xml_document_count = 0
        self.nocount = False
        self.xact_abort = False
        self.row_limit = 0
        self.dates: DateSettings = US_ENGLISH
        self.is_implicit = False
        self.is_noexec = False
        self.isolation = "READ COMMITTED"
        self.app_locks: list[AppLock] = []
        self.last_error: TsqlError | None = None
        self.result_sets_depth = 0
        self.next_statement: Statement | None = None
        self.cancelled = threading.Event()

    @property
    def database(self) -> Any:
        """The current database, with the rights of the current principal."""
        return self.context.database

    @property
    def ignores_case(self) -> bool:
        """True if the collation of the current database ignores case."""
        return ignores_case(self.queries.collations.get(self.database.name.lower(), ""))

    @property
    def login(self) -> str:
        """The current login of the session."""
        return self.context.login

    @property
    def spid(self) -> int:
        """The value of @@SPID."""
        return session_number(self)

    def set_dates(self, dates: DateSettings) -> None:
        """Change the date settings for this session's conversions, in Python and in PostgreSQL."""
        self.dates = dates
        DATE_ORDER.set(dates.order)

    def emit(self, output: ScriptOutput) -> None:
        """Send a result set, a row count, a message or an error to the session's listener."""
        if isinstance(output, TsqlError):
            self.last_error = output
        self.listener(output)

    def pause(self, seconds: float) -> None:
        """Sleep.

        Raises:
            Cancelled: the batch was cancelled meanwhile.
        """
        if self.cancelled.wait(seconds):
            raise Cancelled

    def emit_row_count(self) -> None:
        """Emit @@ROWCOUNT after a change of rows and its triggers, unless SET NOCOUNT is ON."""
        if not self.nocount:
            self.emit(RowCount(self.rowcount))

    def run(self, statements: Sequence[Statement], successor: Statement | None = None) -> ExitReason | None:
        """Run statements in order. Return the reason if a statement leaves the list early, None at its end.

        GOTO continues at its label. `successor` is the statement that runs after the whole list has succeeded.
        """
        position = 0
        while position < len(statements):
            statement = statements[position]
            position += 1
            self.next_statement = statements[position] if position < len(statements) else successor
            exit_reason = self.step(statement)
            if isinstance(exit_reason, Jump):
                positions = [
                    index
                    for index, candidate in enumerate(statements)
                    if isinstance(candidate, Label) and candidate.name == exit_reason.label
                ]
                if not positions:
                    return exit_reason
                position = positions[0]
            elif exit_reason is not None:
                return exit_reason
        return None

    def step(self, statement: Statement) -> ExitReason | None:
        """Run one statement. An error is sent to the listener, or raised if a TRY block is open.

        Raises:
            Cancelled: the batch was cancelled.
        """
        if self.cancelled.is_set():
            raise Cancelled
        try:
            if self.is_noexec and not (isinstance(statement, SetOption) and "NOEXEC" in statement.options):
                return None
            if self.is_implicit:
                begin_implicitly(self, statement)
            return RUNNERS[type(statement)](self, statement)
        except (BatchAborted, ScopeAborted):
            raise
        except TsqlError as error:
            self._failed(error, statement)
        except BrokerError as error:
            self._failed(from_broker(error), statement)
        except psycopg.Error as error:
            self._failed(from_postgres(error, getattr(statement, "text", "")), statement)
        except (
            InstanceError
        ) as error:  # a broker statement failed: report the server's error, unless the transaction is lost
            if not isinstance(error.__cause__, psycopg.Error) or affects_transaction(error.__cause__):
                raise
            self._failed(from_postgres(error.__cause__), statement)
        except UnicodeEncodeError:  # a lone surrogate
            self._failed(TsqlError(9402, "The text holds a character that cannot be stored."), statement)
        return None

    def _failed(self, error: TsqlError, statement: Statement) -> None:
        """Decide what an error ends. Inside TRY, the error is raised, and may doom the transaction.

        Outside of TRY, the error is sent to the listener. Depending on the error, the batch ends with a rollback, the
        procedure or dynamic SQL ends, or the next statement runs.

        Raises:
            TsqlError: inside TRY, the error.
            BatchAborted: outside of TRY, the error ends the batch.
            ScopeAborted: outside of TRY, the error ends the procedure or dynamic SQL.
        """
        error.at(statement.line, self.frame.procedure)
        self.rowcount = 0
        is_lost = error.number == 1205 or self.transactions.is_lost
        if is_lost and self.transactions.count and not self.transactions.is_external:
            self.transactions.restart()
        obeys_xact_abort = not error.is_raised and error.number not in _PARSE_ERRORS
        aborts_batch = (
            is_lost
            or error.undoes
            or (self.xact_abort and obeys_xact_abort)
            or error.number in _BATCH_ABORTING_ERRORS
            or (_defines_table(statement) and error.number not in (*_PARSE_ERRORS, _UNSUPPORTED_ERROR))
        )
        if self.try_depth:
            # in a trigger under XACT_ABORT, every error dooms the transaction, also RAISERROR inside TRY
            is_doomed = aborts_batch or (self.trigger_level > 0 and self.xact_abort)
            if is_doomed and self.transactions.count:
                self.transactions.is_doomed = True
            raise error
        if error.cause is not None:
            self.emit(error.cause.at(error.line, error.procedure))
        self.emit(error)
        self.error_number = error.number
        if aborts_batch and self.transactions.count and not self.transactions.is_external:
            self.context.roll_back()
        if aborts_batch or error.ends_batch or error.severity >= 20:
            raise BatchAborted
        if error.number in _SCOPE_ENDING_ERRORS:
            raise ScopeAborted

    @contextmanager
    def enter_frame(
        self, frame: CallFrame, database: SessionDatabase, impersonate: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Run the `with` block as the body of a procedure or dynamic SQL, with its frame and in its database.

        `impersonate` switches to the user of its EXECUTE AS; None keeps the caller.
        """
        frame_depth, caller_database, impersonation_depth = len(self.frames), self.context.database, self.context.depth
        caller_scope_identity, self.scope_identity = self.scope_identity, None
        self.frames.append(frame)
        self.frame = frame
        self.context.database = database
        try:
            if impersonate is not None:
                frame.caller = self.context.execution_context
                impersonate()
            self.context.sign(frame.signers)
            frame.impersonation_depth = self.context.depth
            yield
        finally:
            self.unwind(frame_depth, impersonation_depth)
            self.context.database, self.scope_identity = caller_database, caller_scope_identity

    @contextmanager
    def transaction_scope(self) -> Iterator[None]:
        """Run the `with` block in the open transaction. Without one, begin a transaction for the block.

        A transaction for the block commits at its end, or rolls back on an error.
        """
        is_own = self.transactions.count == 0
        if is_own:
            self.transactions.begin()
        try:
            yield
        except BaseException:
            if is_own and self.transactions.count and not self.connection.closed:
                self.context.roll_back()
            raise
        if is_own and self.transactions.count:
            self.context.commit()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Run the `with` block atomically: an error undoes its statements, but nothing before them."""
        with self.transaction_scope(), self.transactions.savepoint():
            yield

    def unwind(self, frame_depth: int, impersonation_depth: int) -> None:
        """Leave the frames above `frame_depth`, and revert each EXECUTE AS above `impersonation_depth`."""
        while len(self.frames) > frame_depth:
            self.queries.drop_tables(self.frames.pop())
        self.frame = self.frames[-1] if self.frames else CallFrame()
        self.context.unwind(impersonation_depth)

    def has_login(self, name: str) -> bool:
        """Return True if the instance has a login of that name."""
        return bool(
            fetch(
                self.connection,
                "machine.has_login",
                "select from servicebroker.logins where lower(name) = lower($1)",
                (name,),
            )
        )

    def set_server_option(self, option: str, value: str) -> None:
        """Change a setting of PostgreSQL until the session ends."""
        self.queries.set_setting(option, value)

    def create_database(self, name: str) -> None:
        """Run CREATE DATABASE. A login that creates a database becomes a member of its db_owner role.

        Raises:
            BrokerError: 1801 the name is taken, 262 the session may not create databases.
        """
        self.context.require("CREATE DATABASE")
        login = self.context.server_login

        def steps() -> Steps[None]:
            database_id = yield from create_database(name)
            if login.login_id is not None:
                dbo = Definer(User(database_id, name, DBO_ID, "dbo"), self.instance.catalog, self.instance.clock)
                yield from create_user(dbo, CreateUser(login.name, for_login=login.name))
                yield from add_role_member(dbo, AddRoleMember("db_owner", login.name))

        with self.instance.connection() as connection:
            in_transaction(connection, steps())

    def drop_database(self, name: str) -> None:
        """Run DROP DATABASE, and drop the schemas that hold its tables and procedures.

        Raises:
            BrokerError: 911 there is no such database, 3701 the session may not drop it, 3702 it is in use, 3708
                it is a system database.
        """
        try:
            database = self.context.database_named(name)
        except BrokerError as error:
            if error.number != 916:
                raise
            raise BrokerError(3701, "drop", "database", name) from None
        with self.instance.connection() as connection:
            schemas = [
                schema
                for (schema,) in fetch(
                    connection, "machine.drop_database", _SCHEMAS_OF_DATABASE, (name, postgres_name(name, "dbo"))
                )
            ]
        drop_database(database, DropDatabase(name))
        with self.instance.connection() as connection:
            for schema in schemas:
                run_command(connection, f"drop schema if exists {quoted(schema)} cascade".encode())
        self.queries.columns.invalidate()

    def authorize(self, *uses: Use, database: SessionDatabase | None = None) -> None:
        """Check that the current user may make these uses of T-SQL objects in a database.

        Raises:
            BrokerError: the errors of `engine/security/tsql_objects.py`; 3906 a definition in a READ_ONLY database.
        """
        user = (database or self.context.database).user
        self.context.ask(authorize_uses(user, uses))
        if any(use.defines for use in uses):
            self.context.ask(check_definitions(user, uses))
            self.context.ask(check_writable(user.database_id))

    def resolve_type(self, text: str) -> SqlType:
        """Return the type with a name. An alias type of CREATE TYPE is resolved to its base type."""
        try:
            return _parse_type_cached(text)
        except TsqlError as error:
            key = type_key(text) if error.number == 2715 else None
            user_type = self.queries.user_types.get(key) if key is not None else None
            if user_type is None or user_type.of is None:
                raise
            return user_type.of

    def end_transaction(self) -> None:
        """Close the cursors at the end of a transaction, if SET CURSOR_CLOSE_ON_COMMIT is ON."""
        if self.closes_cursors:
            for cursor in self.cursors.values():
                cursor.result = None

    def record_success(self, rows: int | None = None) -> None:
        """Set @@ERROR to 0 after a statement, and @@ROWCOUNT if `rows` is given."""
        self.error_number = 0
        if rows is not None:
            self.rowcount = rows


def check_nesting(machine: Machine) -> None:
    """Refuse a call beyond the maximum nesting level.

    Raises:
        TsqlError: 217 the calls are nested too deeply.
    """
    if len(machine.frames) > MAX_NESTING_LEVEL:
        raise TsqlError(
            217, "Maximum stored procedure, function, trigger, or view nesting level exceeded "
            f"(limit {MAX_NESTING_LEVEL})."
        )  # fmt: skip


def _defines_table(statement: Statement) -> bool:
    return isinstance(statement, Relational) and statement.keyword in _BATCH_ABORTING_DEFINITIONS
