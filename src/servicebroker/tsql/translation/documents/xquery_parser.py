"""The text of an XQuery expression becomes a tree of plain values; nothing here knows PostgreSQL."""

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
USE_TSQL = "Take the document apart in T-SQL."

_NAME = r"[A-Za-z_\u00b7-\uffff][\w.\-\u00b7-\uffff]*"
_SPACE = re.compile(r"(?:\s|\(:(?:(?!:\)).)*:\))*", re.DOTALL)
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_STRING = re.compile(r'"((?:[^"]|"")*)"|\'((?:[^\']|\'\')*)\'')
_QUALIFIED = re.compile(rf"{_NAME}(?::{_NAME})?")
_TEST = re.compile(rf"(?:\*|{_NAME}):(?:\*|{_NAME})|\*|{_NAME}")
_KIND = re.compile(r"(text|node|comment|processing-instruction)\s*\(\s*\)")
_AXIS = re.compile(r"(child|descendant-or-self|descendant|attribute|self|parent)\s*::\s*")
_OTHER_AXIS = re.compile(r"(ancestor|ancestor-or-self|following|following-sibling|preceding|preceding-sibling)\s*::")
_SQL = re.compile(r"sql:(variable|column)\s*\(\s*(?:\"([^\"]*)\"|'([^']*)')\s*\)")
_COMPARISON = re.compile(r"!=|<=|>=|=|<(?![A-Za-z_/!?])|>|(?:eq|ne|lt|le|gt|ge)(?![\w.:(-])")
_NODES = re.compile(r"<<|>>|is(?![\w.:(-])")
PROLOG = re.compile(
    r"""\s*declare\s+(?:namespace\s+([\w.-]+)\s*=|default\s+element\s+namespace)\s*(?:"([^"]*)"|'([^']*)')\s*;""",
    re.VERBOSE,
)
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&"))
_XML = "http://www.w3.org/XML/1998/namespace"


class Literal(NamedTuple):
    """A string, or a number as it was written."""

    text: str
    is_number: bool


class ContextItem(NamedTuple):
    """The item that is looked at, a dot."""


class VariableReference(NamedTuple):
    """A variable of the expression itself, $name."""

    name: str


class SqlReference(NamedTuple):
    """A variable or a column of T-SQL: sql:variable("@name"), sql:column("T.c")."""

    kind: str
    name: str


class Test(NamedTuple):
    """Which nodes a step takes: of this kind; `uri` and `local` None for any."""

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
    """Steps from `root`: an expression, None for the item that is looked at; `is_absolute` from its document."""

    root: Expression | None
    is_absolute: bool
    steps: tuple[Step, ...]


class Filter(NamedTuple):
    """What an expression finds, as far as predicates take it: (path)[1]."""

    of: Expression
    predicates: tuple[Expression, ...]


class Call(NamedTuple):
    """A function, without fn:."""

    name: str
    arguments: tuple[Expression, ...]


class Binary(NamedTuple):
    """Two operands and what is between them: or, and, =, +, div, ..."""

    sign: str
    left: Expression
    right: Expression


class Sequence(NamedTuple):
    """A sequence, in parentheses."""

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
    """A value as another type, without its prefix."""

    of: Expression
    type: str


class EnclosedExpression(NamedTuple):
    """{...} in what is made, within the quotes of an attribute or not."""

    of: Expression
    is_attribute: bool


class Constructor(NamedTuple):
    """Elements and text: XML as it was written, and what is computed between."""

    pieces: tuple[str | EnclosedExpression, ...]
    namespaces: tuple[tuple[str, str], ...]  # prefixes and what they stand for, around it


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
    """An expression, behind its declarations of namespaces.

    Raises:
        TsqlError: 2209 for what cannot be read, 2229 for an unknown prefix, 40515 for what is not supported.
    """
    known = dict(namespaces)
    rest = text
    while (found := PROLOG.match(rest)) is not None:
        known[found[1] or ""] = found[2] if found[2] is not None else found[3]
        rest = rest[found.end() :]
    reader = _XQueryReader(rest, known)
    expression = reader.expression()
    if reader.place < len(rest):
        raise reader.wrong()
    return expression


class _XQueryReader:
    """Reads one construct after the other; every method leaves the place behind what it has read, and behind blanks."""

    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self.text = text
        self.namespaces = namespaces
        self.place = 0
        self._skip()

    def wrong(self) -> TsqlError:
        """2209: the text cannot be read at this place."""
        near = self.text[self.place : self.place + 10] or "<eof>"
        return TsqlError(2209, f"XQuery: Syntax error near '{near}' in '{self.text[:60]}'.")

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.place)
        assert found is not None
        self.place = found.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
            self._skip()
        return found

    def _sees(self, *words: str) -> bool:
        """Whether these come next, with blanks between them or not; a word is a whole one."""
        place = self.place
        for word in words:
            end = place + len(word)
            if not self.text.startswith(word, place):
                return False
            if word[0].isalpha() and re.match(r"[\w.:-]", self.text[end : end + 1]):
                return False
            found = _SPACE.match(self.text, end)
            assert found is not None
            place = found.end()
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

    # ---------------------------------------------------------------- expressions, the loosest first

    def expression(self) -> Expression:
        """One, or several between commas."""
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
        """Behind the first $."""
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
        found = self._match(_QUALIFIED)
        if found is None:
            raise self.wrong()
        return found[0]

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
        if self._match(_NODES) is not None:
            raise not_supported("The comparison of nodes by their place in XQuery", USE_TSQL)
        found = self._match(_COMPARISON)
        if found is None:
            return left
        return Binary(COMPARISONS.get(found[0], found[0]), left, self._sum())

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
        return self.text.startswith((".", "@"), self.place) or _TEST.match(self.text, self.place) is not None

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
        """One; behind `//` two, the first to all nodes from here on."""
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
        if (found := _OTHER_AXIS.match(self.text, self.place)) is not None:
            raise not_supported(f"The axis {found[1]}:: in XQuery", USE_TSQL)
        axis = self._match(_AXIS)
        if axis is None:
            return CHILD, self._test(ELEMENT)
        return axis[1], self._test(ATTRIBUTE if axis[1] == ATTRIBUTE_OF else ELEMENT)

    def _test(self, kind: str) -> Test:
        found = self._match(_KIND)
        if found is not None:
            return Test(INSTRUCTION if found[1].startswith("processing") else found[1])
        named = self._match(_TEST)
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
        found = []
        while self._take("["):
            found.append(self.expression())
            self._need("]")
        return tuple(found)

    # ---------------------------------------------------------------- what a path begins with

    def _primary(self) -> Expression | None:
        """None for what is a step."""
        if (outside := self._match(_SQL)) is not None:
            return SqlReference(outside[1], outside[2] if outside[2] is not None else outside[3])
        if (number := self._match(_NUMBER)) is not None:
            return Literal(number[0], True)
        if (said := self._match(_STRING)) is not None:
            return Literal(
                _unescape(said[1].replace('""', '"') if said[1] is not None else said[2].replace("''", "'")), False
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
            return self._made()
        for word in ("element", "attribute", "text"):
            if (found := self._computed(word)) is not None:
                return found
        return self._call()

    def _call(self) -> Expression | None:
        place = self.place
        if _KIND.match(self.text, place) is not None or _AXIS.match(self.text, place) is not None:
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

    # ---------------------------------------------------------------- what is made

    def _computed(self, word: str) -> Expression | None:
        """element name {...} and text {...}."""
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

    def _made(self) -> Constructor:
        """An element as it is written in XML, up to its end."""
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
        self.place += 1  # blanks behind it are text
        return EnclosedExpression(inside, is_attribute)

    def _tag(self, pieces: list[str | EnclosedExpression], start: int) -> int:
        """A tag, or a comment and its like: by how much it changes the depth."""
        other = re.compile(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>", re.DOTALL).match(self.text, self.place)
        if other is not None:
            pieces.append(self.text[start : other.end()])
            self.place = other.end()
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


def _unescape(said: str) -> str:
    for entity, sign in _ENTITIES:
        said = said.replace(entity, sign)
    return said
