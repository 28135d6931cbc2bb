"""XQuery beyond plain paths: every expression becomes a sequence, an array in jsonb that PostgreSQL computes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.xml_paths import (
    NotJsonpath,
    jsonpath_variables,
    node_filter,
    number_variables,
    steps_to_jsonpath,
)
from servicebroker.tsql.translation.documents.xquery_parser import (
    ATTRIBUTE_OF,
    CHILD,
    COMPARISONS,
    NODE,
    PARENT,
    SELF,
    Binary,
    Call,
    Cast,
    Clause,
    Conditional,
    Constructor,
    ContextItem,
    Expression,
    Filter,
    Flwor,
    Literal,
    Quantified,
    Sequence,
    SqlReference,
    Step,
    Steps,
    Test,
    VariableReference,
)
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    not_supported,
    quote_string,
    type_family,
    write_value,
)
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

EMPTY_SEQUENCE = "'[]'::jsonb"
_SIGNS = frozenset(COMPARISONS.values())
_AGGREGATES = ("sum", "avg", "min", "max")
_ROUNDED = ("ceiling", "floor", "round", "abs")
_NAMES = ("local-name", "namespace-uri")
_CONDITIONS = ("not", "empty", "exists", "contains", "starts-with", "true", "false", "boolean")
BINARY_TYPES = frozenset({"varbinary", "binary", "image"})
BINARY_ENCODINGS = {
    "hexBinary": "hex",
    "base64Binary": "base64",
}  # and how PostgreSQL calls what their text is written in
_TYPES = frozenset(
    {
        "string",
        "int",
        "integer",
        "long",
        "short",
        "byte",
        "decimal",
        "double",
        "float",
        "boolean",
        "date",
        "time",
        "dateTime",
        *BINARY_ENCODINGS,
    }
)
# functions of one argument: a sequence that is {0}
_TEXT = "coalesce(tsql.xq_string({0}), '')"
_FUNCTIONS = {
    "count": "jsonb_build_array(jsonb_array_length({0}))",
    "data": "tsql.xq_atoms({0})",
    "distinct-values": "tsql.xq_distinct({0})",
    "number": "tsql.xq_of(tsql.xq_number({0} -> 0))",
    "string": f"jsonb_build_array({_TEXT})",
    "string-length": f"jsonb_build_array(length({_TEXT}))",
    "lower-case": f"jsonb_build_array(lower({_TEXT}))",
    "upper-case": f"jsonb_build_array(upper({_TEXT}))",
    **{name: f"jsonb_build_array(coalesce(tsql.xq_name('{name}', {{0}} -> 0), ''))" for name in _NAMES},
    **{name: f"tsql.xq_aggregate('{name}', {{0}})" for name in _AGGREGATES},
    **{name: f"tsql.xq_rounded('{name}', {{0}})" for name in _ROUNDED},
}
_CONTEXT_ITEM_FUNCTIONS = frozenset(
    {"string", "data", "string-length", "number", *_NAMES}
)  # without an argument: of the item


@dataclass(frozen=True)
class DynamicContext:
    """What an expression may speak of: the document, the item looked at, its place, and variables of its own."""

    document: str  # a node, in jsonb
    item: str
    place: str = "1"
    last: str = "1"
    is_item: bool = False  # the item is one of nodes(), and has no document
    variables: dict[str, str] = field(default_factory=dict)


class Compiler:
    """Writes one expression; names in PostgreSQL are numbered through it."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._numbers = count(1)
        self._finder = "tsql.xq_climbing_steps" if writer.has_parent_steps else "tsql.xq_steps"

    def _alias(self) -> str:
        return f"x{next(self._numbers)}"

    # ---------------------------------------------------------------- sequences

    def sequence(self, of: Expression, within: DynamicContext) -> str:
        """An array in jsonb.

        Raises:
            TsqlError: 2227 for an unknown variable, 2395 for an unknown function, 40515 for what is not supported.
        """
        match of:
            case Literal(text, is_number):
                return (
                    quote_string(f"[{_json_number(text)}]" if is_number else json.dumps([text], ensure_ascii=False))
                    + "::jsonb"
                )
            case ContextItem():
                return f"jsonb_build_array({within.item})"
            case VariableReference(name):
                if name not in within.variables:
                    raise TsqlError(
                        2227, f"XQuery: The variable '${name}' was not found in the scope in which it was referenced."
                    )
                return within.variables[name]
            case SqlReference():
                return self._outside(of)
            case Sequence(items):
                return (
                    "(" + " || ".join(self.sequence(item, within) for item in items) + ")" if items else EMPTY_SEQUENCE
                )
            case Steps():
                return self._path(of, within)
            case Filter(inside, predicates):
                found = self.sequence(inside, within)
                for predicate in predicates:
                    found = self._filtered(found, predicate, within)
                return found
            case Conditional(condition, yes, no):
                return (
                    f"CASE WHEN {self.condition(condition, within)} THEN {self.sequence(yes, within)} "
                    f"ELSE {self.sequence(no, within)} END"
                )
            case Flwor():
                return self._flwor(of, within)
            case Cast(inside, name):
                return self._cast(inside, name, within)
            case Constructor():
                return self._made(of, within)
            case Call() if of.name not in _CONDITIONS:
                return self._call(of, within)
            case Binary(sign, left, right) if sign not in _SIGNS and sign not in ("or", "and"):
                return f"tsql.xq_calculated({self.sequence(left, within)}, '{sign}', {self.sequence(right, within)})"
        return f"jsonb_build_array({self.condition(of, within)})"

    def condition(self, of: Expression, within: DynamicContext) -> str:
        """A condition of PostgreSQL."""
        match of:
            case Binary("or" | "and" as word, left, right):
                return f"({self.condition(left, within)} {word.upper()} {self.condition(right, within)})"
            case Binary(sign, left, right) if sign in _SIGNS:
                return f"tsql.xq_compares({self.sequence(left, within)}, '{sign}', {self.sequence(right, within)})"
            case Steps():
                return f"jsonb_array_length({self.sequence(of, within)}) > 0"
            case Sequence((inside,)):
                return self.condition(inside, within)
            case Quantified(is_every, clauses, wanted):
                sources, _, inner = self._sources(clauses, within)
                negated = "NOT " if is_every else ""
                asked = f"{negated}({self.condition(wanted, inner)})"
                return f"{negated}EXISTS (SELECT FROM {', '.join(sources)} WHERE {asked})"
            case Call(name, arguments) if name in _CONDITIONS:
                return self._asked(name, arguments, within)
        return f"tsql.xq_true({self.sequence(of, within)})"

    def _asked(self, name: str, arguments: tuple[Expression, ...], within: DynamicContext) -> str:
        _check_arity(
            name, arguments, 0 if name in ("true", "false") else 2 if name in ("contains", "starts-with") else 1
        )
        if name in ("true", "false"):
            return name
        if name in ("not", "boolean"):
            return f"{'NOT ' if name == 'not' else ''}({self.condition(arguments[0], within)})"
        if name in ("empty", "exists"):
            return f"jsonb_array_length({self.sequence(arguments[0], within)}) {'=' if name == 'empty' else '>'} 0"
        said, sought = (f"coalesce({self.text(one, within)}, '')" for one in arguments)
        return f"strpos({said}, {sought}) > 0" if name == "contains" else f"starts_with({said}, {sought})"

    def text(self, of: Expression, within: DynamicContext) -> str:
        """The text of the first item, null without one."""
        return f"tsql.xq_string({self.sequence(of, within)})"

    def _outside(self, of: SqlReference) -> str:
        value = self._value(of)
        kind = None if value.type is None else type_family(value.type)
        if _is_binary(value):
            return f"tsql.xq_of(tsql.xq_written({value.text}, 'base64'))"
        if kind == "xml":
            return f"coalesce(tsql.xml_tree({value.text}) -> 'c', '[]')"
        if value.type is not None and value.type.name == "bit":
            return f"tsql.xq_of({value.text}::integer <> 0)"
        return (
            f"tsql.xq_of({value.text})"
            if kind == "number"
            else f"tsql.xq_of(tsql.xml_value(tsql.xml_text({value.text})))"
        )

    def _value(self, of: SqlReference) -> Sql:
        return self._writer.variable(of.name) if of.kind == "variable" else self._column(of.name)

    def _column(self, name: str) -> Sql:
        table, _, column = name.replace("[", "").replace("]", "").rpartition(".")
        named = exp.Column(this=exp.to_identifier(column, quoted=True))
        if table:
            named.set("table", exp.to_identifier(table.rpartition(".")[2], quoted=True))
        return write_value(self._writer, named)

    # ---------------------------------------------------------------- paths

    def _path(self, of: Steps, within: DynamicContext) -> str:
        if of.is_absolute and within.is_item:
            raise not_supported("An absolute path on what nodes() returns", "Begin it with a step or a dot.")
        steps = _fold_parents(of.steps)
        if of.root is not None:
            found = self.sequence(of.root, within)
        else:
            found = f"jsonb_build_array({within.document if of.is_absolute else within.item})"
        while steps:
            plain = self._plain(steps)
            if plain is None:
                found, steps = self._step(found, steps[0], within), steps[1:]
            else:
                taken, path, variables = plain
                found, steps = f"{self._finder}({found}, {quote_string(path)}{variables})", steps[taken:]
        return found

    def _plain(self, steps: tuple[Step, ...]) -> tuple[int, str, str] | None:
        """The longest beginning that jsonpath can say: how many steps, the path, and its variables."""
        for taken in range(len(steps), 0, -1):
            try:
                path, names = steps_to_jsonpath(steps[:taken], number_variables(self._writer))
            except NotJsonpath:
                continue
            return taken, path, jsonpath_variables(self._writer, names)
        return None

    def _step(self, items: str, step: Step, within: DynamicContext) -> str:
        """One step from each item; a predicate counts what it finds from that one."""
        if step.axis == PARENT:
            found = f"tsql.xq_parents({items})"
            return self._all_filtered(found, step.predicates, within)
        path = quote_string("strict $" + node_filter(step.axis, step.test))
        if not step.predicates:
            return f"{self._finder}({items}, {path})"
        one = self._alias()
        found = f"{self._finder}(jsonb_build_array({one}.item), {path})"
        return (
            f"tsql.xq_flat((SELECT coalesce(jsonb_agg({self._all_filtered(found, step.predicates, within)} "
            f"ORDER BY {one}.place), '[]') FROM jsonb_array_elements({items}) WITH ORDINALITY AS {one} (item, place)))"
        )

    def _all_filtered(self, items: str, predicates: tuple[Expression, ...], within: DynamicContext) -> str:
        for predicate in predicates:
            items = self._filtered(items, predicate, within)
        return items

    def _filtered(self, items: str, predicate: Expression, within: DynamicContext) -> str:
        match predicate:
            case Literal(text, True) if is_whole(text) and (place := parse_whole_number(text)) > 0:
                return f"tsql.xq_of(({items}) -> {place - 1})"
            case Call("last", ()):
                return f"tsql.xq_of(({items}) -> -1)"
        one = self._alias()
        inner = replace(within, item=f"{one}.item", place=f"{one}.place", last=f"{one}.last")
        if _is_numeric(predicate):
            wanted = f"{one}.place = tsql.xq_number({self.sequence(predicate, inner)} -> 0)"
        else:
            wanted = self.condition(predicate, inner)
        return (
            f"(SELECT coalesce(jsonb_agg({one}.item ORDER BY {one}.place), '[]') FROM (SELECT item, place, "
            f"count(*) OVER () AS last FROM jsonb_array_elements({items}) WITH ORDINALITY AS e (item, place)) AS {one} "
            f"WHERE {wanted})"
        )

    # ---------------------------------------------------------------- for, let, where, order by, return

    def _sources(
        self, clauses: tuple[Clause, ...], within: DynamicContext
    ) -> tuple[list[str], list[str], DynamicContext]:
        """What FROM reads, one after the other, the places of its rows, and what may be spoken of behind it."""
        sources: list[str] = []
        places: list[str] = []
        for clause in clauses:
            one, items = self._alias(), self.sequence(clause.of, within)
            if clause.kind == "let":
                sources.append(f"LATERAL (SELECT {items} AS items) AS {one}")
                bound = {clause.name: f"{one}.items"}
            else:
                sources.append(f"LATERAL jsonb_array_elements({items}) WITH ORDINALITY AS {one} (item, place)")
                places.append(f"{one}.place")
                bound = {clause.name: f"jsonb_build_array({one}.item)"}
                if clause.place:
                    bound[clause.place] = f"jsonb_build_array({one}.place)"
            within = replace(within, variables={**within.variables, **bound})
        return sources, places, within

    def _flwor(self, of: Flwor, within: DynamicContext) -> str:
        sources, places, inner = self._sources(tuple(one for one in of.clauses if one.kind != "where"), within)
        keys = [
            f"tsql.xq_atom({self.sequence(key.key, inner)} -> 0) {'DESC NULLS LAST' if key.is_descending else 'NULLS FIRST'}"
            for key in of.order
        ]
        order = ", ".join([*keys, *places])
        wanted = [self.condition(clause.of, inner) for clause in of.clauses if clause.kind == "where"]
        return (
            f"tsql.xq_flat((SELECT coalesce(jsonb_agg({self.sequence(of.result, inner)}"
            f"{f' ORDER BY {order}' if order else ''}), '[]') FROM {', '.join(sources)}"
            f"{' WHERE ' + ' AND '.join(wanted) if wanted else ''}))"
        )

    # ---------------------------------------------------------------- functions, casts, what is made

    def _call(self, of: Call, within: DynamicContext) -> str:
        name, arguments = of
        if name in ("position", "last"):
            _check_arity(name, arguments, 0)
            return f"jsonb_build_array({within.place if name == 'position' else within.last})"
        if name.startswith("xs:") and len(arguments) == 1:
            return self._cast(arguments[0], name[3:], within)
        if name == "concat" and len(arguments) > 1:
            said = ", ".join(self.text(one, within) for one in arguments)
            return f"jsonb_build_array(concat({said}))"
        if name == "substring" and len(arguments) in (2, 3):
            rest = ", ".join(self.sequence(one, within) for one in arguments[1:])
            return f"tsql.xq_of(tsql.xq_substring(coalesce({self.text(arguments[0], within)}, ''), {rest}))"
        if name not in _FUNCTIONS:
            raise TsqlError(2395, f"XQuery: There is no function '{name}()'.")
        if name in _CONTEXT_ITEM_FUNCTIONS and not arguments:
            arguments = (ContextItem(),)
        _check_arity(name, arguments, 1)
        return _FUNCTIONS[name].replace("{0}", self.sequence(arguments[0], within))

    def _cast(self, of: Expression, name: str, within: DynamicContext) -> str:
        if name not in _TYPES:
            raise not_supported(f"The type {name} in XQuery", f"It knows {', '.join(sorted(_TYPES))}.")
        items, written = self.sequence(of, within), self._coding(of)
        if written and name in BINARY_ENCODINGS:
            return f"tsql.xq_rewritten({items}, '{written}', '{BINARY_ENCODINGS[name]}')"
        return f"tsql.xq_cast({items}, '{name}')"

    def _coding(self, of: Expression) -> str:
        """How the bytes of an expression are written, as far as it says so itself; "" for one that has a text."""
        match of:
            case Call(name, (_,)):
                return BINARY_ENCODINGS.get(name.removeprefix("xs:"), "")
            case Cast(_, name):
                return BINARY_ENCODINGS.get(name, "")
            case Sequence((inside,)):
                return self._coding(inside)
            case SqlReference() if _is_binary(self._value(of)):
                return "base64"
        return ""

    def _made(self, of: Constructor, within: DynamicContext) -> str:
        written = []
        for piece in of.pieces:
            if isinstance(piece, str):
                written.append(quote_string(piece))
            else:
                function = "tsql.xq_in_attribute" if piece.is_attribute else "tsql.xq_content"
                written.append(f"{function}({self.sequence(piece.of, within)})")
        return f"tsql.xml_nodes({' || '.join(written)}, {quote_string(json.dumps(dict(of.namespaces)))}::jsonb)"


def _is_binary(value: Sql) -> bool:
    return value.type is not None and value.type.name in BINARY_TYPES


def is_single(of: Expression) -> bool:
    """Whether an expression can find one item at most, as far as it says so itself."""
    match of:
        case Sequence(items):
            return len(items) == 0 or (len(items) == 1 and is_single(items[0]))
        case Filter(inside, predicates):
            return is_single(inside) or any(_is_single_position(one) for one in predicates)
        case Steps(root, _, steps):
            return (root is None or is_single(root)) and all(
                (
                    step.axis in (ATTRIBUTE_OF, SELF, PARENT)
                    and (step.test.local is not None or step.axis != ATTRIBUTE_OF)
                )
                or (step.axis == CHILD and any(_is_single_position(one) for one in step.predicates))
                for step in steps
            )
        case Conditional(_, yes, no):
            return is_single(yes) and is_single(no)
        case Cast(inside, _):
            return is_single(inside)
        case Binary(sign, left, right) if sign not in _SIGNS and sign not in ("or", "and"):
            return is_single(left) and is_single(right)
        case Call("data" | "distinct-values", (inside,)):
            return of.name == "data" and is_single(inside)
    return not isinstance(of, Flwor | Constructor)


def _is_single_position(predicate: Expression) -> bool:
    return predicate == Call("last", ()) or (isinstance(predicate, Literal) and predicate.is_number)


def _is_numeric(predicate: Expression) -> bool:
    """Whether a predicate is a place, and no condition."""
    match predicate:
        case Literal(_, is_number):
            return is_number
        case Binary(sign, _, _):
            return sign not in _SIGNS and sign not in ("or", "and")
        case Call(name, _):
            return name in ("last", "position", "count", "number", *_AGGREGATES, *_ROUNDED)
        case Cast(_, name):
            return name not in ("string", "boolean", "date", "time", "dateTime")
        case Sequence((inside,)):
            return _is_numeric(inside)
    return False


def _fold_parents(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """`a/b/..` is `a[b]`: only what begins with `..` needs to know a node's parent."""
    done: list[Step] = []
    for step in steps:
        if step.axis == PARENT and done and done[-1].axis in (CHILD, ATTRIBUTE_OF):
            asked = Steps(None, False, (done.pop(),))
            above = done.pop() if done else Step(SELF, Test(NODE))
            done.append(above._replace(predicates=(*above.predicates, asked, *step.predicates)))
        elif step != Step(SELF, Test(NODE)) or not done:
            done.append(step)
    return tuple(done)


def _check_arity(name: str, arguments: tuple[Expression, ...], number: int) -> None:
    if len(arguments) != number:
        raise TsqlError(2233, f"XQuery: The function '{name}()' takes {number} argument(s), not {len(arguments)}.")


def _json_number(text: str) -> str:
    """As JSON writes it."""
    whole = text if text[0].isdigit() else "0" + text
    return whole.replace(".e", ".0e").replace(".E", ".0e") if not whole.endswith(".") else whole + "0"
