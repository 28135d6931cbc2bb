"""Parser of XQuery expressions. The tree consists of plain values, independent of PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import not_supported

# axes, and kinds of nodes
CHILD, DESCENDANT, OR_SELF, ATTRIBUTE_OF = "child", "descendant", "descendant-or-self", "attribute"
SELF, PARENT = "self", "parent"
ELEMENT, ATTRIBUTE, TEXT, NODE, COMMENT, INSTRUCTION = "element", "attribute", "text", "node", "comment", "instruction"
COMPARISONS = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
USE_TSQL = "Read the nodes with .nodes() and .value() in T-SQL."

_NAME = r"[A-Za-z_\u00b7-\uffff][\w.\-\u00b7-\uffff]*"
_SPACE = re.compile(r"(?:\s|\(:(?:(?!:\)).)*:\))*", re.DOTALL)
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_STRING = re.compile(r'"((?:[^"]|"")*)"|\'((?:[^\']|\'\')*)\'')
_QUALIFIED = re.compile(rf"{_NAME}(?::{_NAME})?")
_NAME_TEST = re.compile(rf"(?:\*|{_NAME}):(?:\*|{_NAME})|\*|{_NAME}")
_KIND_TEST = re.compile(r"(text|node|comment|processing-instruction)\s*\(\s*\)")
_AXIS = re.compile(r"(child|descendant-or-self|descendant|attribute|self|parent)\s*::\s*")
_OTHER_AXIS = re.compile(r"(ancestor|ancestor-or-self|following|following-sibling|preceding|preceding-sibling)\s*::")
_SQL_REFERENCE = re.compile(r"sql:(variable|column)\s*\(\s*(?:\"([^\"]*)\"|'([^']*)')\s*\)")
_COMPARISON = re.compile(r"!=|<=|>=|=|<(?![A-Za-z_/!?])|>|(?:eq|ne|lt|le|gt|ge)(?![\w.:(-])")
NODE_COMPARISONS = {"<<": "<", ">>": ">", "is": "="}  # each with the comparison of the nodes' numbers
_NODE_COMPARISON = re.compile(r"<<|>>|is(?![\w.:(-])")
PROLOG = re.compile(
    r"""\s*declare\s+(?:namespace\s+([\w.-]+)\s*=|default\s+element\s+namespace)\s*(?:"([^"]*)"|'([^']*)')\s*;""",
    re.VERBOSE,
)
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&"))
_XML = "http://www.w3.org/XML/1998/namespace"


class Literal(NamedTuple):
    """A string, or a number as written."""

    text: str
    is_number: bool


class ContextItem(NamedTuple):
    """The context item, `.`."""


class VariableReference(NamedTuple):
    """A variable of the expression itself, $name."""

    name: str


class SqlReference(NamedTuple):
    """A variable or column of T-SQL: sql:variable("@name"), sql:column("T.c")."""

    kind: str
    name: str


class Test(NamedTuple):
    """The node test of a step: a kind, with `uri` and `local` None for any name."""

    kind: str
    uri: str | None = None
    local: str | None = None


class Step(NamedTuple):
    """A step of a path."""

    axis: str
    test: Test
    predicates: tuple[Expression, ...] = ()


ANYWHERE = Step(OR_SELF, Test(NODE))


class Steps(NamedTuple):
    """Steps from `root`, an expression, or from the context item for None. `is_absolute` starts at its document."""

    root: Expression | None
    is_absolute: bool
    steps: tuple[Step, ...]


class Filter(NamedTuple):
    """An expression with predicates: (path)[1]."""

    of: Expression
    predicates: tuple[Expression, ...]


class Call(NamedTuple):
    """A function call. The name has no fn: prefix."""

    name: str
    arguments: tuple[Expression, ...]


class Binary(NamedTuple):
    """An operator with two operands: or, and, =, +, div, ..."""

    sign: str
    left: Expression
    right: Expression


class Sequence(NamedTuple):
    """A sequence in parentheses."""

    items: tuple[Expression, ...]


class Conditional(NamedTuple):
    """if (...) then ... else ..."""

    condition: Expression
    yes: Expression
    no: Expression


class Clause(NamedTuple):
    """for $name at $place in, let $name :=, or where, which has no name."""

    kind: str
    name: str
    place: str
    of: Expression


class Order(NamedTuple):
    """A key of order by."""

    key: Expression
    is_descending: bool


class Flwor(NamedTuple):
    """for, let, where, order by, return."""

    clauses: tuple[Clause, ...]
    order: tuple[Order, ...]
    result: Expression


class Quantified(NamedTuple):
    """some or every $name in ... satisfies ..."""

    is_every: bool
    clauses: tuple[Clause, ...]
    condition: Expression


class Cast(NamedTuple):
    """A value cast to a type, named without its prefix."""

    of: Expression
    type: str


class EnclosedExpression(NamedTuple):
    """{...} inside a constructor. `is_attribute` is True within the quotes of an attribute."""

    of: Expression
    is_attribute: bool


class Constructor(NamedTuple):
    """A constructor of elements and text: XML as written, and the enclosed expressions between."""

    pieces: tuple[str | EnclosedExpression, ...]
    namespaces: tuple[tuple[str, str], ...]  # prefix and URI of the namespaces in scope


Expression = (
    Literal
    | ContextItem
    | VariableReference
    | SqlReference
    | Steps
    | Filter
    | Call
    | Binary
    | Sequence
    | Conditional
    | Flwor
    | Quantified
    | Cast
    | Constructor
)


def parse(text: str, namespaces: Mapping[str, str]) -> Expression:
    """Parse an expression and its namespace declarations.

    Raises:
        TsqlError: 2209 wrong syntax, 2229 unknown prefix, 40515 not supported.
    """
    all_namespaces = dict(namespaces)
    rest = text
    while (declaration := PROLOG.match(rest)) is not None:
        all_namespaces[declaration[1] or ""] = declaration[2] if declaration[2] is not None else declaration[3]
        rest = rest[declaration.end() :]
    reader = _XQueryReader(rest, all_namespaces)
    expression = reader.expression()
    if reader.place < len(rest):
        raise reader.wrong()
    return expression


class _XQueryReader:
    """A recursive descent parser. Each method advances past its construct and the blanks after it."""

    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self.text = text
        self.namespaces = namespaces
        self.place = 0
        self._skip()

    def wrong(self) -> TsqlError:
        """Build error 2209 for the current position."""
        near = self.text[self.place : self.place + 10] or "<eof>"
        return TsqlError(2209, f"XQuery: Syntax error near '{near}' in '{self.text[:60]}'.")

    def _skip(self) -> None:
        blanks = _SPACE.match(self.text, self.place)
        assert blanks is not None
        self.place = blanks.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.place)
        if match is not None:
            self.place = match.end()
            self._skip()
        return match

    def _sees(self, *words: str) -> bool:
        """Check whether these words come next, with optional blanks between. A word must end there."""
        place = self.place
        for word in words:
            end = place + len(word)
            if not self.text.startswith(word, place):
                return False
            if word[0].isalpha() and re.match(r"[\w.:-]", self.text[end : end + 1]):
                return False
            blanks = _SPACE.match(self.text, end)
            assert blanks is not None
            place = blanks.end()
        return True

    def _take(self, *words: str) -> bool:
        if not self._sees(*words):
            return False
        for word in words:
            self.place += len(word)
            self._skip()
        return True

    def _need(self, *words: str) -> None:
        if not self._take(*words):
            raise self.wrong()

    # ---------------------------------------------------------------- expressions, from the lowest precedence

    def expression(self) -> Expression:
        """Parse an expression, or several separated by commas."""
        items = [self._single()]
        while self._take(","):
            items.append(self._single())
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _single(self) -> Expression:
        if self._sees("for", "$") or self._sees("let", "$"):
            return self._flwor()
        for word in ("some", "every"):
            if self._take(word, "$"):
                clauses = self._bindings("for", "in")
                self._need("satisfies")
                return Quantified(word == "every", tuple(clauses), self._single())
        if self._take("if", "("):
            condition = self.expression()
            self._need(")", "then")
            yes = self._single()
            self._need("else")
            return Conditional(condition, yes, self._single())
        return self._or()

    def _flwor(self) -> Expression:
        clauses: list[Clause] = []
        while True:
            if self._take("for", "$"):
                clauses += self._bindings("for", "in")
            elif self._take("let", "$"):
                clauses += self._bindings("let", ":=")
            else:
                break
        if self._take("where"):
            clauses.append(Clause("where", "", "", self._single()))
        order: list[Order] = []
        if self._take("order", "by"):
            order.append(self._order())
            while self._take(","):
                order.append(self._order())
        self._need("return")
        return Flwor(tuple(clauses), tuple(order), self._single())

    def _bindings(self, kind: str, between: str) -> list[Clause]:
        """Parse bindings of variables. The first $ has been read."""
        clauses = []
        while True:
            name, at = self._name(), ""
            if kind == "for" and self._take("at", "$"):
                at = self._name()
            self._need(between)
            clauses.append(Clause(kind, name, at, self._single()))
            if not self._take(",", "$"):
                return clauses

    def _order(self) -> Order:
        key = self._single()
        descending = self._take("descending")
        if not descending:
            self._take("ascending")
        return Order(key, descending)

    def _name(self) -> str:
        match = self._match(_QUALIFIED)
        if match is None:
            raise self.wrong()
        return match[0]

    def _or(self) -> Expression:
        left = self._and()
        while self._take("or"):
            left = Binary("or", left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._comparison()
        while self._take("and"):
            left = Binary("and", left, self._comparison())
        return left

    def _comparison(self) -> Expression:
        left = self._sum()
        match = self._match(_NODE_COMPARISON) or self._match(_COMPARISON)
        if match is None:
            return left
        return Binary(COMPARISONS.get(match[0], match[0]), left, self._sum())

    def _sum(self) -> Expression:
        left = self._product()
        while True:
            for sign in ("+", "-"):
                if self._take(sign):
                    left = Binary(sign, left, self._product())
                    break
            else:
                return left

    def _product(self) -> Expression:
        left = self._union()
        while True:
            for sign in ("*", "div", "idiv", "mod"):
                if self._take(sign):
                    left = Binary(sign, left, self._union())
                    break
            else:
                return left

    def _union(self) -> Expression:
        left = self._cast()
        if self._sees("|") or self._sees("union") or self._sees("intersect") or self._sees("except"):
            raise not_supported("A union of paths in XQuery", "Write the paths between commas.")
        return left

    def _cast(self) -> Expression:
        of = self._unary()
        if self._take("cast", "as"):
            name = self._name()
            self._take("?")
            return Cast(of, name.removeprefix("xs:"))
        if self._sees("instance", "of"):
            raise not_supported("INSTANCE OF in XQuery", USE_TSQL)
        return of

    def _unary(self) -> Expression:
        if self._take("-"):
            return Binary("-", Literal("0", True), self._unary())
        return self._unary() if self._take("+") else self._path()

    # ---------------------------------------------------------------- paths

    def _path(self) -> Expression:
        if self._sees("/"):
            deep = self._take("//")
            if not deep:
                self._need("/")
            if not deep and not self._is_step():
                return Steps(None, True, ())
            return Steps(None, True, self._steps(deep))
        of = self._primary()
        if of is None:
            return Steps(None, False, self._steps(deep=False))
        predicates = self._predicates()
        if predicates:
            of = Filter(of, predicates)
        if not self._sees("/"):
            return of
        deep = self._take("//")
        if not deep:
            self._need("/")
        return Steps(None if of == ContextItem() else of, False, self._steps(deep))

    def _is_step(self) -> bool:
        return self.text.startswith((".", "@"), self.place) or _NAME_TEST.match(self.text, self.place) is not None

    def _steps(self, deep: bool) -> tuple[Step, ...]:
        steps = []
        while True:
            steps += self._step(deep)
            if self._take("//"):
                deep = True
            elif self._take("/"):
                deep = False
            else:
                return tuple(steps)

    def _step(self, deep: bool) -> list[Step]:
        """Parse one step. Behind `//` it is preceded by a step to all descendants."""
        axis, test = self._axis()
        step = Step(axis, test, self._predicates())
        return [ANYWHERE, step] if deep else [step]

    def _axis(self) -> tuple[str, Test]:
        if self._take(".."):
            return PARENT, Test(NODE)
        if self._take("."):
            return SELF, Test(NODE)
        if self._take("@"):
            return ATTRIBUTE_OF, self._test(ATTRIBUTE)
        if (other_axis := _OTHER_AXIS.match(self.text, self.place)) is not None:
            raise not_supported(f"The axis {other_axis[1]}:: in XQuery", USE_TSQL)
        axis = self._match(_AXIS)
        if axis is None:
            return CHILD, self._test(ELEMENT)
        return axis[1], self._test(ATTRIBUTE if axis[1] == ATTRIBUTE_OF else ELEMENT)

    def _test(self, kind: str) -> Test:
        kind_match = self._match(_KIND_TEST)
        if kind_match is not None:
            return Test(INSTRUCTION if kind_match[1].startswith("processing") else kind_match[1])
        named = self._match(_NAME_TEST)
        if named is None or self._sees("("):
            raise self.wrong()
        prefix, _, local = named[0].rpartition(":")
        if prefix == "*":
            return Test(kind, None, None if local == "*" else local)
        if not prefix and (local == "*" or kind == ATTRIBUTE):
            return Test(kind, None if local == "*" else "", None if local == "*" else local)
        uri = _XML if prefix == "xml" else self.namespaces.get(prefix)
        if prefix and uri is None:
            raise TsqlError(2229, f'XQuery: The name "{prefix}" does not denote a namespace.')
        return Test(kind, uri or "", None if local == "*" else local)

    def _predicates(self) -> tuple[Expression, ...]:
        predicates = []
        while self._take("["):
            predicates.append(self.expression())
            self._need("]")
        return tuple(predicates)

    # ---------------------------------------------------------------- primary expressions

    def _primary(self) -> Expression | None:
        """Parse the start of a path. Return None if a step comes next."""
        if (outside := self._match(_SQL_REFERENCE)) is not None:
            return SqlReference(outside[1], outside[2] if outside[2] is not None else outside[3])
        if (number := self._match(_NUMBER)) is not None:
            return Literal(number[0], True)
        if (text := self._match(_STRING)) is not None:
            return Literal(
                _unescape(text[1].replace('""', '"') if text[1] is not None else text[2].replace("''", "'")), False
            )
        if self._take("$"):
            return VariableReference(self._name())
        if self._take("("):
            if self._take(")"):
                return Sequence(())
            inside = self.expression()
            self._need(")")
            return inside if isinstance(inside, Sequence) else Sequence((inside,))
        if self._sees("."):
            if self._sees(".."):
                return None
            self._need(".")
            return ContextItem()
        if self.text.startswith("<", self.place):
            return self._constructor()
        for word in ("element", "attribute", "text"):
            if (constructor := self._computed(word)) is not None:
                return constructor
        return self._call()

    def _call(self) -> Expression | None:
        place = self.place
        if _KIND_TEST.match(self.text, place) is not None or _AXIS.match(self.text, place) is not None:
            return None
        named = self._match(_QUALIFIED)
        if named is None or not self._take("("):
            self.place = place
            return None
        arguments = []
        if not self._take(")"):
            arguments.append(self._single())
            while self._take(","):
                arguments.append(self._single())
            self._need(")")
        return Call(named[0].removeprefix("fn:"), tuple(arguments))

    # ---------------------------------------------------------------- constructors

    def _computed(self, word: str) -> Expression | None:
        """Parse element name {...} and text {...}."""
        place = self.place
        if not self._take(word):
            return None
        named = self._match(_QUALIFIED) if word != "text" else None
        if (named is None and word != "text") or not self._take("{"):
            self.place = place
            return None
        if word == "attribute":
            raise not_supported("attribute name {...} in XQuery", 'Write <element name="{...}"/>.')
        inside = Sequence(()) if self._sees("}") else self.expression()
        self._need("}")
        content = EnclosedExpression(inside, is_attribute=False)
        pieces = (content,) if named is None else (f"<{named[0]}>", content, f"</{named[0]}>")
        return Constructor(pieces, tuple(self.namespaces.items()))

    def _constructor(self) -> Constructor:
        """Parse an element written as XML, up to its end tag."""
        pieces: list[str | EnclosedExpression] = []
        depth, start = 0, self.place
        while True:
            at = self.place
            sign = self.text[at : at + 1]
            if not sign:
                raise self.wrong()
            if self.text.startswith(("{{", "}}"), at):
                pieces += [self.text[start : at + 1]]
                self.place = start = at + 2
            elif sign == "{":
                pieces += [self.text[start:at], self._enclosed(is_attribute=False)]
                start = self.place
            elif sign == "<":
                depth += self._tag(pieces, start)
                start = self.place
                if depth == 0:
                    self._skip()
                    return Constructor(tuple(piece for piece in pieces if piece), tuple(self.namespaces.items()))
            else:
                self.place += 1

    def _enclosed(self, *, is_attribute: bool) -> EnclosedExpression:
        self._need("{")
        inside = Sequence(()) if self._sees("}") else self.expression()
        if not self.text.startswith("}", self.place):
            raise self.wrong()
        self.place += 1  # blanks after the brace are text
        return EnclosedExpression(inside, is_attribute)

    def _tag(self, pieces: list[str | EnclosedExpression], start: int) -> int:
        """Parse a tag, comment, CDATA or processing instruction. Return the change of depth."""
        markup = re.compile(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>", re.DOTALL).match(self.text, self.place)
        if markup is not None:
            pieces.append(self.text[start : markup.end()])
            self.place = markup.end()
            return 0
        is_end, quote = self.text.startswith("</", self.place), ""
        self.place += 1
        while True:
            sign = self.text[self.place : self.place + 1]
            if not sign:
                raise self.wrong()
            if quote and sign == "{" and not self.text.startswith("{{", self.place):
                pieces += [self.text[start : self.place], self._enclosed(is_attribute=True)]
                start = self.place
                continue
            if quote and self.text.startswith(("{{", "}}"), self.place):
                pieces.append(self.text[start : self.place + 1])
                self.place = start = self.place + 2
                continue
            self.place += 1
            if sign == quote:
                quote = ""
            elif not quote and sign in "\"'":
                quote = sign
            elif not quote and sign == ">":
                pieces.append(self.text[start : self.place])
                return -1 if is_end else 0 if self.text[self.place - 2] == "/" else 1


def _unescape(text: str) -> str:
    for entity, sign in _ENTITIES:
        text = text.replace(entity, sign)
    return text
