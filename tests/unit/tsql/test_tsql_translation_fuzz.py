"""Random texts give a translation or a T-SQL error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servicebroker.tsql.scope import Column, Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.xml_paths import read_path
from servicebroker.tsql.translator import translate, translate_expression
from servicebroker.tsql.types import INT, NVARCHAR, XML, parse_type

FUZZ = settings.get_profile("fuzz")  # of conftest.py
SCOPE = Scope(
    "Shop",
    {"@n": INT, "@s": NVARCHAR, "@x": XML},
    {"#t": 'pg_temp."#t"', "@t": 'pg_temp."@t"'},
    {"@@rowcount": 1},
    {'"shop_dbo"."items"': (Column("Id", INT, is_identity=True), Column("Name", NVARCHAR), Column("Doc", XML))},
)
LANGUAGE = """
SELECT FROM WHERE AND OR NOT IN EXISTS ( ) ( ) , , . = <> < + - * / % @n @s @x @t #t Items Id Name Doc 'a'
N'b' 1 2.5 0xAB NULL TOP (1) AS x INNER JOIN ON CROSS APPLY UNION ALL ORDER BY GROUP HAVING COUNT(*) CASE WHEN
THEN ELSE END CAST AS int nvarchar( max decimal(5) INSERT INTO VALUES UPDATE SET DELETE OUTPUT inserted.Id deleted.Name
WITH (UPDLOCK) LIKE BETWEEN IS ISNULL( LEN( DATEADD( CREATE TABLE INDEX VIEW DROP ALTER ADD PRIMARY KEY
IDENTITY(1,1) DEFAULT CHECK CONSTRAINT FOR XML PATH JSON .value('/a','int') .nodes('/a') OVER PARTITION
ROW_NUMBER() OFFSET ROWS FETCH @@ROWCOUNT [x y] "q" ; += DISTINCT MERGE USING MATCHED INTERSECT EXCEPT ALL ANY SOME
LEFT OUTER FULL RAW AUTO ROOT('r') TYPE ELEMENTS dbo. STRING_SPLIT( OPENJSON( TRY_CONVERT( IIF( COALESCE( XMLNAMESPACES
.tsql_modify('delete(/a)[1]') .modify('delete/a')
CONVERT( VALUES( DEFAULT) COLUMN REFERENCES FOREIGN KEY UNIQUE INCLUDE SCHEMA SEQUENCE TRUNCATE [] '' 1e 1e5
0x $ 1. .5 ::
"""
PATHS = """/ // @ a b * . .. [ ] ( ) 1 = 'x' "y" p: text() node() not( and or last() $ < sql:variable("@n") + - div
for·$v·in let·$v·:= return $v where order·by if( then else some·$v·in satisfies <a> </a> <b/> { } count( sum( concat( ,
cast·as·xs:int? element·e{ *: position() data( |"""
CHANGES = """insert delete replace value of with into before after as first last <a> </a> <a/> , (/a)[1] /a/@b
text(){ } { attribute b {"x"} {sql:variable("@n")} sql:variable("@x") "<" 'y' 1 declare namespace p="u"; <p:a/> /a[1]"""
TYPE_PARTS = "nvarchar decimal float time xml binary ( ) ( ) max , 1 10 [ ] . x"
WORDS = st.sampled_from(LANGUAGE.split())
TYPES = st.sampled_from(TYPE_PARTS.split())
CHANGE_SIGNS = st.sampled_from(CHANGES.split())
PATH_SIGNS = st.sampled_from(PATHS.split())


@FUZZ
@given(st.lists(WORDS, max_size=25).map(" ".join), st.booleans())
def test_words_of_the_language_in_any_order(text: str, as_expression: bool) -> None:
    translate_or_refuse(text, as_expression)


@FUZZ
@given(st.text(max_size=60), st.booleans())
def test_any_text(text: str, as_expression: bool) -> None:
    translate_or_refuse(text, as_expression)


@FUZZ
@given(st.lists(PATH_SIGNS, max_size=12).map(" ".join), st.sampled_from(["query", "exist", "nodes"]))
def test_any_path(text: str, method: str) -> None:
    text = text.replace("·", " ")
    try:
        read_path(text, {"p": "urn:p"}, lambda name: True)
    except TsqlError as error:
        check(error)
    quoted = text.replace("'", "''")
    call = f"Doc.{method}('{quoted}')"
    rest = f"t.c.query('.') FROM Items CROSS APPLY {call} t(c)" if method == "nodes" else f"{call} FROM Items"
    translate_or_refuse(f"SELECT {rest}", as_expression=False)


@FUZZ
@given(st.lists(CHANGE_SIGNS, max_size=9).map(" ".join))
def test_any_change_of_xml(text: str) -> None:
    quoted = text.replace("'", "''")
    translate_or_refuse(f"UPDATE Items SET Doc.modify('{quoted}')", as_expression=False)


@FUZZ
@given(st.lists(TYPES, max_size=8).map("".join))
def test_any_type(text: str) -> None:
    try:
        parse_type(text)
    except TsqlError as error:
        check(error)


@pytest.mark.parametrize(
    "text", ["(" * 3000, "SELECT " + "(" * 3000 + "1" + ")" * 3000, "NOT " * 5000 + "1 = 1", "-" * 9999 + "1"]
)
def test_deep_texts_are_refused(text: str) -> None:
    translate_or_refuse(text, as_expression=False)
    translate_or_refuse(text, as_expression=True)


def check(refused: TsqlError) -> None:
    assert refused.text
    assert 50 < refused.number < 50001


def translate_or_refuse(text: str, as_expression: bool) -> None:
    try:
        translation = (translate_expression if as_expression else translate)(text, SCOPE)
    except TsqlError as error:
        check(error)
    else:
        assert translation.sql
        assert (
            all(f"${number}" in translation.sql for number in range(1, len(translation.parameters) + 1))
            or translation.before
        )
