"""Base of the parser: a position among tokens, with methods for words, names, values and slices of text."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isinf
from typing import NoReturn

from servicebroker.tsql.parser.extent import expression_end
from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.statement_errors import TsqlError, syntax_error, unsupported
from servicebroker.tsql.syntax import Constant, Expression, Name, Operand, Variable
from servicebroker.tsql.tokens import (
    NUMBER,
    QUOTED,
    STRING,
    VARIABLE,
    WORD,
    Tokens,
    complete_exponent,
    string_value,
    tokenize,
    unquote,
)
from servicebroker.tsql.types import SqlType
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

MAX_NAME_PARTS = 4
_TEMPLATE_PARAMETER = re.compile(r"<([^<>,\n]+),[^<>\n]*>")  # <name, type, value> in a script template


class TokenReader:
    """A position in a batch. Reading methods advance it, or raise error 102."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.words = tokens.words
        self.at = 0

    @property
    def word(self) -> str:
        """The word at the current position, as in `Tokens.words`."""
        return self.words[self.at]

    def peek(self, ahead: int = 1) -> str:
        """Return a later word, "" after the end."""
        at = self.at + ahead
        return self.words[at] if at < len(self.words) else ""

    @property
    def line(self) -> int:
        """The line of the current position."""
        return self.tokens.line(self.at)

    def take(self, *words: str) -> bool:
        """Skip these words if they come next. Return True if they did."""
        if self.words[self.at] != words[0]:  # the most frequent case
            return False
        if len(words) > 1 and self.words[self.at : self.at + len(words)] != list(words):
            return False
        self.at += len(words)
        return True

    def take_any(self, *words: str) -> str | None:
        """Skip one of these words if it comes next, and return it."""
        word = self.words[self.at]
        if word not in words:
            return None
        self.at += 1
        return word

    def expect(self, *words: str) -> None:
        """Skip these words, which must come next."""
        for word in words:
            if self.words[self.at] != word:
                self.fail()
            self.at += 1

    def expect_any(self, *words: str) -> str:
        """Skip one of these words, which must come next, and return it."""
        word = self.take_any(*words)
        if word is None:
            self.fail()
        return word

    def fail(self) -> NoReturn:
        """Raise error 102 at the current position."""
        raise self.failure()

    def failure(self) -> TsqlError:
        """Build error 102 for the current position."""
        if self.word == "":
            before = max(self.at - 1, 0)
            return syntax_error(self.tokens.text(before) or "the end", self.tokens.line(before))
        template = _TEMPLATE_PARAMETER.match(self.tokens.source, self.tokens.starts[self.at])
        if template is not None:
            return TsqlError(
                102,
                f"Incorrect syntax near '<'. <{template[1].strip()[:60]}, ...> is a parameter of a template: "
                "write a value in its place.",
                severity=15,
                line=self.line,
            )
        return syntax_error(self.tokens.text(self.at)[:60], self.line)

    def refuse(self, feature: str, advice: str) -> NoReturn:
        """Raise error 40515: the clause is known and not supported."""
        raise self.refusal(feature, advice)

    def refusal(self, feature: str, advice: str) -> TsqlError:
        """Build error 40515: the clause is known and not supported."""
        return unsupported(feature, advice, self.line)

    # ------------------------------------------------------------ names and values

    def is_identifier(self) -> bool:
        """Check whether a name can begin here."""
        kind = self.tokens.kinds[self.at]
        return kind == QUOTED or (kind == WORD and self.word not in RESERVED)

    def is_label(self) -> bool:
        """Check whether a label comes next, and not a name with `::`."""
        return self.is_identifier() and self.peek() == ":" and self.peek(2) != ":"

    def identifier(self) -> str:
        """Read one part of a name."""
        if not self.is_identifier():
            self.fail()
        text = unquote(self.tokens.text(self.at))
        self.at += 1
        return text

    def name(self) -> Name:
        """Read a name of up to four parts: a.b, [a].[b], a..b."""
        if self.word == "." and (self.peek() == "." or self.tokens.kinds[self.at + 1] in (WORD, QUOTED)):
            self.refuse("A name that begins with a dot", "Write its schema, or omit the dot.")
        parts = [self.identifier()]
        while self.word == "." and len(parts) < MAX_NAME_PARTS:
            self.at += 1
            if self.word == ".":
                parts.append("")
                continue
            kind = self.tokens.kinds[self.at]
            if kind not in (WORD, QUOTED):
                self.fail()
            parts.append(unquote(self.tokens.text(self.at)))
            self.at += 1
        return Name(tuple(parts))

    def single_name(self) -> Name:
        """Read a name of one part, such as that of a principal. Reserved words are allowed."""
        if self.tokens.kinds[self.at] not in (WORD, QUOTED):
            self.fail()
        text = unquote(self.tokens.text(self.at))
        self.at += 1
        return Name((text,))

    def variable(self) -> str:
        """Read a variable, and return its name in lower case."""
        if self.tokens.kinds[self.at] != VARIABLE:
            self.fail()
        text = self.tokens.text(self.at).lower()
        self.at += 1
        return text

    def string(self) -> str:
        """Read a string literal, and return its value."""
        if self.tokens.kinds[self.at] != STRING:
            self.fail()
        text = string_value(self.tokens.text(self.at))
        self.at += 1
        return text

    def integer(self) -> int:
        """Read a whole number."""
        text = self.tokens.text(self.at)
        if self.tokens.kinds[self.at] != NUMBER or not is_whole(text):
            self.fail()
        self.at += 1
        return parse_whole_number(text, self.tokens.line(self.at - 1))

    def constant(self) -> Constant:
        """Read a string, a number with an optional minus, or NULL."""
        kind = self.tokens.kinds[self.at]
        if kind == STRING:
            name = "nvarchar" if self.tokens.text(self.at)[0] in "nN" else "varchar"
            text = self.string()
            return Constant(text, SqlType(name, max(1, len(text))))
        if self.take("NULL"):
            return Constant(None)
        negative = self.take("-")
        if self.tokens.kinds[self.at] != NUMBER:
            self.fail()
        text, line = self.tokens.text(self.at), self.line
        self.at += 1
        value = parse_number(text, line)
        if isinstance(value, bytes):
            return Constant(value, SqlType("varbinary", max(1, len(value))))
        return Constant(-value if negative else value)

    def operand(self) -> Operand:
        """Read a variable, a constant, a name, or an expression in parentheses, as clauses of the broker take."""
        kind = self.tokens.kinds[self.at]
        if kind == VARIABLE:
            return Variable(self.variable())
        if kind in (STRING, NUMBER) or self.word in ("NULL", "-"):
            return self.constant()
        if self.word == "(":
            return self.expression()
        return self.name()

    def value(self, *stops: str) -> Operand:
        """Read an expression. A single variable or constant is returned as such."""
        begin = self.at
        kind = self.tokens.kinds[begin]
        if kind in (VARIABLE, STRING, NUMBER) or self.word in ("NULL", "-"):
            end = expression_end(self.tokens, begin, frozenset(stops))
            if end == begin + 1 or (end == begin + 2 and self.word == "-"):
                return self.operand()
        return self.expression(*stops)

    def expression(self, *stops: str) -> Expression:
        """Read the text of an expression.

        A comma, a closing parenthesis, one of `stops`, or the next statement ends it.
        """
        begin = self.at
        end = expression_end(self.tokens, begin, frozenset(stops))
        if end == begin:
            self.fail()
        self.at = end
        return Expression(self.slice(begin, end), self.tokens.line(begin))

    def slice(self, begin: int, end: int) -> str:
        """Return the text from token `begin` up to, not including, token `end`."""
        return self.tokens.source[self.tokens.starts[begin] : self.tokens.ends[end - 1]]

    def parenthesized(self) -> str:
        """Read balanced parentheses, and return their text with them."""
        begin = self.at
        if self.word != "(":
            self.fail()
        depth = 0
        while True:
            word = self.word
            if word == "":
                self.fail()
            depth += (word == "(") - (word == ")")
            self.at += 1
            if depth == 0:
                return self.slice(begin, self.at)

    def on_off(self) -> bool:
        """Read = ON or = OFF. Return True for ON."""
        self.expect("=")
        return self.expect_any("ON", "OFF") == "ON"

    def type_name(self) -> str:
        """Read a data type, and return its text: NVARCHAR(MAX), [dbo].[Name], DECIMAL(10, 2)."""
        begin = self.at
        if self.word == "NATIONAL":
            self.at += 1
        self.name()
        while self.word in ("PRECISION", "VARYING", "CHAR", "CHARACTER", "TEXT"):
            self.at += 1
        if self.word == "(":
            self.parenthesized()
        return self.slice(begin, self.at)


def parse_name(text: str) -> Name:
    """Parse a text that is one name, with or without brackets.

    Raises:
        TsqlError: 102 the text is not a name, or more than one.
    """
    reader = TokenReader(tokenize(text))
    name = reader.name()
    if reader.word:
        reader.fail()
    return name


def parse_number(text: str, line: int = 0) -> int | Decimal | float | bytes:
    """Return the value of a number literal. 0x... is binary, an exponent makes a float, a point a decimal.

    An exponent without digits is zero: 2E is 2.0.

    Raises:
        TsqlError: 1007 a whole number of more than 38 digits, 168 a float that is too large.
    """
    if text[:2] in ("0x", "0X"):
        digits = text[2:]
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    if not text[0].isdigit() and text[0] != ".":  # a currency sign
        text = text[1:]
    if "e" in text or "E" in text:
        return _parse_float(text, line)
    if "." in text:
        return Decimal(text if text != "." else "0")
    return parse_whole_number(text or "0", line)


def _parse_float(text: str, line: int) -> float:
    value = float(complete_exponent(text))
    if isinf(value):
        raise TsqlError(
            168,
            f"The floating point value '{text[:40]}' is out of the range of computer representation (8 bytes).",
            severity=15,
            line=line,
        )
    return value
