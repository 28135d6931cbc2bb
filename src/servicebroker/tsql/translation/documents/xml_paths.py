"""The paths of the XML methods: XQuery's paths become jsonpath over the tree that tsql.xml_tree makes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import refused

_SIGN = re.compile(
    r"""\s*(?:(?P<string>"[^"]*"|'[^']*')|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_][\w.-]*(?::(?:[A-Za-z_][\w.-]*|\*))?)
    |(?P<sign>//|::|!=|<=|>=|\.\.|[/@\[\]()=<>*.,$|+-]))""",
    re.VERBOSE,
)
PROLOG = re.compile(
    r"""\s*declare\s+(?:namespace\s+([\w.-]+)\s*=|default\s+element\s+namespace)\s*(?:"([^"]*)"|'([^']*)')\s*;""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": "==",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
}
_FUNCTIONS = frozenset(
    {"string", "data", "count", "local-name", "number", "xs:string", "xs:int", "xs:hexBinary", "xs:base64Binary"}
)
_ONLY = (
    "Paths have steps with /, //, @, *, text(), node(), predicates, and sql:variable(): take the rest apart in T-SQL."
)
_ELEMENT, _ATTRIBUTE, _TEXT, _NODE = "element", "attribute", "text", "node"


class Stage(NamedTuple):
    """A path of jsonpath, and which of what it finds goes on: None for all, 0 for the first, -1 for the last."""

    path: str
    place: int | None


class Path(NamedTuple):
    """A path, taken apart. `function` is one around it; `variables` are the names behind $v1, $v2, ...

    `is_single` says that it can find one node at most; `is_absolute` that it begins at the document; `kind` is what it
    finds: element, attribute, text or node.
    """

    stages: tuple[Stage, ...]
    function: str
    variables: tuple[str, ...]
    is_single: bool
    is_absolute: bool
    kind: str


@dataclass
class _Reader:
    text: str
    namespaces: Mapping[str, str]
    is_number: Callable[[str], bool]
    tokens: list[tuple[str, str]] = field(default_factory=list)
    place: int = 0
    variables: list[str] = field(default_factory=list)
    is_single: bool = True
    is_absolute: bool = False
    kind: str = _NODE

    def wrong(self) -> TsqlError:
        """2209: the path cannot be read here."""
        near = self.tokens[self.place][1] if self.place < len(self.tokens) else "<eof>"
        return TsqlError(2209, f"XQuery: Syntax error near '{near}' in '{self.text[:60]}'.")

    def word(self, ahead: int = 0) -> str:
        at = self.place + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        if tuple(self.word(ahead) for ahead in range(len(words))) != words:
            return False
        self.place += len(words)
        return True


def read_path(text: str, namespaces: Mapping[str, str], is_number: Callable[[str], bool]) -> Path:
    """A path as the XML methods take it. `is_number` says whether a variable holds a number.

    Raises:
        TsqlError: 2209 for what cannot be read, 2229 for an unknown prefix, 40515 for what is not supported.
    """
    known = dict(namespaces)
    rest = text
    while (found := PROLOG.match(rest)) is not None:
        known[found[1] or ""] = found[2] if found[2] is not None else found[3]
        rest = rest[found.end() :]
    reader = _Reader(text, known, is_number, _signs(rest, text))
    if not reader.tokens:
        raise reader.wrong()
    function = ""
    if reader.word() in ("for", "let") or reader.word().startswith("<"):
        raise refused("An XQuery expression with for, let or <constructors>", _ONLY)
    if reader.word(1) == "(" and reader.word().removeprefix("fn:") in _FUNCTIONS:
        function = reader.word().removeprefix("fn:")
        reader.place += 2
        stages = [Stage("", None)] if reader.word() == ")" else _stages(reader)
        if not reader.take(")"):
            raise reader.wrong()
        if reader.take("[", "1", "]") and function == "data":  # what the other functions find is one value
            stages[-1] = Stage(stages[-1].path, 0) if stages[-1].place is None else stages[-1]
    else:
        stages = _stages(reader)
    if reader.place < len(reader.tokens):
        raise refused(f"The XQuery expression '{text[:60]}'", _ONLY)
    single = reader.is_single or stages[-1].place is not None or function in ("count", "local-name")
    return Path(tuple(stages), function, tuple(reader.variables), single, reader.is_absolute, reader.kind)


def _signs(rest: str, text: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    rest = rest.rstrip()
    while place < len(rest):
        found = _SIGN.match(rest, place)
        if found is None:
            raise TsqlError(2209, f"XQuery: Syntax error near '{rest[place : place + 10]}' in '{text[:60]}'.")
        assert found.lastgroup is not None
        tokens.append((found.lastgroup, found[found.lastgroup]))
        place = found.end()
    return tokens


def _stages(reader: _Reader) -> list[Stage]:
    if reader.word() in ("sql:variable", "sql:column"):
        name = _variable(reader)
        return [Stage(f"$v{name}", 0)]
    if not reader.take("("):
        return [Stage("strict $" + _steps(reader, "$"), None)]
    stages = _stages(reader)
    if reader.word() in ("|", ","):
        raise refused("A sequence of paths in XQuery", "Write one path for each.")
    if not reader.take(")"):
        raise reader.wrong()
    place = None
    if reader.take("["):
        place = _place(reader)
    stages[-1] = Stage(stages[-1].path, place if place is not None else stages[-1].place)
    if reader.word() in ("/", "//"):
        if place is None:
            first = stages.pop()
            return [*stages, Stage(first.path + _steps(reader, "$"), None)]
        reader.is_single = True
        stages.append(Stage("strict $" + _steps(reader, "$"), None))
    return stages


def _place(reader: _Reader) -> int:
    if reader.take("last", "(", ")", "]"):
        return -1
    kind, word = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
    if kind == "number" and word.isdigit() and int(word) > 0 and reader.word(1) == "]":
        reader.place += 2
        return int(word) - 1
    raise refused("A predicate behind parentheses that is no number", _ONLY)


def _steps(reader: _Reader, root: str) -> str:
    """The steps of a path, behind `root`: $ or @."""
    out = ""
    deep = False
    reader.kind = _NODE
    if reader.word() in ("/", "//"):
        if root == "@":
            raise refused("An absolute path in a predicate", _ONLY)
        reader.is_absolute = reader.is_absolute or not out
        deep = reader.word() == "//"
        reader.place += 1
        if reader.place >= len(reader.tokens) or reader.word() == ")":
            return out  # the document
    while True:
        out += _step(reader, deep)
        if reader.word() not in ("/", "//"):
            return out
        deep = reader.word() == "//"
        reader.place += 1


def _step(reader: _Reader, deep: bool) -> str:
    kind, word = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
    if word == "..":
        raise refused("The step .. in XQuery", _ONLY)
    if word == "." and not deep:
        reader.place += 1
        return _predicates(reader, ".")
    if kind == "name" and reader.word(1) == "::":
        if word not in ("child", "attribute", "self"):
            raise refused(f"The axis {word}::", _ONLY)
        reader.place += 2
        if word == "attribute":
            return _attribute(reader, deep)
        if word == "self":
            raise refused("The axis self::", _ONLY)
        kind, word = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
    if word == "@":
        reader.place += 1
        return _attribute(reader, deep)
    children = ".c[*].**" if deep else ".c[*]"
    if reader.take("text", "(", ")"):
        reader.kind = _TEXT
        return f'{children} ? (@.k == "t")' + _predicates(reader, "text")
    if reader.take("node", "(", ")"):
        reader.kind = _NODE
        return f"{children} ? (exists (@.k))" + _predicates(reader, "node")
    if word == "*":
        reader.place += 1
        reader.kind = _ELEMENT
        return f'{children} ? (@.k == "e")' + _predicates(reader, "*")
    if kind != "name" or reader.word(1) == "(":
        raise reader.wrong() if kind != "name" else refused(f"The XQuery function {word}()", _ONLY)
    reader.place += 1
    reader.kind = _ELEMENT
    return f'{children} ? (@.k == "e" && @.n == {_quoted(_expanded(reader, word, is_attribute=False))})' + _predicates(
        reader, "name"
    )


def _attribute(reader: _Reader, deep: bool) -> str:
    kind, word = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
    reader.place += 1
    before = '.** ? (@.k == "e")' if deep else ""
    reader.kind = _ATTRIBUTE
    if word == "*":
        reader.is_single = False
        return f"{before}.a.*"
    if kind != "name":
        raise reader.wrong()
    if deep:
        reader.is_single = False
    name = _quoted("@" + _expanded(reader, word, is_attribute=True))
    return f"{before} ? (exists (@.a.{name})).a.{name}"


def _expanded(reader: _Reader, word: str, *, is_attribute: bool) -> str:
    prefix, _, local = word.rpartition(":")
    if not prefix and is_attribute:
        return word
    if local == "*":
        raise refused(f"The step {word}", _ONLY)
    uri = "http://www.w3.org/XML/1998/namespace" if prefix == "xml" else reader.namespaces.get(prefix)
    if prefix and uri is None:
        raise TsqlError(2229, f'XQuery: The name "{prefix}" does not denote a namespace.')
    return f"{{{uri}}}{local}" if uri else local


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _predicates(reader: _Reader, step: str) -> str:
    """The predicates of a step. Positions count among siblings of the same name; for * among elements."""
    out, first = "", True
    counted = step == "."
    kind = reader.kind
    while reader.take("["):
        number = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
        if number[0] == "number" and reader.word(1) == "]":
            if not first:
                raise refused("A position behind another predicate", "Write (path)[number] around it.")
            reader.place += 2
            counted = True
            out += f" ? (@.{'i' if step == '*' else 'p'} == {int(float(number[1]))})"
        elif reader.take("last", "(", ")", "]"):
            raise refused("last() in a step", "Write (path)[last()].")
        else:
            out += f" ? ({_condition(reader)})"
            if not reader.take("]"):
                raise reader.wrong()
        first = False
        reader.kind = kind
    reader.is_single = reader.is_single and counted
    return out


def _condition(reader: _Reader) -> str:
    parts = [_conjunction(reader)]
    while reader.take("or"):
        parts.append(_conjunction(reader))
    return " || ".join(parts) if len(parts) > 1 else parts[0]


def _conjunction(reader: _Reader) -> str:
    parts = [_term(reader)]
    while reader.take("and"):
        parts.append(_term(reader))
    return " && ".join(parts) if len(parts) > 1 else parts[0]


def _term(reader: _Reader) -> str:
    single = reader.is_single
    try:
        if reader.word().removeprefix("fn:") == "not" and reader.word(1) == "(":
            reader.place += 2
            inside = _condition(reader)
            if not reader.take(")"):
                raise reader.wrong()
            return f"(!({inside}) || ({inside}) is unknown)"
        if reader.word().removeprefix("fn:") in ("contains", "starts-with") and reader.word(1) == "(":
            return _search(reader)
        if reader.take("("):
            inside = _condition(reader)
            if not reader.take(")"):
                raise reader.wrong()
            return f"({inside})"
        return _comparison(reader)
    finally:
        reader.is_single = single


def _search(reader: _Reader) -> str:
    name = reader.word().removeprefix("fn:")
    reader.place += 2
    of = "@" + _steps(reader, "@")
    of += "" if reader.kind == _ATTRIBUTE else ".v"
    if not reader.take(",") or reader.place >= len(reader.tokens) or reader.tokens[reader.place][0] != "string":
        raise refused(f"{name}() with anything but a string", _ONLY)
    sought = _quoted(reader.word()[1:-1])
    reader.place += 1
    if not reader.take(")"):
        raise reader.wrong()
    return f'({of} like_regex {sought} flag "q")' if name == "contains" else f"({of} starts with {sought})"


def _comparison(reader: _Reader) -> str:
    if reader.take("position", "(", ")"):
        sign = _COMPARISONS.get(reader.word())
        if sign is None or reader.word(1).isdigit() is False:
            raise reader.wrong()
        number = reader.word(1)
        reader.place += 2
        return f"@.p {sign} {number}"
    path = "@" + _steps(reader, "@")
    sign = _COMPARISONS.get(reader.word())
    if sign is None:
        return f"exists ({path})"
    value = path if reader.kind == _ATTRIBUTE else f"{path}.v"
    reader.place += 1
    kind, word = reader.tokens[reader.place] if reader.place < len(reader.tokens) else ("", "")
    if word == "sql:variable":
        name = _variable(reader)
        numeric = reader.is_number(reader.variables[name - 1])
        return f"({value}{'.double()' if numeric else ''} {sign} $v{name})"
    reader.place += 1
    if kind == "number":
        return f"({value}.double() {sign} {word})"
    if kind == "string":
        return f"({value} {sign} {_quoted(word[1:-1])})"
    raise refused("A comparison of two paths", _ONLY)


def _variable(reader: _Reader) -> int:
    """The number of a variable of T-SQL, sql:variable("@name")."""
    if reader.word() == "sql:column":
        raise refused("sql:column()", "Write the condition in WHERE.")
    reader.place += 1
    if reader.word() != "(" or reader.word(2) != ")":
        raise reader.wrong()
    name = reader.word(1)[1:-1].lower()
    reader.place += 3
    if name not in reader.variables:
        reader.variables.append(name)
    return reader.variables.index(name) + 1
