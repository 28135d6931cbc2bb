"""Plain XQuery paths as jsonpath over the tree of tsql.xml_tree. Most paths are plain, and jsonpath is fast."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from servicebroker.tsql.translation.documents.xquery_parser import (
    ANYWHERE,
    ATTRIBUTE,
    ATTRIBUTE_OF,
    CHILD,
    COMMENT,
    DESCENDANT,
    ELEMENT,
    INSTRUCTION,
    NODE,
    OR_SELF,
    SELF,
    TEXT,
    Binary,
    Call,
    ContextItem,
    Expression,
    Filter,
    Literal,
    Sequence,
    SqlReference,
    Step,
    Steps,
    Test,
    parse,
)
from servicebroker.tsql.translation.text_writer import Writer, not_supported, type_family
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

_JSONPATH_COMPARISONS = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_BINARIES = frozenset({"xs:hexBinary", "xs:base64Binary"})  # applied to a variable they encode its bytes
_PATH_FUNCTIONS = frozenset({"string", "data", "count", "local-name", "number"}) | _BINARIES
_KIND_CODES = {ELEMENT: "e", TEXT: "t", COMMENT: "c", INSTRUCTION: "i"}
_AXES = {CHILD: ".c[*]", DESCENDANT: ".c[*].**", OR_SELF: ".**", SELF: ""}


class Stage(NamedTuple):
    """A jsonpath, and the index of the result to continue with: None for all, 0 for the first, -1 for the last."""

    path: str
    place: int | None


class Path(NamedTuple):
    """A path as jsonpath. `function` is the function around it. `variables` are the T-SQL variables $v1, $v2, ...

    `is_single`: the path finds at most one node. `is_absolute`: it begins at the document. `kind` is the kind of node:
    element, attribute, text or node.
    """

    stages: tuple[Stage, ...]
    function: str
    variables: tuple[str, ...]
    is_single: bool
    is_absolute: bool
    kind: str


def number_variables(writer: Writer) -> Callable[[str], bool]:
    """Return a function that returns True for the name of a numeric T-SQL variable."""
    return lambda name: type_family(writer.variable_type(name)) == "number"


def jsonpath_variables(writer: Writer, names: tuple[str, ...]) -> str:
    """Write the last argument of functions that take a path: the values of its variables."""
    pairs = ", ".join(f"'v{number}', {writer.variable(name).text}" for number, name in enumerate(names, 1))
    return f", jsonb_build_object({pairs})" if names else ""


class NotJsonpath(Exception):
    """The expression cannot be written as a jsonpath."""


@dataclass
class _PathBuilder:
    is_number: Callable[[str], bool]
    variables: list[str] = field(default_factory=list)
    is_single: bool = True
    is_absolute: bool = False
    kind: str = NODE


def read_path(text: str, namespaces: Mapping[str, str], is_number: Callable[[str], bool]) -> Path:
    """Parse a path of modify() or nodes(). `is_number` returns True for the name of a numeric variable.

    Raises:
        TsqlError: see `parse`; 40515 the expression is not a plain path.
    """
    try:
        return to_jsonpath(parse(text, namespaces), is_number)
    except NotJsonpath:
        raise not_supported(
            f"The XQuery expression '{text[:60]}' in this place", "Write a path with simple conditions."
        ) from None


def to_jsonpath(expression: Expression, is_number: Callable[[str], bool]) -> Path:
    """Convert an expression to stages of jsonpath.

    Raises:
        NotJsonpath: jsonpath cannot express it.
    """
    builder, function, only_first = _PathBuilder(is_number), "", False
    match expression:
        case Filter(Call("data") as call, (Literal("1", True),)):
            expression, only_first = call, True
    match expression:
        case Call(name, (inside,)) if name in _PATH_FUNCTIONS and not (
            name in _BINARIES and isinstance(inside, SqlReference)
        ):
            function, stages = name, _stages(builder, inside)
        case _:
            stages = _stages(builder, expression)
    if only_first and stages[-1].place is None:
        stages[-1] = stages[-1]._replace(place=0)
    single = builder.is_single or stages[-1].place is not None or function in ("count", "local-name")
    return Path(tuple(stages), function, tuple(builder.variables), single, builder.is_absolute, builder.kind)


def steps_to_jsonpath(steps: tuple[Step, ...], is_number: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """Convert steps from any node to a jsonpath. Return it with the names of its variables.

    Raises:
        NotJsonpath: jsonpath cannot express them.
    """
    builder = _PathBuilder(is_number)
    return "strict $" + _steps(builder, steps), tuple(builder.variables)


def _stages(builder: _PathBuilder, expression: Expression) -> list[Stage]:
    match expression:
        case SqlReference("variable", name):
            return [Stage(f"$v{_variable(builder, name)}", 0)]
        case ContextItem():
            return [Stage("strict $", None)]
        case Sequence((inside,)):
            return _stages(builder, inside)
        case Filter(Sequence((inside,)), (predicate,)):
            stages = _stages(builder, inside)
            stages[-1] = stages[-1]._replace(place=_index_of(predicate))
            return stages
        case Steps(None, is_absolute, steps):
            builder.is_absolute = is_absolute
            return [Stage("strict $" + _steps(builder, steps), None)]
        case Steps(Filter() | Sequence() as root, False, steps):
            stages = _stages(builder, root)
            if stages[-1].place is None:
                return [*stages[:-1], Stage(stages[-1].path + _steps(builder, steps), None)]
            builder.is_single = True
            return [*stages, Stage("strict $" + _steps(builder, steps), None)]
    raise NotJsonpath


def _index_of(predicate: Expression) -> int:
    match predicate:
        case Call("last", ()):
            return -1
        case Literal(text, True) if is_whole(text) and (place := parse_whole_number(text)) > 0:
            return place - 1
    raise NotJsonpath


def _steps(builder: _PathBuilder, steps: tuple[Step, ...]) -> str:
    builder.kind = NODE
    out, is_deep = "", False
    for step in steps:
        if is_deep or step != ANYWHERE:
            out += _step(builder, step, is_deep=is_deep)
        is_deep = not is_deep and step == ANYWHERE
    if is_deep:
        raise NotJsonpath
    return out


def _step(builder: _PathBuilder, step: Step, *, is_deep: bool) -> str:
    test = step.test
    builder.kind = test.kind
    builder.is_single = builder.is_single and not is_deep
    if is_deep and step.axis not in (CHILD, ATTRIBUTE_OF):
        raise NotJsonpath
    if step.axis == SELF and test.kind == NODE:
        return _predicates(builder, step)
    if step.axis == ATTRIBUTE_OF:
        if (
            test.kind != ATTRIBUTE
            or step.predicates
            or (test.uri is None) != (test.local is None)
            or (test.local is None and test.uri)
        ):
            raise NotJsonpath
        builder.is_single = builder.is_single and test.local is not None
        return ('.** ? (@.k == "e")' if is_deep else "") + node_filter(step.axis, test)
    if step.axis != CHILD or (test.uri is None) != (test.local is None):
        raise NotJsonpath
    return node_filter(DESCENDANT if is_deep else CHILD, test) + _predicates(builder, step)


def node_filter(axis: str, test: Test) -> str:
    """Write the jsonpath of a step without its predicates.

    Raises:
        TsqlError: 40515 an attribute of any namespace, or an unsupported axis.
    """
    if axis == ATTRIBUTE_OF and test.local is None:
        return ".a.*"
    if axis == ATTRIBUTE_OF and test.uri is None:
        raise not_supported(f"The attribute *:{test.local}", "Name it with its prefix.")
    if axis == ATTRIBUTE_OF:
        name = _quoted("@" + _expanded(test.uri or "", test.local or ""))
        return f" ? (exists (@.a.{name})).a.{name}"
    if axis not in _AXES:
        raise not_supported(f"The axis {axis}:: with a condition in XQuery")
    if test.kind == NODE:
        wanted = " || ".join(f'@.k == "{kind}"' for kind in "detci")
    else:
        wanted = f'@.k == "{_KIND_CODES[test.kind]}"'
    if test.local is not None and test.uri is not None:
        wanted += f" && @.n == {_quoted(_expanded(test.uri, test.local))}"
    elif test.local is not None:
        wanted += f" && @.n like_regex {_quoted('(^|[}:])' + test.local.replace('.', '[.]') + '$')}"
    elif test.uri:
        wanted += f" && @.n starts with {_quoted(_expanded(test.uri, ''))}"
    return f"{_AXES[axis]} ? ({wanted})"


def _expanded(uri: str, local: str) -> str:
    return f"{{{uri}}}{local}" if uri else local


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _predicates(builder: _PathBuilder, step: Step) -> str:
    """Write the predicates of a step. A position counts siblings of the same name, or for * all elements."""
    out, counted, kind = "", step.axis == SELF, builder.kind
    for number, predicate in enumerate(step.predicates):
        match predicate:
            case Literal(text, True):
                if number or step.test.kind == NODE or not text.isdigit():
                    raise NotJsonpath
                counted = True
                is_any = step.test.kind == ELEMENT and step.test.local is None
                out += f" ? (@.{'i' if is_any else 'p'} == {text})"
            case _:
                if number and _has_position(predicate):
                    raise NotJsonpath
                out += f" ? ({_condition(builder, predicate)})"
        builder.kind = kind
    builder.is_single = builder.is_single and counted
    return out


def _has_position(predicate: Expression) -> bool:
    return isinstance(predicate, Binary) and Call("position", ()) in (predicate.left, predicate.right)


def _condition(builder: _PathBuilder, expression: Expression) -> str:
    single = builder.is_single
    try:
        match expression:
            case Binary("or" | "and" as word, left, right):
                sign = "||" if word == "or" else "&&"
                return f"({_condition(builder, left)} {sign} {_condition(builder, right)})"
            case Sequence((inside,)):
                return _condition(builder, inside)
            case Call("not", (inside,)):
                condition = _condition(builder, inside)
                return f"(!({condition}) || ({condition}) is unknown)"
            case Call("contains", (operand, Literal(sought, False))):
                return f'({_value(builder, operand)} like_regex {_quoted(sought)} flag "q")'
            case Call("starts-with", (operand, Literal(sought, False))):
                return f"({_value(builder, operand)} starts with {_quoted(sought)})"
            case Binary(sign, Call("position", ()), Literal(text, True)) if (
                sign in _JSONPATH_COMPARISONS and text.isdigit()
            ):
                return f"@.p {_JSONPATH_COMPARISONS[sign]} {text}"
            case Binary(sign, operand, Literal(text, True)) if sign in _JSONPATH_COMPARISONS:
                return f"({_value(builder, operand)}.double() {_JSONPATH_COMPARISONS[sign]} {text})"
            case Binary(sign, operand, Literal(text, False)) if sign in _JSONPATH_COMPARISONS:
                return f"({_value(builder, operand)} {_JSONPATH_COMPARISONS[sign]} {_quoted(text)})"
            case Binary(sign, operand, SqlReference("variable", name)) if sign in _JSONPATH_COMPARISONS:
                value, number = _value(builder, operand), _variable(builder, name)
                numeric = ".double()" if builder.is_number(builder.variables[number - 1]) else ""
                return f"({value}{numeric} {_JSONPATH_COMPARISONS[sign]} $v{number})"
            case Steps():
                return f"exists ({_relative(builder, expression)})"
        raise NotJsonpath
    finally:
        builder.is_single = single


def _relative(builder: _PathBuilder, expression: Expression) -> str:
    match expression:
        case ContextItem():
            builder.kind = NODE
            return "@"
        case Steps(None, False, steps):
            return "@" + _steps(builder, steps)
    raise NotJsonpath


def _value(builder: _PathBuilder, expression: Expression) -> str:
    """Write the text of the nodes that a path finds."""
    path = _relative(builder, expression)
    return path if builder.kind == ATTRIBUTE else f"{path}.v"


def _variable(builder: _PathBuilder, name: str) -> int:
    """Return the number of a T-SQL variable."""
    name = name.lower()
    if name not in builder.variables:
        builder.variables.append(name)
    return builder.variables.index(name) + 1
