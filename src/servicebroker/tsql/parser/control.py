"""Parser of control flow, variables, messages and transactions."""

from __future__ import annotations

from servicebroker.tsql.parser.dialogs import DialogParser
from servicebroker.tsql.parser.extent import expression_end, statement_end
from servicebroker.tsql.parser.keywords import STARTERS, begins_statement, split_words
from servicebroker.tsql.parser.labels import check_labels
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.syntax import (
    MUTATOR,
    BeginTransaction,
    Block,
    Break,
    CommitTransaction,
    Constant,
    Continue,
    CursorStep,
    Declarations,
    DeclareCursor,
    DeclareTable,
    DeclareVariable,
    Expression,
    Fetch,
    Goto,
    If,
    Operand,
    Print,
    Raiserror,
    Relational,
    Return,
    RollbackTransaction,
    SaveTransaction,
    SelectVariables,
    SetOption,
    SetVariable,
    Statement,
    Throw,
    TryCatch,
    Use,
    Variable,
    While,
)
from servicebroker.tsql.tokens import COMPOUND_OPERATORS, NUMBER, QUOTED, STRING, VARIABLE, WORD, Tokens, unquote

MAX_BLOCK_DEPTH = 64
_CURSOR_OPTIONS = split_words(
    "LOCAL GLOBAL FORWARD_ONLY SCROLL STATIC KEYSET DYNAMIC FAST_FORWARD READ_ONLY SCROLL_LOCKS OPTIMISTIC TYPE_WARNING"
)
_READ_ONLY_OPTIONS = frozenset({"INSENSITIVE", "STATIC", "READ_ONLY", "FAST_FORWARD"})
_FIXED_ROWS_OPTIONS = frozenset({"INSENSITIVE", "STATIC", "KEYSET"})
_SELECT_CLAUSES = frozenset(
    {"FROM", "WHERE", "GROUP", "HAVING", "ORDER", "OPTION", "FOR", "INTO", "UNION", "EXCEPT", "INTERSECT"}
)
_ASSIGNMENT_OPERATORS = frozenset({"=", *COMPOUND_OPERATORS})


class ControlFlowParser(DialogParser):
    """Parses the statements that are not Service Broker's: control flow, variables, cursors, transactions."""

    depth = 0
    has_goto = False  # a jump can skip declarations
    loops = 0  # WHILE loops around the current statement
    accepts_missing_semicolons = False  # before WITH and after MERGE: an earlier version has stored the module
    returns_value = False  # RETURN may have a value: in a procedure or a function

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.declared: dict[str, int] = {}  # token index of each declaration in a batch or module
        self.arguments: set[int] = set()  # token indexes where EXEC names a parameter
        # Declarations, with the depth of their block
        self._declarations: list[tuple[int, DeclareVariable | DeclareTable]] = []

    def statement(self) -> Statement:
        """Parse one statement. `Parser` implements it."""
        raise NotImplementedError

    def statements(self, *ends: str) -> tuple[Statement, ...]:
        """Parse statements up to one of the words `ends`, or the end of the text."""
        statements: list[Statement] = []
        while True:
            while self.take(";"):
                pass
            if self.word == "" or (self.word in ends and self._is_end()):
                return tuple(statements)
            first = self.at
            if statements:
                self.check_terminated()
            statements += self.statement_group()
            if self.at == first:
                self.fail()

    def check_terminated(self) -> None:
        """Refuse a common table expression after a statement without a semicolon.

        Raises:
            TsqlError: 319 the semicolon is missing.
        """
        is_terminated = self.accepts_missing_semicolons or self.words[self.at - 1] in (";", ":")
        if self.word == "WITH" and not is_terminated and begins_statement(self.tokens, self.at):
            text = (
                "Incorrect syntax near the keyword 'with'. If this statement is a common table expression, an "
                "xmlnamespaces clause or a change tracking context clause, the previous statement must be terminated "
                "with a semicolon."
            )
            raise TsqlError(319, text, severity=15, line=self.line)

    def body(self) -> tuple[Statement, ...]:
        """Parse the statements of a batch or a module, up to the end of the text.

        Raises:
            TsqlError: 132, 133 a label is wrong.
        """
        line, statements = self.line, self.statements()
        check_labels(statements)
        early = tuple(declaration for depth, declaration in self._declarations if depth or self.has_goto)
        self._declarations.clear()
        return (Declarations(line, early), *statements) if early else statements

    def _is_end(self) -> bool:
        return self.word != "END" or self.peek() != "CONVERSATION"

    def statement_group(self) -> list[Statement]:
        """Parse one statement, or the several statements of one DECLARE."""
        if self.word == "DECLARE":
            line = self.line
            self.at += 1
            return self.declare(line)
        return [self.statement()]

    def nested(self) -> Statement:
        """Parse the body of IF or WHILE, a single statement."""
        while self.take(";"):
            pass
        line = self.line
        statements = self.statement_group()
        self.take(";")
        return statements[0] if len(statements) == 1 else Block(line, tuple(statements))

    def enter_block(self) -> None:
        """Count one level of nesting.

        Raises:
            TsqlError: 191 too many levels.
        """
        self.depth += 1
        if self.depth > MAX_BLOCK_DEPTH:
            raise TsqlError(
                191, "Some part of your SQL statement is nested too deeply. Rewrite the query or break it up into "
                "smaller queries.", severity=15, line=self.line,
            )  # fmt: skip

    def begin(self, line: int) -> Statement:
        """BEGIN of a block, TRY, a transaction, a dialog or a timer."""
        if self.take("DIALOG"):
            return self.begin_dialog(line)
        if self.take("CONVERSATION", "TIMER"):
            return self.begin_timer(line)
        if self.take_any("TRAN", "TRANSACTION"):
            name = self._transaction_name()
            if self.take("WITH", "MARK") and self.tokens.kinds[self.at] in (STRING, VARIABLE):
                self.at += 1
            return BeginTransaction(line, name)
        if self.take("DISTRIBUTED"):
            self.refuse(
                "BEGIN DISTRIBUTED TRANSACTION", "Use BEGIN TRANSACTION. Delivery needs no distributed transaction."
            )
        self.enter_block()
        if self.take("TRY"):
            body = self.statements("END")
            self.expect("END", "TRY")
            while self.take(";"):
                pass
            self.expect("BEGIN", "CATCH")
            handler = self.statements("END")
            self.expect("END", "CATCH")
            self.depth -= 1
            return TryCatch(line, body, handler)
        inner = self.statements("END")
        if not inner:
            self.fail()
        self.expect("END")
        self.depth -= 1
        return Block(line, inner)

    def if_(self, line: int) -> Statement:
        """IF condition statement ELSE statement."""
        self.enter_block()
        condition = self.expression()
        then = self.nested()
        while self.word == ";" and self.peek() == "ELSE":
            self.at += 1
        otherwise = None
        if self.take("ELSE"):
            self.depth -= 1  # a chain of ELSE IF counts as one level
            otherwise = self.nested()
            self.depth += 1
        self.depth -= 1
        return If(line, condition, then, otherwise)

    def while_(self, line: int) -> Statement:
        """WHILE condition statement."""
        self.enter_block()
        condition = self.expression()
        self.loops += 1
        body = self.nested()
        self.loops -= 1
        self.depth -= 1
        return While(line, condition, body)

    def break_(self, line: int) -> Statement:
        """BREAK."""
        self._check_loop("BREAK", 135)
        return Break(line)

    def continue_(self, line: int) -> Statement:
        """CONTINUE."""
        self._check_loop("CONTINUE", 136)
        return Continue(line)

    def _check_loop(self, word: str, number: int) -> None:
        """Refuse BREAK and CONTINUE outside of WHILE.

        Raises:
            TsqlError: 135 or 136.
        """
        if not self.loops:
            text = f"Cannot use a {word} statement outside the scope of a WHILE statement."
            raise TsqlError(number, text, severity=15, line=self.line)

    def goto(self, line: int) -> Statement:
        """GOTO label."""
        self.has_goto = True
        return Goto(line, self.identifier().lower())

    def return_(self, line: int) -> Statement:
        """RETURN [value]."""
        begin = self.at
        if self.word in ("", ";", "END", "ELSE"):
            return Return(line, None)
        try:
            value = self.expression()
        except TsqlError:
            if self.at != begin:
                raise
            return Return(line, None)
        if not self.returns_value:
            raise TsqlError(
                178, "A RETURN statement with a return value cannot be used in this context.", severity=15, line=line
            )
        return Return(line, value)

    # ------------------------------------------------------------ variables

    def declare(self, line: int) -> list[Statement]:
        """DECLARE @a type [= value], @b TABLE (...), ..."""
        statements: list[Statement] = []
        if self.tokens.kinds[self.at] != VARIABLE:
            return [self._cursor(line)]
        while True:
            name = self.declared_name()
            self.take("AS")
            if self.word == "TABLE":
                self.at += 1
                table = DeclareTable(line, name, self.parenthesized())
                self._declarations.append((self.depth, table))
                statements.append(table)
            elif self.word == "CURSOR":
                self.at += 1  # a variable for SET @name = CURSOR FOR
            else:
                kind = self.type_name()
                value = self.expression() if self.take("=") else None
                self._declarations.append((self.depth, DeclareVariable(line, name, kind, None)))
                statements.append(DeclareVariable(line, name, kind, value))
            if not self.take(","):
                return statements

    def declared_name(self) -> str:
        """Read the name of a new variable.

        Raises:
            TsqlError: 134 the variable is declared twice.
        """
        line, index, name = self.line, self.at, self.variable()
        if self.declared.get(name, index) != index:  # `parse_piecewise` reads the same declaration again
            text = (
                f"The variable name '{self.tokens.text(index)}' has already been declared. "
                "Variable names must be unique within a query batch or stored procedure."
            )
            raise TsqlError(134, text, severity=15, line=line)
        self.declared[name] = index
        return name

    def _cursor(self, line: int) -> Statement:
        name = self.identifier().lower()
        options: set[str | None] = set()
        while self.word in ("INSENSITIVE", "SCROLL"):
            options.add(self.take_any("INSENSITIVE", "SCROLL"))
        self.expect("CURSOR")
        return self._cursor_query(line, name, options, is_variable=False)

    def _cursor_query(self, line: int, name: str, options: set[str | None], *, is_variable: bool) -> Statement:
        """Parse the options and the query of a cursor."""
        while self.word in _CURSOR_OPTIONS:
            options.add(self.take_any(*_CURSOR_OPTIONS))
        self.expect("FOR")
        begin = self.at
        if not self.word:
            self.fail()
        end = self.at = statement_end(self.tokens, begin)
        if end == begin:
            self.fail()
        last = self.words[begin:end]
        if last[-1] == "FOR" and self.word == "UPDATE":
            self.at += 1
            while self.take("OF") or self.take(","):
                self.identifier()
            end -= 1
        if last[-3:] == ["FOR", "READ", "ONLY"]:
            end -= 3
            options.add("READ_ONLY")
        return DeclareCursor(
            line,
            name,
            self.slice(begin, end),
            is_variable,
            not options & _READ_ONLY_OPTIONS,
            bool(options & _FIXED_ROWS_OPTIONS),
        )

    def cursor_step(self, line: int, keyword: str) -> Statement:
        """OPEN, CLOSE or DEALLOCATE."""
        return CursorStep(line, keyword, self._cursor_name())

    def _cursor_name(self) -> str:
        self.take("GLOBAL")
        return self.variable() if self.tokens.kinds[self.at] == VARIABLE else self.identifier().lower()

    def fetch(self, line: int) -> Statement:
        """FETCH [NEXT FROM] cursor INTO @a, @b."""
        direction, number = "NEXT", None
        word = self.take_any("NEXT", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE")
        if word:
            direction = word
            if word in ("ABSOLUTE", "RELATIVE"):
                number = self.operand()
        self.take("FROM")
        name = self._cursor_name()
        into: list[str] = []
        if self.take("INTO"):
            into.append(self.variable())
            while self.take(","):
                into.append(self.variable())
        return Fetch(line, direction, number, name, tuple(into))

    def _assignment_operator(self) -> str:
        """Read the operator of an assignment: =, += and so on."""
        if self.word == "|" and self.peek() == "|=":
            self.refuse("The operator ||=", "Use +=.")
        return self.expect_any(*_ASSIGNMENT_OPERATORS)

    def set_(self, line: int) -> Statement:
        """SET @variable = value, SET option value."""
        if self.tokens.kinds[self.at] == VARIABLE:
            name = self.variable()
            if self.take(".", "MODIFY"):
                return SetVariable(line, name, Expression(f"{name}.{MUTATOR}{self.parenthesized()}", line))
            if self.word in (".", "::"):
                self.refuse("A property or method of a variable", "Use columns, or xml.")
            operator = self._assignment_operator()
            if self.take("CURSOR"):
                return self._cursor_query(line, name, set(), is_variable=True)
            return _make_assignment(line, name, operator, self.expression())
        if self.take("TRANSACTION", "ISOLATION", "LEVEL") or self.take("TRAN", "ISOLATION", "LEVEL"):
            first = self.single_name().object.upper()
            if first in ("READ", "REPEATABLE"):
                first += " " + self.single_name().object.upper()
            return SetOption(line, ("TRANSACTION ISOLATION LEVEL",), first)
        if self.take("IDENTITY_INSERT"):
            begin = self.at
            self.name()
            table = self.slice(begin, self.at)
            return SetOption(line, ("IDENTITY_INSERT",), f"{table} {self.expect_any('ON', 'OFF')}")
        if self.take("OFFSETS"):
            while self.word not in ("ON", "OFF"):
                if not self.word:
                    self.fail()
                self.at += 1
            self.at += 1
            self.refuse("SET OFFSETS", "Omit it.")
        if self.take("STATISTICS"):
            options = [f"STATISTICS {self.single_name().object.upper()}"]
            while self.take(","):
                options.append(f"STATISTICS {self.single_name().object.upper()}")
            return SetOption(line, tuple(options), self.expect_any("ON", "OFF"))
        options = [self.single_name().object.upper()]
        while self.take(","):
            options.append(self.single_name().object.upper())
        if self.word == "=":
            self.fail()
        statement = SetOption(line, tuple(options), self._option_value())
        if not self.take(","):
            return statement
        others = self.set_(line)
        return Block(line, (statement, *(others.body if isinstance(others, Block) else (others,))))

    def _option_value(self) -> str:
        self.take("=")
        begin = self.at
        if self.word == "-":
            self.at += 1
        if self.word in ("", ";"):
            self.fail()
        self.at += 1
        return self.slice(begin, self.at)

    # ------------------------------------------------------------ messages

    def print_(self, line: int) -> Statement:
        """PRINT value."""
        return Print(line, self.expression())

    def raiserror(self, line: int) -> Statement:
        """RAISERROR (message, severity, state, arguments) WITH LOG, NOWAIT, SETERROR."""
        parenthesized = self.take("(")
        is_value = self.tokens.kinds[self.at] in (NUMBER, VARIABLE) or self.word == "-"
        if not parenthesized and is_value and self.peek():
            self.refuse("RAISERROR without parentheses", "Write RAISERROR ('text', 16, 1), or THROW.")
        if not parenthesized:
            self.fail()
        values = [self.expression()]
        while self.take(","):
            values.append(self.expression())
        self.expect(")")
        options: list[str] = []
        if self.word == "WITH" and self.peek() in ("LOG", "NOWAIT", "SETERROR"):
            self.at += 1
            while True:
                options.append(self.expect_any("LOG", "NOWAIT", "SETERROR"))
                if not self.take(","):
                    break
        if len(values) < 3:
            raise syntax_error(")", line)
        return Raiserror(line, values[0], values[1], values[2], tuple(values[3:]), tuple(options))

    def throw(self, line: int) -> Statement:
        """THROW [number, message, state]."""
        if self.word in ("", ";") or (self.word in STARTERS and begins_statement(self.tokens, self.at)):
            return Throw(line)
        number = self.expression()
        self.expect(",")
        message = self.expression()
        self.expect(",")
        return Throw(line, number, message, self.expression())

    def use(self, line: int) -> Statement:
        """USE database."""
        return Use(line, self.single_name().object)

    # ------------------------------------------------------------ transactions

    def commit(self, line: int) -> Statement:
        """COMMIT [TRANSACTION name]."""
        if self.take_any("TRAN", "TRANSACTION"):
            self._transaction_name()
        else:
            self.take("WORK")
        if self.word == "WITH" and self.peek() == "(":
            self.at += 1
            self.parenthesized()  # DELAYED_DURABILITY: a commit is durable here
        return CommitTransaction(line)

    def rollback(self, line: int) -> Statement:
        """ROLLBACK [TRANSACTION name]."""
        if self.take_any("TRAN", "TRANSACTION"):
            return RollbackTransaction(line, self._transaction_name())
        self.take("WORK")
        return RollbackTransaction(line, None)

    def save(self, line: int) -> Statement:
        """SAVE TRANSACTION name."""
        self.expect_any("TRAN", "TRANSACTION")
        if self.tokens.kinds[self.at] == NUMBER or self.word == "-":
            self.refuse("A number as the name of a savepoint", "Write a name.")
        name = self._transaction_name()
        if name is None:
            self.fail()
        return SaveTransaction(line, name)

    def _transaction_name(self) -> Operand | None:
        kind = self.tokens.kinds[self.at]
        if kind == VARIABLE:
            return Variable(self.variable())
        is_name = kind == QUOTED or (kind == WORD and self.is_identifier() and self._is_not_verb())
        if is_name and not self.is_label():
            text = unquote(self.tokens.text(self.at))
            self.at += 1
            return Constant(text)
        return None

    def _is_not_verb(self) -> bool:
        """Check that a word names a transaction and does not begin a statement."""
        return self.word not in ("SEND", "GET", "MOVE", "RECEIVE", "THROW") or self.peek() in (";", "")

    # ------------------------------------------------------------ statements for the translation

    def select(self, line: int) -> Statement:
        """SELECT. One that only assigns variables becomes `SelectVariables`, which needs no database."""
        begin = self.at
        end = statement_end(self.tokens, begin)
        assignments: list[SetVariable] = []
        self.at += 1
        while self.tokens.kinds[self.at] == VARIABLE and self.peek() in _ASSIGNMENT_OPERATORS:
            name, operator = self.variable(), self._assignment_operator()
            value_at = self.at
            value_end = expression_end(self.tokens, value_at, _SELECT_CLAUSES)
            if value_end == value_at:
                break
            self.at = value_end
            value = Expression(self.slice(value_at, value_end), line)
            assignments.append(_make_assignment(line, name, operator, value))
            if self.at == end:
                return SelectVariables(line, tuple(assignments))
            if not self.take(","):
                break
        self.at = begin
        return self.relational(line)

    def relational(self, line: int) -> Relational:
        """Read a statement whose text goes to the translation unchanged."""
        begin = self.at
        keyword = self.word
        if keyword in ("CREATE", "ALTER", "DROP", "TRUNCATE"):
            keyword = f"{keyword} {self.peek()}"
        self.at = statement_end(self.tokens, begin)
        return Relational(line, keyword, self.slice(begin, self.at))


def _make_assignment(line: int, name: str, operator: str, value: Expression) -> SetVariable:
    if operator in COMPOUND_OPERATORS:
        value = Expression(f"{name} {COMPOUND_OPERATORS[operator]} ({value.text})", value.line)
    return SetVariable(line, name, value)
