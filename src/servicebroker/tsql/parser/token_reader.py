"""Walking along the tokens: words, names, values, and slices of text that others read."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isinf
from typing import NoReturn

from servicebroker.tsql.parser.extent import expression_end
from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.statement_errors import TsqlError, syntax_error, unsupported
from servicebroker.tsql.syntax import Constant, Expression, Name, Operand, Variable
from servicebroker.tsql.tokens import NUMBER, QUOTED, STRING, VARIABLE, WORD, Tokens, string_value, tokenize, unquote
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

MAX_NAME_PARTS = 4
_TEMPLATE_PARAMETER = re.compile(r"<([^<>,\n]+),[^<>\n]*>")  # name, type and value, as tools have them filled in


class TokenReader:
    """A place in a batch. Everything that reads moves it on, or raises 102 where the text cannot go on."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.words = tokens.words
        self.at = 0

    @property
    def word(self) -> str:
        """What stands here, as `Tokens.words` says it."""
        return self.words[self.at]

    def peek(self, ahead: int = 1) -> str:
        """What comes later; "" behind the end."""
        at = self.at + ahead
        return self.words[at] if at < len(self.words) else ""

    @property
    def line(self) -> int:
        """The line that this place is in."""
        return self.tokens.line(self.at)

    def take(self, *words: str) -> bool:
        """Go behind these words when they stand here."""
        if self.words[self.at] != words[0]:  # as most often
            return False
        if len(words) > 1 and self.words[self.at : self.at + len(words)] != list(words):
            return False
        self.at += len(words)
        return True

    def take_any(self, *words: str) -> str | None:
        """Go behind one of these words; which one it was."""
        word = self.words[self.at]
        if word not in words:
            return None
        self.at += 1
        return word

    def expect(self, *words: str) -> None:
        """These words must stand here."""
        for word in words:
            if self.words[self.at] != word:
                self.fail()
            self.at += 1

    def expect_any(self, *words: str) -> str:
        """One of these words must stand here."""
        word = self.take_any(*words)
        if word is None:
            self.fail()
        return word

    def fail(self) -> NoReturn:
        """102 here."""
        raise self.failure()

    def failure(self) -> TsqlError:
        """102 here, to be raised."""
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

    def refuse(self, what: str, instead: str) -> NoReturn:
        """A clause that is understood and not done."""
        raise self.refusal(what, instead)

    def refusal(self, what: str, instead: str) -> TsqlError:
        """What is understood and not done, to be raised."""
        return unsupported(what, instead, self.line)

    # ------------------------------------------------------------ names and values

    def is_identifier(self) -> bool:
        """Whether a name can begin here."""
        kind = self.tokens.kinds[self.at]
        return kind == QUOTED or (kind == WORD and self.word not in RESERVED)

    def is_label(self) -> bool:
        """Whether a label stands here, and no name of a statement before it."""
        return self.is_identifier() and self.peek() == ":" and self.peek(2) != ":"

    def identifier(self) -> str:
        """One part of a name."""
        if not self.is_identifier():
            self.fail()
        text = unquote(self.tokens.text(self.at))
        self.at += 1
        return text

    def name(self) -> Name:
        """A name of up to four parts: a.b, [a].[b], a..b."""
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

    def own_name(self) -> Name:
        """A name of one part; a word of the language is allowed, such as the name of a principal."""
        if self.tokens.kinds[self.at] not in (WORD, QUOTED):
            self.fail()
        text = unquote(self.tokens.text(self.at))
        self.at += 1
        return Name((text,))

    def variable(self) -> str:
        """A variable's name, in lower case."""
        if self.tokens.kinds[self.at] != VARIABLE:
            self.fail()
        text = self.tokens.text(self.at).lower()
        self.at += 1
        return text

    def string(self) -> str:
        """A string literal's value."""
        if self.tokens.kinds[self.at] != STRING:
            self.fail()
        text = string_value(self.tokens.text(self.at))
        self.at += 1
        return text

    def integer(self) -> int:
        """A number without a point."""
        text = self.tokens.text(self.at)
        if self.tokens.kinds[self.at] != NUMBER or not is_whole(text):
            self.fail()
        self.at += 1
        return parse_whole_number(text, self.tokens.line(self.at - 1))

    def constant(self) -> Constant:
        """A string, a number with or without a minus, or NULL."""
        kind = self.tokens.kinds[self.at]
        if kind == STRING:
            return Constant(self.string())
        if self.take("NULL"):
            return Constant(None)
        negative = self.take("-")
        if self.tokens.kinds[self.at] != NUMBER:
            self.fail()
        text = self.tokens.text(self.at)
        self.at += 1
        value = parse_number(text)
        return Constant(-value if negative and not isinstance(value, bytes) else value)

    def operand(self) -> Operand:
        """A variable, a constant, or a name; what a clause of the broker takes."""
        kind = self.tokens.kinds[self.at]
        if kind == VARIABLE:
            return Variable(self.variable())
        if kind in (STRING, NUMBER) or self.word in ("NULL", "-"):
            return self.constant()
        if self.word == "(":
            return self.expression()
        return self.name()

    def value(self, *stops: str) -> Operand:
        """A value that may be an expression; a single variable or constant is told apart."""
        begin = self.at
        kind = self.tokens.kinds[begin]
        if kind in (VARIABLE, STRING, NUMBER) or self.word in ("NULL", "-"):
            end = expression_end(self.tokens, begin, frozenset(stops))
            if end == begin + 1 or (end == begin + 2 and self.word == "-"):
                return self.operand()
        return self.expression(*stops)

    def expression(self, *stops: str) -> Expression:
        """The text of an expression: up to a comma, a closing parenthesis, one of `stops`, or the next statement."""
        begin = self.at
        end = expression_end(self.tokens, begin, frozenset(stops))
        if end == begin:
            self.fail()
        self.at = end
        return Expression(self.slice(begin, end), self.tokens.line(begin))

    def slice(self, begin: int, end: int) -> str:
        """The text from one token to before another."""
        return self.tokens.source[self.tokens.starts[begin] : self.tokens.ends[end - 1]]

    def parenthesized(self) -> str:
        """The text of ( ... ), with the parentheses."""
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
        """ON or OFF, with or without = before it."""
        self.take("=")
        return self.expect_any("ON", "OFF") == "ON"

    def type_name(self) -> str:
        """A data type as it is written: NVARCHAR(MAX), [dbo].[Name], DECIMAL(10, 2)."""
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
    """The name that a text is, with or without brackets.

    Raises:
        TsqlError: 102 it is none, or more than a name.
    """
    reader = TokenReader(tokenize(text))
    name = reader.name()
    if reader.word:
        reader.fail()
    return name


def parse_number(text: str) -> int | Decimal | float | bytes:
    """The value of a number literal: 0x... is binary, with an exponent a float, with a point a decimal.

    Raises:
        TsqlError: 1007 a whole number of more than 38 digits, 168 a float that is too large.
    """
    if text[:2] in ("0x", "0X"):
        digits = text[2:]
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    if not text[0].isdigit() and text[0] != ".":  # a sign of a currency
        text = text[1:]
    if "e" in text or "E" in text:
        return _parse_float(text)
    if "." in text:
        return Decimal(text if text != "." else "0")
    return parse_whole_number(text or "0")


def _parse_float(text: str) -> float:
    found = float(text)
    if isinf(found):
        raise TsqlError(
            168,
            f"The floating point value '{text[:40]}' is out of the range of computer representation (8 bytes).",
            severity=15,
        )
    return found
