"""Scalar expressions and conditions."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sqlglot import exp

from servicebroker.model.zero_character import ZERO, to_postgres
from servicebroker.tsql.collations import Collation, check_collation
from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError, condition_expected
from servicebroker.tsql.translation.queries.results import query_outputs, select_text
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    allow_only,
    finish_value,
    folded_text,
    is_predicate,
    node_not_supported,
    not_supported,
    quote_identifier,
    quote_string,
    timestamp_text,
    typed_text,
    write_predicate,
    write_value,
    writes_predicate,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value, chosen_offset, first_offset, pad_char, read_type
from servicebroker.tsql.translation.values.comparability import check_comparable
from servicebroker.tsql.translation.values.patterns import write_like
from servicebroker.tsql.translation.values.type_precedence import (
    arithmetic_type,
    concatenated_type,
    unify_types,
    wider_type,
)
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
from servicebroker.tsql.whole_numbers import parse_whole_number

CONDITION_TYPE = SqlType("boolean")  # the type of conditions; no value has it
_ONE = Sql("1", INT)
MAX_PRECISION = 38  # digits of a decimal


@writes_value(exp.Literal)
def _literal(writer: Writer, node: exp.Literal) -> Sql:
    if node.is_string:
        return Sql(quote_string(to_postgres(node.this)), SqlType("varchar", max(1, len(node.this))), is_untyped=True)
    digits = node.this
    if "e" in digits.lower():
        return Sql(f"{digits}::float8", FLOAT)
    if "." in digits:
        whole, fraction = digits.split(".")
        return Sql(digits, SqlType("decimal", None, max(1, len(whole.lstrip("0") + fraction)), len(fraction)))
    if parse_whole_number(digits) < 2**31:
        return Sql(digits, INT)
    return Sql(f"{digits}::numeric", SqlType("decimal", None, min(38, len(digits)), 0))


@writes_value(exp.National)
def _national(writer: Writer, node: exp.National) -> Sql:
    text = node.this if isinstance(node.this, str) else node.this.name
    return Sql(quote_string(to_postgres(text)), SqlType("nvarchar", max(1, len(text))), is_untyped=True)


@writes_value(exp.HexString)
def _bytes(writer: Writer, node: exp.HexString) -> Sql:
    digits = node.this if len(node.this) % 2 == 0 else "0" + node.this
    return Sql(f"'\\x{digits.lower()}'::bytea", SqlType("varbinary", max(1, len(digits) // 2)))


@writes_value(exp.Null)
def _null(writer: Writer, node: exp.Null) -> Sql:
    return Sql("NULL", None, is_untyped=True)


@writes_value(exp.Parameter)
def _parameter(writer: Writer, node: exp.Parameter) -> Sql:
    return writer.variable("@" + node.name)


@writes_value(exp.Column)
def _column(writer: Writer, node: exp.Column) -> Sql:
    """Write a column. Its type is None if no visible table has it."""
    if isinstance(node.this, exp.Star):
        raise node_not_supported(node, "A star stands in the list of SELECT only.")
    name = node.this.name
    if name.lower() == "$identity" and (identity := writer.identity_column(node.table.lower())):
        name = identity
    if name.lower() in ("$rowguid", "$identity", "$action"):
        raise not_supported(name, "Name the column.")
    alias = node.table.lower()
    if alias and node.args["table"].args.get("temporary"):
        alias = "#" + alias
    source_column = writer.column(alias, name.lower())
    if writer.qualifies_columns and not alias and source_column is not None:
        alias = source_column[0].alias
    written = quote_identifier(name) if not alias else f"{writer.alias(alias)}.{quote_identifier(name)}"
    if source_column is None and not writer.sources:
        raise TsqlError(207, f"Invalid column name '{name}'.")
    if source_column is None:
        return Sql(written, None)
    column = source_column[1]
    if not column.collation:
        return Sql(timestamp_text(written, column), column.type)
    writer.has_collations = True
    return Sql(written, column.type, collation=Collation(column.collation))


@writes_value(exp.Identifier)
def _name(writer: Writer, node: exp.Identifier) -> Sql:
    return write_value(writer, exp.Column(this=node.copy()))


@writes_value(exp.Dot)
def _dot(writer: Writer, node: exp.Dot) -> Sql:
    from servicebroker.tsql.translation.documents.xml_methods import (
        write_method,  # at run time: the module imports this one
    )

    return write_method(writer, node)


@writes_value(exp.Paren)
def _paren(writer: Writer, node: exp.Paren) -> Sql:
    inside = write_value(writer, node.this)
    return inside if inside.is_untyped else inside._replace(text=f"({inside.text})")


@writes_predicate(exp.Paren)
def _paren_condition(writer: Writer, node: exp.Paren) -> str:
    return f"({write_predicate(writer, node.this)})"


@writes_value(exp.Collate)
def _collate(writer: Writer, node: exp.Collate) -> Sql:
    allow_only(node, "this", "expression")
    collation = Collation(check_collation(node.expression.name), is_explicit=True)
    writer.has_collations = True
    inside = write_value(writer, node.this)
    sql_type = inside.type if inside.type and inside.type.name != "sysname" else NVARCHAR
    return Sql(inside.text, sql_type, inside.is_untyped, collation=collation)


@writes_value(exp.Add)
def _add(writer: Writer, node: exp.Add) -> Sql:
    """Write `+`: a sum, a concatenation, or a date moved by days, by the types of the operands.

    Scripts concatenate hundreds of strings, so that a chain is written without recursion.
    """
    chain = [node]
    while isinstance(chain[-1].this, exp.Add):
        chain.append(chain[-1].this)
    written = write_value(writer, chain[-1].this)
    for part in reversed(chain):
        written = _write_sum(written, write_value(writer, part.expression))
        if part is not node:
            written = finish_value(writer, part, written)
    return written


def _write_sum(first: Sql, second: Sql) -> Sql:
    left, right = _type_null_operands(first, second, {"string", "binary"})
    _check_variant(left, right, "add")
    kinds = {left.kind, right.kind} - ({None} if left.is_untyped or right.is_untyped else set())
    if kinds <= {"string"} or kinds == {"binary"}:
        texts = [typed_text(operand) if operand.is_untyped else pad_char(operand) for operand in (left, right)]
        return Sql(f"({' || '.join(texts)})", concatenated_type(left.type, right.type))
    if kinds == {"number"}:
        _check_bits(left, right, "add")
        return _within_bounds(f"({left.text} + {right.text})", arithmetic_type("+", left, right))
    if "date" in kinds:
        return _shift_datetime(left, right, "+")
    if None in kinds:
        return Sql(f"tsql.plus({typed_text(left)}, {typed_text(right)})", None)
    if kinds in ({"string", "number"}, {"binary", "number"}):
        number = left if left.kind == "number" else right
        assert number.type is not None
        return _within_bounds(f"({_numeric(left, number.type)} + {_numeric(right, number.type)})", number.type)
    raise _operand_error(left, right, "add")


_DAY_ARITHMETIC_TYPES = frozenset({"datetime", "smalldatetime"})  # + and - take these; other date types need DATEADD


def _shift_datetime(left: Sql, right: Sql, sign: str) -> Sql:
    """Write datetime plus or minus a number of days, or another datetime counted as days since 1900.

    Raises:
        TsqlError: 206 and 402 another date type, or an operand that is not a number.
    """
    for date, other in ((left, right), (right, left)):
        if date.kind == "date" and date.type is not None and date.type.name not in _DAY_ARITHMETIC_TYPES:
            if other.kind == "number":
                raise _type_clash(date, other)
            raise _incompatible_types(left, right, "add" if sign == "+" else "subtract")
        if date.kind == "date" and other.kind not in ("date", "number", "string", "binary", None):
            raise _type_clash(other, date)
    sql_type = left.type if left.kind == "date" else right.type
    assert sql_type is not None
    texts = [_datetime_operand(operand, sql_type) for operand in (left, right)]
    return Sql(f"tsql.{'plus' if sign == '+' else 'minus'}({', '.join(texts)})", sql_type)


def _datetime_operand(value: Sql, sql_type: SqlType) -> str:
    return cast_value(value, sql_type).text if value.kind in ("string", "binary") else typed_text(value)


def _type_null_operands(left: Sql, right: Sql, others: Set[str] = frozenset()) -> tuple[Sql, Sql]:
    """Give untyped NULL operands the type int, unless the other operand is of one of the families `others`."""
    null = Sql("NULL::integer", INT)
    is_null = [value.is_untyped and value.type is None for value in (left, right)]
    return (
        null if is_null[0] and right.kind not in others else left,
        null if is_null[1] and left.kind not in others else right,
    )


def _numeric(value: Sql, sql_type: SqlType) -> str:
    """Write a string or binary operand beside a number, converted to the number's type."""
    return cast_value(value, sql_type).text if value.kind in ("string", "binary") else value.text


@writes_value(exp.Sub, exp.Mul, exp.Div, exp.Mod)
def _arithmetic(writer: Writer, node: exp.Binary) -> Sql:
    """Write `-`, `*`, `/` and `%` with the result type of SQL Server."""
    sign = {exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}[type(node)]
    left, right = _type_null_operands(write_value(writer, node.this), write_value(writer, node.expression))
    _check_variant(left, right, operator_name(sign))
    if "date" in (left.kind, right.kind):
        if sign == "-":
            return _shift_datetime(left, right, "-")
        raise _operand_error(left, right, operator_name(sign))
    kinds = {left.kind, right.kind}
    if not kinds <= {"number", "string", None} and kinds != {"number", "binary"}:
        raise _operand_error(left, right, operator_name(sign))
    _check_bits(left, right, operator_name(sign))
    if {left.kind, right.kind} <= {"string"}:
        raise TsqlError(
            402, f"The data types varchar and varchar are incompatible in the {operator_name(sign)} operator."
        )
    if sign == "-" and None in (left.kind, right.kind) and not (left.is_untyped or right.is_untyped):
        kind = left.kind or right.kind
        if kind != "number":
            return Sql(f"tsql.minus({typed_text(left)}, {typed_text(right)})", None)
    number = (
        left.type
        if right.kind in ("string", "binary")
        else right.type
        if left.kind in ("string", "binary")
        else arithmetic_type(sign, left, right)
    )
    if number is not None and number.name in (INTEGERS | EXACT | {"float", "real"}):
        texts = [_numeric(left, number), _numeric(right, number)]
    else:
        texts = [left.text, right.text]
    if sign in "*/" and number is not None and number.name in EXACT:
        return _within_bounds(_round_money_or_decimal(sign, texts, number), number)
    if sign == "%" and number is not None and number.name in ("float", "real"):
        texts = [f"{text}::numeric" for text in texts]
    return _within_bounds(f"({texts[0]} {sign} {texts[1]})", number)


def _within_bounds(text: str, sql_type: SqlType | None) -> Sql:
    """Check a result against the bounds of its type if PostgreSQL's type is wider.

    A tinyint is a smallint there, money a numeric. A decimal of fewer than 38 digits has room for every result.
    """
    if sql_type is not None and sql_type.name == "tinyint":
        return Sql(f"tsql.tiny({text})", sql_type)
    if sql_type is not None and sql_type.name in MONEY:
        return money_in_bounds(text, sql_type)
    if sql_type is not None and sql_type.name == "decimal" and sql_type.precision == MAX_PRECISION:
        return Sql(f"tsql.wide({text})", sql_type)
    return Sql(text, sql_type)


def money_in_bounds(text: str, sql_type: SqlType) -> Sql:
    """Write calculated money, checked against SQL Server's bounds."""
    return Sql(f"tsql.to_{sql_type.name}(({text})::numeric)::{postgres_type(sql_type)}", sql_type)


def _round_money_or_decimal(sign: str, texts: Sequence[str], sql_type: SqlType) -> str:
    """Write a product, rounded, or a quotient, truncated, to the scale of its type."""
    is_money = sql_type.name != "decimal"
    name = "trunc" if sign == "/" else "round"
    first = f"{texts[0]}::numeric" if sign == "/" else texts[0]
    return f"{name}({first} {sign} {texts[1]}, {4 if is_money else sql_type.scale})"


def operator_name(sign: str) -> str:
    """Return the word for an arithmetic sign in errors."""
    return {"-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}[sign]


@writes_value(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
def _bits(writer: Writer, node: exp.Binary) -> Sql:
    sign = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "#"}[type(node)]
    left, right = _type_null_operands(write_value(writer, node.this), write_value(writer, node.expression))
    for number, other in ((left.type, right), (right.type, left)):
        # COLUMNS_UPDATED() & 4, '5' & 1
        if number is not None and number.name in INTEGERS and other.kind in ("binary", "string"):
            return Sql(f"({_numeric(left, number)} {sign} {_numeric(right, number)})", number)
    return Sql(f"({left.text} {sign} {right.text})", wider_type(left.type, right.type))


@writes_value(exp.BitwiseLeftShift, exp.BitwiseRightShift)
def _shift(writer: Writer, node: exp.Binary) -> Sql:
    name = "left" if isinstance(node, exp.BitwiseLeftShift) else "right"
    left, right = _type_null_operands(write_value(writer, node.this), write_value(writer, node.expression))
    return Sql(f"tsql.{name}_shift({left.text}, {right.text}::integer)", wider_type(left.type, INT))


@writes_value(exp.BitwiseNot)
def _bit_not(writer: Writer, node: exp.BitwiseNot) -> Sql:
    inside, _ = _type_null_operands(write_value(writer, node.this), _ONE)
    return Sql(f"(~ {inside.text})", inside.type)


@writes_value(exp.Neg)
def _negative(writer: Writer, node: exp.Neg) -> Sql:
    inside, _ = _type_null_operands(write_value(writer, node.this), _ONE)
    is_tiny = inside.type is not None and inside.type.name == "tinyint"  # tinyint has no negative numbers
    return Sql(f"(- {inside.text})", SqlType("smallint") if is_tiny else inside.type)


def _check_variant(left: Sql, right: Sql, operator: str) -> None:
    if VARIANT in (left.type, right.type):
        raise TsqlError(403, f"Invalid operator for data type. Operator equals {operator}, type equals sql_variant.")


def _check_bits(left: Sql, right: Sql, operator: str) -> None:
    """Refuse arithmetic on two bits.

    Raises:
        TsqlError: 402 both operands are bits.
    """
    if left.type == right.type == BIT:
        raise _incompatible_types(left, right, operator)


def _type_clash(left: Sql, right: Sql) -> TsqlError:
    return TsqlError(206, f"Operand type clash: {_type_name(left)} is incompatible with {_type_name(right)}", state=2)


def _operand_error(left: Sql, right: Sql, operator: str) -> TsqlError:
    """Build the error for operands that an operator does not take: 8117, 257, 206 or 402."""
    if left.kind == right.kind:
        return TsqlError(8117, f"Operand data type {_type_name(left)} is invalid for {operator} operator.")
    kinds = {left.kind, right.kind}
    if kinds == {"date", "number"}:
        date, number = (left, right) if left.kind == "date" else (right, left)
        return TsqlError(
            257, f"Implicit conversion from data type {_type_name(date)} to {_type_name(number)} is not allowed. "
            "Use the CONVERT function to run this query.", state=3,
        )  # fmt: skip
    if "number" in kinds and "string" not in kinds:
        return _type_clash(left, right)
    return _incompatible_types(left, right, operator)


def _incompatible_types(left: Sql, right: Sql, operator: str) -> TsqlError:
    return TsqlError(
        402, f"The data types {_type_name(left)} and {_type_name(right)} are incompatible in the {operator} operator."
    )


def _type_name(value: Sql) -> str:
    return value.type.name if value.type else "NULL"


@writes_predicate(exp.And, exp.Or)
def _junction(writer: Writer, node: exp.Connector) -> str:
    word = "AND" if isinstance(node, exp.And) else "OR"
    parts = [write_predicate(writer, part) for part in node.flatten() if isinstance(part, exp.Expression)]
    return "(" + f" {word} ".join(parts) + ")"


@writes_predicate(exp.Not)
def _not(writer: Writer, node: exp.Not) -> str:
    return f"(NOT {write_predicate(writer, node.this)})"


@writes_predicate(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
def _comparison(writer: Writer, node: exp.Binary) -> str:
    """Write a comparison, also with ANY or ALL of a query."""
    signs = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
    sign = signs[type(node)]
    left = write_value(writer, node.this)
    if isinstance(node.expression, exp.Any | exp.All):
        word = "ANY" if isinstance(node.expression, exp.Any) else "ALL"
        query = node.expression.this
        inside = write_value(writer, query if isinstance(query, exp.Subquery) else exp.Subquery(this=query.copy()))
        left_text, query_text = _write_beside_query(writer, left, inside)
        return f"{left_text} {sign} {word} {query_text}"
    compare = _write_comparison if sign in ("=", "<>") else _write_ordering
    left_text, right_text = compare(writer, (node.this, left), (node.expression, write_value(writer, node.expression)))
    return f"{left_text} {sign} {right_text}"


@writes_predicate(exp.NullSafeEQ, exp.NullSafeNEQ)
def _null_safe(writer: Writer, node: exp.Binary) -> str:
    word = "IS NOT DISTINCT FROM" if isinstance(node, exp.NullSafeEQ) else "IS DISTINCT FROM"
    left_text, right_text = _write_comparison(
        writer, *((side, write_value(writer, side)) for side in (node.this, node.expression))
    )
    return f"({left_text} {word} {right_text})"


_WrittenNode = tuple[exp.Expression, Sql]
_ROW_NODES = (exp.Column, exp.Identifier, exp.Subquery, exp.Select)


def _write_beside_query(writer: Writer, value: Sql, query: Sql) -> tuple[str, str]:
    """Write a value and a query of one column, for IN, ANY and ALL.

    Raises:
        TsqlError: 305 one of them is xml, 468 their collations differ.
    """
    check_comparable(value, query)
    if not value.kind == query.kind == "string" or not writer.ignores_case(value, query):
        return value.text, query.text
    return folded_text(value), f"(SELECT lower(c0) FROM {query.text} AS tsql_part (c0))"


def _write_comparison(writer: Writer, left: _WrittenNode, right: _WrittenNode) -> tuple[str, str]:
    """Write the two sides of a comparison. Trailing blanks of strings do not count.

    A varchar column is compared with its stored blanks, and so is the value beside it. So its index is used, and a
    value that was read from it is found again.

    Raises:
        TsqlError: see `write_comparands`.
    """
    if not left[1].kind == right[1].kind == "string":
        return write_comparands(writer, left[1], right[1])
    is_loose = all(_is_padded(value) or not isinstance(node.unnest(), _ROW_NODES) for node, value in (left, right))
    left_side, right_side = (
        _trim_blanks(value) if not isinstance(node, exp.Column) and (is_loose or _is_padded(value)) else value
        for node, value in (left, right)
    )
    return write_comparands(writer, left_side, right_side)


def _write_ordering(writer: Writer, left: _WrittenNode, right: _WrittenNode) -> tuple[str, str]:
    """Write the two sides of <, > and the like, as `_write_comparison`. U+0000 is the lowest character.

    Beside a column the strings stay unchanged, so that its index is used. There U+0000 sorts highest.
    """
    left_text, right_text = _write_comparison(writer, left, right)
    is_plain = all(value.is_untyped and not _LOWEST_CHARACTERS & {*value.text} for _, value in (left, right))
    of_rows = any(isinstance(node.unnest(), _ROW_NODES) for node, _ in (left, right))
    if is_plain or of_rows or not left[1].kind == right[1].kind == "string":
        return left_text, right_text
    return f"tsql.in_order({left_text})", f"tsql.in_order({right_text})"


_LOWEST_CHARACTERS = {ZERO, "\1"}


def _is_padded(value: Sql) -> bool:
    return value.type is not None and value.type.name in PADDED


def _trim_blanks(value: Sql) -> Sql:
    if value.is_untyped:  # a quoted string
        return value._replace(text=f"{value.text[:-1].rstrip(' ')}'")
    return value._replace(text=f"rtrim({value.text}, ' ')")


def write_comparands(writer: Writer, left: Sql, right: Sql) -> tuple[str, str]:
    """Write two values in comparable types.

    Raises:
        TsqlError: 305 one of them is xml, 402 the types cannot be compared, 468 their collations differ.
    """
    check_comparable(left, right)
    if VARIANT in (left.type, right.type):
        return f"tsql.variant_compare({cast_value(left, VARIANT).text}, {cast_value(right, VARIANT).text})", "0"
    if left.kind == right.kind == "string":
        if writer.ignores_case(left, right):
            return folded_text(left), folded_text(right)
        return left.text, right.text
    if left.kind == "string" and right.kind not in (None, "string"):
        assert right.type is not None
        return _convert_comparand(left, right.type), right.text
    if right.kind == "string" and left.kind not in (None, "string"):
        assert left.type is not None
        return left.text, _convert_comparand(right, left.type)
    for number_side, date_side in ((left, right), (right, left)):  # the number counts days since 1900
        if (
            number_side.kind == "number"
            and date_side.type is not None
            and date_side.type.name in ("datetime", "smalldatetime")
        ):
            days = cast_value(number_side, date_side.type).text
            return (days, date_side.text) if number_side is left else (date_side.text, days)
    if left.kind and right.kind and left.kind != right.kind and not {left.kind, right.kind} <= {"number", "binary"}:
        raise _incompatible_types(left, right, "equal to")
    if {left.kind, right.kind} == {"number", "binary"}:
        assert left.type is not None
        assert right.type is not None
        number_type = left.type if left.kind == "number" else right.type
        return cast_value(left, number_type).text, cast_value(right, number_type).text
    return _untyped_constant(left.text), _untyped_constant(right.text)


def _untyped_constant(text: str) -> str:
    """Remove the type from a constant, so that an index of a bigint column beside it is used."""
    return text.removesuffix("::numeric") if text.removesuffix("::numeric").isdigit() else text


def _convert_comparand(value: Sql, sql_type: SqlType) -> str:
    """Write a string converted to the type of the value that it is compared with."""
    if value.is_untyped and sql_type.name in ("uniqueidentifier", "date"):
        return value.text
    return cast_value(value, sql_type).text


@writes_predicate(exp.Is)
def _is(writer: Writer, node: exp.Is) -> str:
    if not isinstance(node.expression, exp.Null):
        raise node_not_supported(node)
    return f"({typed_text(write_value(writer, node.this))} IS NULL)"


@writes_predicate(exp.Between)
def _between(writer: Writer, node: exp.Between) -> str:
    allow_only(node, "this", "low", "high")
    value = write_value(writer, node.this)
    low, high = (
        _write_ordering(writer, (node.this, value), (node.args[end], write_value(writer, node.args[end])))
        for end in ("low", "high")
    )
    return f"({low[0]} >= {low[1]} AND {high[0]} <= {high[1]})"


@writes_predicate(exp.In)
def _in(writer: Writer, node: exp.In) -> str:
    allow_only(node, "this", "expressions", "query")
    value = write_value(writer, node.this)
    query = node.args.get("query")
    if query is not None:
        left_text, query_text = _write_beside_query(writer, value, write_value(writer, query))
        return f"({left_text} IN {query_text})"
    pairs = [
        _write_comparison(writer, (node.this, value), (item, write_value(writer, item))) for item in node.expressions
    ]
    if len({left_text for left_text, _ in pairs}) == 1:
        return f"({pairs[0][0]} IN ({', '.join(right_text for _, right_text in pairs)}))"
    return "(" + " OR ".join(f"{left_text} = {right_text}" for left_text, right_text in pairs) + ")"


@writes_predicate(exp.Exists)
def _exists(writer: Writer, node: exp.Exists) -> str:
    query = node.this.this if isinstance(node.this, exp.Subquery) else node.this
    return f"EXISTS ({select_text(writer, query)})"


@writes_predicate(exp.Like)
def _like(writer: Writer, node: exp.Like) -> str:
    allow_only(node, "this", "expression", "negate")
    condition = write_like(writer, write_value(writer, node.this), write_value(writer, node.expression), None)
    return f"(NOT {condition})" if node.args.get("negate") else condition


@writes_predicate(exp.Escape)
def _escape(writer: Writer, node: exp.Escape) -> str:
    inside = node.this
    if not isinstance(inside, exp.Like):
        raise node_not_supported(node)
    sign = write_value(writer, node.expression)
    condition = write_like(writer, write_value(writer, inside.this), write_value(writer, inside.expression), sign)
    return f"(NOT {condition})" if inside.args.get("negate") else condition


@writes_value(exp.Case)
def _case(writer: Writer, node: exp.Case) -> Sql:
    allow_only(node, "this", "ifs", "default")
    sql_type = node.this and write_value(writer, node.this)
    conditions, results = [], []
    for branch in node.args["ifs"]:
        if sql_type is None:
            conditions.append(write_predicate(writer, branch.this))
        else:
            tested = _write_comparison(writer, (node.this, sql_type), (branch.this, write_value(writer, branch.this)))
            conditions.append(" = ".join(tested))
        results.append(write_value(writer, branch.args["true"]))
    default = node.args.get("default")
    if default is not None:
        results.append(write_value(writer, default))
    kind, texts = unify_types(results)

    def choose(texts: Sequence[str]) -> str:
        branches = [f" WHEN {condition} THEN {text}" for condition, text in zip(conditions, texts, strict=False)]
        last = f" ELSE {texts[-1]}" if default is not None else ""
        return f"(CASE{''.join(branches)}{last} END)"

    return Sql(choose(texts), kind, offset=chosen_offset(kind, results, choose))


@writes_value(exp.If)
def _iif(writer: Writer, node: exp.If) -> Sql:
    allow_only(node, "this", "true", "false")
    if node.args.get("false") is None:
        raise argument_count_error("iif", 3, 3)
    results = [write_value(writer, node.args[part]) for part in ("true", "false")]
    kind, texts = unify_types(results)
    condition = write_predicate(writer, node.this)

    def choose(texts: Sequence[str]) -> str:
        return f"(CASE WHEN {condition} THEN {texts[0]} ELSE {texts[1]} END)"

    return Sql(choose(texts), kind, offset=chosen_offset(kind, results, choose))


@writes_value(exp.Coalesce)
def _coalesce(writer: Writer, node: exp.Coalesce) -> Sql:
    allow_only(node, "this", "expressions")
    values = [write_value(writer, item) for item in [node.this, *node.expressions]]
    if all(value.is_untyped and value.type is None for value in values):
        raise TsqlError(
            4127, "At least one of the arguments to COALESCE must be an expression that is not the NULL constant."
        )
    kind, texts = unify_types(values)
    return Sql(f"COALESCE({', '.join(texts)})", kind, offset=first_offset(kind, values))


@writes_value(exp.Nullif)
def _nullif(writer: Writer, node: exp.Nullif) -> Sql:
    left = write_value(writer, node.this)
    if left.is_untyped and left.type is None:
        raise TsqlError(
            4151,
            "The type of the first argument to NULLIF cannot be the NULL constant because the type of the first argument has "
            "to be known.",
        )
    left_text, right_text = _write_comparison(
        writer, (node.this, left), (node.expression, write_value(writer, node.expression))
    )
    return Sql(
        f"(CASE WHEN {left_text} = {right_text} THEN NULL ELSE {typed_text(left)} END)", left.type, offset=left.offset
    )


@writes_value(exp.Subquery)
def _subquery(writer: Writer, node: exp.Subquery) -> Sql:
    allow_only(node, "this")
    text = select_text(writer, node.this)
    outputs = query_outputs(writer, node.this) or []
    if len(outputs) != 1:
        return Sql(f"({text})", None)
    return Sql(f"({text})", outputs[0].type, collation=outputs[0].collation)


@writes_value(exp.Tuple)
def _tuple(writer: Writer, node: exp.Tuple) -> Sql:
    raise condition_expected()


@writes_value(exp.Cast, exp.TryCast)
def _cast(writer: Writer, node: exp.Cast) -> Sql:
    allow_only(node, "this", "to", "safe")
    return cast_value(write_value(writer, node.this), read_type(node.args["to"]), attempt=isinstance(node, exp.TryCast))


@writes_value(exp.Convert)
def _convert(writer: Writer, node: exp.Convert) -> Sql:
    allow_only(node, "this", "expression", "style", "safe")
    style = node.args.get("style")
    return cast_value(
        write_value(writer, node.expression),
        read_type(node.this),
        style=write_value(writer, style).text if style is not None else None,
        attempt=bool(node.args.get("safe")),
    )


@writes_value(exp.Concat)
def _adjacent(writer: Writer, node: exp.Concat) -> Sql:
    raise TsqlError(102, "Incorrect syntax: two strings stand side by side.", severity=15)


def condition_or_value(writer: Writer, node: exp.Expression) -> Sql:
    """Write a node that may be a condition or a value."""
    if is_predicate(node):
        return Sql(f"({write_predicate(writer, node)})", CONDITION_TYPE)
    return write_value(writer, node)
