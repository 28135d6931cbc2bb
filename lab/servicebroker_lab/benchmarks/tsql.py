"""T-SQL: procedures that send and that answer against the same work in Python, a call among many, and the parser."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.tsql.parser import parse
from servicebroker.tsql.tokens import batches
from servicebroker_lab.benchmarks.measured_system import Implementation, System, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import BASELINE

PROCEDURE_COUNT = 1_000  # procedures in the catalog
MESSAGE_BYTES = 1_000  # bytes of a script that count as a message
SESSION_KEY = 7  # the key of the conversation that is used again and again

_DEFINITIONS = """
CREATE TABLE Sessions (SessionKey INT PRIMARY KEY, Handle UNIQUEIDENTIFIER NOT NULL)
CREATE MESSAGE TYPE [//bench/Body] VALIDATION = NONE
CREATE MESSAGE TYPE [//bench/Answer] VALIDATION = NONE
CREATE CONTRACT [//bench/Sending] ([//bench/Body] SENT BY INITIATOR, [//bench/Answer] SENT BY TARGET)
CREATE QUEUE SendingQueue
CREATE QUEUE TakingQueue
CREATE SERVICE [//bench/Sender] ON QUEUE SendingQueue
CREATE SERVICE [//bench/Taker] ON QUEUE TakingQueue ([//bench/Sending])
"""
_SEND = """
CREATE PROCEDURE dbo.SendOnSession @key INT, @body VARBINARY(MAX)
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER
    BEGIN TRANSACTION
    SELECT @handle = Handle FROM Sessions WITH (UPDLOCK) WHERE SessionKey = @key
    IF @handle IS NULL
    BEGIN
        BEGIN DIALOG CONVERSATION @handle FROM SERVICE [//bench/Sender] TO SERVICE N'//bench/Taker'
            ON CONTRACT [//bench/Sending] WITH ENCRYPTION = OFF;
        BEGIN CONVERSATION TIMER (@handle) TIMEOUT = 3600;
        INSERT INTO Sessions (SessionKey, Handle) VALUES (@key, @handle)
    END;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//bench/Body] (@body);
    COMMIT
END
"""
_ANSWER = """
CREATE PROCEDURE dbo.Answer
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @type SYSNAME, @body VARBINARY(MAX)
    BEGIN TRANSACTION
    RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @body = message_body FROM TakingQueue
    IF @type = N'//bench/Body'
        SEND ON CONVERSATION @handle MESSAGE TYPE [//bench/Answer] (@body);
    ELSE IF @type = N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog'
        END CONVERSATION @handle;
    COMMIT
END
"""
_BEGIN = """
CREATE PROCEDURE dbo.SendOnNewConversation @body VARBINARY(MAX)
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER
    BEGIN TRANSACTION
    BEGIN DIALOG CONVERSATION @handle FROM SERVICE [//bench/Sender] TO SERVICE N'//bench/Taker'
        ON CONTRACT [//bench/Sending] WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//bench/Body] (@body);
    COMMIT
END
"""
_FINISH = """
CREATE PROCEDURE dbo.AnswerAndEnd
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @body VARBINARY(MAX)
    BEGIN TRANSACTION
    RECEIVE TOP (1) @handle = conversation_handle, @body = message_body FROM TakingQueue;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//bench/Answer] (@body);
    END CONVERSATION @handle;
    COMMIT
END
"""
_CALLED = """
CREATE PROCEDURE dbo.Called{} @n INT, @twice INT OUTPUT
AS
    SET @twice = @n + @n
    IF @twice < 0 RETURN 1
"""

_databases = itertools.count(1)


class Sending:
    """One message in a transaction, on the conversation that a table knows for the session."""

    def __init__(self, name: str, instance: Instance, label: str) -> None:
        self.name, self.version = name, version("servicebroker")
        self._label = label
        self._body = text_body().encode()
        self._database = instance.database(f"Tsql{next(_databases)}", create=True)
        self._database.execute_tsql(f"{_DEFINITIONS}\nGO\n{_SEND}")

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `tsql-send`, none for others."""
        work = self._in_tsql if self.name == OURS else self._in_python
        return [Implementation(self._label, "", self._empty, work)] if scenario == "tsql-send" else []

    def _empty(self, messages: int) -> None:
        while self._database.receive("TakingQueue"):
            pass

    def _in_tsql(self, messages: int) -> int:
        parameters = {"key": SESSION_KEY, "body": self._body}
        with self._database.tsql_session() as session:
            for _ in range(messages):
                session.execute("EXEC dbo.SendOnSession @key, @body", parameters)
        return messages

    def _in_python(self, messages: int) -> int:
        for _ in range(messages):
            self._send()
        return messages

    def _send(self) -> None:
        table = f"{self._database.name.lower()}_dbo.sessions"
        look = f"select handle from {table} where sessionkey = $1 for update"  # a name of ours
        keep = f"insert into {table} values ($1, $2)"
        with self._database.transaction() as tx:
            known = tx.connection.run_prepared(look, (SESSION_KEY,))
            handle: UUID
            if known:
                handle = known[0][0]
            else:
                handle = tx.begin_dialog("//bench/Sender", "//bench/Taker", contract="//bench/Sending")
                tx.begin_conversation_timer(handle, 3600)
                tx.connection.run_prepared(keep, (SESSION_KEY, handle))
            tx.send(handle, "//bench/Body", self._body)


class Answering:
    """A message is received and answered, each in a transaction."""

    def __init__(self, name: str, instance: Instance, label: str) -> None:
        self.name, self.version = name, version("servicebroker")
        self._label = label
        self._database = instance.database(f"Tsql{next(_databases)}", create=True)
        self._database.execute_tsql(f"{_DEFINITIONS}\nGO\n{_ANSWER}")
        self._handle = self._database.begin_dialog("//bench/Sender", "//bench/Taker", contract="//bench/Sending")

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `tsql-answer`, none for others."""
        work = self._in_tsql if self.name == OURS else self._in_python
        return [Implementation(self._label, "", self._ask, work)] if scenario == "tsql-answer" else []

    def _ask(self, messages: int) -> None:
        while self._database.receive("SendingQueue"):
            pass
        self._database.send_batch(self._handle, "//bench/Body", [text_body().encode()] * messages)

    def _in_tsql(self, messages: int) -> int:
        with self._database.tsql_session() as session:
            for _ in range(messages):
                session.execute("EXEC dbo.Answer")
        return messages

    def _in_python(self, messages: int) -> int:
        for _ in range(messages):
            self._answer()
        return messages

    def _answer(self) -> None:
        with self._database.transaction() as tx:
            for message in tx.receive("TakingQueue", top=1):
                if message.message_type_name == "//bench/Body":
                    tx.send(message.conversation_handle, "//bench/Answer", message.message_body or b"")
                elif message.is_end_dialog:
                    tx.end_conversation(message.conversation_handle)


class ShortConversations:
    """A conversation of its own for each message: begun and sent on, or received, answered and ended."""

    def __init__(self, name: str, instance: Instance, label: str) -> None:
        self.name, self.version = name, version("servicebroker")
        self._label = label
        self._body = text_body().encode()
        self._database = instance.database(f"Tsql{next(_databases)}", create=True)
        self._database.execute_tsql(f"{_DEFINITIONS}\nGO\n{_BEGIN}\nGO\n{_FINISH}")

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for `tsql-dialog-begin` and for `tsql-dialog-answer`, none for others."""
        is_tsql = self.name == OURS
        if scenario == "tsql-dialog-begin":
            begin = self._begin_in_tsql if is_tsql else self._begin_in_python
            return [Implementation(self._label, "", self._empty, begin)]
        if scenario == "tsql-dialog-answer":
            answer = self._answer_in_tsql if is_tsql else self._answer_in_python
            return [Implementation(self._label, "", self._ask, answer)]
        return []

    def _empty(self, messages: int) -> None:
        for queue in ("SendingQueue", "TakingQueue"):
            while self._database.receive(queue):
                pass

    def _ask(self, messages: int) -> None:
        self._empty(messages)
        self._begin_in_python(messages)

    def _begin_in_tsql(self, messages: int) -> int:
        with self._database.tsql_session() as session:
            for _ in range(messages):
                session.execute("EXEC dbo.SendOnNewConversation @body", {"body": self._body})
        return messages

    def _begin_in_python(self, messages: int) -> int:
        for _ in range(messages):
            with self._database.transaction() as tx:
                handle = tx.begin_dialog(
                    "//bench/Sender", "//bench/Taker", contract="//bench/Sending", encryption=False
                )
                tx.send(handle, "//bench/Body", self._body)
        return messages

    def _answer_in_tsql(self, messages: int) -> int:
        with self._database.tsql_session() as session:
            for _ in range(messages):
                session.execute("EXEC dbo.AnswerAndEnd")
        return messages

    def _answer_in_python(self, messages: int) -> int:
        for _ in range(messages):
            with self._database.transaction() as tx:
                (message,) = tx.receive("TakingQueue", top=1)
                tx.send(message.conversation_handle, "//bench/Answer", message.message_body or b"")
                tx.end_conversation(message.conversation_handle)
        return messages


class Calling:
    """Calls of one procedure after the other, among so many that the catalog holds."""

    def __init__(self, name: str, instance: Instance, procedures: int) -> None:
        self.name, self.version = name, version("servicebroker")
        self._procedures = procedures
        self._database: Database = instance.database(f"Tsql{next(_databases)}", create=True)
        self._made = False

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `tsql-catalog`, none for others."""
        implementation = Implementation(
            "EXEC", f"{self._procedures:,} procedures in the catalog", self._make, self._call
        )
        return [implementation] if scenario == "tsql-catalog" else []

    def _make(self, messages: int) -> None:
        if not self._made:
            self._database.execute_tsql("\nGO\n".join(_CALLED.format(n) for n in range(self._procedures)))
            self._database.execute_tsql("".join(f"EXEC dbo.Called{n} 1, 1\n" for n in range(self._procedures)))
            self._made = True

    def _call(self, messages: int) -> int:
        with self._database.tsql_session() as session:
            for number in range(messages):
                session.execute(f"DECLARE @x INT; EXEC dbo.Called{number % self._procedures} @n, @x OUTPUT", {"n": 1})
        return messages


class Parsing:
    """A script from text to statements, again and again."""

    def __init__(self) -> None:
        self.name, self.version = OURS, version("servicebroker")
        script = f"{_DEFINITIONS}\nGO\n{_SEND}\nGO\n{_CALLED.format(0)}\nGO\n"
        self._script = script * (MESSAGE_BYTES * 20 // len(script))

    def close(self) -> None:
        """Do nothing: this system holds no resource."""

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `tsql-parse`, none for others."""
        implementation = Implementation(
            "batches, parse", f"a message is {MESSAGE_BYTES:,} bytes of a script", lambda messages: None, self._parse
        )
        return [implementation] if scenario == "tsql-parse" else []

    def _parse(self, messages: int) -> int:
        left = messages * MESSAGE_BYTES
        while left > 0:
            for batch in batches(self._script):
                parse(batch.tokens)
            left -= len(self._script)
        return messages


def tsql_systems(instance: Instance) -> list[System]:
    """Ours, and what it is compared with."""
    return [
        Sending(OURS, instance, "EXEC of a procedure"),
        Sending(BASELINE, instance, "the same with the Python API"),
        Answering(OURS, instance, "EXEC of a procedure"),
        Answering(BASELINE, instance, "the same with the Python API"),
        ShortConversations(OURS, instance, "EXEC of a procedure"),
        ShortConversations(BASELINE, instance, "the same with the Python API"),
        Calling(OURS, instance, PROCEDURE_COUNT),
        Calling(BASELINE, instance, 1),
        Parsing(),
    ]
