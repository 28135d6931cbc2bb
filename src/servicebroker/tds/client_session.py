"""The session of a client that has signed in: it runs requests, one at a time, in a worker thread.

A session without state of its own, such as a transaction or a temporary table, can be parked: it then holds no
connection to PostgreSQL. It continues at its next request with the same options.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import psycopg

from servicebroker.api.instance import Instance
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.security.permissions import Login as Principal
from servicebroker.tds import tokens
from servicebroker.tds.byte_reader import ProtocolError
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.packets import RESET_KEEPING_TRANSACTION, RESET_SESSION, Message, PacketType, PacketWriter
from servicebroker.tds.prepared_statements import PreparedStatements
from servicebroker.tds.requests import (
    RpcCall,
    TransactionRequest,
    TransactionRequestType,
    parse_batch,
    parse_calls,
    parse_transaction_request,
)
from servicebroker.tds.response import Response
from servicebroker.tds.session_instance import SessionInstance
from servicebroker.tds.type_reader import UnsupportedType
from servicebroker.tsql.interpreter.machine import Cancelled, Machine
from servicebroker.tsql.postgres_errors import from_broker, from_postgres
from servicebroker.tsql.session import CallArgument, Session
from servicebroker.tsql.statement_errors import TsqlError, unsupported

T = TypeVar("T")
_CURSOR_ADVICE = "Set the driver to read result sets directly (a default result set)."
_descriptors = itertools.count(1)  # the numbers by which clients name transactions
_CONNECTION_LOST = "The connection to PostgreSQL was lost. The transaction was rolled back. Send the request again."


class SignedIn(NamedTuple):
    """A client after its login.

    Attributes:
        principal: its login.
        database: the database that it opened, which RESET_SESSION opens again.
        program: the name of its program, for sys.dm_exec_sessions.
        dialect: its version of TDS.
    """

    principal: Principal
    database: str
    program: str = ""
    dialect: Dialect = Dialect.TDS_7_4


@dataclass
class Options:
    """The state that a parked session keeps: SET options and values of @@ functions. The names are the machine's."""

    nocount: bool
    xact_abort: bool
    row_limit: int
    dates: Any
    is_implicit: bool
    closes_cursors: bool
    isolation: str
    context_info: bytes | None
    session_context: dict[str, str | None]
    read_only_context: set[str]
    rowcount: int
    error_number: int
    identity: object
    scope_identity: object

    @classmethod
    def of(cls, machine: Machine) -> Options:
        """Return the options of a session."""
        return cls(**{field.name: getattr(machine, field.name) for field in fields(cls)})

    def apply(self, machine: Machine) -> None:
        """Set the options of a new session."""
        for field in fields(self):
            setattr(machine, field.name, getattr(self, field.name))
        machine.set_dates(self.dates)


class ClientSession:
    """The T-SQL session of one client.

    Raises:
        BrokerError: 911 or 916 the database cannot be opened.
        InstanceError: PostgreSQL cannot be reached.
    """

    def __init__(self, instance: Instance, client: SignedIn, server: str) -> None:
        self._client, self._server = client, server
        self.dialect = client.dialect
        self._instance = SessionInstance(instance, f"servicebroker tds {client.program}"[:63])
        self._prepared = PreparedStatements()
        self._session: Session | None = None
        self._database = client.database
        self._options: Options | None = None
        self._descriptor = 0  # the descriptor of the open transaction; 0 without one
        try:
            self._open()
        except BaseException:
            self._instance.disconnect()
            raise

    @property
    def database(self) -> str:
        """The name of the current database."""
        return self._database

    @property
    def backend(self) -> int | None:
        """The pid of the session of PostgreSQL, None while there is none. Any thread may call this."""
        return self._instance.backend

    def _open(self) -> Session:
        """Return the open session. A parked one is opened again."""
        if self._session is None:
            database = self._instance.database(self._database)
            session = Session(database, login=self._client.principal)
            self._session = session.__enter__()
            self._database = session.machine.context.database.name
            if self._options is not None:
                self._options.apply(session.machine)
        return self._session

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(psycopg.Error, InstanceError):
                session.__exit__(None, None, None)
        self._descriptor = 0

    # ------------------------------------------------------------ requests

    def run(self, message: Message, writer: PacketWriter) -> None:
        """Run a request, and write its response.

        Raises:
            ProtocolError: the request is malformed.
        """
        response = Response(writer, self._server, is_call=message.type == PacketType.RPC, dialect=self.dialect)
        response.database = self._database
        with contextlib.suppress(Cancelled):  # before the session has begun the request
            self._guarded(response, lambda: self._run(message, response))
        if self._session is not None:
            self._note_transaction(response)
        self.end_cancelling()
        response.finish()

    def _guarded(self, response: Response, work: Callable[[], None]) -> None:
        """Run `work`. Write its error; after the loss of the connection, the next request opens another one."""
        try:
            work()
        except UnsupportedType as refused:
            response.write_error(unsupported(f"A parameter of type {refused}", "Use another type.", 1))
        except TsqlError as error:
            response.write_error(error)
        except BrokerError as error:
            response.write_error(from_broker(error))
        except psycopg.Error as problem:
            response.write_error(from_postgres(problem))
        except InstanceError as problem:
            response.write_error(TsqlError(_UNREACHABLE_NUMBER, str(problem), severity=20))
        if self._session is not None and self._session.machine.connection.closed:
            self._close_session()
            response.write_error(TsqlError(_UNREACHABLE_NUMBER, _CONNECTION_LOST, severity=16))

    def _run(self, message: Message, response: Response) -> None:
        if message.status & (RESET_SESSION | RESET_KEEPING_TRANSACTION):
            self._reset(keeps_transaction=bool(message.status & RESET_KEEPING_TRANSACTION))
            response.write(tokens.reset_done())
        match message.type:
            case PacketType.SQL_BATCH:
                text = parse_batch(message.data, self.dialect)
                message.free()
                self._run_batch(text, response)
            case PacketType.RPC:
                for call in parse_calls(message.data, self.dialect):
                    self._instance.check_cancelled()
                    if call.is_last:
                        message.free()
                    self._run_call(call, response)
            case PacketType.TRANSACTION_MANAGER:
                self._run_transaction(parse_transaction_request(message.data), response)
            case PacketType.BULK_LOAD:
                raise unsupported("Bulk load", "Use INSERT with several rows, or COPY of PostgreSQL.", 1)
            case _:
                raise ProtocolError(f"A message of type {message.type} after the login.")

    def _listening(self, response: Response) -> Session:
        session = self._open()
        session.machine.listener = response.listen
        return session

    def _run_batch(self, text: str, response: Response) -> None:
        session = self._listening(response)
        session.run(text)
        self._database = session.machine.context.database.name

    def _run_call(self, call: RpcCall, response: Response) -> None:
        session = self._listening(response)
        name = call.procedure.rpartition(".")[2].strip("[]").lower()
        if name.startswith("sp_cursor") or name == "sp_prepexecrpc":
            raise unsupported(f"The cursor procedure {name}", _CURSOR_ADVICE, 1)
        plan = self._prepared.plan(name, call)
        code, values = 0, dict(plan.values)
        if plan.procedure:
            arguments = [
                CallArgument(one.name, one.type, one.value, one.is_output, one.is_default) for one in plan.arguments
            ]
            result = session.call_procedure(plan.procedure, arguments)
            self._database = session.machine.context.database.name
            if result is None:
                return
            code = result.return_code
            asked = [one for one in plan.arguments if one.is_output]
            for argument, value in zip(asked, result.outputs, strict=True):
                values[argument.position] = value
        outputs = [
            (position, one.name, one.type, values[position])
            for position, one in enumerate(call.parameters)
            if one.is_output and position in values
        ]
        response.write_result(code, outputs)

    def _run_transaction(self, request: TransactionRequest, response: Response) -> None:
        session = self._listening(response)
        script = _TRANSACTION_STATEMENTS.get(request.type)
        if script is None:
            raise unsupported("A distributed transaction", "Use a transaction of this connection.", 1)
        name = f" [{request.name.replace(']', ']]')}]" if request.name else ""
        if request.isolation and request.type is TransactionRequestType.BEGIN:
            script = f"SET TRANSACTION ISOLATION LEVEL {request.isolation} {script}"
        session.run(script + name)
        if request.begins:
            level = f"SET TRANSACTION ISOLATION LEVEL {request.isolation} " if request.isolation else ""
            session.run(f"{level}BEGIN TRANSACTION")

    def _note_transaction(self, response: Response) -> None:
        """Tell the client that a transaction has begun or ended, which drivers keep account of."""
        transactions = None if self._session is None else self._session.machine.transactions
        is_open = transactions is not None and transactions.count > 0
        if not self.dialect.is_wide:
            self._descriptor = int(is_open)
            return
        if is_open and not self._descriptor:
            self._descriptor = next(_descriptors)
            response.write(tokens.transaction_began(self._descriptor))
        elif not is_open and self._descriptor:
            response.write(
                tokens.transaction_ended(
                    self._descriptor, is_committed=transactions is not None and transactions.was_committed
                )
            )
            self._descriptor = 0

    # ------------------------------------------------------------ life

    def _reset(self, *, keeps_transaction: bool) -> None:
        """Give the next user of a pooled connection a session as after the login."""
        if keeps_transaction and self._descriptor:
            return
        self._close_session()
        self._options, self._database = None, self._client.database
        self._prepared.clear()

    def cancel(self) -> None:
        """End the running request. Any thread may call this."""
        self._instance.cancel_wait()
        if (session := self._session) is not None:
            session.cancel()

    def end_cancelling(self) -> None:
        """Let the next request run after `cancel`. No cancellation may be on its way."""
        if (session := self._session) is not None:
            session.end_cancelling()
        self._instance.cancelled.clear()

    def terminate(self) -> None:
        """End the running request and its transaction, because the client has gone. Any thread may call this."""
        self._instance.cancel_wait()
        if (session := self._session) is not None:
            session.machine.cancelled.set()
        self._instance.terminate()

    def park(self) -> bool:
        """Give the connection to PostgreSQL back, unless the session has state there. Return whether it did."""
        session = self._session
        if session is None or not _is_parkable(session.machine):
            return False
        self._options = Options.of(session.machine)
        self._close_session()
        self._instance.disconnect()
        return True

    def close(self) -> None:
        """Roll back, and close the session and its connection."""
        self._close_session()
        self._instance.disconnect()


_UNREACHABLE_NUMBER = 596  # "Cannot continue the execution because the session is in the kill state"

_TRANSACTION_STATEMENTS = {
    TransactionRequestType.BEGIN: "BEGIN TRANSACTION",
    TransactionRequestType.COMMIT: "COMMIT TRANSACTION",
    TransactionRequestType.ROLLBACK: "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION",
    TransactionRequestType.SAVE: "SAVE TRANSACTION",
}


def _is_parkable(machine: Machine) -> bool:
    return not (
        machine.transactions.count
        or machine.app_locks
        or machine.cursors
        or machine.context.depth
        or machine.is_noexec
        or machine.queries.has_session_state
    )
