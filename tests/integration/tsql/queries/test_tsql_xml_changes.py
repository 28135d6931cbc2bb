"""modify() of xml: insert, delete, replace value of, on variables and columns."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import create_database, output_of, rows

DOCUMENT = '<o id="7" note="n"><!--c--><i n="1">one</i><i n="2"/>tail</o>'
CHANGES = [
    ("delete /o/i", '<o id="7" note="n"><!--c-->tail</o>'),
    ("delete (/o/i)[2]", '<o id="7" note="n"><!--c--><i n="1">one</i>tail</o>'),
    ("delete /o/i[@n=sql:variable(\"@n\")]", '<o id="7" note="n"><!--c--><i n="1">one</i>tail</o>'),
    ("delete /o/@note", DOCUMENT.replace(' note="n"', "")),
    ("delete //i/@n", '<o id="7" note="n"><!--c--><i>one</i><i/>tail</o>'),
    ("delete /o/text()", DOCUMENT.replace("tail", "")),
    ("delete /nothing", DOCUMENT),
    ('replace value of (/o/i/text())[1] with "a<b"', DOCUMENT.replace("one", "a&lt;b")),
    ("replace value of (/o/@id)[1] with 8", DOCUMENT.replace('"7"', '"8"')),
    ('replace value of /o[1]/@id with sql:variable("@s")', DOCUMENT.replace('"7"', '"&lt;\'&quot;&amp;"')),
    ('replace value of (/o/i[@n="2"]/text())[1] with "x"', DOCUMENT),
    ("insert <z/> into (/o)[1]", DOCUMENT.replace("</o>", "<z/></o>")),
    ("insert <z/> as last into (/o)[1]", DOCUMENT.replace("</o>", "<z/></o>")),
    ("insert <z>go into it</z> as first into (/o)[1]", DOCUMENT.replace("<!--", "<z>go into it</z><!--")),
    ("insert (<y/>, <z/>) after (/o/i)[1]", DOCUMENT.replace("</i>", "</i><y/><z/>")),
    ('insert <z/> before (/o/i[@n="2"])[1]', DOCUMENT.replace('<i n="2"/>', '<z/><i n="2"/>')),
    ("insert attribute more {sql:variable(\"@n\")} into (/o/i)[1]", DOCUMENT.replace('"1"', '"1" more="2"')),
    ('insert text {"!"} into (/o/i)[2]', DOCUMENT.replace('<i n="2"/>', '<i n="2">!</i>')),
    ('insert <z a="{sql:variable("@s")}">{sql:variable("@s")}{ sql:variable("@x") }</z> into (/o/i)[2]',
     DOCUMENT.replace('<i n="2"/>', '<i n="2"><z a="&lt;\'&quot;&amp;">&lt;\'"&amp;<x/>t</z></i>')),
    ('insert sql:variable("@x") into (/o/i)[2]', DOCUMENT.replace('<i n="2"/>', '<i n="2"><x/>t</i>')),
    ("insert <z/> into (/nothing)[1]", DOCUMENT),
    ("replace value of (/o/@id)[1] with (/o/@id)[1] + 1", DOCUMENT.replace('"7"', '"8"')),
    ('replace value of (/o/i/text())[1] with concat((/o/i)[1], "/", sql:variable("@n"))',
     DOCUMENT.replace("one", "one/2")),
    ('replace value of (/o/@note)[1] with (if (/o/i) then "yes" else "no")', DOCUMENT.replace('"n"', '"yes"')),
    ("insert <z>{1 + 1}</z> into (/o)[1]", DOCUMENT.replace("</o>", "<z>2</z></o>")),
    ("insert (/o/i)[1] as last into (/o)[1]", DOCUMENT.replace("</o>", '<i n="1">one</i></o>')),
    ('insert attribute sum {sum(/o/i/@n)} into (/o/i)[2]', DOCUMENT.replace('<i n="2"/>', '<i n="2" sum="3"/>')),
    ('declare namespace p="urn:p"; insert <p:z/> into (/o)[1]', DOCUMENT.replace("</o>", '<p:z xmlns:p="urn:p"/></o>')),
]  # fmt: skip
DECLARED = "DECLARE @n INT = 2, @s NVARCHAR(9) = N'<''\"&', @x XML = N'<x/>t', @d XML = N'{}';"


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "XmlChanges", "CREATE TABLE Orders (Id INT PRIMARY KEY, Doc XML)")


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_variable_is_changed(db: sb.Database, change: str, expected: str) -> None:
    text = change.replace("'", "''")
    assert rows(db, f"{DECLARED.format(DOCUMENT)} SET @d.modify('{text}'); SELECT @d") == [(expected,)]


def test_columns_are_changed(db: sb.Database) -> None:
    db.execute_tsql(
        "DELETE Orders INSERT Orders VALUES (1, '<o><s>new</s></o>'), (2, '<o/>'), (3, '<o><s>old</s></o>')"
    )
    text = """
    DECLARE @state NVARCHAR(10) = N'done'
    UPDATE Orders SET Doc.modify('replace value of (/o/s/text())[1] with sql:variable("@state")')
    WHERE Doc.exist('/o/s[.="new"]') = 1
    UPDATE o SET Doc.modify('insert <at>1</at> as first into (/o)[1]'), Id = o.Id + 10 FROM Orders o WHERE Id < 3
    SELECT Doc FROM Orders ORDER BY Id
    """
    assert rows(db, text) == [
        ("<o><s>old</s></o>",), ("<o><at>1</at><s>done</s></o>",), ("<o><at>1</at></o>",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("replace value of /o/i/text() with 1", 2337),
        ("replace value of (/o/i)[1] with 1", 2356),
        ("insert <z/> into /o/i", 2226),
        ("insert <z/> into (/o/@id)[1]", 2340),
        ("insert <z> into (/o)[1]", 2209),
        ("insert <p:z/> into (/o)[1]", 9459),
        ('insert attribute id {"1"} into (/o)[1]', 2372),
        ("replace value of (/o/@id)[1] with nobody()", 2395),
        ("insert <z>{$z}</z> into (/o)[1]", 2227),
        ("insert nothing", 2209),
        ("erase /o", 2209),
        ("delete /o/@*", 40515),
        ('delete /o/i[@n=sql:variable("@nobody")]', 137),
    ],
)
def test_invalid_xml_changes_have_sql_servers_error_number(db: sb.Database, change: str, expected: int) -> None:
    with pytest.raises(TsqlError) as error:
        db.execute_tsql(f"{DECLARED.format(DOCUMENT)} SET @d.modify('{change}')")
    assert error.value.number == expected


def test_null_other_types_and_a_value_of_it_are_refused(db: sb.Database) -> None:
    for script, wanted in (
        ("DECLARE @d XML; SET @d.modify('delete /o')", 5302),
        ("DECLARE @d INT = 1; SET @d.modify('delete /o')", 258),
        ("DECLARE @d XML = '<o/>'; SELECT @d.modify('delete /o')", 8137),
        ("DECLARE @d XML = '<o/>', @t NVARCHAR(9) = 'delete /o'; SET @d.modify(@t)", 8172),
    ):
        with pytest.raises(TsqlError) as error:
            db.execute_tsql(script)
        assert (script, error.value.number) == (script, wanted)
    assert [each.verdict for each in check("DECLARE @d XML; SET @d.modify('delete /o')")] == [Verdict.RUNS] * 2


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (" <a> <b>1</b>\n</a> ", "<a><b>1</b></a>"),
        ("<a><b> </b> x <c/></a>", "<a><b/> x <c/></a>"),
        ("<a  x='1'></a ><b y=\"'\"/>", '<a x="1"/><b y="\'"/>'),
        ("<a><![CDATA[1 < 2]]></a><!-- > < -->", "<a>1 &lt; 2</a><!-- > < -->"),
        ("<a>&#x20;</a><b>&#32;&#9;</b><c><![CDATA[\n]]></c>", "<a>&#x20;</a><b> &#x09;</b><c>&#x0A;</c>"),
        ("<a b='1\r\n2'>1\r\n2&#13;3</a>", '<a b="1 2">1\n2&#x0D;3</a>'),
        ("<a b='&quot;&#10;'>&quot;&gt;</a>", '<a b="&quot;&#xA;">"&gt;</a>'),
        ('<a xml:space="preserve"> <b/> </a>', '<a xml:space="preserve"> <b/> </a>'),
        ("<?xml version='1.0'?>\n<a/>\n", "<a/>"),
        ("  ", ""),
    ],
)
def test_xml_is_written_in_one_way_by_python_and_by_postgresql(db: sb.Database, source: str, written: str) -> None:
    assigned = "DECLARE @x xml = @source; SELECT CAST(@x AS nvarchar(200))"
    computed = "SELECT CAST(CAST(CONCAT(@source, '') AS xml) AS nvarchar(200))"
    for query in (assigned, computed):
        assert db.execute_tsql(query, {"source": source}).rows == [(written,)], query


def test_convert_with_style_1_keeps_white_space(db: sb.Database) -> None:
    query = "SELECT CAST(CONVERT(xml, @source, 1) AS nvarchar(99)), CAST(CONVERT(xml, @source, 2) AS nvarchar(99))"
    assert db.execute_tsql(query, {"source": "<a> <b/></a>"}).rows == [("<a> <b/></a>", "<a><b/></a>")]


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("SELECT CONCAT('a', CHAR(13), CHAR(10), 'b') AS x FOR XML PATH('')", "<x>a&#x0D;\nb</x>"),
        ("SELECT CONCAT('a', CHAR(13), CHAR(10)) AS x FOR XML RAW", '<row x="a&#x0D;&#xA;"/>'),
        ("SELECT '  ' AS x, '' AS y FOR XML PATH('')", "<x> &#x20;</x><y></y>"),
        ("SELECT CAST((SELECT ' ' AS x, '' AS y FOR XML PATH('r'), TYPE) AS nvarchar(99))", "<r><x>&#x20;</x><y/></r>"),
    ],
)
def test_for_xml_keeps_white_space_and_carriage_returns(db: sb.Database, query: str, document: str) -> None:
    assert output_of(db, query) == [[(document,)]]
