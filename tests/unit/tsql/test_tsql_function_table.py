"""The table of T-SQL functions: parser, translation and `tsql check` know every row."""

from __future__ import annotations

import pytest

from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.function_table import CODE, PLAIN, ROWS, SESSION, UNSUPPORTED, Function
from servicebroker.tsql.interpreter.procedures.session_functions import SESSION_FUNCTIONS
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.translator import translate_expression

# an argument for each conversion letter of `Function.letters`
ARGUMENT_SAMPLES = {"s": "N'a'", "n": "1", "i": "1", "d": "GETDATE()", "b": "0x01", "x": "1", "a": "NEWID()"}
TEXT_FUNCTIONS = [row for rows in PLAIN.values() for row in rows]
# Functions translated by a Python function or by the grammar: a call of each, and the type of its result.
CALLS_OF_PYTHON_FUNCTIONS = {
    "CASE WHEN 1 = 1 THEN 1 END": "int",
    "CAST(1 AS bigint)": "bigint",
    "CHOOSE(1, 'a', N'b')": "nvarchar(max)",
    "COALESCE(NULL, 1.5)": "decimal(2,1)",
    "CONCAT(1, 'a')": "nvarchar(max)",
    "CONVERT(date, '2020-01-01', 120)": "date",
    "CURRENT_TIMESTAMP": "datetime",
    "CURSOR_STATUS('global', 'c')": "smallint",
    "DATALENGTH('a')": "int",
    "DATE_BUCKET(week, 1, CAST('2020-01-01' AS date))": "date",
    "DATEADD(day, 1, SYSDATETIME())": "datetime2(7)",
    "CHARINDEX('a', CAST('a' AS varchar(max)))": "bigint",
    "CHARINDEX(CAST('a' AS varchar(max)), UPPER('a'))": "int",
    "COMPRESS('a')": "varbinary(max)",
    "DATALENGTH(CAST(0x01 AS varbinary(max)))": "bigint",
    "DATEDIFF(day, '2020-01-01', GETDATE())": "int",
    "DATEDIFF_BIG(day, '2020-01-01', GETDATE())": "bigint",
    "DATENAME(month, GETDATE())": "nvarchar(30)",
    "DATEPART(month, GETDATE())": "int",
    "DATETRUNC(month, GETDATE())": "datetime",
    "DATETIMEOFFSETFROMPARTS(2020, 1, 2, 3, 4, 5, 6, 1, 30, 3)": "datetimeoffset(3)",
    "FORMATMESSAGE('a')": "nvarchar(max)",
    "GREATEST(1, CAST(2 AS bigint))": "bigint",
    "HAS_PERMS_BY_NAME(NULL, NULL, N'ANY')": "int",
    "HASHBYTES('SHA2_256', 'a')": "varbinary(64)",
    "IIF(1 = 1, 1, 2)": "int",
    "ISJSON('{}', OBJECT)": "int",
    "ISNULL(NULL, 1)": "int",
    "JSON_ARRAY(1, NULL NULL ON NULL)": "nvarchar(max)",
    "JSON_MODIFY('{}', '$.a', 1)": "nvarchar(max)",
    "JSON_OBJECT('a':1)": "nvarchar(max)",
    "LEAST(1, 2)": "int",
    "LEN(0x01)": "int",
    "LEN(CONCAT('a', CAST('a' AS nvarchar(max))))": "bigint",
    "LEN(CONCAT('a', 'b'))": "int",
    "LEN(TRIM('a') + REPLACE('a', 'b', 'c'))": "int",
    "NULLIF(1, 2)": "int",
    "PARSE('1.5' AS decimal(5, 2) USING 'en-US')": "decimal(5,2)",
    "PATINDEX('%a%', 'a')": "int",
    "PATINDEX('%a%', LOWER(CAST('a' AS nvarchar(max))))": "bigint",
    "REPLACE('aXb', 'X', '-')": "varchar(3)",
    "SESSION_CONTEXT('k')": "sql_variant",
    "SQL_VARIANT_PROPERTY(1, 'BaseType')": "sql_variant",
    "SUSER_ID()": "int",
    "SUSER_SID()": "varbinary(85)",
    "SWITCHOFFSET(CAST('2020-01-02' AS datetimeoffset(2)), 0)": "datetimeoffset(2)",
    "TODATETIMEOFFSET(GETDATE(), '+01:00')": "datetimeoffset(3)",
    "TRIM(LEADING 'x' FROM 'xa')": "nvarchar(max)",
    "TRY_CAST('1' AS int)": "int",
    "TRY_CONVERT(int, '1')": "int",
    "TRY_PARSE('1' AS int)": "int",
}
TESTED_ELSEWHERE = {
    "STRING_SPLIT", "GENERATE_SERIES", "FN_MY_PERMISSIONS", "OPENJSON", "UPDATE", "IS_MEMBER",
    "IS_ROLEMEMBER", "IS_SRVROLEMEMBER",
}  # fmt: skip


def scope() -> Scope:
    return Scope("Shop", {}, {}, dict.fromkeys(SESSION_FUNCTIONS))


def has_parentheses(row: Function) -> bool:
    """Return False for functions such as @@ROWCOUNT and CURRENT_USER. The description of the latter says it."""
    return not row.name.startswith("@@") and "without parentheses" not in row.description


def call(row: Function, count: int) -> str:
    """Return a call of the function with `count` arguments."""
    if not has_parentheses(row):
        return row.name
    letters = row.letters + row.letters[-1:] * count
    return f"{row.name}({', '.join(ARGUMENT_SAMPLES[letter] for letter in letters[:count])})"


def test_every_function_row_has_an_implementation() -> None:
    assert not set(CODE) - set(SPECIAL)
    # two values of the session that no T-SQL function returns under these names
    assert set(SESSION_FUNCTIONS) - set(SESSION) == {"cursor states", "session context"}
    assert not set(SESSION) - set(SESSION_FUNCTIONS)
    names = [row.name for row in ROWS]
    assert [name for name in set(names) if names.count(name) > 1 and name.lower() not in PLAIN] == []


@pytest.mark.parametrize("row", TEXT_FUNCTIONS, ids=lambda row: f"{row.name}-{row.min_arguments}")
def test_a_plain_call_is_translated_and_its_type_is_that_of_the_table(row: Function) -> None:
    for count in {row.min_arguments, min(row.max_arguments, row.min_arguments + 3)}:
        (result_type,) = translate_expression(call(row, count), scope()).types or ()
        assert result_type == row.type or (row.type is None and result_type is not None)


@pytest.mark.parametrize("row", SESSION.values(), ids=lambda row: row.name)
def test_session_functions_have_the_type_of_the_table(row: Function) -> None:
    assert translate_expression(call(row, 0), scope()).types == (row.type,)


@pytest.mark.parametrize("text", CALLS_OF_PYTHON_FUNCTIONS)
def test_a_call_translated_by_python_has_its_type(text: str) -> None:
    (result_type,) = translate_expression(text, scope()).types or ()
    assert str(result_type) == CALLS_OF_PYTHON_FUNCTIONS[text]


def test_every_function_translated_by_python_is_called_above() -> None:
    groups = ("Aggregates", "Window functions, with OVER")
    rows = {row.name for row in ROWS if row.text in ("code", "syntax") and row.group not in groups}
    called = {text.split("(")[0].split()[0] for text in CALLS_OF_PYTHON_FUNCTIONS}
    assert rows - called - TESTED_ELSEWHERE == {"STRING_AGG"}  # an aggregate, which stands in another group


@pytest.mark.parametrize("row", [row for row in ROWS if row.group.startswith("Window")], ids=lambda row: row.name)
def test_a_window_function_needs_its_window(row: Function) -> None:
    argument = "1" if "value" in row.arguments or "number" in row.arguments else ""
    (result_type,) = translate_expression(f"{row.name}({argument}) OVER (ORDER BY (SELECT 1))", scope()).types or ()
    assert result_type is not None
    assert row.type in (result_type, None)
    with pytest.raises(TsqlError) as error:
        translate_expression(f"{row.name}({argument})", scope())
    assert error.value.number == 10753


@pytest.mark.parametrize("row", UNSUPPORTED.values(), ids=lambda row: row.name)
def test_unsupported_functions_are_refused_with_an_alternative(row: Function) -> None:
    word = row.name if row.name.startswith("@@") else f"{row.name}(1)"
    (finding,) = check(f"SELECT {word}")
    assert finding.verdict is Verdict.REFUSED
    assert finding.note.startswith("40515: ")
    assert row.name in finding.note
    assert row.description in finding.note


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("LEN()", 174),
        ("LEN('a', 'b')", 174),
        ("ROUND(1)", 189),
        ("NO_SUCH(1)", 195),
        ("ERROR_LINE(1)", 174),
        ("@@NO_SUCH", 137),
        ("CHOOSE(1)", 189),
        ("DATEADD(fortnight, 1, GETDATE())", 155),
        ("DB_NAME(1, 2)", 189),
        ("LEFT(1)", 174),
    ],
)
def test_a_wrong_call_has_its_number(text: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        translate_expression(text, scope())
    assert error.value.number == number
