"""Parser of CREATE PROCEDURE, CREATE TRIGGER and EXEC."""

from __future__ import annotations

from typing import NoReturn

from servicebroker.tsql.parser.control import ControlFlowParser
from servicebroker.tsql.parser.extent import statement_end
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import (
    Argument,
    Execute,
    ExecuteAs,
    ExecuteText,
    InsertExecute,
    Name,
    Operand,
    Parameter,
    Procedure,
    ResultColumn,
    ResultSets,
    Statement,
    Trigger,
    Variable,
)
from servicebroker.tsql.tokens import STRING, VARIABLE

DDL_TRIGGER = ("A trigger on DDL", "Use CREATE EVENT NOTIFICATION.")  # a feature, and its replacement


class ProcedureParser(ControlFlowParser):
    """Parses modules, each of which needs a batch of its own, and their calls."""

    def create_procedure(self, line: int, action: str, begin: int) -> Statement:
        """CREATE [OR ALTER] PROCEDURE name @parameters WITH options AS body, up to the end of the batch."""
        self.must_be_first("CREATE/ALTER PROCEDURE", begin)
        name = self.name()
        if self.take(";"):
            self.integer()
            self.refuse("A numbered procedure", "Give each procedure its own name.")
        parameters = self.parameters()
        execute_as = self._module_options()
        if self.take("FOR", "REPLICATION"):
            self.refuse("FOR REPLICATION", "Omit it.")
        self.expect("AS")
        if self.word == "EXTERNAL":
            self.refuse("A .NET procedure (EXTERNAL NAME)", "Write it in T-SQL, or in Python with the package's API.")
        self.returns_value = True
        body = self.body()
        text = self.slice(begin, self.at) if self.at > begin else ""
        return Procedure(line, action, name, parameters, execute_as, body, text)

    def parameters(self) -> tuple[Parameter, ...]:
        """Parse @name type = default OUTPUT, ..., with or without parentheses."""
        enclosed = self.take("(")
        parameters: list[Parameter] = []
        while self.tokens.kinds[self.at] == VARIABLE or parameters:
            name = self.declared_name()
            self.take("AS")
            if self.word == "CURSOR":
                self.refuse("A cursor parameter", "Pass values, or use a table.")
            kind = self.type_name()
            if self.take("NOT", "NULL"):
                self.refuse("NOT NULL of a parameter", "Omit it.")
            self.take("NULL")
            default = self.expression("OUTPUT", "OUT", "READONLY", "AS", "WITH") if self.take("=") else None
            output = self.take_any("OUTPUT", "OUT") is not None
            read_only = self.take("READONLY")
            if read_only and (output or default is not None):
                self.refuse("OUTPUT or a default of a READONLY parameter", "Omit it. The default is an empty table.")
            parameters.append(Parameter(name, kind, default, output, read_only))
            if not self.take(","):
                break
        if enclosed:
            self.expect(")")
        return tuple(parameters)

    def _module_options(self) -> str | None:
        """Parse WITH options of a module. Return the name in EXECUTE AS, or None."""
        execute_as = None
        if self.take("WITH"):
            while True:
                if self.take_any("EXECUTE", "EXEC"):
                    self.expect("AS")
                    execute_as = (
                        self.string() if self.tokens.kinds[self.at] == STRING else self.single_name().object.upper()
                    )
                elif self.word == "NATIVE_COMPILATION":
                    self.refuse_native()
                elif not self.take_any("RECOMPILE", "ENCRYPTION", "SCHEMABINDING"):
                    self.fail()
                if not self.take(","):
                    break
        return execute_as

    def refuse_native(self) -> NoReturn:
        """Refuse NATIVE_COMPILATION."""
        self.refuse("NATIVE_COMPILATION", "Omit it, and write BEGIN for BEGIN ATOMIC WITH (...).")

    def must_be_first(self, statement: str, begin: int) -> None:
        """Refuse a statement that is not the first one of its batch.

        Raises:
            TsqlError: 111 another statement precedes it.
        """
        if begin:
            raise TsqlError(
                111, f"'{statement}' must be the first statement in a query batch.", severity=15,
                line=self.tokens.line(begin),
            )  # fmt: skip

    def refuse_ddl_trigger(self) -> None:
        """Refuse ON DATABASE and ON ALL SERVER."""
        if self.take_ddl_scope():
            self.refuse(*DDL_TRIGGER)

    def take_ddl_scope(self) -> bool:
        """Read DATABASE or ALL SERVER, which name the scope of a trigger on DDL."""
        return self.take("DATABASE") or self.take("ALL", "SERVER")

    def create_trigger(self, line: int, action: str, begin: int) -> Statement:
        """CREATE TRIGGER name ON table AFTER INSERT, UPDATE AS body."""
        self.must_be_first("CREATE TRIGGER", begin)
        name = self.name()
        if name.database:
            raise TsqlError(
                166, "'CREATE/ALTER TRIGGER' does not allow specifying the database name as a prefix to the object "
                "name.", severity=15, line=line,
            )  # fmt: skip
        self.expect("ON")
        self.refuse_ddl_trigger()
        table = self.name()
        execute_as = self._module_options()
        instead_of = self.take("INSTEAD", "OF")
        if not instead_of:
            self.expect_any("AFTER", "FOR")
        events = [self.expect_any("INSERT", "UPDATE", "DELETE")]
        while self.take(","):
            events.append(self.expect_any("INSERT", "UPDATE", "DELETE"))
        self.take("WITH", "APPEND")
        self.take("NOT", "FOR", "REPLICATION")
        self.expect("AS")
        if self.word == "EXTERNAL":
            self.refuse("A .NET trigger (EXTERNAL NAME)", "Write it in T-SQL.")
        body = self.body()
        text = self.slice(begin, self.at)
        return Trigger(line, action, name, table, execute_as, instead_of, tuple(events), body, text)

    def execute(self, line: int) -> Statement:
        """EXEC procedure, EXEC ('text'), EXECUTE AS."""
        if self.take("AS"):
            return self._execute_as(line)
        if self.take("("):
            text = self.expression()
            if self.take(","):
                self.refuse("EXEC with a linked server's parameters", "Use sp_executesql.")
            self.expect(")")
            user: Operand | None = None
            kind = "USER"
            if self.take("AS"):
                kind = self.expect_any("USER", "LOGIN")
                self.expect("=")
                user = self.operand()
            if self.take("AT"):
                self.refuse("EXEC ... AT a linked server", "Use a conversation to reach another instance.")
            return self._with_result_sets(ExecuteText(line, text, user, kind))
        return self._with_result_sets(self._execute_procedure(line))

    def _execute_as(self, line: int) -> Statement:
        kind = self.expect_any("USER", "LOGIN", "CALLER")
        if kind == "CALLER":
            return ExecuteAs(line, kind, None)
        self.expect("=")
        name = self.operand()
        if self.word == "(" and isinstance(name, Name):
            self.refuse("A function call as the name of a user", "Use a variable.")
        if not self.take("WITH"):
            return ExecuteAs(line, kind, name)
        if self.take("COOKIE"):
            self.expect("INTO")
            return ExecuteAs(line, kind, name, cookie=self.variable())
        self.expect("NO", "REVERT")
        return ExecuteAs(line, kind, name, no_revert=True)

    def _execute_procedure(self, line: int) -> Execute:
        returned = None
        if self.tokens.kinds[self.at] == VARIABLE and self.peek() == "=":
            returned = self.variable()
            self.expect("=")
        if self.word == "OPENDATASOURCE" and self.peek() == "(":
            self.refuse("EXEC of OPENDATASOURCE", "Use a conversation to reach another instance.")
        procedure: Name | Variable
        procedure = Variable(self.variable()) if self.tokens.kinds[self.at] == VARIABLE else self.name()
        if self.take(";", "0"):
            self.refuse("A numbered procedure", "Give each procedure its own name.")
        arguments: list[Argument] = []
        if not self._ends_call():
            while True:
                arguments.append(self._argument())
                self._check_named(arguments)
                if not self.take(","):
                    break
        return Execute(line, procedure, tuple(arguments), returned)

    def _with_result_sets(self, source: Execute | ExecuteText) -> Statement:
        """Parse WITH RECOMPILE, RESULT SETS UNDEFINED | NONE | ((column type, ...), ...) after a call."""
        if self.word != "WITH" or self.peek() not in ("RECOMPILE", "RESULT"):
            return source
        self.at += 1
        shaped: Statement = source
        while True:
            if not self.take("RECOMPILE"):
                shaped = self._result_sets(source)
            if not self.take(","):
                return shaped

    def _result_sets(self, source: Execute | ExecuteText) -> Statement:
        self.expect("RESULT", "SETS")
        if self.take("UNDEFINED"):
            return source
        sets: list[tuple[ResultColumn, ...]] = []
        if not self.take("NONE"):
            self.expect("(")
            while True:
                if self.word == "AS" or (self.word == "(" and self.peek() == "AS"):
                    self.refuse("WITH RESULT SETS (AS ...)", "Write the columns.")
                sets.append(self._result_columns())
                if not self.take(","):
                    break
            self.expect(")")
        return ResultSets(source.line, source, tuple(sets))

    def _result_columns(self) -> tuple[ResultColumn, ...]:
        self.expect("(")
        columns = []
        while True:
            name, kind = self.identifier(), self.type_name()
            if self.take("COLLATE"):
                self.identifier()
            required = self.take("NOT", "NULL")
            if not required:
                self.take("NULL")
            columns.append(ResultColumn(name, kind, not required))
            if not self.take(","):
                break
        self.expect(")")
        return tuple(columns)

    def _ends_call(self) -> bool:
        """Check whether a call has no arguments."""
        kind = self.tokens.kinds[self.at]
        if kind in (VARIABLE, STRING) or self.word in ("0", "-", "NULL", "DEFAULT"):
            return False
        return not (self.is_identifier() and self.peek() in (",", ";", "", "OUTPUT")) or self._begins_next()

    def _begins_next(self) -> bool:
        return self.tokens.line(self.at) != self.tokens.line(self.at - 1)

    def _check_named(self, arguments: list[Argument]) -> None:
        """Check that no argument without a name follows a named one.

        Raises:
            TsqlError: 119 such an argument.
        """
        if not arguments[-1].name and any(argument.name for argument in arguments):
            raise TsqlError(
                119,
                f"Must pass parameter number {len(arguments)} and subsequent parameters as '@name = value'. After the "
                "form '@name = value' has been used, all subsequent parameters must be passed in the form "
                "'@name = value'.",
                severity=15,
                line=self.tokens.line(self.at - 1),
            )

    def _argument(self) -> Argument:
        name = ""
        if self.tokens.kinds[self.at] == VARIABLE and self.peek() == "=":
            self.arguments.add(self.at)
            name = self.variable()
            self.expect("=")
        if self.take("DEFAULT"):
            return Argument(name, None, False)
        value = self.operand()
        return Argument(name, value, self.take_any("OUTPUT", "OUT") is not None)

    def insert(self, line: int) -> Statement:
        """INSERT, also of the result of EXEC."""
        begin = self.at
        end = statement_end(self.tokens, begin)
        has_rows = {"VALUES", "SELECT"}.intersection(self.words[begin:end])  # EXEC after them is the next statement
        if has_rows or self.words[end] not in ("EXEC", "EXECUTE"):
            return self.relational(line)
        target = self.slice(begin, end)
        self.at = end + 1
        source = self.execute(self.tokens.line(end))
        if not isinstance(source, Execute | ExecuteText):
            self.fail()
        return InsertExecute(line, target, source)
