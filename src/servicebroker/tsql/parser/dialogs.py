"""Parser of BEGIN DIALOG, SEND, RECEIVE and the other conversation statements."""

from __future__ import annotations

from typing import Any

from servicebroker.model.errors import RULES
from servicebroker.tsql.parser.token_reader import TokenReader
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import (
    BeginDialog,
    BeginTimer,
    Constant,
    EndConversation,
    Expression,
    GetConversationGroup,
    MoveConversation,
    Name,
    Operand,
    Receive,
    ReceiveItem,
    Send,
    Statement,
    WaitForMessage,
    WaitForTime,
)
from servicebroker.tsql.tokens import QUOTED, STRING, VARIABLE, WORD, string_value, unquote

_RECEIVE_WHERE = ("conversation_handle", "conversation_group_id")


class DialogParser(TokenReader):
    """Parses the conversation statements. Their first word has already been read."""

    def begin_dialog(self, line: int) -> Statement:
        """BEGIN DIALOG [CONVERSATION] @handle FROM SERVICE ... TO SERVICE ... ON CONTRACT ... WITH ..."""
        self.take("CONVERSATION")
        handle = self.variable()
        self.expect("FROM", "SERVICE")
        from_service = self._one_part_operand("service")
        self.expect("TO", "SERVICE")
        to_service = self._one_part_operand("service")
        clauses: dict[str, Any] = {}
        if self.take(","):
            clauses["broker_instance"] = (
                Constant("CURRENT DATABASE") if self.take("CURRENT", "DATABASE") else self.operand()
            )
        if self.take("ON", "CONTRACT"):
            clauses["contract"] = self._default_or_operand("contract")
        if self.take("WITH"):
            self._dialog_options(clauses)
        return BeginDialog(line, handle, from_service, to_service, **clauses)

    def _dialog_options(self, clauses: dict[str, Any]) -> None:
        while True:
            option = self.expect_any("RELATED_CONVERSATION", "RELATED_CONVERSATION_GROUP", "LIFETIME", "ENCRYPTION")
            if option == "ENCRYPTION":
                clauses["encryption"] = self.on_off()
            else:
                self.expect("=")
                clauses[option.lower()] = self.value("ENCRYPTION", "LIFETIME")
            if not self.take(",") and self.word not in ("ENCRYPTION", "LIFETIME"):
                return

    def begin_timer(self, line: int) -> Statement:
        """BEGIN CONVERSATION TIMER (handle) TIMEOUT = seconds."""
        self.expect("(")
        handle = self.value()
        self.expect(")", "TIMEOUT", "=")
        return BeginTimer(line, handle, self.value())

    def send(self, line: int) -> Statement:
        """SEND ON CONVERSATION @a or (@a, @b) MESSAGE TYPE name (body)."""
        self.expect("ON", "CONVERSATION")
        handles: list[Operand] = []
        if self.take("("):
            while True:
                handles.append(self.value())
                if not self.take(","):
                    break
            self.expect(")")
        else:
            handles.append(self.operand())
            while self.take(","):
                handles.append(self.operand())
        message_type = self._default_or_operand("message type") if self.take("MESSAGE", "TYPE") else None
        body: Expression | None = None
        if self.take("("):
            body = self.expression()
            self.expect(")")
        return Send(line, tuple(handles), message_type, body)

    def _default_or_operand(self, kind: str) -> Operand:
        if self.word == "DEFAULT":
            return self.single_name()
        return self._one_part_operand(kind)

    def _one_part_operand(self, kind: str) -> Operand:
        """Read an operand. A name must have one part, since these objects belong to the current database.

        Raises:
            TsqlError: 9609 the name has more parts.
        """
        line, operand = self.line, self.operand()
        if isinstance(operand, Name) and len(operand.parts) > 1:
            raise TsqlError(9609, RULES[9609].text.format(kind, operand, 0), line=line)
        return operand

    def receive(self, line: int) -> Receive:
        """RECEIVE TOP (n) list FROM queue INTO @table WHERE column = value."""
        top: Expression | None = None
        if self.take("TOP"):
            if self.word == "(":
                begin = self.at
                text = self.parenthesized()
                top = Expression(text, self.tokens.line(begin))
            else:
                top = Expression(str(self.integer()), self.line)
        items: list[ReceiveItem] = []
        while True:
            items.append(self._receive_item())
            if not self.take(","):
                break
        self._check_items(items, line)
        if len(items) == 1 and items[0].value.text == "*":
            items.clear()
        self.expect("FROM")
        queue = self.name()
        into: str | None = None
        if self.take("INTO"):
            into = self.variable()
            if any(item.variable for item in items):
                raise TsqlError(
                    8450, "Assignments in the RECEIVE projection are not allowed in conjunction with the INTO clause.",
                    line=line,
                )  # fmt: skip
        if not self.take("WHERE"):
            return Receive(line, queue, tuple(items), top, into)
        column = self.identifier().lower()
        if column not in _RECEIVE_WHERE:
            self.at -= 1
            self.fail()
        self.expect("=")
        return Receive(line, queue, tuple(items), top, into, column, self.value())

    def _receive_item(self) -> ReceiveItem:
        if self.word == "*":
            star = Expression("*", self.line)
            self.at += 1
            return ReceiveItem(star)
        kind = self.tokens.kinds[self.at]
        if self.peek() == "=" and kind == VARIABLE:
            variable = self.variable()
            self.expect("=")
            return ReceiveItem(self.expression("FROM", "INTO"), variable)
        if self.peek() == "=" and kind in (WORD, QUOTED, STRING):
            alias = self._alias()
            self.expect("=")
            return ReceiveItem(self.expression("FROM", "INTO"), None, alias)
        begin = self.at
        value = self.expression("FROM", "AS")
        if self.take("AS"):
            return ReceiveItem(value, None, self._alias())
        last = self.at - 1  # of two adjacent names, the last one is an alias without AS
        is_name = self.tokens.kinds[last] in (QUOTED, STRING) or (
            self.tokens.kinds[last] == WORD and self.words[last] != "END"
        )
        if last > begin and is_name and (self.words[last - 1] == ")" or self.tokens.kinds[last - 1] in (WORD, QUOTED)):
            self.at = last
            alias = self._alias()
            return ReceiveItem(Expression(self.slice(begin, last), value.line), None, alias)
        return ReceiveItem(value)

    def _alias(self) -> str:
        text = self.tokens.text(self.at)
        kind = self.tokens.kinds[self.at]
        if kind not in (WORD, QUOTED, STRING):
            self.fail()
        self.at += 1
        return string_value(text) if kind == STRING else unquote(text)

    def _check_items(self, items: list[ReceiveItem], line: int) -> None:
        assignments = sum(item.variable is not None for item in items)
        if assignments and assignments != len(items):
            raise TsqlError(
                8447, "A RECEIVE statement that assigns a value to a variable must not be combined with data "
                "retrieval operations.", line=line,
            )  # fmt: skip

    def get_conversation_group(self, line: int) -> GetConversationGroup:
        """GET CONVERSATION GROUP @group FROM queue."""
        self.expect("CONVERSATION", "GROUP")
        group = self.variable()
        self.expect("FROM")
        return GetConversationGroup(line, group, self.name())

    def move_conversation(self, line: int) -> Statement:
        """MOVE CONVERSATION handle TO group."""
        self.expect("CONVERSATION")
        handle = self.operand()
        self.expect("TO")
        return MoveConversation(line, handle, self.operand())

    def end_conversation(self, line: int) -> Statement:
        """END CONVERSATION handle WITH ERROR = code DESCRIPTION = text | WITH CLEANUP."""
        handle = self.operand()
        if self.word != "WITH" or self.peek() not in ("ERROR", "CLEANUP"):
            return EndConversation(line, handle)
        self.expect("WITH")
        if self.take("CLEANUP"):
            return EndConversation(line, handle, cleanup=True)
        self.expect("ERROR", "=")
        code = self.value("DESCRIPTION")
        self.expect("DESCRIPTION", "=")
        return EndConversation(line, handle, code, self.value())

    def wait_for(self, line: int) -> Statement:
        """WAITFOR DELAY, TIME or (RECEIVE ..., GET ...), TIMEOUT ms."""
        kind = self.take_any("DELAY", "TIME")
        if kind:
            return WaitForTime(line, kind, self.operand())
        self.expect("(")
        inner_line = self.line
        statement: Receive | GetConversationGroup
        if self.take("RECEIVE"):
            statement = self.receive(inner_line)
        else:
            self.expect("GET")
            statement = self.get_conversation_group(inner_line)
        self.take(";")
        self.expect(")")
        timeout: Operand | None = None
        if self.take(",", "TIMEOUT"):
            timeout = self.value()
        return WaitForMessage(line, statement, timeout)
