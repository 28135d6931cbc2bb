"""Writes functions that need more than a PostgreSQL expression, except date functions: ISNULL, CONCAT and others."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.model.zero_character import to_postgres
from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    allow_only,
    cast_to_text,
    not_supported,
    quote_string,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value, first_offset, read_type
from servicebroker.tsql.translation.values.functions import (
    SPECIAL,
    InvalidArgument,
    check_count,
    write_argument,
    write_plain_call,
    write_session_value,
)
from servicebroker.tsql.translation.values.patterns import pattern_to_regex as pattern_expression
from servicebroker.tsql.translation.values.type_precedence import unify_types
from servicebroker.tsql.types import (
    BIGINT,
    INT,
    NUMBERS,
    NVARCHAR,
    PADDED,
    VARBINARY,
    VARIANT,
    XML,
    SqlType,
    postgres_type,
)

SMALLINT = SqlType("smallint")
_SID = SqlType("varbinary", 85)


def _isnull(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "isnull")
    first, second = (write_value(writer, node) for node in nodes)
    if first.type is not None and second.type is not None and first.type != second.type:
        second = cast_value(second, first.type._replace(length=-1) if first.is_untyped else first.type)
    sql_type = first.type or second.type
    text = f"COALESCE({typed_text(first)}, {typed_text(second)})"
    return Sql(text, sql_type, offset=first_offset(sql_type, [first, second]))


def _choose(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise argument_count_error("choose", 2, 255)
    index = write_argument(write_value(writer, nodes[0]), "i")
    kind, texts = unify_types([write_value(writer, node) for node in nodes[1:]])
    branches = " ".join(f"WHEN {number} THEN {text}" for number, text in enumerate(texts, 1))
    return Sql(f"(CASE {index} {branches} END)", kind)


def _concat(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise argument_count_error("concat", 2, 254)
    values = [write_value(writer, node) for node in nodes]
    texts = [f"COALESCE({write_argument(value, 's')}, '')" for value in values]
    return Sql("(" + " || ".join(texts) + ")", NVARCHAR)


def _patindex(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "patindex")
    pattern, searched = (write_value(writer, node) for node in nodes)
    folded = writer.ignores_case(pattern, searched, operation="patindex")
    texts = [write_argument(value, "s") for value in (pattern, searched)]
    if folded:
        texts = [f"lower({text})" for text in texts]
    literal = nodes[0].this if isinstance(nodes[0], exp.Literal | exp.National) else None
    if isinstance(literal, str) and literal.startswith("%"):
        expression = pattern_expression(to_postgres(literal.lower() if folded else literal))[1:].removeprefix(".*")
        position = f"tsql.patindex({quote_string(expression)}, {texts[1]})"
    else:
        position = f"tsql.patindex_of({', '.join(texts)})"
    return _size(writer, nodes[1], position)


def _replace(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "replace")
    values = [write_value(writer, node) for node in nodes]
    texts = ", ".join(write_argument(value, "s") for value in values)
    function = "tsql.replace_folded" if writer.ignores_case(*values[:2], operation="replace") else "tsql.replace"
    return Sql(f"{function}({texts})", values[0].type if values[0].kind == "string" else NVARCHAR)


def _charindex(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not 2 <= len(nodes) <= 3:
        raise argument_count_error("charindex", 2, 3)
    values = [write_value(writer, node) for node in nodes]
    texts = [write_argument(value, letter) for value, letter in zip(values, "ssi", strict=False)]
    if writer.ignores_case(*values[:2], operation="charindex"):
        texts[:2] = [f"lower({text})" for text in texts[:2]]
    return _size(writer, nodes[1], f"tsql.charindex({', '.join(texts)})")


# string functions whose result is (MAX) only if a string argument is
_LIKE_THEIR_ARGUMENTS = frozenset(
    {"concat", "concat_ws", "left", "lower", "ltrim", "replace", "replicate", "reverse", "right", "rtrim", "stuff"}
    | {"substring", "translate", "upper"}
)
# functions whose result is never (MAX); their exact length is not computed
_WITHOUT_MAX = frozenset({"format", "formatmessage", "space", "str"})
# functions that return a size or position. They are listed, because writing them only to learn their type would double
# the work at each level of nesting.
_SIZES = frozenset({"len", "datalength", "charindex", "patindex"})


def _size(writer: Writer, node: exp.Expression, text: str) -> Sql:
    """Write the length of a value, or a position in it: bigint if the type of the value is (MAX), else int."""
    return Sql(f"{text}::bigint", BIGINT) if _has_max(writer, node) else Sql(text, INT)


def _has_max(writer: Writer, node: exp.Expression) -> bool:
    if isinstance(node, exp.Paren | exp.Trim | exp.Collate):
        return _has_max(writer, node.this)
    if isinstance(node, exp.Add):
        return _has_max(writer, node.this) or _has_max(writer, node.expression)
    if isinstance(node, exp.GroupConcat):
        return False
    if isinstance(node, exp.Cast):
        return read_type(node.args["to"]).length == -1
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower().removeprefix(CALL_PREFIX)
        if name in _WITHOUT_MAX | _SIZES:
            return False
        if name in _LIKE_THEIR_ARGUMENTS:
            return any(_has_max(writer, argument) for argument in node.expressions)
    sql_type = write_value(writer, node).type
    return sql_type is not None and sql_type.length == -1


_HASHES = {"sha": "tsql.sha1", "sha1": "tsql.sha1", "md5": "md5", "sha2_256": "sha256", "sha2_512": "sha512"}


def _hashbytes(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "hashbytes")
    algorithm = nodes[0].name.lower() if isinstance(nodes[0], exp.Literal | exp.National) else ""
    if algorithm not in _HASHES:
        raise not_supported(
            f"HASHBYTES with {algorithm or 'a variable'}", "Use 'SHA2_256', 'SHA2_512', 'SHA1' or 'MD5'."
        )
    hashed = write_value(writer, nodes[1])
    if hashed.type == XML:
        raise InvalidArgument(XML)
    value = cast_value(hashed, VARBINARY).text
    if algorithm == "md5":
        return Sql(f"decode(md5({value}), 'hex')", VARBINARY)
    return Sql(f"{_HASHES[algorithm]}({value})", VARBINARY)


def _global(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    return write_plain_call(writer, nodes[0].name.lower(), [], nodes[0].name)


def _len(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "len")
    value = write_value(writer, nodes[0])
    if value.kind == "binary":
        return _size(writer, nodes[0], f"octet_length(rtrim({value.text}, '\\x20'::bytea))")
    return _size(writer, nodes[0], f"length(rtrim({write_argument(value, 's')}, ' '))")


def _datalength(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "datalength")
    value = write_value(writer, nodes[0])
    if value.type == VARIANT:
        return Sql(f"octet_length(tsql.variant_bytes({value.text}))", INT)
    sql_type, text = value.type, typed_text(value)
    if value.is_untyped and sql_type is None:
        return Sql("NULL::integer", INT)
    if sql_type is not None and sql_type.name in _BYTES_OF:
        return Sql(f"(CASE WHEN {text} IS NOT NULL THEN {_BYTES_OF[sql_type.name]} END)", INT)
    if (
        sql_type is not None and sql_type.name in PADDED and sql_type.length and not value.is_untyped
    ):  # including padding
        size = sql_type.length * (2 if sql_type.name == "nchar" else 1)
        return Sql(f"(CASE WHEN {text} IS NOT NULL THEN {size} END)", INT)
    if sql_type is not None and sql_type.name == "decimal":
        size = next(
            size for digits, size in ((9, 5), (19, 9), (28, 13), (38, 17)) if (sql_type.precision or 38) <= digits
        )
        return Sql(f"(CASE WHEN {text} IS NOT NULL THEN {size} END)", INT)
    if sql_type is not None and sql_type.name in _DATE_BYTES:
        scale = 7 if sql_type.scale is None else sql_type.scale
        size = _DATE_BYTES[sql_type.name] + (0 if scale < 3 else 1 if scale < 5 else 2)
        return Sql(f"(CASE WHEN {text} IS NOT NULL THEN {size} END)", INT)
    is_single = sql_type is not None and sql_type.name in ("varchar", "char", "text")
    return _size(writer, nodes[0], f"tsql.datalength{'_single' if is_single else ''}({text})")


def _compress(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write COMPRESS of the bytes that a string or binary value has.

    Raises:
        TsqlError: 8116 the argument has another type.
    """
    check_count(nodes, 1, "compress")
    value = write_value(writer, nodes[0])
    if value.kind not in ("string", "binary", None):
        raise TsqlError(8116, f"Argument data type {value.type} is invalid for argument 1 of Compress function.")
    return Sql(f"tsql.compress({cast_value(value, VARBINARY).text})", VARBINARY)


def _parsed(*, is_money: bool) -> Callable[[Writer, list[exp.Expression]], Sql]:
    """Return a writer that turns the text of PARSE ... AS a number type into a text that CAST accepts."""

    def write(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        return Sql(
            f"tsql.parsed({write_argument(write_value(writer, nodes[0]), 's')}, {str(is_money).lower()})", NVARCHAR
        )

    return write


def _parse(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write PARSE: the value of TRY_CAST in the first argument, or error 9819. The second argument is the culture."""
    attempt, culture = nodes
    parsed = write_value(writer, attempt)
    to = read_type(attempt.args["to"])
    source = attempt.this.expressions[0] if to.name in NUMBERS else attempt.this  # in a call of `_parsed`
    text = write_argument(write_value(writer, source), "s")
    refusal = f"tsql.not_parsed({text}, {quote_string(to.name)}, {quote_string(culture.name)})::{postgres_type(to)}"
    return parsed._replace(text=f"coalesce({parsed.text}, {refusal})")


_MAX_MESSAGE_ARGUMENTS = 21  # FORMATMESSAGE takes the text and 20 values


def _formatmessage(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not nodes:
        raise TsqlError(174, "The formatmessage function requires 1 argument(s).", severity=15)
    if len(nodes) > _MAX_MESSAGE_ARGUMENTS:
        raise argument_count_error("formatmessage", 1, _MAX_MESSAGE_ARGUMENTS)
    values = [write_value(writer, node) for node in nodes]
    texts = [write_argument(value, "s") for value in values]
    if values[0].kind == "number":
        texts[0] = f"tsql.message_text({values[0].text}::integer)"
    return Sql(f"tsql.formatmessage({', '.join(texts)})", NVARCHAR)


_BYTES_OF = {"bit": 1, "tinyint": 1, "smallint": 2, "int": 4, "real": 4, "smallmoney": 4, "smalldatetime": 4, "date": 3}
_BYTES_OF |= {"bigint": 8, "float": 8, "money": 8, "datetime": 8, "uniqueidentifier": 16}
_DATE_BYTES = {"time": 3, "datetime2": 6, "datetimeoffset": 8}


def _extreme(word: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    def write(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        if not nodes:
            raise argument_count_error(word.lower(), 1, 254)
        kind, texts = unify_types([write_value(writer, node) for node in nodes])
        return Sql(f"{word}({', '.join(texts)})", kind)

    return write


def _cursor_status(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "cursor_status")
    name = write_argument(write_value(writer, nodes[1]), "s")
    write_value(writer, nodes[0])  # local and global cursors are not distinguished
    states = f"{writer.parameter('cursor states', NVARCHAR)}::jsonb"
    return Sql(f"coalesce(({states} ->> lower({name}))::smallint, -3::smallint)", SMALLINT)


def _variant_property(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "sql_variant_property")
    value, name = (write_value(writer, node) for node in nodes)
    return Sql(f"tsql.variant_property({cast_value(value, VARIANT).text}, {write_argument(name, 's')})", VARIANT)


def _session_context(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 1, "session_context")
    values = f"{writer.parameter('session context', NVARCHAR)}::jsonb"
    return Sql(f"({values} ->> {write_argument(write_value(writer, nodes[0]), 's')})", VARIANT)


def _suser_id(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) > 1:
        raise argument_count_error("suser_id", 0, 1)
    name = cast_to_text(write_value(writer, nodes[0])) if nodes else write_session_value(writer, "suser_name").text
    return Sql(f"tsql.login_id({name})", INT)


def _suser_sid(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) > 1:
        raise argument_count_error("suser_sid", 0, 1)
    if nodes:
        return Sql(f"tsql.login_sid({cast_to_text(write_value(writer, nodes[0]))})", _SID)
    name = write_session_value(writer, "suser_name").text  # a user without a login has a sid too
    return Sql(f"coalesce(tsql.login_sid({name}), tsql.login_sid(0, {name}))", _SID)


def _refusing(name: str, instead: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    def refuse(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        raise not_supported(name, instead)

    return refuse


def _empty_binary(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write the literal 0x, which `reading/syntax_tree.py` replaces by a call of this function."""
    return Sql("'\\x'::bytea", VARBINARY)


SPECIAL |= {
    "no_bytes": _empty_binary,
    "isnull": _isnull,
    "choose": _choose,
    "concat": _concat,
    "charindex": _charindex,
    "replace": _replace,
    "compress": _compress,
    "formatmessage": _formatmessage,
    "parse": _parse,
    "parsed_number": _parsed(is_money=False),
    "parsed_money": _parsed(is_money=True),
    "patindex": _patindex,
    "hashbytes": _hashbytes,
    "global": _global,
    "datalength": _datalength,
    "len": _len,
    "greatest": _extreme("GREATEST"),
    "least": _extreme("LEAST"),
    "cursor_status": _cursor_status,
    "suser_id": _suser_id,
    "suser_sid": _suser_sid,
    "sql_variant_property": _variant_property,
    "session_context": _session_context,
    "string_split": _refusing("STRING_SPLIT as a value", "It returns a table. Use it in FROM."),
    "generate_series": _refusing("GENERATE_SERIES as a value", "It returns a table. Use it in FROM."),
}


@writes_value(exp.Trim)
def _trim(writer: Writer, node: exp.Trim) -> Sql:
    try:
        value = write_argument(write_value(writer, node.this), "s")
    except InvalidArgument as error:
        raise error.named(writer, "trim", [node.this]) from None
    allow_only(node, "this", "expression", "position")
    characters = node.args.get("expression")
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")).upper(), "btrim")
    removed = write_argument(write_value(writer, characters), "s") if characters is not None else quote_string(" ")
    return Sql(f"{function}({value}, {removed})", NVARCHAR)


# SQL Server's administrators, and the PostgreSQL roles that own the instance
_ADMINISTRATORS = (
    "SELECT 'sa' UNION ALL SELECT 'dbo' UNION ALL SELECT lower(r.rolname) FROM pg_roles r "
    "JOIN pg_namespace n ON pg_has_role(r.oid, n.nspowner, 'usage') WHERE n.nspname = 'servicebroker'"
)


def _write_arguments(writer: Writer, nodes: list[exp.Expression], max_arguments: int, name: str) -> list[str]:
    if not 1 <= len(nodes) <= max_arguments:
        raise argument_count_error(name, 1, max_arguments)
    return [cast_to_text(write_value(writer, node)) for node in nodes]


def _is_member(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    role, *principals = _write_arguments(writer, nodes, 2, "is_rolemember")
    writer.scope_answers["function", "user_name"] = True
    principal = principals[0] if principals else f"{writer.parameter('user_name', NVARCHAR)}"
    return Sql(f"tsql.is_member({quote_string(writer.scope.database)}, {principal}, {role})", INT)


def _is_server_member(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write IS_SRVROLEMEMBER. Only sysadmin and public have members: the owners of the instance."""
    role, *logins = _write_arguments(writer, nodes, 2, "is_srvrolemember")
    login = logins[0] if logins else writer.parameter("suser_name", NVARCHAR)
    return Sql(f"(lower({role}) IN ('sysadmin', 'public') AND lower({login}) IN ({_ADMINISTRATORS}))::integer", INT)


SPECIAL |= {"is_member": _is_member, "is_rolemember": _is_member, "is_srvrolemember": _is_server_member}
