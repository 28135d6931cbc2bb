"""A database of the engine with the verbs of the Python API, which run as T-SQL text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

import servicebroker as sb
from servicebroker.model import names
from servicebroker.model.errors import RULES
from servicebroker.tsql.results import Results
from servicebroker.tsql.session import Session
from support import Undo

LOCK_TIMEOUT = 1222


class TsqlRefusal(sb.BrokerError):
    """An error of T-SQL, without the line number, and with the advice of the Python API: T-SQL has none."""

    def __init__(self, error: sb.TsqlError) -> None:
        self.number = error.number
        text = f"Msg {error.number}, Level {error.severity}, State {error.state}: {error.text}"
        advice = RULES[error.number].hint if error.number in RULES else ""
        Exception.__init__(self, f"{text} {advice}" if advice else text)


class TsqlSpeaker:
    """Runs each verb as the statement of its name. Every other statement has its values in variables."""

    def __init__(self, database: sb.Database, session: Session | None = None) -> None:
        self.database = database
        self.name = database.name
        self._session = session
        self._numbers = itertools.count()

    @property
    def connection(self) -> Any:
        """The session's connection, which sees uncommitted changes."""
        assert self._session is not None
        return self._session.machine.connection

    @property
    def met(self) -> frozenset[UUID]:
        """The groups and conversations from which the transaction has received, or which it has ended."""
        assert self._session is not None
        return frozenset(self._session.machine.transactions.touched_ids)

    def _run(self, text: str, **values: object) -> Results:
        """Run a text with {name} for each value, which becomes a variable or a literal."""
        if next(self._numbers) % 2:
            parameters, script = {}, text.format(**{name: literal(value) for name, value in values.items()})
        else:
            parameters, script = values, text.format(**{name: "@" + name for name in values})
        try:
            if self._session is not None:
                return self._session.execute(script, parameters)
            return self.database.execute_tsql(script, parameters)
        except sb.TsqlError as error:
            if error.number == LOCK_TIMEOUT:
                raise psycopg.errors.LockNotAvailable from None
            raise TsqlRefusal(error) from None

    # ------------------------------------------------------------ verbs

    def begin_dialog(self, from_service: str, to_service: str, **options: Any) -> UUID:
        """BEGIN DIALOG."""
        text = f"DECLARE @h UNIQUEIDENTIFIER; BEGIN DIALOG @h FROM SERVICE [{from_service}] TO SERVICE {{to}}"
        values: dict[str, object] = {"to": to_service}
        if options.get("broker_instance"):
            text += ", {broker}"
            values["broker"] = options["broker_instance"]
        if options.get("contract", names.DEFAULT) != names.DEFAULT:
            text += f" ON CONTRACT [{options['contract']}]"
        clauses = ["ENCRYPTION = OFF"]
        for clause in ("related_conversation", "related_conversation_group", "lifetime"):
            if clause in options:
                clauses.append(f"{clause.upper()} = {{{clause}}}")
                values[clause] = options[clause]
        text += f" WITH {', '.join(clauses)}; SELECT @h"
        return self._run(text, **values).rows[0][0]  # type: ignore[no-any-return]

    def send(self, handle: UUID | Sequence[UUID], message_type: str = names.DEFAULT, body: Any = None) -> None:
        """SEND, on one conversation or several."""
        handles = [handle] if isinstance(handle, UUID) else list(handle)
        placeholders = ", ".join(f"{{h{number}}}" for number in range(len(handles)))
        values = {f"h{number}": one for number, one in enumerate(handles)}
        on = placeholders if len(handles) == 1 else f"({placeholders})"
        body_bytes = body.encode() if isinstance(body, str) else body
        self._run(f"SEND ON CONVERSATION {on} MESSAGE TYPE [{message_type}] ({{body}})", body=body_bytes, **values)

    def send_in_a_loop(self, handle: UUID, message_type: str, count: int) -> None:
        """SEND in a loop, which the first error ends."""
        self._run(
            "DECLARE @n INT = 0, @text VARCHAR(20); BEGIN TRY WHILE @n < {count} BEGIN "
            "SET @text = '<a>' + CAST(@n AS VARCHAR(9)) + '</a>'; "
            f"SEND ON CONVERSATION {{handle}} MESSAGE TYPE [{message_type}] (@text); SET @n += 1 END END TRY "
            "BEGIN CATCH THROW END CATCH",
            handle=handle,
            count=count,
        )

    def receive(self, queue: str, *, top: int | None = None, **conditions: UUID) -> list[sb.Message]:
        """RECEIVE."""
        text = f"RECEIVE {'' if top is None else 'TOP ({top})'} * FROM {queue}"
        values: dict[str, object] = {} if top is None else {"top": top}
        for column, wanted in conditions.items():
            text += f" WHERE {column} = {{wanted}}"
            values["wanted"] = wanted
        return [sb.Message(*row) for row in self._run(text, **values).rows]

    def get_conversation_group(self, queue: str) -> UUID | None:
        """GET CONVERSATION GROUP."""
        text = f"DECLARE @g UNIQUEIDENTIFIER; GET CONVERSATION GROUP @g FROM {queue}; SELECT @g"
        return self._run(text).rows[0][0]  # type: ignore[no-any-return]

    def end_conversation(self, handle: UUID, *, error: tuple[int, str] | None = None, cleanup: bool = False) -> None:
        """END CONVERSATION."""
        if error is not None:
            text = "END CONVERSATION {handle} WITH ERROR = {code} DESCRIPTION = {said}"
            self._run(text, handle=handle, code=error[0], said=error[1])
        else:
            self._run("END CONVERSATION {handle}" + " WITH CLEANUP" * cleanup, handle=handle)

    def begin_conversation_timer(self, handle: UUID, seconds: int) -> None:
        """BEGIN CONVERSATION TIMER."""
        self._run("BEGIN CONVERSATION TIMER ({handle}) TIMEOUT = {seconds}", handle=handle, seconds=seconds)

    def move_conversation(self, handle: UUID, group: UUID) -> None:
        """MOVE CONVERSATION."""
        self._run("MOVE CONVERSATION {handle} TO {group}", handle=handle, group=group)

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self) -> Iterator[TsqlSpeaker]:
        """BEGIN TRANSACTION in a separate session. COMMIT after the block, or ROLLBACK if it is undone."""
        with self.database.tsql_session() as session:
            inside = TsqlSpeaker(self.database, session)
            inside._run("BEGIN TRANSACTION")
            try:
                yield inside
            except Undo:
                inside._run("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")  # a lock timeout has rolled back already
            else:
                inside._run("COMMIT TRANSACTION")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """SAVE TRANSACTION, and ROLLBACK to the savepoint if the block is undone."""
        name = f"place{next(self._numbers)}"
        self._run(f"SAVE TRANSACTION {name}")
        try:
            yield
        except Undo:
            self._run(f"IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION {name}")

    # ------------------------------------------------------------ definitions

    def alter_queue(self, queue: str, *, status: bool, poison_message_handling: bool | None = None) -> None:
        """ALTER QUEUE."""
        text = f"ALTER QUEUE {queue} WITH STATUS = {_switch(status)}"
        if poison_message_handling is not None:
            text += f", POISON_MESSAGE_HANDLING (STATUS = {_switch(poison_message_handling)})"
        self._run(text)

    def alter_message_type(self, name: str, validation: str) -> None:
        """ALTER MESSAGE TYPE."""
        self._run(f"ALTER MESSAGE TYPE [{name}] VALIDATION = {validation}")

    def create_service(self, name: str, queue: str, contracts: Sequence[str]) -> None:
        """CREATE SERVICE."""
        contract_list = f" ({', '.join(f'[{contract}]' for contract in contracts)})" if contracts else ""
        self._run(f"CREATE SERVICE [{name}] ON QUEUE {queue}{contract_list}")

    def drop_service(self, name: str) -> None:
        """DROP SERVICE."""
        self._run(f"DROP SERVICE [{name}]")

    def alter_service(self, name: str, *, queue: str) -> None:
        """ALTER SERVICE."""
        self._run(f"ALTER SERVICE [{name}] ON QUEUE {queue}")

    def alter(self, **options: bool) -> None:
        """ALTER DATABASE."""
        self._run(f"ALTER DATABASE {self.name} SET {', '.join(options).upper()}")

    def create_broker_priority(self, name: str, *, priority_level: int, **clauses: str) -> None:
        """CREATE BROKER PRIORITY."""
        settings = [f"CONTRACT_NAME = [{clauses['contract_name']}]", f"PRIORITY_LEVEL = {priority_level}"]
        if "local_service_name" in clauses:
            settings.append(f"LOCAL_SERVICE_NAME = [{clauses['local_service_name']}]")
        if "remote_service_name" in clauses:
            settings.append(f"REMOTE_SERVICE_NAME = {literal(clauses['remote_service_name'])}")
        self._run(f"CREATE BROKER PRIORITY {name} FOR CONVERSATION SET ({', '.join(settings)})")

    def drop_broker_priority(self, name: str) -> None:
        """DROP BROKER PRIORITY."""
        self._run(f"DROP BROKER PRIORITY {name}")


def literal(value: object) -> str:
    """Return a value as a T-SQL literal."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, int):
        return str(value)
    return "N'" + str(value).replace("'", "''") + "'"


def _switch(on: bool) -> str:
    return "ON" if on else "OFF"
