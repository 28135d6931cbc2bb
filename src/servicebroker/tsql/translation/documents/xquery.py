"""XQuery beyond plain paths. Each expression becomes a sequence: a jsonb array computed by PostgreSQL."""

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
    NODE_COMPARISONS,
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
    NeedsParents,
    Sql,
    Writer,
    not_supported,
    quote_string,
    type_family,
    write_value,
)
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

EMPTY_SEQUENCE = "'[]'::jsonb"
_SIGNS = frozenset({*COMPARISONS.values(), *NODE_COMPARISONS})
_AGGREGATES = ("sum", "avg", "min", "max")
_ROUNDED = ("ceiling", "floor", "round", "abs")
_NAMES = ("local-name", "namespace-uri")
_CONDITIONS = ("not", "empty", "exists", "contains", "starts-with", "true", "false", "boolean")
BINARY_TYPES = frozenset({"varbinary", "binary", "image"})
BINARY_ENCODINGS = {
    "hexBinary": "hex",
    "base64Binary": "base64",
}  # XQuery type to PostgreSQL's encoding
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
# functions of one argument, a sequence, written as {0}
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
)  # without an argument they apply to the context item


@dataclass(frozen=True)
class DynamicContext:
    """The dynamic context of an expression: document, context item, its position, and variables."""

    document: str  # SQL of a node in jsonb
    item: str
    place: str = "1"
    last: str = "1"
    is_item: bool = False  # the item comes from nodes(): `document` is the item, not its document
    variables: dict[str, str] = field(default_factory=dict)


class Compiler:
    """Writes one expression. Aliases in PostgreSQL are numbered."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._numbers = count(1)
        self._finder = "tsql.xq_climbing_steps" if writer.has_parent_steps else "tsql.xq_steps"

    def _alias(self) -> str:
        return f"x{next(self._numbers)}"

    # ---------------------------------------------------------------- sequences

    def sequence(self, expression: Expression, within: DynamicContext) -> str:
        """Write an expression as a jsonb array.

        Raises:
            TsqlError: 2227 unknown variable, 2395 unknown function, 40515 not supported.
        """
        match expression:
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
                return self._outside(expression)
            case Sequence(items):
                return (
                    "(" + " || ".join(self.sequence(item, within) for item in items) + ")" if items else EMPTY_SEQUENCE
                )
            case Steps():
                return self._path(expression, within)
            case Filter(inside, predicates):
                matches = self.sequence(inside, within)
                for predicate in predicates:
                    matches = self._filtered(matches, predicate, within)
                return matches
            case Conditional(condition, yes, no):
                return (
                    f"CASE WHEN {self.condition(condition, within)} THEN {self.sequence(yes, within)} "
                    f"ELSE {self.sequence(no, within)} END"
                )
            case Flwor():
                return self._flwor(expression, within)
            case Cast(inside, name):
                return self._cast(inside, name, within)
            case Constructor():
                return self._constructor(expression, within)
            case Call() if expression.name not in _CONDITIONS:
                return self._call(expression, within)
            case Binary(sign, left, right) if sign not in _SIGNS and sign not in ("or", "and"):
                return f"tsql.xq_calculated({self.sequence(left, within)}, '{sign}', {self.sequence(right, within)})"
        return f"jsonb_build_array({self.condition(expression, within)})"

    def condition(self, expression: Expression, within: DynamicContext) -> str:
        """Write an expression as a condition of PostgreSQL."""
        match expression:
            case Binary("or" | "and" as word, left, right):
                return f"({self.condition(left, within)} {word.upper()} {self.condition(right, within)})"
            case Binary(sign, left, right) if sign in NODE_COMPARISONS:
                numbers = [f"tsql.xq_node_number({self._nodes(side, within)})" for side in (left, right)]
                return f"coalesce({numbers[0]} {NODE_COMPARISONS[sign]} {numbers[1]}, false)"
            case Binary(sign, left, right) if sign in _SIGNS:
                return f"tsql.xq_compares({self.sequence(left, within)}, '{sign}', {self.sequence(right, within)})"
            case Steps():
                return f"jsonb_array_length({self.sequence(expression, within)}) > 0"
            case Sequence((inside,)):
                return self.condition(inside, within)
            case Quantified(is_every, clauses, condition):
                sources, _, inner = self._sources(clauses, within)
                negated = "NOT " if is_every else ""
                test = f"{negated}({self.condition(condition, inner)})"
                return f"{negated}EXISTS (SELECT FROM {', '.join(sources)} WHERE {test})"
            case Call(name, arguments) if name in _CONDITIONS:
                return self._boolean_function(name, arguments, within)
        return f"tsql.xq_true({self.sequence(expression, within)})"

    def _nodes(self, expression: Expression, within: DynamicContext) -> str:
        """Write a sequence of nodes with their numbers in the document.

        Raises:
            NeedsParents: nodes have no numbers yet. The translation then starts again.
        """
        if not self._writer.has_parent_steps:
            raise NeedsParents
        return self.sequence(expression, within)

    def _boolean_function(self, name: str, arguments: tuple[Expression, ...], within: DynamicContext) -> str:
        """Write a function that returns a condition: not, empty, exists, contains and others."""
        _check_arity(
            name, arguments, 0 if name in ("true", "false") else 2 if name in ("contains", "starts-with") else 1
        )
        if name in ("true", "false"):
            return name
        if name in ("not", "boolean"):
            return f"{'NOT ' if name == 'not' else ''}({self.condition(arguments[0], within)})"
        if name in ("empty", "exists"):
            return f"jsonb_array_length({self.sequence(arguments[0], within)}) {'=' if name == 'empty' else '>'} 0"
        text, sought = (f"coalesce({self.text(argument, within)}, '')" for argument in arguments)
        return f"strpos({text}, {sought}) > 0" if name == "contains" else f"starts_with({text}, {sought})"

    def text(self, expression: Expression, within: DynamicContext) -> str:
        """Write the text of the first item, null if there is none."""
        return f"tsql.xq_string({self.sequence(expression, within)})"

    def _outside(self, expression: SqlReference) -> str:
        """Write a variable or column of T-SQL as a sequence."""
        value = self._value(expression)
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

    def _value(self, expression: SqlReference) -> Sql:
        return (
            self._writer.variable(expression.name) if expression.kind == "variable" else self._column(expression.name)
        )

    def _column(self, name: str) -> Sql:
        table, _, column = name.replace("[", "").replace("]", "").rpartition(".")
        named = exp.Column(this=exp.to_identifier(column, quoted=True))
        if table:
            named.set("table", exp.to_identifier(table.rpartition(".")[2], quoted=True))
        return write_value(self._writer, named)

    # ---------------------------------------------------------------- paths

    def _path(self, expression: Steps, within: DynamicContext) -> str:
        steps = _fold_parents(expression.steps)
        if expression.root is not None:
            items = self.sequence(expression.root, within)
        else:
            start = within.document if expression.is_absolute else within.item
            if expression.is_absolute and within.is_item:
                start = self._writer.document_of(start)
            items = f"jsonb_build_array({start})"
        while steps:
            plain = self._plain(steps)
            if plain is None:
                items, steps = self._step(items, steps[0], within), steps[1:]
            else:
                step_count, path, variables = plain
                items, steps = f"{self._finder}({items}, {quote_string(path)}{variables})", steps[step_count:]
        return items

    def _plain(self, steps: tuple[Step, ...]) -> tuple[int, str, str] | None:
        """Return the longest prefix of the steps that jsonpath can express: its length, path and variables.

        None without one.
        """
        for step_count in range(len(steps), 0, -1):
            try:
                path, names = steps_to_jsonpath(steps[:step_count], number_variables(self._writer))
            except NotJsonpath:
                continue
            return step_count, path, jsonpath_variables(self._writer, names)
        return None

    def _step(self, items: str, step: Step, within: DynamicContext) -> str:
        """Write one step from each item. Positions in predicates count per item."""
        if step.axis == PARENT:
            nodes = f"tsql.xq_parents({items})"
            return self._all_filtered(nodes, step.predicates, within)
        path = quote_string("strict $" + node_filter(step.axis, step.test))
        if not step.predicates:
            return f"{self._finder}({items}, {path})"
        alias = self._alias()
        nodes = f"{self._finder}(jsonb_build_array({alias}.item), {path})"
        return (
            f"tsql.xq_flat((SELECT coalesce(jsonb_agg({self._all_filtered(nodes, step.predicates, within)} "
            f"ORDER BY {alias}.place), '[]') FROM jsonb_array_elements({items}) WITH ORDINALITY AS {alias} (item, place)))"
        )

    def _all_filtered(self, items: str, predicates: tuple[Expression, ...], within: DynamicContext) -> str:
        for predicate in predicates:
            items = self._filtered(items, predicate, within)
        return items

    def _filtered(self, items: str, predicate: Expression, within: DynamicContext) -> str:
        """Write the items that satisfy a predicate. A number selects a position."""
        match predicate:
            case Literal(text, True) if is_whole(text) and (place := parse_whole_number(text)) > 0:
                return f"tsql.xq_of(({items}) -> {place - 1})"
            case Call("last", ()):
                return f"tsql.xq_of(({items}) -> -1)"
        alias = self._alias()
        inner = replace(within, item=f"{alias}.item", place=f"{alias}.place", last=f"{alias}.last")
        if _is_numeric(predicate) or (isinstance(predicate, SqlReference) and self._value(predicate).kind == "number"):
            condition = f"{alias}.place = tsql.xq_number({self.sequence(predicate, inner)} -> 0)"
        else:
            condition = self.condition(predicate, inner)
        return (
            f"(SELECT coalesce(jsonb_agg({alias}.item ORDER BY {alias}.place), '[]') FROM (SELECT item, place, "
            f"count(*) OVER () AS last FROM jsonb_array_elements({items}) WITH ORDINALITY AS e (item, place)) AS {alias} "
            f"WHERE {condition})"
        )

    # ---------------------------------------------------------------- for, let, where, order by, return

    def _sources(
        self, clauses: tuple[Clause, ...], within: DynamicContext
    ) -> tuple[list[str], list[str], DynamicContext]:
        """Write the items of FROM, one after the other. Return them, their row positions, and the new context."""
        sources: list[str] = []
        places: list[str] = []
        for clause in clauses:
            alias, items = self._alias(), self.sequence(clause.of, within)
            if clause.kind == "let":
                sources.append(f"LATERAL (SELECT {items} AS items) AS {alias}")
                bound = {clause.name: f"{alias}.items"}
            else:
                sources.append(f"LATERAL jsonb_array_elements({items}) WITH ORDINALITY AS {alias} (item, place)")
                places.append(f"{alias}.place")
                bound = {clause.name: f"jsonb_build_array({alias}.item)"}
                if clause.place:
                    bound[clause.place] = f"jsonb_build_array({alias}.place)"
            within = replace(within, variables={**within.variables, **bound})
        return sources, places, within

    def _flwor(self, expression: Flwor, within: DynamicContext) -> str:
        """Write a FLWOR expression as one aggregation over LATERAL sources."""
        sources, places, inner = self._sources(
            tuple(clause for clause in expression.clauses if clause.kind != "where"), within
        )
        keys = [
            f"tsql.xq_atom({self.sequence(key.key, inner)} -> 0) {'DESC NULLS LAST' if key.is_descending else 'NULLS FIRST'}"
            for key in expression.order
        ]
        order = ", ".join([*keys, *places])
        conditions = [self.condition(clause.of, inner) for clause in expression.clauses if clause.kind == "where"]
        return (
            f"tsql.xq_flat((SELECT coalesce(jsonb_agg({self.sequence(expression.result, inner)}"
            f"{f' ORDER BY {order}' if order else ''}), '[]') FROM {', '.join(sources)}"
            f"{' WHERE ' + ' AND '.join(conditions) if conditions else ''}))"
        )

    # ---------------------------------------------------------------- functions, casts, constructors

    def _call(self, expression: Call, within: DynamicContext) -> str:
        name, arguments = expression
        if name in ("position", "last"):
            _check_arity(name, arguments, 0)
            return f"jsonb_build_array({within.place if name == 'position' else within.last})"
        if name.startswith("xs:") and len(arguments) == 1:
            return self._cast(arguments[0], name[3:], within)
        if name == "concat" and len(arguments) > 1:
            texts = ", ".join(self.text(argument, within) for argument in arguments)
            return f"jsonb_build_array(concat({texts}))"
        if name == "substring" and len(arguments) in (2, 3):
            rest = ", ".join(self.sequence(argument, within) for argument in arguments[1:])
            return f"tsql.xq_of(tsql.xq_substring(coalesce({self.text(arguments[0], within)}, ''), {rest}))"
        if name not in _FUNCTIONS:
            raise TsqlError(2395, f"XQuery: There is no function '{name}()'.")
        if name in _CONTEXT_ITEM_FUNCTIONS and not arguments:
            arguments = (ContextItem(),)
        _check_arity(name, arguments, 1)
        return _FUNCTIONS[name].replace("{0}", self.sequence(arguments[0], within))

    def _cast(self, expression: Expression, name: str, within: DynamicContext) -> str:
        """Write a cast of each item to a type."""
        if name not in _TYPES:
            raise not_supported(f"The type {name} in XQuery", f"The supported types are {', '.join(sorted(_TYPES))}.")
        items, written = self.sequence(expression, within), self._coding(expression)
        if written and name in BINARY_ENCODINGS:
            return f"tsql.xq_rewritten({items}, '{written}', '{BINARY_ENCODINGS[name]}')"
        return f"tsql.xq_cast({items}, '{name}')"

    def _coding(self, expression: Expression) -> str:
        """Return the encoding of an expression's bytes if the expression states it, "" for text."""
        match expression:
            case Call(name, (_,)):
                return BINARY_ENCODINGS.get(name.removeprefix("xs:"), "")
            case Cast(_, name):
                return BINARY_ENCODINGS.get(name, "")
            case Sequence((inside,)):
                return self._coding(inside)
            case SqlReference() if _is_binary(self._value(expression)):
                return "base64"
        return ""

    def _constructor(self, expression: Constructor, within: DynamicContext) -> str:
        """Write constructed elements and text as a sequence of nodes."""
        written = []
        for piece in expression.pieces:
            if isinstance(piece, str):
                written.append(quote_string(piece))
            else:
                function = "tsql.xq_in_attribute" if piece.is_attribute else "tsql.xq_content"
                written.append(f"{function}({self.sequence(piece.of, within)})")
        return f"tsql.xml_nodes({' || '.join(written)}, {quote_string(json.dumps(dict(expression.namespaces)))}::jsonb)"


def _is_binary(value: Sql) -> bool:
    return value.type is not None and value.type.name in BINARY_TYPES


def is_single(expression: Expression) -> bool:
    """Check whether an expression statically finds at most one item."""
    match expression:
        case Sequence(items):
            return len(items) == 0 or (len(items) == 1 and is_single(items[0]))
        case Filter(inside, predicates):
            return is_single(inside) or any(_is_single_position(predicate) for predicate in predicates)
        case Steps(root, _, steps):
            return (root is None or is_single(root)) and all(
                (
                    step.axis in (ATTRIBUTE_OF, SELF, PARENT)
                    and (step.test.local is not None or step.axis != ATTRIBUTE_OF)
                )
                or (step.axis == CHILD and any(_is_single_position(predicate) for predicate in step.predicates))
                for step in steps
            )
        case Conditional(_, yes, no):
            return is_single(yes) and is_single(no)
        case Cast(inside, _):
            return is_single(inside)
        case Binary(sign, left, right) if sign not in _SIGNS and sign not in ("or", "and"):
            return is_single(left) and is_single(right)
        case Call("data" | "distinct-values", (inside,)):
            return expression.name == "data" and is_single(inside)
    return not isinstance(expression, Flwor | Constructor)


def _is_single_position(predicate: Expression) -> bool:
    return predicate == Call("last", ()) or (isinstance(predicate, Literal) and predicate.is_number)


def _is_numeric(predicate: Expression) -> bool:
    """Check whether a predicate is a position and no condition."""
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
    """Rewrite `a/b/..` as `a[b]`, so that only a leading `..` needs the parent of a node."""
    folded: list[Step] = []
    for step in steps:
        if step.axis == PARENT and folded and folded[-1].axis in (CHILD, ATTRIBUTE_OF):
            path = Steps(None, False, (folded.pop(),))
            above = folded.pop() if folded else Step(SELF, Test(NODE))
            folded.append(above._replace(predicates=(*above.predicates, path, *step.predicates)))
        elif step != Step(SELF, Test(NODE)) or not folded:
            folded.append(step)
    return tuple(folded)


def _check_arity(name: str, arguments: tuple[Expression, ...], number: int) -> None:
    if len(arguments) != number:
        raise TsqlError(2233, f"XQuery: The function '{name}()' takes {number} argument(s), not {len(arguments)}.")


def _json_number(text: str) -> str:
    """Write a number in JSON's syntax."""
    whole = text if text[0].isdigit() else "0" + text
    return whole.replace(".e", ".0e").replace(".E", ".0e") if not whole.endswith(".") else whole + "0"
