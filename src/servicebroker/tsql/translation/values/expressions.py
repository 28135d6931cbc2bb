"""Scalar expressions and conditions."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sqlglot import exp

from servicebroker.model.zero_character import ZERO, to_postgres
from servicebroker.tsql.statement_errors import TsqlError, no_condition
from servicebroker.tsql.translation.queries.results import output_types, select_text
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    as_text,
    closed_text,
    identifier,
    is_predicate,
    moment_text,
    only,
    predicate_of,
    refused,
    string,
    unsupported,
    value_of,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.alternatives import alike, joined, result_type, wider
from servicebroker.tsql.translation.values.conversions import converted, filled, type_of_node
from servicebroker.tsql.translation.values.patterns import like
from servicebroker.tsql.types import (
    BIT,
    EXACT,
    FLOAT,
    INT,
    INTEGERS,
    MONEY,
    NVARCHAR,
    PADDED,
    VARIANT,
    SqlType,
    postgres_type,
)
from servicebroker.tsql.whole_numbers import whole_number

CONDITION = SqlType("boolean")  # of no value
ONE = Sql("1", INT)


@value_of(exp.Literal)
def _literal(writer: Writer, node: exp.Literal) -> Sql:
    if node.is_string:
        return Sql(string(to_postgres(node.this)), SqlType("varchar", max(1, len(node.this))), is_open=True)
    digits = node.this
    if "e" in digits.lower():
        return Sql(f"{digits}::float8", FLOAT)
    if "." in digits:
        whole, fraction = digits.split(".")
        return Sql(digits, SqlType("decimal", None, max(1, len(whole.lstrip("0") + fraction)), len(fraction)))
    if whole_number(digits) < 2**31:
        return Sql(digits, INT)
    return Sql(f"{digits}::numeric", SqlType("decimal", None, min(38, len(digits)), 0))


@value_of(exp.National)
def _national(writer: Writer, node: exp.National) -> Sql:
    text = node.this if isinstance(node.this, str) else node.this.name
    return Sql(string(to_postgres(text)), SqlType("nvarchar", max(1, len(text))), is_open=True)


@value_of(exp.HexString)
def _bytes(writer: Writer, node: exp.HexString) -> Sql:
    digits = node.this if len(node.this) % 2 == 0 else "0" + node.this
    return Sql(f"'\\x{digits.lower()}'::bytea", SqlType("varbinary", max(1, len(digits) // 2)))


@value_of(exp.Null)
def _null(writer: Writer, node: exp.Null) -> Sql:
    return Sql("NULL", None, is_open=True)


@value_of(exp.Parameter)
def _parameter(writer: Writer, node: exp.Parameter) -> Sql:
    return writer.variable("@" + node.name)


@value_of(exp.Column)
def _column(writer: Writer, node: exp.Column) -> Sql:
    if isinstance(node.this, exp.Star):
        raise unsupported(node, "A star stands in the list of SELECT only.")
    name = node.this.name
    if name.lower() in ("$rowguid", "$identity", "$action"):
        raise refused(name, "Name the column.")
    alias = node.table.lower()
    if alias and node.args["table"].args.get("temporary"):
        alias = "#" + alias
    found = writer.column(alias, name.lower())
    written = identifier(name) if not alias else f"{writer.alias(alias)}.{identifier(name)}"
    if found is None and not writer.sources:
        raise TsqlError(207, f"Invalid column name '{name}'.")
    if found is None:
        return Sql(written, None)
    return Sql(moment_text(written, found[1]), found[1].type)


@value_of(exp.Identifier)
def _name(writer: Writer, node: exp.Identifier) -> Sql:
    return write_value(writer, exp.Column(this=node.copy()))


@value_of(exp.Dot)
def _dot(writer: Writer, node: exp.Dot) -> Sql:
    from servicebroker.tsql.translation.documents.xml_methods import method  # it writes values too

    return method(writer, node)


@value_of(exp.Paren)
def _paren(writer: Writer, node: exp.Paren) -> Sql:
    inside = write_value(writer, node.this)
    return inside if inside.is_open else Sql(f"({inside.text})", inside.type)


@predicate_of(exp.Paren)
def _paren_condition(writer: Writer, node: exp.Paren) -> str:
    return f"({write_predicate(writer, node.this)})"


@value_of(exp.Collate)
def _collate(writer: Writer, node: exp.Collate) -> Sql:
    only(node, "this", "expression")
    name = node.expression.name.lower()
    inside = write_value(writer, node.this)
    if "_ci" in name and name != "database_default":
        return Sql(as_text(inside), SqlType("sysname", 128))
    return Sql(inside.text, inside.type if inside.type and inside.type.name != "sysname" else NVARCHAR, inside.is_open)


@value_of(exp.Add)
def _add(writer: Writer, node: exp.Add) -> Sql:
    left, right = _nulls_typed(
        write_value(writer, node.this), write_value(writer, node.expression), {"string", "binary"}
    )
    _check_variant(left, right, "add")
    kinds = {left.kind, right.kind} - ({None} if left.is_open or right.is_open else set())
    if kinds <= {"string"} or kinds == {"binary"}:
        texts = [closed_text(each) if each.is_open else filled(each) for each in (left, right)]
        return Sql(f"({' || '.join(texts)})", joined(left.type, right.type))
    if kinds == {"number"}:
        _check_bits(left, right, "add")
        return _calculated(f"({left.text} + {right.text})", result_type("+", left, right))
    if "date" in kinds:
        return _moved(left, right, "+")
    if None in kinds:
        return Sql(f"tsql.plus({closed_text(left)}, {closed_text(right)})", None)
    if kinds in ({"string", "number"}, {"binary", "number"}):
        number = left if left.kind == "number" else right
        assert number.type is not None
        return _calculated(f"({_numeric(left, number.type)} + {_numeric(right, number.type)})", number.type)
    raise _no_operation(left, right, "add")


_IN_DAYS = frozenset({"datetime", "smalldatetime"})  # with which one calculates; the others want DATEADD


def _moved(left: Sql, right: Sql, sign: str) -> Sql:
    """A datetime and a number of days, or another one: days since 1900.

    Raises:
        TsqlError: 206 and 402 for other types of dates, and for what is no number.
    """
    for date, other in ((left, right), (right, left)):
        if date.kind == "date" and date.type is not None and date.type.name not in _IN_DAYS:
            if other.kind == "number":
                raise _clash(date, other)
            raise _incompatible(left, right, "add" if sign == "+" else "subtract")
        if date.kind == "date" and other.kind not in ("date", "number", "string", "binary", None):
            raise _clash(other, date)
    of = left.type if left.kind == "date" else right.type
    assert of is not None
    texts = [_beside_moment(each, of) for each in (left, right)]
    return Sql(f"tsql.{'plus' if sign == '+' else 'minus'}({', '.join(texts)})", of)


def _beside_moment(value: Sql, of: SqlType) -> str:
    return converted(value, of).text if value.kind in ("string", "binary") else closed_text(value)


def _nulls_typed(left: Sql, right: Sql, others: Set[str] = frozenset()) -> tuple[Sql, Sql]:
    """What is calculated with: an untyped NULL is an int, but beside these kinds of `others`."""
    null = Sql("NULL::integer", INT)
    is_null = [value.is_open and value.type is None for value in (left, right)]
    return (
        null if is_null[0] and right.kind not in others else left,
        null if is_null[1] and left.kind not in others else right,
    )


def _numeric(value: Sql, of: SqlType) -> str:
    """A string or binary beside a number becomes one."""
    return converted(value, of).text if value.kind in ("string", "binary") else value.text


@value_of(exp.Sub, exp.Mul, exp.Div, exp.Mod)
def _arithmetic(writer: Writer, node: exp.Binary) -> Sql:
    sign = {exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}[type(node)]
    left, right = _nulls_typed(write_value(writer, node.this), write_value(writer, node.expression))
    _check_variant(left, right, operator_name(sign))
    if "date" in (left.kind, right.kind):
        if sign == "-":
            return _moved(left, right, "-")
        raise _no_operation(left, right, operator_name(sign))
    kinds = {left.kind, right.kind}
    if not kinds <= {"number", "string", None} and kinds != {"number", "binary"}:
        raise _no_operation(left, right, operator_name(sign))
    _check_bits(left, right, operator_name(sign))
    if {left.kind, right.kind} <= {"string"}:
        raise TsqlError(
            402, f"The data types varchar and varchar are incompatible in the {operator_name(sign)} operator."
        )
    if sign == "-" and None in (left.kind, right.kind) and not (left.is_open or right.is_open):
        known = left.kind or right.kind
        if known != "number":
            return Sql(f"tsql.minus({closed_text(left)}, {closed_text(right)})", None)
    number = (
        left.type
        if right.kind in ("string", "binary")
        else right.type
        if left.kind in ("string", "binary")
        else result_type(sign, left, right)
    )
    if number is not None and number.name in (INTEGERS | EXACT | {"float", "real"}):
        texts = [_numeric(left, number), _numeric(right, number)]
    else:
        texts = [left.text, right.text]
    if sign in "*/" and number is not None and number.name in EXACT:
        return _calculated(_to_scale(sign, texts, number), number)
    if sign == "%" and number is not None and number.name in ("float", "real"):
        texts = [f"{text}::numeric" for text in texts]
    return _calculated(f"({texts[0]} {sign} {texts[1]})", number)


def _calculated(text: str, of: SqlType | None) -> Sql:
    """A result with the bounds of its type: tinyint is a smallint of PostgreSQL, which would let 300 pass, and money
    a numeric with others.
    """
    if of is not None and of.name == "tinyint":
        return Sql(f"tsql.tiny({text})", of)
    if of is not None and of.name in MONEY:
        return in_bounds(text, of)
    return Sql(text, of)


def in_bounds(text: str, of: SqlType) -> Sql:
    """Money that was calculated, which PostgreSQL has without SQL Server's bounds."""
    return Sql(f"tsql.to_{of.name}(({text})::numeric)::{postgres_type(of)}", of)


def _to_scale(sign: str, texts: Sequence[str], of: SqlType) -> str:
    """A product or quotient with the digits of its type: the one is rounded, the other cut."""
    is_money = of.name != "decimal"
    name = "trunc" if sign == "/" else "round"
    first = f"{texts[0]}::numeric" if sign == "/" else texts[0]
    return f"{name}({first} {sign} {texts[1]}, {4 if is_money else of.scale})"


def operator_name(sign: str) -> str:
    """The word of an arithmetic sign."""
    return {"-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}[sign]


@value_of(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
def _bits(writer: Writer, node: exp.Binary) -> Sql:
    sign = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "#"}[type(node)]
    left, right = _nulls_typed(write_value(writer, node.this), write_value(writer, node.expression))
    for number, other in ((left.type, right), (right.type, left)):
        if number is not None and number.name in INTEGERS and other.kind == "binary":  # COLUMNS_UPDATED() & 4
            return Sql(f"({_numeric(left, number)} {sign} {_numeric(right, number)})", number)
    return Sql(f"({left.text} {sign} {right.text})", wider(left.type, right.type))


@value_of(exp.BitwiseLeftShift, exp.BitwiseRightShift)
def _shift(writer: Writer, node: exp.Binary) -> Sql:
    name = "left" if isinstance(node, exp.BitwiseLeftShift) else "right"
    left, right = _nulls_typed(write_value(writer, node.this), write_value(writer, node.expression))
    return Sql(f"tsql.{name}_shift({left.text}, {right.text}::integer)", wider(left.type, INT))


@value_of(exp.BitwiseNot)
def _bit_not(writer: Writer, node: exp.BitwiseNot) -> Sql:
    inside, _ = _nulls_typed(write_value(writer, node.this), ONE)
    return Sql(f"(~ {inside.text})", inside.type)


@value_of(exp.Neg)
def _negative(writer: Writer, node: exp.Neg) -> Sql:
    inside, _ = _nulls_typed(write_value(writer, node.this), ONE)
    is_tiny = inside.type is not None and inside.type.name == "tinyint"  # which has no negative numbers
    return Sql(f"(- {inside.text})", SqlType("smallint") if is_tiny else inside.type)


def _check_variant(left: Sql, right: Sql, operator: str) -> None:
    if VARIANT in (left.type, right.type):
        raise TsqlError(403, f"Invalid operator for data type. Operator equals {operator}, type equals sql_variant.")


def _check_bits(left: Sql, right: Sql, operator: str) -> None:
    """Flags are no numbers to calculate with. Raises: TsqlError: 402."""
    if left.type == right.type == BIT:
        raise _incompatible(left, right, operator)


def _clash(one: Sql, other: Sql) -> TsqlError:
    return TsqlError(206, f"Operand type clash: {_shown(one)} is incompatible with {_shown(other)}", state=2)


def _no_operation(left: Sql, right: Sql, operator: str) -> TsqlError:
    """Why two values have no sum, product or the like: 8117, 257, 206 or 402."""
    if left.kind == right.kind:
        return TsqlError(8117, f"Operand data type {_shown(left)} is invalid for {operator} operator.")
    kinds = {left.kind, right.kind}
    if kinds == {"date", "number"}:
        date, number = (left, right) if left.kind == "date" else (right, left)
        return TsqlError(
            257, f"Implicit conversion from data type {_shown(date)} to {_shown(number)} is not allowed. "
            "Use the CONVERT function to run this query.", state=3,
        )  # fmt: skip
    if "number" in kinds and "string" not in kinds:
        return _clash(left, right)
    return _incompatible(left, right, operator)


def _incompatible(left: Sql, right: Sql, operator: str) -> TsqlError:
    return TsqlError(
        402, f"The data types {_shown(left)} and {_shown(right)} are incompatible in the {operator} operator."
    )


def _shown(value: Sql) -> str:
    return value.type.name if value.type else "NULL"


@predicate_of(exp.And, exp.Or)
def _junction(writer: Writer, node: exp.Connector) -> str:
    word = "AND" if isinstance(node, exp.And) else "OR"
    parts = [write_predicate(writer, part) for part in node.flatten() if isinstance(part, exp.Expression)]
    return "(" + f" {word} ".join(parts) + ")"


@predicate_of(exp.Not)
def _not(writer: Writer, node: exp.Not) -> str:
    return f"(NOT {write_predicate(writer, node.this)})"


@predicate_of(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
def _comparison(writer: Writer, node: exp.Binary) -> str:
    signs = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
    sign = signs[type(node)]
    left = write_value(writer, node.this)
    if isinstance(node.expression, exp.Any | exp.All):
        word = "ANY" if isinstance(node.expression, exp.Any) else "ALL"
        query = node.expression.this
        inside = write_value(writer, query if isinstance(query, exp.Subquery) else exp.Subquery(this=query.copy()))
        return f"{left.text} {sign} {word} {inside.text}"
    compare = _compared if sign in ("=", "<>") else _in_order
    one, other = compare((node.this, left), (node.expression, write_value(writer, node.expression)))
    return f"{one} {sign} {other}"


@predicate_of(exp.NullSafeEQ, exp.NullSafeNEQ)
def _null_safe(writer: Writer, node: exp.Binary) -> str:
    word = "IS NOT DISTINCT FROM" if isinstance(node, exp.NullSafeEQ) else "IS DISTINCT FROM"
    one, other = _compared(*((each, write_value(writer, each)) for each in (node.this, node.expression)))
    return f"({one} {word} {other})"


_Written = tuple[exp.Expression, Sql]
_OF_ROWS = (exp.Column, exp.Identifier, exp.Subquery, exp.Select)


def _compared(left: _Written, right: _Written) -> tuple[str, str]:
    """Two values that are compared, made comparable. Blanks at the end of a string do not count.

    A column of varchar keeps those that are stored, and what it is compared with its own: so its index is used, and a
    value that was read from it is found again.

    Raises:
        TsqlError: those of `matched`.
    """
    if not left[1].kind == right[1].kind == "string":
        return matched(left[1], right[1])
    is_loose = all(_is_padded(value) or not isinstance(node.unnest(), _OF_ROWS) for node, value in (left, right))
    one, other = (
        _without_blanks(value) if not isinstance(node, exp.Column) and (is_loose or _is_padded(value)) else value
        for node, value in (left, right)
    )
    return matched(one, other)


def _in_order(left: _Written, right: _Written) -> tuple[str, str]:
    """Two values of which the lower is sought, as `_compared`; U+0000 is the lowest character.

    Beside a column the strings stay as they are, so that its index is used: there it is the highest one.
    """
    one, other = _compared(left, right)
    is_plain = all(value.is_open and not _LOWEST & {*value.text} for _, value in (left, right))
    of_rows = any(isinstance(node.unnest(), _OF_ROWS) for node, _ in (left, right))
    if is_plain or of_rows or not left[1].kind == right[1].kind == "string":
        return one, other
    return f"tsql.in_order({one})", f"tsql.in_order({other})"


_LOWEST = {ZERO, "\1"}


def _is_padded(value: Sql) -> bool:
    return value.type is not None and value.type.name in PADDED


def _without_blanks(value: Sql) -> Sql:
    if value.is_open:  # a string in quotes
        return value._replace(text=f"{value.text[:-1].rstrip(' ')}'")
    return value._replace(text=f"rtrim({value.text}, ' ')")


def matched(left: Sql, right: Sql) -> tuple[str, str]:
    """Two values that are compared, made comparable.

    Raises:
        TsqlError: 402 for types that cannot be compared.
    """
    if VARIANT in (left.type, right.type):
        return f"tsql.variant_compare({converted(left, VARIANT).text}, {converted(right, VARIANT).text})", "0"
    if left.kind == right.kind == "string":
        assert left.type is not None
        assert right.type is not None
        if "sysname" in (left.type.name, right.type.name):
            return f"lower({as_text(left)})", f"lower({as_text(right)})"
        return left.text, right.text
    if left.kind == "string" and right.kind not in (None, "string"):
        assert right.type is not None
        return _beside(left, right.type), right.text
    if right.kind == "string" and left.kind not in (None, "string"):
        assert left.type is not None
        return left.text, _beside(right, left.type)
    for one, other in ((left, right), (right, left)):  # a number of days since 1900
        if one.kind == "number" and other.type is not None and other.type.name in ("datetime", "smalldatetime"):
            days = converted(one, other.type).text
            return (days, other.text) if one is left else (other.text, days)
    if left.kind and right.kind and left.kind != right.kind and not {left.kind, right.kind} <= {"number", "binary"}:
        raise _incompatible(left, right, "equal to")
    if {left.kind, right.kind} == {"number", "binary"}:
        assert left.type is not None
        assert right.type is not None
        number = left.type if left.kind == "number" else right.type
        return converted(left, number).text, converted(right, number).text
    return _as_written(left.text), _as_written(right.text)


def _as_written(text: str) -> str:
    """A constant without its type: beside a column of bigint it is one, and its index is used."""
    return text.removesuffix("::numeric") if text.removesuffix("::numeric").isdigit() else text


def _beside(value: Sql, of: SqlType) -> str:
    """A string that is compared with a value of another type: it becomes one of that type."""
    if value.is_open and of.name in ("uniqueidentifier", "date"):
        return value.text
    if of.name == "xml":
        raise TsqlError(305, "The XML data type cannot be compared or sorted, except when using the IS NULL operator.")
    return converted(value, of).text


@predicate_of(exp.Is)
def _is(writer: Writer, node: exp.Is) -> str:
    if not isinstance(node.expression, exp.Null):
        raise unsupported(node)
    return f"({closed_text(write_value(writer, node.this))} IS NULL)"


@predicate_of(exp.Between)
def _between(writer: Writer, node: exp.Between) -> str:
    only(node, "this", "low", "high")
    value = write_value(writer, node.this)
    low, high = (
        _in_order((node.this, value), (node.args[end], write_value(writer, node.args[end]))) for end in ("low", "high")
    )
    return f"({low[0]} >= {low[1]} AND {high[0]} <= {high[1]})"


@predicate_of(exp.In)
def _in(writer: Writer, node: exp.In) -> str:
    only(node, "this", "expressions", "query")
    value = write_value(writer, node.this)
    query = node.args.get("query")
    if query is not None:
        return f"({value.text} IN {write_value(writer, query).text})"
    pairs = [_compared((node.this, value), (each, write_value(writer, each))) for each in node.expressions]
    if len({one for one, _ in pairs}) == 1:
        return f"({pairs[0][0]} IN ({', '.join(other for _, other in pairs)}))"
    return "(" + " OR ".join(f"{one} = {other}" for one, other in pairs) + ")"


@predicate_of(exp.Exists)
def _exists(writer: Writer, node: exp.Exists) -> str:
    query = node.this.this if isinstance(node.this, exp.Subquery) else node.this
    return f"EXISTS ({select_text(writer, query)})"


@predicate_of(exp.Like)
def _like(writer: Writer, node: exp.Like) -> str:
    only(node, "this", "expression", "negate")
    found = like(write_value(writer, node.this), write_value(writer, node.expression), None)
    return f"(NOT {found})" if node.args.get("negate") else found


@predicate_of(exp.Escape)
def _escape(writer: Writer, node: exp.Escape) -> str:
    inside = node.this
    if not isinstance(inside, exp.Like):
        raise unsupported(node)
    sign = write_value(writer, node.expression)
    found = like(write_value(writer, inside.this), write_value(writer, inside.expression), sign)
    return f"(NOT {found})" if inside.args.get("negate") else found


@value_of(exp.Case)
def _case(writer: Writer, node: exp.Case) -> Sql:
    only(node, "this", "ifs", "default")
    of = node.this and write_value(writer, node.this)
    conditions, results = [], []
    for branch in node.args["ifs"]:
        if of is None:
            conditions.append(write_predicate(writer, branch.this))
        else:
            tested = _compared((node.this, of), (branch.this, write_value(writer, branch.this)))
            conditions.append(" = ".join(tested))
        results.append(write_value(writer, branch.args["true"]))
    default = node.args.get("default")
    if default is not None:
        results.append(write_value(writer, default))
    kind, texts = alike(results)
    branches = [f" WHEN {condition} THEN {text}" for condition, text in zip(conditions, texts, strict=False)]
    last = f" ELSE {texts[-1]}" if default is not None else ""
    return Sql(f"(CASE{''.join(branches)}{last} END)", kind)


@value_of(exp.If)
def _iif(writer: Writer, node: exp.If) -> Sql:
    only(node, "this", "true", "false")
    results = [write_value(writer, node.args[part]) for part in ("true", "false")]
    kind, (yes, no) = alike(results)
    return Sql(f"(CASE WHEN {write_predicate(writer, node.this)} THEN {yes} ELSE {no} END)", kind)


@value_of(exp.Coalesce)
def _coalesce(writer: Writer, node: exp.Coalesce) -> Sql:
    only(node, "this", "expressions")
    kind, texts = alike([write_value(writer, each) for each in [node.this, *node.expressions]])
    return Sql(f"COALESCE({', '.join(texts)})", kind)


@value_of(exp.Nullif)
def _nullif(writer: Writer, node: exp.Nullif) -> Sql:
    left = write_value(writer, node.this)
    one, other = _compared((node.this, left), (node.expression, write_value(writer, node.expression)))
    return Sql(f"(CASE WHEN {one} = {other} THEN NULL ELSE {closed_text(left)} END)", left.type)


@value_of(exp.Subquery)
def _subquery(writer: Writer, node: exp.Subquery) -> Sql:
    only(node, "this")
    text = select_text(writer, node.this)
    types = output_types(writer, node.this)
    return Sql(f"({text})", types[0] if types and len(types) == 1 else None)


@value_of(exp.Tuple)
def _tuple(writer: Writer, node: exp.Tuple) -> Sql:
    raise no_condition()


@value_of(exp.Cast, exp.TryCast)
def _cast(writer: Writer, node: exp.Cast) -> Sql:
    only(node, "this", "to", "safe")
    return converted(
        write_value(writer, node.this), type_of_node(node.args["to"]), attempt=isinstance(node, exp.TryCast)
    )


@value_of(exp.Convert)
def _convert(writer: Writer, node: exp.Convert) -> Sql:
    only(node, "this", "expression", "style", "safe")
    style = node.args.get("style")
    return converted(
        write_value(writer, node.expression),
        type_of_node(node.this),
        style=write_value(writer, style).text if style is not None else None,
        attempt=bool(node.args.get("safe")),
    )


@value_of(exp.Concat)
def _adjacent(writer: Writer, node: exp.Concat) -> Sql:
    raise TsqlError(102, "Incorrect syntax: two strings stand side by side.", severity=15)


def condition_or_value(writer: Writer, node: exp.Expression) -> Sql:
    """A condition or a value, for an expression of which both may come."""
    if is_predicate(node):
        return Sql(f"({write_predicate(writer, node)})", CONDITION)
    return write_value(writer, node)
