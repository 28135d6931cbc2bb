"""Expressions that are evaluated without PostgreSQL mean what PostgreSQL makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal

import pytest

import servicebroker as sb
from servicebroker.model.number_bounds import MONEY, WHOLE

VARIABLES = """
DECLARE @t TINYINT = 200, @s SMALLINT = 30000, @i INT = 2147480000, @b BIGINT = 5
DECLARE @o BIT = 1, @none INT, @nothing NVARCHAR(9)
DECLARE @v VARCHAR(10) = 'ab', @n NVARCHAR(10) = N'Ab', @name SYSNAME = N'aB', @c CHAR(3) = 'ab', @d DECIMAL(9,2) = 2.50
DECLARE @when DATETIME = '20200102 03:04:05.670', @day DATE = '2020-02-03', @bytes VARBINARY(5) = 0x4142, @f FLOAT = 2.5
DECLARE @id UNIQUEIDENTIFIER = '6F9619FF-8B86-D011-B42D-00C04FC964FF'
DECLARE @m MONEY = 12.3456, @l SMALLMONEY = -3.1, @r REAL = 1.25
DECLARE @one NVARCHAR(200), @other NVARCHAR(200), @kind SQL_VARIANT, @like SQL_VARIANT
"""
NUMBERS = (
    "@t",
    "@s",
    "@i",
    "@b",
    "@o",
    "@none",
    "@d",
    "@m",
    "@l",
    "@f",
    "@r",
    "1",
    "200",
    "-7",
    "32767",
    "2147483647",
    "NULL",
    "1.5",
)
OTHERS = ("@when", "@day", "@id", "@bytes", "@f", "0x0102", "N'2020-01-02'", "'6F9619FF-8B86-D011-B42D-00C04FC964FF'")
TYPES = (
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "DECIMAL(9,2)",
    "DECIMAL(4,1)",
    "NVARCHAR(5)",
    "VARCHAR(3)",
    "CHAR(4)",
    "BIT",
)
TYPES += (
    "VARBINARY(4)",
    "BINARY(3)",
    "DATETIME",
    "DATE",
    "UNIQUEIDENTIFIER",
    "FLOAT",
    "NVARCHAR(40)",
    "MONEY",
    "DATETIME2(3)",
)
STRINGS = ("@v", "@n", "@name", "@c", "'ab'", "N'AB'", "''", "'7'", "'ab  '", "@nothing")
# NULL has none
TYPE_OF = "' ', " + ", ' ', ".join(
    f"CONVERT(NVARCHAR(60), SQL_VARIANT_PROPERTY({{0}}, '{one}'))"
    for one in ("BaseType", "Precision", "Scale", "MaxLength")
)
AT_ONCE = 400  # expressions in a script


def number(rng: random.Random, depth: int = 0, leaves: Sequence[str] = ()) -> str:
    """Of few different leaves, so that many are of one type throughout."""
    leaves = leaves or rng.sample(NUMBERS, rng.randint(1, 3))
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(leaves)
    left, right = number(rng, depth + 1, leaves), number(rng, depth + 1, leaves)
    shape = "{} {} {}" if rng.random() < 0.5 else "({} {} {})"
    return shape.format(left, rng.choice("+-*/%+-*"), right)


def string(rng: random.Random) -> str:
    return " + ".join(rng.choice(STRINGS) for _ in range(rng.randint(1, 3)))


def random_cast(rng: random.Random) -> str:
    value = rng.choice([number(rng, 2), rng.choice(STRINGS), rng.choice(OTHERS)])
    of = rng.choice(TYPES)
    return f"CAST({value} AS {of})" if rng.random() < 0.7 else f"CONVERT({of}, {value})"


def condition(rng: random.Random, depth: int = 0) -> str:
    if depth < 2 and rng.random() < 0.5:
        left, right = condition(rng, depth + 1), condition(rng, depth + 1)
        return f"{rng.choice(['', 'NOT '])}({left} {rng.choice(['AND', 'OR'])} {right})"
    kind = rng.choice([number, string])
    if rng.random() < 0.2:
        return f"{kind(rng)} IS {rng.choice(['', 'NOT '])}NULL"
    return f"{kind(rng)} {rng.choice(['=', '<>', '<', '>', '<=', '>='])} {kind(rng)}"


def select_both(values: list[str], conditions: list[str]) -> str:
    """Each expression as it is, and inside of a query, which is PostgreSQL's; values as text, and with their types."""
    caught = "END TRY BEGIN CATCH SET @{} = CONCAT('error ', ERROR_NUMBER()) END CATCH"
    script = [VARIABLES]
    for one in values:
        sides = (
            ("one", one),
            ("other", f"(SELECT CAST({one} AS NVARCHAR(200)))"),
            ("kind", one),
            ("like", f"(SELECT {one})"),
        )
        for side, text in sides:
            script.append(f"SET @{side} = NULL BEGIN TRY SET @{side} = {text} {caught.format(side)}")
        script.append(f"PRINT CONCAT(@one, {TYPE_OF.format('@kind')}, '|', @other, {TYPE_OF.format('@like')})")
    for one in conditions:
        for side, text in (("one", one), ("other", f"EXISTS (SELECT 1 WHERE {one})")):
            script.append(f"SET @{side} = 0 BEGIN TRY IF {text} SET @{side} = 1 {caught.format(side)}")
        script.append("PRINT CONCAT(@one, '|', @other)")
    return "\n".join(script)


def test_random_expressions_agree_with_postgresql(
    db: sb.Database, seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    made, left, wrong = seeded_random, request.config.option.tsql_expressions, []
    while left > 0:
        half = min(left, AT_ONCE) // 2
        values = [made.choice([number, number, string, random_cast])(made) for _ in range(half)]
        conditions = [condition(made) for _ in range(half)]
        texts = [message.text for message in db.execute_tsql(select_both(values, conditions)).messages]
        pairs = zip(values + conditions, texts, strict=True)
        wrong += [(text, said) for text, said in pairs if len(set(said.split("|"))) != 1]
        left -= 2 * half
    assert wrong == []


@pytest.mark.parametrize(
    "script",
    [
        "DECLARE @a SMALLINT = 30000 IF @a + @a > 32767 PRINT 'passes'",
        "DECLARE @a SMALLINT = 30000 DECLARE @r INT = @a + @a",
        "DECLARE @a SMALLINT = 30000 SELECT @a + @a",
        "DECLARE @a TINYINT = 200, @b TINYINT = 100 IF @a + @b = 300 PRINT 'passes'",
        "DECLARE @a TINYINT = 200, @b TINYINT = 100 SELECT @a + @b",
        "DECLARE @a TINYINT = 100, @b TINYINT = 200 DECLARE @r INT = @a - @b",
        "DECLARE @a INT = 2147483647 SET @a += 1",
        "DECLARE @a DECIMAL(3, 2) = 9.996",
        "DECLARE @s VARCHAR(9) = '9.996' DECLARE @a DECIMAL(3, 2) = @s",
    ],
)
def test_values_beyond_their_type_overflow(db: sb.Database, script: str) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(script)
    assert error.value.number == 8115


def test_an_operation_returns_the_wider_type(db: sb.Database) -> None:
    script = "DECLARE @t TINYINT = 200, @s SMALLINT = 300 SELECT @t + 100, @t + @s, -@t, @t - @s"
    assert db.execute_tsql(script).rows == [(300, 500, -200, -100)]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("CAST(12.3456 AS MONEY)", "12.35"),
        ("CAST(-0.005 AS SMALLMONEY)", "-0.01"),
        ("CONVERT(VARCHAR(20), CAST(1234567.891 AS MONEY), 1)", "1,234,567.89"),
        ("CONVERT(VARCHAR(20), CAST(12.3456 AS MONEY), 2)", "12.3456"),
        ("CAST(10000000000 AS FLOAT)", "1e+010"),
        ("CAST(0.0000125 AS FLOAT)", "1.25e-005"),
        ("CAST(123456.5 AS FLOAT)", "123456"),
        ("CAST(0 AS FLOAT)", "0"),
        ("CONVERT(VARCHAR(40), CAST(1.5 AS FLOAT), 1)", "1.5000000e+000"),
        ("CAST(20 AS MONEY) / 3", "6.67"),
        ("CAST(-0.004 AS MONEY)", "0.00"),
        ("CAST(-0.00004 AS SMALLMONEY)", "0.00"),
        ("CAST(CAST(-0.04 AS DECIMAL(9, 2)) AS DECIMAL(9, 1))", "0.0"),
        ("CAST('-0.04' AS DECIMAL(9, 1))", "0.0"),
        ("CAST('1234567890123456789012345.65' AS DECIMAL(38, 1))", "1234567890123456789012345.7"),
    ],
)
def test_numbers_are_printed_as_sql_server_prints_them(db: sb.Database, expression: str, text: str) -> None:
    script = f"PRINT {expression} PRINT CONCAT('', {expression}) DECLARE @s VARCHAR(40) = {expression} PRINT @s"
    assert [message.text for message in db.execute_tsql(script).messages] == [text] * 3


@pytest.mark.parametrize(
    ("expression", "of"),
    [
        ("1.5 * 1.25", ("decimal", 6, 3)),
        ("1.5 + 10.25", ("decimal", 5, 2)),
        ("1.0 / 3", ("decimal", 7, 6)),
        ("CAST(1 AS TINYINT) + 1", ("int", 10, 0)),
    ],
)
def test_results_have_the_digits_of_sql_server(db: sb.Database, expression: str, of: tuple[str, int, int]) -> None:
    summary = ", ".join(f"SQL_VARIANT_PROPERTY({expression}, '{one}')" for one in ("BaseType", "Precision", "Scale"))
    assert db.execute_tsql(f"SELECT {summary}").rows == [of]


def test_null_without_a_type_is_an_int(db: sb.Database) -> None:
    assert db.execute_tsql("SELECT NULL * NULL, NULL + NULL - 1, -NULL, NULL & 1, NULL + 'a'").rows == [(None,) * 5]
    assert db.execute_tsql("IF 1 = 1 OR NULL * NULL = 1 PRINT 'holds'").messages[0].text == "holds"


def test_types_that_do_not_go_together_are_wrong_wherever_they_stand(db: sb.Database) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql("DECLARE @o BIT = 1 IF 1 = 1 OR @o * @o = 1 PRINT 'holds'")
    assert error.value.number == 402


PADDED = """
CREATE TABLE Padded (Fixed char(5), Free varchar(5));
INSERT Padded VALUES ('ab', 'ab'), ('ab ', 'ab '), ('a', NULL);
"""
TRUE = (
    "'ab ' = 'ab' AND N'ab' = 'ab  ' AND '' = '   ' AND 'it''s ' = 'it''s'",
    "@fixed = 'ab' AND @fixed = @free AND NOT @fixed <> @free AND @fixed >= @free AND NOT @fixed > @free",
    "@name = 'AB  '",
    "@free IN ('x', 'ab') AND @free BETWEEN 'ab' AND 'ab' AND @free IS NOT DISTINCT FROM 'ab'",
    "NULLIF(@free, 'ab') IS NULL AND CASE @fixed WHEN 'ab' THEN 1 END = 1 AND UPPER(@free) = 'AB'",
    "' ab' <> 'ab' AND 'ab ' NOT LIKE 'ab' AND LEN('ab ') = 2 AND DATALENGTH('ab ') = 3",
)
COUNTED = (
    ("Fixed = 'ab'", 2),
    ("Fixed = 'ab   '", 2),
    ("Fixed = @fixed", 2),
    ("@free = Fixed", 2),
    ("Fixed IN (@free, 'x')", 2),
    ("Fixed = Free", 2),
    ("Free = @fixed", 1),
    ("Free = 'ab'", 1),
    ("Free = 'ab '", 1),  # a value that was read from the column is found again
    ("Free <> @fixed", 1),
)


def test_blanks_at_the_end_of_a_string_do_not_count(instance: sb.Instance) -> None:
    database = instance.database("Padded", create=True)
    database.execute_tsql(PADDED)
    given = "DECLARE @fixed char(5) = 'ab', @free varchar(9) = 'ab  ', @name sysname = 'ab'"
    for one in TRUE:
        assert database.execute_tsql(f"{given} IF {one} SELECT 1 ELSE SELECT 0").rows == [(1,)], one
        assert database.execute_tsql(f"{given} SELECT COUNT(*) WHERE {one}").rows == [(1,)], one
    for one, count in COUNTED:
        assert database.execute_tsql(f"{given} SELECT COUNT(*) FROM Padded WHERE {one}").rows == [(count,)], one


def edges() -> list[tuple[str, str, str, bool]]:
    """A type, the type of a value, that at the edge of the first one or one step beyond, and whether it fits."""
    found = []
    for of, (low, high) in {**WHOLE, **MONEY}.items():
        step = Decimal("0.0001") if of in MONEY else 1
        for value, fits in (low, True), (high, True), (low - step, False), (high + step, False):
            sources = ["VARCHAR(40)", "DECIMAL(38, 4)"]
            sources += ["FLOAT"] if abs(value) < 2**48 else []  # which has no more digits
            sources += ["BIGINT"] if of in WHOLE and of != "bigint" else []
            found += [(of, source, str(value), fits) for source in sources]
    return found


def test_numbers_end_where_sql_server_ends_them_in_python_and_in_postgresql(db: sb.Database) -> None:
    """Row by row: what the one holds and refuses, the other does, by the same number."""
    caught = "END TRY BEGIN CATCH PRINT CONCAT('error ', ERROR_NUMBER()) END CATCH"
    script, cases = "", edges()
    for index, (of, source, value, _) in enumerate(cases):
        script += f"DECLARE @v{index} {source} = '{value}', @r{index} {of.upper()}\n"
        script += f"BEGIN TRY SET @r{index} = @v{index} PRINT @r{index} {caught}\n"
        script += f"BEGIN TRY SET @r{index} = (SELECT CAST(@v{index} AS {of})) PRINT @r{index} {caught}\n"
    texts = [message.text for message in db.execute_tsql(script).messages]
    pairs = [(case, *texts[2 * index : 2 * index + 2]) for index, case in enumerate(cases)]
    assert [pair for pair in pairs if pair[1] != pair[2]] == []
    assert [pair for pair in pairs if pair[1].startswith("error") == pair[0][3]] == []


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("DECLARE @m MONEY = 922337203685477 SELECT @m + 1", 8115),
        ("DECLARE @m SMALLMONEY = 214748 SET @m += 1", 8115),
        ("SELECT SUM(x) FROM (VALUES (CAST(922337203685477 AS MONEY)), (1)) v (x)", 8115),
        ("DECLARE @v SQL_VARIANT = 214749 SELECT CAST(@v AS SMALLMONEY)", 8115),
        ("DECLARE @m MONEY = 'x'", 235),
        ("SELECT CAST('1e3' AS MONEY)", 235),
        ("DECLARE @m SMALLMONEY = '1e3'", 293),
        ("SELECT CAST('x' AS SMALLMONEY)", 293),
        ("DECLARE @d DECIMAL(9, 2) = '1e3'", 8114),
        ("DECLARE @d DECIMAL(9, 2) = ''", 8114),
        ("DECLARE @f FLOAT = 'nan'", 8114),
        ("SELECT CAST('nan' AS FLOAT)", 8114),
        ("SELECT PARSE('x' AS int)", 9819),
    ],
)
def test_money_overflows_and_conversions_are_refused(db: sb.Database, script: str, number: int) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(script)
    assert error.value.number == number


def test_money_is_read_as_it_is_written(db: sb.Database) -> None:
    script = "DECLARE @m MONEY = ' -$1,234.56789', @s SMALLMONEY = '€7', @o MONEY = '' "
    script += "SELECT @m, @s, @o, CAST(' -$1,234.56789' AS MONEY), CONVERT(SMALLMONEY, '€7', 1), "
    script += "TRY_CAST('214749' AS SMALLMONEY)"
    found = Decimal("-1234.5679"), Decimal(7), Decimal(0), Decimal("-1234.5679"), Decimal(7), None
    assert db.execute_tsql(script).rows == [found]
