"""XQuery expressions beyond paths, in the methods of xml."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import rows

STAFF = (
    '<root><dept id="1" n="A"><emp id="10"><sal>5</sal></emp><emp id="11"><sal>7</sal></emp></dept>'
    '<dept id="2" n="B"><emp id="12"><sal>9</sal></emp></dept><note xml:lang="en" xmlns="urn:n">a &amp; b</note></root>'
)
DECLARED = f"DECLARE @n INT = 11, @s NVARCHAR(9) = N'B', @b BIT = 1, @y VARBINARY(9) = 0x0AFF, @x XML = N'{STAFF}';"


def call_method(db: sb.Database, call: str) -> object:
    ((found,),) = rows(db, f"{DECLARED} SELECT @x.{call}")
    return found


@pytest.mark.parametrize(
    ("text", "type_name", "expected"),
    [
        ("sum(//sal)", "int", 21),
        ("avg(/root/dept[1]/emp/sal)", "decimal(5,2)", 6),
        ("min(//emp/@id) + max(//emp/@id) * 2", "int", 34),
        ("(//sal)[1] - 1", "int", 4),
        ("(//sal)[2] div 2", "decimal(5,2)", 3.5),
        ("-(//sal)[2] idiv 2", "int", -3),
        ("(//sal)[2] mod 4", "int", 3),
        ("(//sal)[1] div 0", "int", None),
        ("sum(/nothing)", "int", 0),
        ("max(/nothing)", "int", None),
        ("max(/root/dept/@n)", "char(1)", "B"),
        ("min((\"b\", 1, \"a\"))", "char(1)", "1"),
        ('concat((/root/dept/@n)[1], "-", (/root/dept/@n)[2])', "varchar(9)", "A-B"),
        ('substring("abcde", 2, 3)', "varchar(9)", "bcd"),
        ('substring("abcde", 0)', "varchar(9)", "abcde"),
        ('string-length("abc")', "int", 3),
        ("upper-case((/root/*[3])[1])", "nvarchar(9)", "A & B"),
        ("local-name((/root/*)[3])", "varchar(9)", "note"),
        ("namespace-uri((/root/*)[3])", "varchar(9)", "urn:n"),
        ("(//*:note)[1]", "varchar(9)", "a & b"),
        ('(//*[local-name() = "note"])[1]', "varchar(9)", "a & b"),
        ('(//*:note/@xml:lang)[1]', "varchar(9)", "en"),
        ("(/root/dept[emp/@id = 12]/@n)[1]", "char(1)", "B"),
        ("(/root/dept/emp[last()]/@id)[1]", "int", 11),
        ("(/root/dept/emp)[position() = last()][1]/@id", "int", 12),
        ('(/root/dept[@n = sql:variable("@s")]/@id)[1]', "int", 2),
        ("(/root/dept[count(emp) > 1]/@id)[1]", "int", 1),
        ("(//emp[../@n = \"B\"]/@id)[1]", "int", 12),
        ("(//sal[. = 9]/../../@n)[1]", "char(1)", "B"),
        ("(//emp[sal = 7]/@id)[1] cast as xs:int?", "int", 11),
        ('xs:int("12") + 1', "int", 13),
        ('xs:int("twelve")', "int", None),
        ('if (//emp[sal > 8]) then "rich" else "poor"', "varchar(9)", "rich"),
        ("not(/root/dept[3])", "bit", 1),
        ("empty(/root/dept) or exists(//sal)", "bit", 1),
        ('xs:date("2024-01-31") > xs:date("2024-01-30")', "bit", 1),
        ("round(2.5)", "int", 3),
        ('xs:hexBinary(substring("0x0aFF", 3))', "varbinary(max)", b"\x0a\xff"),
        ('xs:hexBinary(concat("0a", "f"))', "varbinary(9)", None),
        ('xs:hexBinary("0aff")', "varchar(9)", "0AFF"),
        ('xs:hexBinary("0aff")', "varbinary(1)", b"\x0a"),
        ('xs:base64Binary("Cv8=")', "varbinary(9)", b"\x0a\xff"),
        ('xs:base64Binary(xs:hexBinary("0aff"))', "varchar(9)", "Cv8="),
        ('xs:base64Binary(sql:variable("@y"))', "varchar(9)", "Cv8="),
        ('xs:hexBinary(sql:variable("@y"))', "varchar(9)", "0AFF"),
        ('xs:hexBinary(sql:variable("@s"))', "varbinary(9)", None),
        ('sql:variable("@y")', "varbinary(9)", b"\x0a\xff"),
        ("(: a note :) count(//emp (: of all :))", "int", 3),
    ],
)  # fmt: skip
def test_a_value_is_computed(db: sb.Database, text: str, type_name: str, expected: object) -> None:
    text = text.replace("'", "''")
    assert call_method(db, f"value('{text}', '{type_name}')") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(//emp)", "3"),
        ("data(//emp/@id)", "10 11 12"),
        ("distinct-values((1, 2, 1))", "1 2"),
        ("for $e in //emp where $e/sal > 5 order by $e/@id descending return data($e/@id)", "12 11"),
        ("for $d in /root/dept, $e in $d/emp return concat($d/@n, $e/@id)", "A10 A11 B12"),
        ("for $d at $i in /root/dept let $t := sum($d/emp/sal) return <d at=\"{$i}\" t=\"{$t}\"/>",
         '<d at="1" t="12"/><d at="2" t="9"/>'),
        ("<out>{for $e in //emp[sal >= 7] return element e {data($e/@id)}} {{x}}</out>",
         "<out><e>11</e><e>12</e> {x}</out>"),
        ("<a><!-- { -->{/root/dept[2]/emp/sal}<b y='{1, 2}'/></a>", '<a><!-- { --><sal>9</sal><b y="1 2"/></a>'),
        ("if (count(//emp) > 5) then <many/> else <few/>", "<few/>"),
        ("(//sal)[2], <x/>, text {\"t\"}", "<sal>7</sal><x/>t"),
        ("/root/dept/emp[2]", '<emp id="11"><sal>7</sal></emp>'),
        ("//sal[. > 6]/..", '<emp id="11"><sal>7</sal></emp><emp id="12"><sal>9</sal></emp>'),
        ('declare namespace p="urn:p"; <p:y>{string((//@n)[1])}</p:y>', '<p:y xmlns:p="urn:p">A</p:y>'),
        ("let $a := //sal return $a[2]", "<sal>7</sal>"),
        ("//emp[. << (//emp[sal = 9])[1]]/sal", "<sal>5</sal><sal>7</sal>"),
        ("for $e in //emp where $e >> (//sal)[1] return data($e/@id)", "11 12"),
        ("count(//sal[.. is (//emp)[2]]), (//emp)[1] is (//dept/*)[1], //nothing is /root", "1 true false"),
    ],
)  # fmt: skip
def test_a_query_makes_xml(db: sb.Database, text: str, expected: str) -> None:
    text = text.replace("'", "''")
    assert call_method(db, f"query('{text}')") == expected


def test_whether_something_is_there(db: sb.Database) -> None:
    for text, wanted in (
        ("some $e in //emp satisfies $e/sal > 8", 1),
        ('//emp[sal = sql:variable("@n")]', 0),
        ("/root[count(dept) = 2]", 1),
        ("/root/dept[emp/sal = ../dept[2]/emp/sal]", 1),
    ):
        assert (text, call_method(db, f"exist('{text}')")) == (text, wanted)
    assert call_method(db, "value('every $e in //emp satisfies $e/sal > 8', 'bit')") == 0


def test_rows_know_their_parents_and_columns_stand_in_conditions(db: sb.Database) -> None:
    text = (
        DECLARED
        + """
    SELECT d.c.value('@n', 'char(1)'), e.c.value('@id', 'int'), e.c.value('../@id', 'int'),
           e.c.value('count(../emp)', 'int'), e.c.value('(../../dept)[2]/@n', 'char(1)')
    FROM @x.nodes('/root/dept') d(c) CROSS APPLY d.c.nodes('emp') e(c)"""
    )
    assert rows(db, text) == [("A", 10, 1, 2, "B"), ("A", 11, 1, 2, "B"), ("B", 12, 2, 1, "B")]
    text = (
        DECLARED
        + """
    SELECT v.n, @x.value('(/root/dept[@n = sql:column("v.n")]/@id)[1]', 'int')
    FROM (VALUES (N'A'), (N'B'), (NULL)) v(n)"""
    )
    assert rows(db, text) == [("A", 1), ("B", 2), (None, None)]


def test_parents_are_found_once_and_in_their_order(db: sb.Database) -> None:
    text = (
        DECLARED
        + """
    SELECT e.c.query('data(../../dept[emp]/@n)'), e.c.query('data((../../dept/emp, .)/../@id)'),
           e.c.query('data((., ../../dept/emp)/../@id)'),
           e.c.value('count((., ../emp, ../../dept/emp)/..)', 'int'), e.c.query('data((../emp/.., ../../dept)/emp/@id)')
    FROM @x.nodes('/root/dept[2]/emp') e(c)"""
    )
    assert rows(db, text) == [("A B", "1 2", "1 2", 2, "10 11 12")]


def test_attributes_keep_their_order(db: sb.Database) -> None:
    assert rows(db, """DECLARE @x XML = N'<o zz="1" b="2" a="3"/>'; SELECT @x.query('/o')""") == [
        ('<o zz="1" b="2" a="3"/>',)
    ]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("value('nobody(/root)', 'int')", 2395),
        ("value('$y', 'int')", 2227),
        ("value('/root/dept + 1', 'int')", 2389),
        ("value('for $d in /root/dept return 1', 'int')", 2389),
        ("value('(//note)[1] cast as xs:gYear', 'int')", 40515),
        ("value('count(1, 2)', 'int')", 2233),
        ("query('for $d in /root retur $d')", 2209),
        ("query('<a>{1</a>')", 2209),
        ("query('<a>')", 2209),
        ("query('(1')", 2209),
        ("query('/root/ancestor::x')", 40515),
        ("query('//dept | //emp')", 40515),
        ("query('/p:root[1]/text()[last()]')", 2229),
    ],
)
def test_invalid_xqueries_have_sql_servers_error_number(db: sb.Database, call: str, expected: int) -> None:
    with pytest.raises(TsqlError) as error:
        call_method(db, call)
    assert error.value.number == expected
    verdicts = {each.verdict for each in check(f"DECLARE @x XML; SELECT @x.{call}")}
    assert verdicts == {Verdict.RUNS, Verdict.REFUSED}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT d.c.value('/root[1]/dept[2]/@n', 'char(1)') FROM @x.nodes('/root/dept') d(c)", ["B", "B"]),
        ("SELECT d.c.value('(/root/dept/@n)[2]', 'char(1)') FROM @x.nodes('/root/dept[1]') d(c)", ["B"]),
        ("SELECT d.c.value('count(/root/dept)', 'int') FROM @x.nodes('/root/dept') d(c)", [2, 2]),
        ("SELECT d.c.value('sum(//sal)', 'int') FROM @x.nodes('/root/dept') d(c)", [21, 21]),
        ("SELECT d.c.exist('/root/note') FROM @x.nodes('//emp') d(c)", [0, 0, 0]),
        ("SELECT d.c.exist('/root/*:note') FROM @x.nodes('//emp') d(c)", [1, 1, 1]),
        ("SELECT CAST(d.c.query('/root/dept[2]/emp') AS varchar(60)) FROM @x.nodes('(//emp)[1]') d(c)",
         ['<emp id="12"><sal>9</sal></emp>']),
        ("SELECT e.c.value('@id', 'int') FROM @x.nodes('/root/dept[2]') d(c) "
         "CROSS APPLY d.c.nodes('/root/dept/emp') e(c)",
         [10, 11, 12]),
        ("SELECT e.c.value('/root[1]/dept[1]/@n', 'char(1)') FROM @x.nodes('/root/dept') d(c) "
         "CROSS APPLY d.c.nodes('(emp)[last()]') e(c)", ["A", "A"]),
        ("SELECT e.c.value('../@n', 'char(1)') FROM @x.nodes('(/root/dept)[2]/emp') e(c)", ["B"]),
        ("SELECT e.c.value('../@n', 'char(1)') FROM @x.nodes('(//emp)[last()]') e(c)", ["B"]),
    ],
)  # fmt: skip
def test_an_absolute_path_begins_at_the_document_of_a_node(db: sb.Database, query: str, found: list[object]) -> None:
    assert [value for (value,) in rows(db, f"{DECLARED} {query}")] == found


def test_an_absolute_path_in_an_inline_function_begins_at_the_root(db: sb.Database) -> None:
    db.execute_tsql("""CREATE FUNCTION Depts (@x xml) RETURNS TABLE AS RETURN
    (SELECT d.c.value('/root[1]/dept[1]/@n', 'char(1)') AS n FROM @x.nodes('/root/dept') d(c))""")
    assert rows(db, f"{DECLARED} SELECT n FROM Depts(@x)") == [("A",), ("A",)]
