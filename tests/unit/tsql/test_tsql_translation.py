"""The translation of T-SQL to PostgreSQL, text by text."""

from __future__ import annotations

import pytest
from sqlglot.dialects.tsql import TSQL

from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.scope import Column, Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.parts import read_value
from servicebroker.tsql.translation.reading.syntax_tree import constant_tree, parse_slice, plain_name, slice_text
from servicebroker.tsql.translator import Translation, tables_of, translate, translate_expression
from servicebroker.tsql.types import INT, NVARCHAR, UNIQUEIDENTIFIER, VARBINARY, SqlType, parse_type

ITEMS = '"shop_dbo"."items"'
COLUMNS = {
    ITEMS: (
        Column("Id", INT, is_identity=True, is_nullable=False),
        Column("Name", SqlType("nvarchar", 50)),
        Column("Handle", UNIQUEIDENTIFIER),
    )
}


def scope(**more: object) -> Scope:
    variables = {"@n": INT, "@s": NVARCHAR, "@h": UNIQUEIDENTIFIER, "@b": VARBINARY}
    return Scope("Shop", variables, {"#t": 'pg_temp."#t"'}, {"@@rowcount": 0}, COLUMNS, **more)  # type: ignore[arg-type]


def translation_of(text: str) -> Translation:
    return translate(text, scope())


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        (
            "SELECT TOP (1) Name FROM Items WHERE Id = @n ORDER BY Name DESC",
            'SELECT "name" AS "Name" FROM "shop_dbo"."items" AS "items" WHERE "id" = $1::integer '
            'ORDER BY "name" DESC NULLS LAST LIMIT 1',
        ),
        (
            "select [My Name] = i.Name + N'!' from Shop..Items i",
            """SELECT ("i"."name" || '!'::text) AS "My Name" FROM "shop_dbo"."items" AS "i\"""",
        ),
        (
            "UPDATE Items SET Name = @n WHERE Handle = @s",
            'UPDATE "shop_dbo"."items" AS "items" SET "name" = left(tsql.to_nvarchar($1::integer), 50) '
            'WHERE "handle" = tsql.to_uniqueidentifier($2::text)',
        ),
        (
            "DELETE Items WHERE Id IN (1, 2)",
            'DELETE FROM "shop_dbo"."items" AS "items" WHERE ("id" IN (1, 2))',
        ),
        (
            "INSERT INTO Items (Name) VALUES (N'a'), (NULL)",
            """INSERT INTO "shop_dbo"."items" AS "inserted" ("name") VALUES ('a'), (NULL) RETURNING inserted."id\"""",
        ),
        (
            "SELECT name FROM sys.databases WHERE name = 'shop'",
            'SELECT "name" AS "name" FROM tsql."databases" AS "databases" '
            """WHERE lower("name") = lower('shop'::text)""",
        ),
    ],
)
def test_a_statement_becomes_this(text: str, sql: str) -> None:
    assert translation_of(text).sql == sql


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("@n + 1", "SELECT (($1::integer + 1))"),
        ("@n = 1 AND @s LIKE '[a-c]%'", "SELECT ((($1::integer = 1 AND ($2::text ~ '^[a-c].*$'))))"),
        ("CAST(@b AS NVARCHAR(MAX))", "SELECT (tsql.to_nvarchar($1::bytea))"),
        ("ISNULL(@s, '') + 'x'", "SELECT ((COALESCE($1::text, ''::text) || 'x'::text))"),
        ("@@ROWCOUNT", "SELECT ($1::integer)"),
        ("0xAB", "SELECT ('\\xab'::bytea)"),
    ],
)
def test_an_expression_becomes_this(text: str, sql: str) -> None:
    assert translate_expression(text, scope()).sql == sql


def test_an_assignment_names_its_variables_and_converts_to_their_types() -> None:
    translation = translation_of("SELECT @n = Id, @s = Handle FROM Items")
    assert (translation.kind, translation.assignments) == ("assign", ("@n", "@s"))
    assert 'tsql.to_nvarchar("handle")' in translation.sql


def test_variables_are_parameters_and_never_text() -> None:
    translation = translation_of("SELECT @s, @n, @s")
    assert translation.sql == 'SELECT $1::text AS "?column?", $2::integer AS "?column?", $1::text AS "?column?"'
    assert translation.parameters == ("@s", "@n")


def test_holdlock_takes_the_key_before_the_statement() -> None:
    translation = translation_of("SELECT Name FROM Items WITH (UPDLOCK, HOLDLOCK) WHERE Handle = @h")
    (lock,) = translation.before
    assert "pg_advisory_xact_lock" in lock.sql
    assert lock.parameters == ("@h",)
    assert translation.sql.endswith('FOR UPDATE OF "items"')


def test_a_translation_is_kept_for_scopes_of_the_same_shape_only() -> None:
    first = translate("SELECT @n", scope())
    assert translate("SELECT @n", scope()) is first
    assert translate("SELECT @n", Scope("Shop", {"@n": NVARCHAR})).sql != first.sql
    assert translate("SELECT 1 FROM Items", scope()).sql != translate("SELECT 1 FROM Items", Scope("Other")).sql


def test_the_tables_of_a_statement_are_told() -> None:
    assert tables_of("SELECT * FROM Items JOIN Other.x.Y AS y ON 1 = 1", scope()) == (ITEMS, '"other_x"."y"')


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SELECT @unknown", 137),
        ("SELECT * FROM @unknown", 1087),
        ("SELECT * FROM #unknown", 208),
        ("SELECT Name FROM Items WITH (FASTER)", 321),
        ("SELECT FOO(1)", 195),
        ("SELECT Name FROM Items TABLESAMPLE (101 PERCENT)", 498),
        ("CREATE TABLE t (a varchar(5) COLLATE Latin1_General)", 448),
        ("SELECT PARSE('1,5' AS float USING 'de-DE')", 40515),
        ("SELECT TRY_PARSE('x' AS nvarchar(5))", 10761),
        ("SELECT PARSE('x')", 102),
        ("ALTER TABLE t ALTER COLUMN a varchar(5) COLLATE Loud_CI", 448),
        ("WITH x AS (SELECT Name FROM Items) SELECT Name FROM x WITH (UPDLOCK, READPAST)", 40515),
        ("WITH x AS (SELECT Name FROM Items) DELETE x FROM x WITH (HOLDLOCK)", 40515),
        ("UPDATE Items SET Id +=", 102),
        ("UPDATE Items SET Name += DEFAULT", 102),
        ("SELECT", 102),
        ("SELECT 1 FROM", 102),
        ("INSERT INTO Items (Id) VALUES (1)", 544),
        ("INSERT INTO Items (Nothing) VALUES (1)", 207),
        ("INSERT INTO Items (Name) VALUES (1, 2)", 110),
        ("SELECT Name FROM Items WHERE Name", 4145),
        ("SELECT @n = 1, Name FROM Items", 141),
        ("MERGE TOP (1) Items USING x ON 1 = 1 WHEN NOT MATCHED BY SOURCE THEN DELETE", 40515),
        ("MERGE Items USING x ON 1 = 1 WHEN NOT MATCHED BY SOURCE THEN INSERT (Name) VALUES (1)", 10711),
        ("MERGE Items USING x ON 1 = 1 WHEN MATCHED THEN INSERT (Name) VALUES (1)", 10711),
        ("SELECT Name, FROM Items", 102),
    ],
)
def test_untranslatable_queries_are_refused(text: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        translation_of(text)
    assert error.value.number == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvarchar(MAX)", SqlType("nvarchar", -1)),
        ("[decimal](10, 2)", SqlType("decimal", None, 10, 2)),
        ("national character varying (5)", SqlType("nvarchar", 5)),
        ("INTEGER", INT),
        ("sysname", SqlType("sysname", 128)),
    ],
)
def test_types_are_read(text: str, expected: SqlType) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text",
    ["'a'", "N'a'", "n'é''x'", "''", "N''", "'a\\b'", "'a\nb'", "'--'", "1", "0", "007", "1.50", "9" * 39, "null"],
)
def test_a_constant_is_the_tree_that_would_be_read(text: str) -> None:
    piece = slice_text(text)
    (slowly,) = parse_slice(piece, "SELECT").expressions
    quickly = constant_tree(piece)
    assert quickly == slowly
    assert quickly is not None
    assert quickly.args == slowly.args


def test_other_values_are_read() -> None:
    assert [
        constant_tree(slice_text(text))
        for text in ("1.", ".5", "1e5", "0x12", "$5", "-1", "@a", "a", "1 + 1", "N'a' 'b'")
    ] == [None] * 10


def test_a_plain_name_is_the_name_that_would_be_read() -> None:
    """The words are all keywords of sqlglot and of T-SQL."""
    words = {word for word in TSQL.Tokenizer.KEYWORDS if word.isidentifier()} | RESERVED | {"a", "Körper", "a$b", "_x"}
    plain = 0
    for text in sorted({*words, *(f"[{word}]" for word in words), "[a]]b]", '"q""r"', "[ x]", "#t", "[]"}):
        piece = slice_text(text)
        name = plain_name(piece)
        if name is not None:
            plain += 1
            assert read_value(piece).name == name
    assert plain > 300
