"""Runs statements: which function does each, what is said of errors, and what a failed statement leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from servicebroker.api.network import drop_database
from servicebroker.api.pipelined import WaitingDialogs
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
from servicebroker.store.server_errors import concerns_the_transaction
from servicebroker.store.statements import Steps
from servicebroker.tsql.interpreter.frame import Frame, Jump, Left
from servicebroker.tsql.interpreter.implicit_transactions import begin_implicitly
from servicebroker.tsql.interpreter.procedures.session_functions import Functions, spid_of
from servicebroker.tsql.interpreter.transactions import Transactions
from servicebroker.tsql.postgres_errors import from_broker, from_postgres
from servicebroker.tsql.results import Listener, RowCount, Said
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Label, SetOption, Statement
from servicebroker.tsql.types import SqlType, parse_type, type_key

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance
    from servicebroker.tsql.context import Context, SessionDatabase
    from servicebroker.tsql.interpreter.cursors import Cursor
    from servicebroker.tsql.interpreter.queries import Queries

S = TypeVar("S", bound=Statement)
Runner = Callable[["Machine", Any], Left | None]
RUNNERS: dict[type[Statement], Runner] = {}

MAXIMUM_NESTING = 32
# errors after which a batch does not go on, and whose transaction is undone: conversions, deadlocks, doomed work
_ABORTING = frozenset({241, 242, 244, 245, 248, 295, 1205, 3930, 3960, 8114, 8169, 9420})
# errors of a name that is not there: the procedure or text ends, what called it goes on
_ENDING_SCOPE = frozenset({102, 137, 156, 195, 207, 208, 1087, 4104})
# of those, what a text says of itself before it runs, whatever XACT_ABORT is
_UNREADABLE = frozenset({102, 137, 156, 195, 1087})


@functools.lru_cache(maxsize=1024)
def _type_named(text: str) -> SqlType:
    return parse_type(text)


_SCHEMAS = """
select postgres_schema from servicebroker.queues join servicebroker.databases d using (database_id)
 where lower(d.name) = lower($1)
union
select postgres_schema from servicebroker.tsql_schemas join servicebroker.databases d using (database_id)
 where lower(d.name) = lower($1)
union
select $2 where exists (select from servicebroker.databases d where lower(d.name) = lower($1))
"""


class BatchEnd(Exception):
    """The batch does not go on; what is to be said was said."""


class ScopeEnd(Exception):
    """The procedure or text that was called does not go on."""


class CallEnd(Exception):
    """What was called has sent what an EXEC around it does not take: it ends there, whatever CATCH stands between.

    Attributes:
        by: what that EXEC knows itself by.
        error: what it raises.
    """

    def __init__(self, by: object, error: TsqlError) -> None:
        super().__init__(error.text)
        self.by, self.error = by, error


def runs(kind: type[S]) -> Callable[[Callable[[Machine, S], Left | None]], Callable[[Machine, S], Left | None]]:
    """Registers what runs the statements of a kind."""

    def register(runner: Callable[[Machine, S], Left | None]) -> Callable[[Machine, S], Left | None]:
        RUNNERS[kind] = runner
        return runner

    return register


class Machine:
    """What a session is while it runs: frames, the transaction, and what @@ names.

    Attributes:
        instance: where everything happens.
        connection: one connection of it, the session's own.
        context: the database and the principal that statements work in; see `context.py`.
        frames: of the batch and of each procedure call, the innermost last.
        rowcount, error, identity: @@ROWCOUNT, @@ERROR, @@IDENTITY.
        scope_identity: SCOPE_IDENTITY(), which modules and texts that are called do not change.
        caught: the errors that CATCH blocks are working on, the innermost last.
        tries: in how many TRY blocks this is.
        options: what SET has set.
        isolation: what SET TRANSACTION ISOLATION LEVEL has set.
        cursor_rows: @@CURSOR_ROWS, of the cursor that was opened last.
        context_info: what SET CONTEXT_INFO has set, 128 bytes.
        session_context: what sp_set_session_context has set, sql_variants by their keys.
        fixed_context: those keys of it that stay as they are.
        row_limit: what SET ROWCOUNT has set, 0 for every row.
        implicit: SET IMPLICIT_TRANSACTIONS is ON.
        no_execution: SET NOEXEC is ON: nothing is done until it is OFF.
        app_locks: the locks of sp_getapplock that the session holds: name, and whether it is shared.
        shaping: in how many EXEC ... WITH RESULT SETS this is, which may refuse what is said.
        following: the statement that is run next when the one that runs succeeds, where that is known.
    """

    def __init__(self, instance: Instance, connection: DirectConnection, listener: Listener) -> None:
        self.instance = instance
        self.connection = connection
        self.transactions: Transactions = Transactions(connection, WaitingDialogs(instance, connection))
        self.listener = listener
        self.context: Context
        self.queries: Queries
        self.frames: list[Frame] = []
        self.frame: Frame = Frame()
        self.functions = Functions(self)
        self.rowcount: int = 0
        self.error: int = 0
        self.identity: object = None
        self.scope_identity: object = None
        self.caught: list[TsqlError] = []
        self.tries = 0
        self.trigger_level: int = 0
        self.cursors: dict[str, Cursor] = {}
        self.fetch_status: int = 0
        self.cursor_rows: int = 0
        self.context_info: bytes | None = None
        self.session_context: dict[str, str | None] = {}
        self.fixed_context: set[str] = set()
        self.nocount = False
        self.xact_abort = False
        self.row_limit = 0
        self.implicit = False
        self.no_execution = False
        self.isolation = "READ COMMITTED"
        self.options: dict[str, str] = {}
        self.app_locks: list[tuple[str, bool]] = []
        self.last_error: TsqlError | None = None
        self.shaping = 0
        self.following: Statement | None = None

    @property
    def database(self) -> Any:
        """The current database, as the current principal."""
        return self.context.database

    @property
    def login(self) -> str:
        """Who the session is for the instance."""
        return self.context.login

    @property
    def spid(self) -> int:
        """@@SPID."""
        return spid_of(self)

    def say(self, said: Said) -> None:
        """To whoever runs the script."""
        if isinstance(said, TsqlError):
            self.last_error = said
        self.listener(said)

    def changed(self, rows: int) -> None:
        """A statement has changed so many rows."""
        self.rowcount = rows
        if not self.nocount:
            self.say(RowCount(rows))

    def run(self, statements: Sequence[Statement], then: Statement | None = None) -> Left | None:
        """Statements one after the other, until one says that the rest is left out; GOTO goes on at its label.

        `then` is run when all have succeeded.
        """
        place = 0
        while place < len(statements):
            statement = statements[place]
            place += 1
            self.following = statements[place] if place < len(statements) else then
            left = self.step(statement)
            if isinstance(left, Jump):
                labels = [n for n, one in enumerate(statements) if isinstance(one, Label) and one.name == left.label]
                if not labels:
                    return left
                place = labels[0]
            elif left is not None:
                return left
        return None

    def step(self, statement: Statement) -> Left | None:
        """One statement. An error is said here, unless a TRY block waits for it."""
        try:
            if self.no_execution and not (isinstance(statement, SetOption) and "NOEXEC" in statement.options):
                return None
            if self.implicit:
                begin_implicitly(self, statement)
            return RUNNERS[type(statement)](self, statement)
        except (BatchEnd, ScopeEnd):
            raise
        except TsqlError as error:
            self._failed(error, statement)
        except BrokerError as refused:
            self._failed(from_broker(refused), statement)
        except psycopg.Error as problem:
            self._failed(from_postgres(problem, getattr(statement, "text", "")), statement)
        except InstanceError as problem:  # of a verb: where the session lives, its number is that of the server's error
            if not isinstance(problem.__cause__, psycopg.Error) or concerns_the_transaction(problem.__cause__):
                raise
            self._failed(from_postgres(problem.__cause__), statement)
        except UnicodeEncodeError:  # half of a surrogate pair
            self._failed(TsqlError(9402, "The text holds a character that cannot be stored."), statement)
        return None

    def _failed(self, error: TsqlError, statement: Statement) -> None:
        error.at(statement.line, self.frame.procedure)
        self.rowcount = 0
        lost = error.number == 1205 or self.transactions.is_lost
        if lost and self.transactions.count and not self.transactions.outer:
            self.transactions.restart()
        counts = not error.is_raised and error.number not in _UNREADABLE
        aborts = lost or error.undoes or (self.xact_abort and counts) or error.number in _ABORTING
        if self.tries:
            if aborts and self.transactions.count:
                self.transactions.doomed = True
            raise error
        self.say(error)
        self.error = error.number
        if aborts and self.transactions.count and not self.transactions.outer:
            self.context.roll_back()
        if aborts or error.ends_batch or error.severity >= 20:
            raise BatchEnd
        if error.number in _ENDING_SCOPE:
            raise ScopeEnd

    @contextmanager
    def inside(
        self, frame: Frame, database: SessionDatabase, work_as: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Inside a procedure or a text: its frame, its database, and as whom it works, unless as its caller."""
        depth, outer, users = len(self.frames), self.context.database, self.context.depth
        scope_identity, self.scope_identity = self.scope_identity, None
        self.frames.append(frame)
        self.frame = frame
        self.context.database = database
        try:
            if work_as is not None:
                frame.caller = self.context.standing
                work_as()
            self.context.sign(frame.signers)
            frame.impersonated = self.context.depth
            yield
        finally:
            self.unwind(depth, users)
            self.context.database, self.scope_identity = outer, scope_identity

    @contextmanager
    def together(self) -> Iterator[None]:
        """What several statements do stands or falls together: in the open transaction, else in one of their own."""
        alone = self.transactions.count == 0
        if alone:
            self.transactions.begin()
        try:
            yield
        except BaseException:
            if alone and self.transactions.count and not self.connection.closed:
                self.context.roll_back()
            raise
        if alone and self.transactions.count:
            self.context.commit()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A definition of several statements: as `together`, and inside an open transaction it is undone alone."""
        with self.together(), self.transactions.undone_alone():
            yield

    def unwind(self, depth: int, users: int) -> None:
        """Leave the frames and the EXECUTE AS that an error has left open."""
        while len(self.frames) > depth:
            self.queries.leave(self.frames.pop())
        self.frame = self.frames[-1] if self.frames else Frame()
        self.context.unwind(users)

    def is_login(self, name: str) -> bool:
        """Whether the instance has a login of that name."""
        return bool(
            fetch(
                self.connection,
                "machine.is_login",
                "select from servicebroker.logins where lower(name) = lower($1)",
                (name,),
            )
        )

    def set_server_option(self, option: str, value: str) -> None:
        """A setting of PostgreSQL, for as long as the session lives."""
        self.queries.set(option, value)

    def create_database(self, name: str) -> None:
        """CREATE DATABASE. A login that makes one is db_owner of it.

        Raises:
            BrokerError: 1801 the name is taken, 262 not for who works.
        """
        self.context.demand("CREATE DATABASE")
        person = self.context.person

        def steps() -> Steps[None]:
            database_id = yield from create_database(name)
            if person.login_id is not None:
                dbo = Definer(User(database_id, name, DBO_ID, "dbo"), self.instance.catalog, self.instance.clock)
                yield from create_user(dbo, CreateUser(person.name, for_login=person.name))
                yield from add_role_member(dbo, AddRoleMember("db_owner", person.name))

        with self.instance.connection() as connection:
            in_transaction(connection, steps())

    def drop_database(self, name: str) -> None:
        """DROP DATABASE, with its tables and procedures.

        Raises:
            BrokerError: 911, 3701 not for who works, 3702, 3708.
        """
        try:
            database = self.context.named(name)
        except BrokerError as refused:
            if refused.number != 916:
                raise
            raise BrokerError(3701, "drop", "database", name) from None
        with self.instance.connection() as connection:
            schemas = [
                schema
                for (schema,) in fetch(
                    connection, "machine.drop_database", _SCHEMAS, (name, postgres_name(name, "dbo"))
                )
            ]
        drop_database(database, DropDatabase(name))
        with self.instance.connection() as connection:
            for schema in schemas:
                run_command(connection, f"drop schema if exists {quoted(schema)} cascade".encode())
        self.queries.columns.forget()

    def allow(self, *uses: Use, database: SessionDatabase | None = None) -> None:
        """Refuse what who works may not do with what T-SQL has in a database, and what nobody may.

        Raises:
            BrokerError: see `engine/security/tsql_objects.py`; 3906 definitions in a database that is READ_ONLY.
        """
        user = (database or self.context.database).user
        self.context.ask(authorize_uses(user, uses))
        if any(use.defines for use in uses):
            self.context.ask(check_definitions(user, uses))
            self.context.ask(check_writable(user.database_id))

    def type_named(self, text: str) -> SqlType:
        """The type that a declaration names."""
        try:
            return _type_named(text)
        except TsqlError as unknown:
            key = type_key(text) if unknown.number == 2715 else None
            found = self.queries.user_types.get(key) if key is not None else None
            if found is None or found.of is None:
                raise
            return found.of

    def done(self, rows: int | None = None) -> None:
        """A statement succeeded: @@ERROR is 0, and @@ROWCOUNT what it says."""
        self.error = 0
        if rows is not None:
            self.rowcount = rows


def check_nesting(machine: Machine) -> None:
    """Refuse a call that is too deep.

    Raises:
        TsqlError: 217.
    """
    if len(machine.frames) > MAXIMUM_NESTING:
        raise TsqlError(
            217, "Maximum stored procedure, function, trigger, or view nesting level exceeded "
            f"(limit {MAXIMUM_NESTING})."
        )  # fmt: skip
