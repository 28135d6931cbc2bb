"""A recursive descent parser for the broker's statements and procedures. Queries stay text.

**The problem.** T-SQL needs no semicolons, and many of its keywords are also names. The parser must find the end of
each statement without parsing queries.

**The flow.** `batches` (`tsql/tokens.py`) splits a script into tokens. `Parser` below reads one statement after the
other by its first word and returns values of `tsql/syntax.py`. Its base classes read one subject each: `objects.py`,
`security.py`, `functions.py`, `procedures.py`, `control.py`, `dialogs.py`, on top of `token_reader.py`. The text of a
query or an expression is kept as it is, up to its end (`extent.py`).

**The rules.**

* The parser uses no catalog and no session. The same text and parameters give the same statements, so `tsql/session.py`
  caches them.
* A statement that does not run here is listed in `unsupported_statements.py`: it is refused, or has no effect.
* An error has the number that SQL Server gives: 102 for syntax, 137 for a variable that is not declared.
* A word that begins a statement is listed in `keywords.py`, on which `extent.py` depends.

Begin with `_statement` below, then `dialogs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from servicebroker.overriding import override
from servicebroker.tsql.parser.extent import expression_end, merge_end
from servicebroker.tsql.parser.keywords import STARTERS, begins_statement
from servicebroker.tsql.parser.objects import ObjectParser
from servicebroker.tsql.parser.procedures import DDL_TRIGGER
from servicebroker.tsql.parser.token_reader import parse_name
from servicebroker.tsql.parser.unsupported_statements import FIRST_WORDS, Feature, feature_at, feature_end
from servicebroker.tsql.parser.variables import check_variables
from servicebroker.tsql.statement_errors import UNSUPPORTED_ERROR, TsqlError, unsupported
from servicebroker.tsql.syntax import (
    Definition,
    Label,
    Name,
    NoEffect,
    Operand,
    Permission,
    Relational,
    Statement,
    Unsupported,
)
from servicebroker.tsql.tokens import QUOTED, STRING, Tokens, tokenize


def parse(tokens: Tokens, parameters: Collection[str] | None = None) -> tuple[Statement, ...]:
    """Parse the statements of a batch.

    `parameters` are variables that have values from outside. If it is None, the use of undeclared variables is not
    checked, as for a module that was checked by CREATE.

    Raises:
        TsqlError: 102 and others of level 15 the syntax is wrong; 137 and 1087 a variable is not declared before its
            use; 40515 a construct is not supported.
    """
    _check_names(tokens)
    parser = Parser(tokens)
    parser.accepts_missing_semicolons = parameters is None
    statements = parser.body()
    if parameters is not None:
        check_variables(tokens, parser.declared, parser.arguments, parameters)
    return statements


def _check_names(tokens: Tokens) -> None:
    """Refuse names with the character U+0000, which PostgreSQL cannot store.

    Raises:
        TsqlError: 40515 such a name.
    """
    if "\0" not in tokens.source[tokens.starts[0] : tokens.ends[-1]]:
        return
    for index, kind in enumerate(tokens.kinds):
        if kind == QUOTED and "\0" in tokens.text(index):
            raise unsupported("A name with the character U+0000", "Choose another name.", tokens.line(index))


def parse_piecewise(tokens: Tokens) -> Iterator[tuple[str, Sequence[Statement] | TsqlError]]:
    """Yield the statements of a batch that cannot be parsed as a whole.

    A faulty statement yields its first words and its error. The statements inside a faulty block are parsed one by one.
    """
    parser = Parser(tokens)
    is_behind_statement = False
    while parser.word:
        begin = parser.at
        if is_behind_statement:
            try:
                parser.check_terminated()
            except TsqlError as error:
                yield "WITH", error
        is_behind_statement = True
        parser.depth = 0
        parser.loops, parser.returns_value = 1, True  # an outer statement may be the faulty one
        try:
            statements = parser.statement_group()
            if parser.at == begin:
                parser.fail()
        except TsqlError as error:
            error.line = error.line or tokens.line(begin)
            end = parser.refused_end(begin, error)
            if not parser.open_block(begin):
                yield " ".join(word for word in tokens.words[begin : begin + 2] if word[:1].isalpha()), error
                parser.at = end
                while parser.word not in ("", ";") and not (
                    parser.word in STARTERS and begins_statement(tokens, parser.at)
                ):
                    parser.at += 1
            else:
                is_behind_statement = False
        else:
            yield "", statements
        while parser.peek() != "CONVERSATION" and parser.take_any(";", "END", "ELSE", "TRY", "CATCH"):
            pass


def parse_text(text: str, parameters: Collection[str] | None = None) -> tuple[Statement, ...]:
    """Parse the statements of a text without GO."""
    return parse(tokenize(text), parameters)


_RELATIONAL_KINDS = ("TABLE", "INDEX", "VIEW", "UNIQUE", "CLUSTERED", "NONCLUSTERED", "SEQUENCE")
_MODULES = ("PROCEDURE", "PROC", "FUNCTION", "TRIGGER")
_OBJECT_METHODS = {
    ("MESSAGE", "TYPE"): "message_type",
    ("CONTRACT",): "contract",
    ("QUEUE",): "queue",
    ("SERVICE",): "service",
    ("ROUTE",): "route",
    ("REMOTE", "SERVICE", "BINDING"): "remote_service_binding",
    ("BROKER", "PRIORITY"): "broker_priority",
    ("EVENT", "NOTIFICATION"): "event_notification",
    ("XML", "SCHEMA", "COLLECTION"): "xml_schema_collection",
    ("ENDPOINT",): "endpoint",
    ("DATABASE",): "database",
    ("LOGIN",): "login",
    ("USER",): "user",
    ("ROLE",): "role",
    ("SCHEMA",): "schema",
    ("MASTER", "KEY"): "master_key",
    ("CERTIFICATE",): "certificate",
    ("TYPE",): "type_",
    ("SYNONYM",): "synonym",
}


class Parser(ObjectParser):
    """Parses all statements."""

    @override
    def statement(self) -> Statement:
        """Parse the statement that begins here."""
        begin = self.at
        statement = self._statement()
        return (
            replace(statement, text=self.slice(begin, self.at))
            if isinstance(statement, Definition | Permission)
            else statement
        )

    def _statement(self) -> Statement:
        line, word = self.line, self.word
        feature = feature_at(self.tokens, self.at) if word in FIRST_WORDS else None
        if feature is not None:
            return self._unsupported(line, feature)
        parse_word = _STATEMENTS.get(word)
        if parse_word is not None:
            self.at += 1
            return parse_word(self, line)
        if word == "SELECT":
            return self.select(line)
        if word == "WITH" and self._is_before_merge():
            self.at += 1
            return self._merge(line)
        if word in ("UPDATE", "DELETE", "TRUNCATE", "WITH") or (word == "(" and self._is_before_query()):
            return self.relational(line)
        if word == "INSERT":
            return self.insert(line)
        if word == "CREATE":
            return self._create(line)
        if word in ("ALTER", "DROP"):
            return self._change(line)
        if word in ("OPEN", "CLOSE"):
            return self._open(line)
        if self.is_label():
            label = self.identifier().lower()
            self.at += 1
            return Label(line, label)
        if self.at == 0 and self.is_identifier():  # the first statement of a batch may omit EXEC
            return self._with_result_sets(self._execute_procedure(line))
        raise self.failure()

    def open_block(self, begin: int) -> bool:
        """Skip the words that open the block at `begin`. Return False if there is no block."""
        self.at = begin
        if self.take_any("IF", "WHILE"):
            self.at = expression_end(self.tokens, self.at)
            return self.at > begin + 1
        if self.take("BEGIN") and self.word not in ("DIALOG", "CONVERSATION", "TRAN", "TRANSACTION", "DISTRIBUTED"):
            self.take_any("TRY", "CATCH")
            return True
        self.at = begin
        return False

    def _create(self, line: int) -> Statement:
        begin = self.at
        self.at += 1
        action = "CREATE OR ALTER" if self.take("OR", "ALTER") else "CREATE"
        if self.take_any("PROCEDURE", "PROC"):
            return self.create_procedure(line, action, begin)
        if self.take("TRIGGER"):
            return self.create_trigger(line, action, begin)
        if self.take("FUNCTION"):
            return self.create_function(line, action, begin)
        return self._object(line, "CREATE", begin)

    def _change(self, line: int) -> Statement:
        begin = self.at
        keyword = self.word
        self.at += 1
        if keyword == "ALTER":
            if self.take_any("PROCEDURE", "PROC"):
                return self.create_procedure(line, keyword, begin)
            if self.take("TRIGGER"):
                return self.create_trigger(line, keyword, begin)
            if self.take("FUNCTION"):
                return self.create_function(line, keyword, begin)
            if self.take("AUTHORIZATION"):
                return self.alter_authorization(line)
            switch = self._switch_of_table(line)
            if switch is not None:
                return switch
        elif self.word in ("PROCEDURE", "PROC", "TRIGGER", "FUNCTION"):
            kind = "PROCEDURE" if self.word == "PROC" else self.word
            self.at += 1
            return self._drop_modules(line, kind)
        elif keyword == "DROP" and self.word in ("SIGNATURE", "COUNTER"):
            return self.signature(line, keyword)
        return self._object(line, keyword, begin)

    def _object(self, line: int, keyword: str, begin: int) -> Statement:
        for words, method in _OBJECT_METHODS.items():
            if self.word == words[0] and self.take(*words):
                statement: Statement = getattr(self, method)(line, keyword)
                return statement
        if self.word in _RELATIONAL_KINDS:
            self.at = begin
            return self.relational(line)
        raise self.failure()

    def _unsupported(self, line: int, feature: Feature) -> Statement:
        """Parse a statement of `unsupported_statements.py`. Three commands of DBCC do run."""
        end_of_name = self.at + feature.length
        inspect = {
            "DBCC CHECKIDENT": self._check_identity,
            "DBCC OPENTRAN": self._dbcc,
            "DBCC INPUTBUFFER": self._dbcc,
        }.get(feature.name.upper())
        if inspect is not None:
            self.at = end_of_name
            return inspect(line)
        self.at = feature_end(self.tokens, end_of_name)
        if not feature.can_precede(self.words[end_of_name : self.at]):
            self.at -= 1
            self.fail()
        if not feature.alternative:
            return NoEffect(line, feature.name)
        if feature.name.startswith("DROP"):  # mostly guarded by an IF EXISTS that is false
            return Unsupported(line, feature.name, feature.alternative)
        raise unsupported(feature.name, feature.alternative, line)

    def _check_identity(self, line: int) -> Statement:
        """DBCC CHECKIDENT ('table' [, NORESEED | RESEED [, value]])."""
        self.expect("(")
        name = parse_name(self.string()) if self.tokens.kinds[self.at] == STRING else self.name()
        clauses: dict[str, object] = {"reseeds": True, "value": None}
        if self.take(","):
            clauses["reseeds"] = self.expect_any("NORESEED", "RESEED") == "RESEED"
            if clauses["reseeds"] and self.take(","):
                clauses["value"] = self.operand()
        self.expect(")")
        clauses["is_silent"] = self.take("WITH", "NO_INFOMSGS")
        return Definition(line, "DBCC", "CHECKIDENT", name, clauses)

    def _dbcc(self, line: int) -> Statement:
        """DBCC OPENTRAN [(database)], DBCC INPUTBUFFER (session [, request])."""
        kind = self.words[self.at - 1]
        arguments: list[Operand] = []
        if kind == "INPUTBUFFER" or self.word == "(":
            self.expect("(")
            while self.word != ")":
                arguments.append(self.operand())
                if not self.take(","):
                    break
            self.expect(")")
        shows_table = False
        if self.take("WITH"):
            while True:
                shows_table |= self.expect_any("NO_INFOMSGS", "TABLERESULTS") == "TABLERESULTS"
                if not self.take(","):
                    break
        return Definition(line, "DBCC", kind, Name(("", kind)), {"given": arguments, "shows_table": shows_table})

    def refused_end(self, begin: int, error: TsqlError) -> int:
        """Return the index after the statement at `begin`, whose parsing has failed."""
        words = self.words[begin : begin + 4]
        if words[0] in ("CREATE", "ALTER") and any(word in _MODULES for word in words[1:]):
            return len(self.words) - 1  # its body is the rest of the batch
        index = max(self.at, begin + 1)
        if words[0] in ("GRANT", "DENY", "REVOKE"):  # permissions are words that begin statements
            while self.words[index] not in ("TO", "FROM", ";", ""):
                index += 1
        return feature_end(self.tokens, index) if error.number == UNSUPPORTED_ERROR else index

    def _drop_modules(self, line: int, kind: str) -> Statement:
        if_exists = self.take("IF", "EXISTS")
        names = [self.name()]
        while self.take(","):
            names.append(self.name())
        if self.take(";", "0"):
            self.refuse("A numbered procedure", "Give each procedure its own name.")
        if kind == "TRIGGER" and self.take("ON"):
            if not self.take_ddl_scope():
                self.fail()
            return NoEffect(line, "DROP TRIGGER ON DATABASE") if if_exists else Unsupported(line, *DDL_TRIGGER)
        return Definition(line, "DROP", kind, names[0], {"names": names}, if_exists)

    def _open(self, line: int) -> Statement:
        opens = self.word == "OPEN"
        self.at += 1
        if self.word == "MASTER":
            return self.open_key(line) if opens else self.close_key(line)
        return self.cursor_step(line, "OPEN" if opens else "CLOSE")

    def _end(self, line: int) -> Statement:
        self.expect("CONVERSATION")
        return self.end_conversation(line)

    def _add(self, line: int) -> Statement:
        if self.word not in ("SIGNATURE", "COUNTER"):
            self.at -= 1
            self.fail()
        return self.signature(line, "ADD")

    def _switch_trigger(self, line: int) -> Statement:
        if self.word != "TRIGGER":
            self.at -= 1
            self.fail()
        keyword = self.words[self.at - 1]
        self.at += 1
        names = self._triggers()
        self.expect("ON")
        if self.take_ddl_scope():
            return Unsupported(line, *DDL_TRIGGER)
        return Definition(line, keyword, "TRIGGER", self.name(), {"names": names, "by_table": False})

    def _switch_of_table(self, line: int) -> Statement | None:
        """Parse ALTER TABLE name ENABLE or DISABLE TRIGGER. Return None, without advancing, for another change."""
        begin = self.at
        if self.take("TABLE") and self.is_identifier():
            table, keyword = self.name(), self.take_any("ENABLE", "DISABLE")
            if keyword is not None and self.take("TRIGGER"):
                return Definition(line, keyword, "TRIGGER", table, {"names": self._triggers(), "by_table": True})
        self.at = begin
        return None

    def _triggers(self) -> list[Name]:
        """Read ALL, returned as an empty list, or names."""
        if self.take("ALL"):
            return []
        names = [self.name()]
        while self.take(","):
            names.append(self.name())
        return names

    def _merge(self, line: int) -> Statement:
        """Read MERGE, the only statement that must end with a semicolon.

        Raises:
            TsqlError: 10713 the statement ends without one.
        """
        begin = self.at - 1
        self.at = merge_end(self.tokens, self.at)
        if self.word != ";" and not self.accepts_missing_semicolons:
            text = "A MERGE statement must be terminated by a semi-colon (;)."
            raise TsqlError(10713, text, severity=15, line=self.tokens.line(self.at - 1))
        return Relational(line, "MERGE", self.slice(begin, self.at))

    def _is_before_query(self) -> bool:
        """Check whether the parentheses that open here contain a query."""
        index = self.at
        while self.words[index] == "(":
            index += 1
        return self.words[index] == "SELECT"

    def _is_before_merge(self) -> bool:
        """Check whether the common table expressions that begin here belong to MERGE."""
        depth = 0
        for word in self.words[self.at :]:
            depth += (word == "(") - (word == ")")
            if depth == 0 and word in ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", ";", ""):
                return word == "MERGE"
        return False


_STATEMENTS: dict[str, Callable[[Parser, int], Statement]] = {
    "BEGIN": Parser.begin,
    "IF": Parser.if_,
    "WHILE": Parser.while_,
    "BREAK": Parser.break_,
    "CONTINUE": Parser.continue_,
    "GOTO": Parser.goto,
    "RETURN": Parser.return_,
    "SET": Parser.set_,
    "PRINT": Parser.print_,
    "RAISERROR": Parser.raiserror,
    "THROW": Parser.throw,
    "USE": Parser.use,
    "COMMIT": Parser.commit,
    "ROLLBACK": Parser.rollback,
    "SAVE": Parser.save,
    "EXEC": Parser.execute,
    "EXECUTE": Parser.execute,
    "SEND": Parser.send,
    "RECEIVE": Parser.receive,
    "GET": Parser.get_conversation_group,
    "MOVE": Parser.move_conversation,
    "END": Parser._end,
    "WAITFOR": Parser.wait_for,
    "GRANT": lambda parser, line: parser.permission(line, "GRANT"),
    "DENY": lambda parser, line: parser.permission(line, "DENY"),
    "REVOKE": lambda parser, line: parser.permission(line, "REVOKE"),
    "REVERT": Parser.revert,
    "BACKUP": Parser.backup,
    "FETCH": Parser.fetch,
    "DEALLOCATE": lambda parser, line: parser.cursor_step(line, "DEALLOCATE"),
    "ADD": Parser._add,
    "ENABLE": Parser._switch_trigger,
    "DISABLE": Parser._switch_trigger,
    "MERGE": Parser._merge,
}
