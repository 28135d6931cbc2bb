"""Statements as plain values. A relational statement stays a slice of the source text, with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from servicebroker.overriding import override
from servicebroker.tsql.types import SqlType

MUTATOR = "tsql_modify"  # replaces the method name modify of xml in SET, the only clause that allows it


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar or boolean expression, kept as source text."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name of up to four parts, without brackets. An omitted part is empty."""

    parts: tuple[str, ...]

    @property
    def object(self) -> str:
        """The last part, the name of the object itself."""
        return self.parts[-1]

    @property
    def schema(self) -> str:
        """The part before the object's name, "" if omitted."""
        return self.parts[-2] if len(self.parts) > 1 else ""

    @property
    def database(self) -> str:
        """The part before the schema, "" if omitted."""
        return self.parts[-3] if len(self.parts) > 2 else ""

    @property
    def server(self) -> str:
        """The part before the database, "" if omitted."""
        return self.parts[-4] if len(self.parts) > 3 else ""

    @override
    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable. Its name is in lower case and includes the @."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A string, a number or NULL. `type` is that of a string or a binary constant, None for the others."""

    value: object
    type: SqlType | None = field(default=None, compare=False)


Operand: TypeAlias = Name | Variable | Constant | Expression


@dataclass(frozen=True, slots=True)
class Statement:
    """Base of all statements. `line` is the line of its first word."""

    line: int


# ---------------------------------------------------------------- control flow


@dataclass(frozen=True, slots=True)
class Block(Statement):
    """BEGIN ... END."""

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If(Statement):
    """IF condition then ELSE otherwise."""

    condition: Expression
    then: Statement
    otherwise: Statement | None


@dataclass(frozen=True, slots=True)
class While(Statement):
    """WHILE condition body."""

    condition: Expression
    body: Statement


@dataclass(frozen=True, slots=True)
class Break(Statement):
    """BREAK."""


@dataclass(frozen=True, slots=True)
class Continue(Statement):
    """CONTINUE."""


@dataclass(frozen=True, slots=True)
class Label(Statement):
    """A target of GOTO. Its name is in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Goto(Statement):
    """GOTO label. The label is in lower case."""

    label: str


@dataclass(frozen=True, slots=True)
class Return(Statement):
    """RETURN, with a procedure's return code if there is one."""

    value: Expression | None


@dataclass(frozen=True, slots=True)
class TryCatch(Statement):
    """BEGIN TRY ... END TRY BEGIN CATCH ... END CATCH."""

    body: tuple[Statement, ...]
    handler: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Unsupported(Statement):
    """A statement that is parsed, and raises an error when it runs."""

    feature: str
    alternative: str


@dataclass(frozen=True, slots=True)
class NoEffect(Statement):
    """A statement that only tunes SQL Server and does nothing here."""

    feature: str


# ---------------------------------------------------------------- variables, messages, options


@dataclass(frozen=True, slots=True)
class DeclareVariable(Statement):
    """DECLARE @name type = value."""

    name: str
    type: str
    value: Expression | None


@dataclass(frozen=True, slots=True)
class DeclareTable(Statement):
    """DECLARE @name TABLE (columns)."""

    name: str
    columns: str


@dataclass(frozen=True, slots=True)
class Declarations(Statement):
    """The variables that the blocks of a batch or module declare, without values.

    The variables exist even if the block never runs.
    """

    declarations: tuple[DeclareVariable | DeclareTable, ...]


@dataclass(frozen=True, slots=True)
class SetVariable(Statement):
    """SET @name = value. For a compound assignment, `value` is the whole right side: @name + (...) for +=."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class SelectVariables(Statement):
    """SELECT @a = value, @b = value, without FROM."""

    assignments: tuple[SetVariable, ...]


@dataclass(frozen=True, slots=True)
class SetOption(Statement):
    """SET option ON, OFF or a value. Option names are in upper case."""

    options: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Print(Statement):
    """PRINT value."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Raiserror(Statement):
    """RAISERROR (message, severity, state, arguments) WITH options."""

    message: Expression
    severity: Expression
    state: Expression
    arguments: tuple[Expression, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Throw(Statement):
    """THROW number, message, state. All fields are None to rethrow the caught error."""

    number: Expression | None = None
    message: Expression | None = None
    state: Expression | None = None


@dataclass(frozen=True, slots=True)
class Use(Statement):
    """USE database."""

    database: str


# ---------------------------------------------------------------- cursors


@dataclass(frozen=True, slots=True)
class DeclareCursor(Statement):
    """DECLARE name CURSOR FOR query, or SET @name = CURSOR FOR query. `is_updatable` is False for a read-only cursor.

    `is_fixed` is True if OPEN fixes the set of rows: INSENSITIVE, STATIC and KEYSET.
    """

    name: str
    query: str
    is_variable: bool
    is_updatable: bool = True
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class CursorStep(Statement):
    """OPEN, CLOSE or DEALLOCATE of a cursor."""

    keyword: str
    name: str


@dataclass(frozen=True, slots=True)
class Fetch(Statement):
    """FETCH direction number FROM cursor INTO variables."""

    direction: str
    number: Operand | None
    name: str
    into: tuple[str, ...]


# ---------------------------------------------------------------- transactions


@dataclass(frozen=True, slots=True)
class BeginTransaction(Statement):
    """BEGIN TRANSACTION name."""

    name: Operand | None


@dataclass(frozen=True, slots=True)
class CommitTransaction(Statement):
    """COMMIT TRANSACTION."""


@dataclass(frozen=True, slots=True)
class RollbackTransaction(Statement):
    """ROLLBACK TRANSACTION, of the whole transaction or to a savepoint."""

    name: Operand | None


@dataclass(frozen=True, slots=True)
class SaveTransaction(Statement):
    """SAVE TRANSACTION name."""

    name: Operand


# ---------------------------------------------------------------- procedures and relational text


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of EXEC. `value` is None for DEFAULT."""

    name: str
    value: Operand | None
    output: bool


@dataclass(frozen=True, slots=True)
class Execute(Statement):
    """EXEC @returned = procedure arguments."""

    procedure: Name | Variable
    arguments: tuple[Argument, ...]
    returned: str | None


@dataclass(frozen=True, slots=True)
class ExecuteText(Statement):
    """EXEC ('text' + @more) AS USER = 'name'. `kind` is USER or LOGIN."""

    text: Expression
    user: Operand | None
    kind: str = "USER"


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column named in WITH RESULT SETS."""

    name: str
    type: str
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class ResultSets(Statement):
    """EXEC ... WITH RESULT SETS (...). `sets` is empty for NONE."""

    source: Execute | ExecuteText
    sets: tuple[tuple[ResultColumn, ...], ...]


@dataclass(frozen=True, slots=True)
class Relational(Statement):
    """SELECT, INSERT, UPDATE, DELETE, CREATE TABLE and the like. `keyword` is the first word, or the first two."""

    keyword: str
    text: str


@dataclass(frozen=True, slots=True)
class InsertExecute(Statement):
    """INSERT INTO target EXEC ... `target` is the text up to EXEC."""

    target: str
    source: Execute | ExecuteText


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a procedure.

    `default` is None if the caller must pass a value. `read_only` marks a table-valued parameter.
    """

    name: str
    type: str
    default: Expression | None
    output: bool
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Procedure(Statement):
    """CREATE or ALTER PROCEDURE. `action` is CREATE, ALTER or CREATE OR ALTER. `text` is the whole batch."""

    action: str
    name: Name
    parameters: tuple[Parameter, ...]
    execute_as: str | None
    body: tuple[Statement, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Trigger(Statement):
    """CREATE or ALTER TRIGGER on a table. `events` are INSERT, UPDATE and DELETE."""

    action: str
    name: Name
    table: Name
    execute_as: str | None
    instead_of: bool
    events: tuple[str, ...]
    body: tuple[Statement, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Function(Statement):
    """CREATE or ALTER FUNCTION.

    A scalar function has `returns` and a `body`. A table-valued function has a `query`, or a `table` that its `body`
    fills. `is_strict` is True for RETURNS NULL ON NULL INPUT.
    """

    action: str
    name: Name
    parameters: tuple[Parameter, ...]
    returns: str | None
    query: str
    table: DeclareTable | None
    body: tuple[Statement, ...]
    is_strict: bool
    text: str


# ---------------------------------------------------------------- conversations


@dataclass(frozen=True, slots=True)
class BeginDialog(Statement):
    """BEGIN DIALOG CONVERSATION."""

    handle: str
    from_service: Operand
    to_service: Operand
    broker_instance: Operand | None = None
    contract: Operand | None = None
    related_conversation: Operand | None = None
    related_conversation_group: Operand | None = None
    lifetime: Operand | None = None
    encryption: bool | None = None


@dataclass(frozen=True, slots=True)
class BeginTimer(Statement):
    """BEGIN CONVERSATION TIMER (handle) TIMEOUT = seconds."""

    handle: Operand
    timeout: Operand


@dataclass(frozen=True, slots=True)
class Send(Statement):
    """SEND ON CONVERSATION handles MESSAGE TYPE type (body). `body` is None if omitted."""

    handles: tuple[Operand, ...]
    message_type: Operand | None
    body: Expression | None


@dataclass(frozen=True, slots=True)
class ReceiveItem:
    """One entry of RECEIVE's select list: an assignment, a result column with its name, or * beside other entries."""

    value: Expression
    variable: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Receive(Statement):
    """RECEIVE TOP (n) items FROM queue INTO @table WHERE column = value. `items` is empty for a single *."""

    queue: Name
    items: tuple[ReceiveItem, ...]
    top: Expression | None = None
    into: str | None = None
    where: str | None = None
    value: Operand | None = None


@dataclass(frozen=True, slots=True)
class GetConversationGroup(Statement):
    """GET CONVERSATION GROUP @group FROM queue."""

    group: str
    queue: Name


@dataclass(frozen=True, slots=True)
class WaitForMessage(Statement):
    """WAITFOR (RECEIVE or GET CONVERSATION GROUP), TIMEOUT milliseconds."""

    statement: Receive | GetConversationGroup
    timeout: Operand | None


@dataclass(frozen=True, slots=True)
class WaitForTime(Statement):
    """WAITFOR DELAY or TIME."""

    kind: str
    value: Operand


@dataclass(frozen=True, slots=True)
class MoveConversation(Statement):
    """MOVE CONVERSATION handle TO group."""

    handle: Operand
    group: Operand


@dataclass(frozen=True, slots=True)
class EndConversation(Statement):
    """END CONVERSATION handle WITH ERROR = code DESCRIPTION = text, or WITH CLEANUP."""

    handle: Operand
    code: Operand | None = None
    description: Operand | None = None
    cleanup: bool = False


# ---------------------------------------------------------------- objects


@dataclass(frozen=True, slots=True)
class Definition(Statement):
    """CREATE, ALTER or DROP of an object. `clauses` maps the words of each clause to its value.

    Attributes:
        keyword: CREATE, ALTER or DROP.
        kind: MESSAGE TYPE, QUEUE, CERTIFICATE ...
        name: the object's name.
        clauses: documented at the parser method of the kind.
        if_exists: True for IF EXISTS: DROP of a missing object is not an error.
        text: the whole statement as source text.
    """

    keyword: str
    kind: str
    name: Name
    clauses: Mapping[str, Any] = field(default_factory=dict)
    if_exists: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Permission(Statement):
    """GRANT, DENY or REVOKE of permissions on an object to principals.

    `kind` is MESSAGE TYPE, SERVICE, OBJECT, SCHEMA ... For the database it is "", and `name` is None. `text` is the
    whole statement as source text.
    """

    keyword: str
    permissions: tuple[str, ...]
    kind: str
    name: Name | None
    principals: tuple[str, ...]
    grant_option: bool
    cascade: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class ExecuteAs(Statement):
    """EXECUTE AS USER or LOGIN = name. Kind CALLER has no name.

    `no_revert` is WITH NO REVERT. `cookie` is the variable of WITH COOKIE INTO.
    """

    kind: str
    name: Operand | None
    no_revert: bool = False
    cookie: str | None = None


@dataclass(frozen=True, slots=True)
class Revert(Statement):
    """REVERT WITH COOKIE = value."""

    cookie: Expression | None = None
