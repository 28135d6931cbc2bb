"""XML that is refused: one table for the parser of Python and for that of PostgreSQL."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.model.xml import NotXml, parse_content
from servicebroker.model.xml_problems import TEXTS
from tsql_support import failing, output_of, scalar

# text, number, line and character
INVALID_XML = [
    ("<a>", 9400, 1, 3),
    ("<a><b></b>", 9400, 1, 10),
    ("<", 9400, 1, 1),
    ("<a x='1", 9400, 1, 7),
    ("<a ", 9400, 1, 3),
    ("<a x='1'y='2'/>", 9410, 1, 9),
    ("<a>&am</a>", 9411, 1, 7),
    ("<a>&#65</a>", 9411, 1, 8),
    ("<a x='&lt'/>", 9411, 1, 10),
    ("<a></a", 9412, 1, 6),
    ("<a></a b>", 9412, 1, 8),
    ("<a/ >", 9412, 1, 4),
    ("<a><!-- one -- two --></a>", 9412, 1, 15),
    ("<a x=1/>", 9413, 1, 6),
    ("<a x", 9414, 1, 4),
    ("<a x></a>", 9414, 1, 5),
    ("<a x='<'/>", 9415, 1, 7),
    ("<a>&#xg;</a>", 9416, 1, 7),
    ("<a>&#g;</a>", 9417, 1, 6),
    ("<a>\v</a>", 9420, 1, 4),
    ("<a>\n\v</a>", 9420, 2, 1),
    ("<a x='\x01'/>", 9420, 1, 7),
    ("<a>\ufffe</a>", 9420, 1, 4),
    ("<a>&#11;</a>", 9420, 1, 8),
    ("<a>&#xD800;</a>", 9420, 1, 11),
    ("<a>&#99999999999999999999;</a>", 9420, 1, 26),
    ("<a x='&#0;'/>", 9420, 1, 10),
    ("<a>& </a>", 9421, 1, 5),
    ("<a>\nA & B</a>", 9421, 2, 4),
    ("<?1 x?><a/>", 9421, 1, 3),
    ("<a><!x></a>", 9422, 1, 6),
    ("<!x", 9422, 1, 3),
    ("<a><![CDATA[b</a>", 9423, 1, 17),
    ("<a><![CD]></a>", 9423, 1, 7),
    ("<a><!-- b</a>", 9424, 1, 13),
    ("<a></b>", 9436, 1, 7),
    ("<a>\n<b></a>", 9436, 2, 7),
    ("<a/>\n</b>", 9436, 2, 4),
    ("<a x='1' x='2'/>", 9437, 1, 16),
    ("<a xmlns:p='u' xmlns:q='u' p:x='1' q:x='2'/>", 9437, 1, 44),
    (" <?xml version='1.0'?><a/>", 9438, 1, 7),
    ("<a/><?xml version='1.0'?>", 9438, 1, 10),
    ("<?xml encoding='utf-16'?><a/>", 9441, 1, 25),
    ("<a>&nbsp;</a>", 9448, 1, 9),
    ("<a x='&copy;'/>", 9448, 1, 12),
    ("<a><?b </a>", 9451, 1, 11),
    ("<a>]]></a>", 9454, 1, 4),
    ("<1", 9455, 1, 2),
    ("<a>< b/></a>", 9455, 1, 5),
    ("<a 1='x'/>", 9455, 1, 4),
    ("</a>", 9455, 1, 2),
    ("<a:b:c/>", 9456, 1, 5),
    ("<a xmlns:p='u' xmlns:p='v'/>", 9458, 1, 28),
    ("<p:a/>", 9459, 1, 6),
    ("<a p:x='1'/>", 9459, 1, 12),
    ("<a xmlns:p=''/>", 9460, 1, 15),
]


@pytest.mark.parametrize(("text", "number", "line", "character"), INVALID_XML)
def test_python_refuses_xml_with_number_and_place(text: str, number: int, line: int, character: int) -> None:
    for encoding in ("utf-8", "utf-16"):
        with pytest.raises(NotXml) as error:
            parse_content(text.encode(encoding))
        script = f"XML parsing: line {line}, character {character}, {TEXTS[number]}"
        assert (error.value.number, str(error.value)) == (number, script)


def test_postgresql_refuses_xml_with_number_and_place(db: sb.Database) -> None:
    """The texts of a table's column are converted by PostgreSQL, all in one batch."""
    parts, expected = [], []
    for index, (text, number, line, character) in enumerate(INVALID_XML):
        literal = "N'" + text.replace("'", "''") + "'"
        parts.append(
            f"BEGIN TRY; SELECT CAST(s AS xml) FROM (SELECT {literal} AS s) t; END TRY "
            f"BEGIN CATCH; SELECT {index}, ERROR_NUMBER(), ERROR_MESSAGE(); END CATCH; "
        )
        said = f"XML parsing: line {line}, character {character}, {TEXTS[number]}"
        expected.append((index, number, said))
    items = [said[0] for said in output_of(db, "".join(parts)) if isinstance(said, list) and said]
    assert items == expected


DECLARED = '<?xml version="1.0" encoding="{}"?><a>b</a>'
ENCODINGS: list[tuple[str, int | None]] = [
    (f"N'{DECLARED.format('utf-16')}'", None),
    (f"N'{DECLARED.format('UTF-16')}'", None),
    (f"N'{DECLARED.format('utf-8')}'", 9402),
    (f"N'{DECLARED.format('iso-8859-1')}'", 9402),
    (f"'{DECLARED.format('utf-8')}'", None),
    (f"'{DECLARED.format('windows-1252')}'", None),
    (f"'{DECLARED.format('utf-16')}'", 9402),
    (f"'{DECLARED.format('klingon')}'", 9402),
    (f"'{DECLARED.format('utf-8').replace('b<', 'caf' + chr(233) + '<')}'", 9420),
    (f"'{DECLARED.format('iso-8859-1').replace('b<', 'caf' + chr(233) + '<')}'", None),
    (f"'<a>caf{chr(233)}</a>'", None),
    (f"N'<a>caf{chr(233)}</a>'", None),
    ("0x3C543EAE3C2F543E", 9420),
    ("CAST('<p>caf' + CHAR(233) + '</p>' AS varbinary(max))", 9420),
    ("0x3C613E00D83C2F613E", 9420),
    ("CAST(N'<a>' AS varbinary(max)) + 0x00D8 + CAST(N'</a>' AS varbinary(max))", 9420),
    ("N'<a>' + NCHAR(11) + N'</a>'", 9420),
    ("N'<a>' + NCHAR(0) + N'</a>'", 9420),
    (f"CAST(N'{DECLARED.format('utf-8')}' AS varbinary(max))", 9402),
    (f"CAST('{DECLARED.format('utf-16')}' AS varbinary(max))", 9402),
    (f"CAST('{DECLARED.format('utf-8')}' AS varbinary(max))", None),
    (f"CAST(N'{DECLARED.format('utf-16')}' AS varbinary(max))", None),
    (f"0xFFFE + CAST(N'{DECLARED.format('utf-8')}' AS varbinary(max))", 9402),
]


@pytest.mark.parametrize("place", ["variable", "query", "column"])
def test_a_declared_encoding_is_that_of_the_type(db: sb.Database, place: str) -> None:
    forms = {
        "variable": "DECLARE @x{1} xml = {0}; SELECT CAST(@x{1} AS nvarchar(99)) AS x",
        "query": "SELECT CAST(s AS xml) AS x FROM (SELECT {0} AS s) t",
        "column": "INSERT @kept SELECT {0}; SELECT x FROM @kept; DELETE @kept",
    }
    parts, expected = ["DECLARE @kept TABLE (x xml); SET NOCOUNT ON; "], []
    for number, (value, refused) in enumerate(ENCODINGS):
        body = forms[place].format(value, number)
        parts.append(f"BEGIN TRY; {body}; END TRY BEGIN CATCH; SELECT ERROR_NUMBER() AS x; END CATCH;\n")
        expected.append(refused if refused else f"<a>{'café' if chr(233) in value else 'b'}</a>")
    items = [said[0][0] for said in output_of(db, "".join(parts)) if isinstance(said, list) and said]
    assert items == expected


@pytest.mark.parametrize("value", ["N'<a>&x;</a>'", "0x3C543EAE3C2F543E", "N'<!DOCTYPE a><a/>'"])
@pytest.mark.parametrize("form", ["SELECT CAST({} AS xml) AS x", "DECLARE @x xml; SET @x = {}"])
def test_a_failed_conversion_to_xml_dooms_the_transaction(db: sb.Database, form: str, value: str) -> None:
    script = f"""SET XACT_ABORT OFF; BEGIN TRAN
    BEGIN TRY {form.format(value)} END TRY BEGIN CATCH SELECT XACT_STATE() AS x END CATCH
    IF @@TRANCOUNT > 0 ROLLBACK"""
    assert [item for item in output_of(db, script) if isinstance(item, list)][-1:] == [[(-1,)]]
    uncaught = f"BEGIN TRAN; {form.format(value)}; PRINT 'on'\nGO\nSELECT @@TRANCOUNT"
    number, count = [item for item in output_of(db, uncaught) if item != []]
    assert (number in (9448, 9420, 6359), count) == (True, [(0,)])


def test_a_try_of_no_xml_is_null(db: sb.Database) -> None:
    assert (
        scalar(db, "SELECT COUNT(*) FROM (SELECT TRY_CAST(s AS xml) x FROM (SELECT '<a' AS s) t) u WHERE x IS NULL")
        == 1
    )


JUDGED = [
    ("<a>&x;</a>".encode("utf-16"), "character 6, well formed check: undeclared entity"),
    (DECLARED.format("utf-16").encode(), "character 39, unable to switch the encoding"),
    (DECLARED.format("utf-8").encode("utf-16"), "character 38, unable to switch the encoding"),
    (b"<T>\xae</T>", "character 4, illegal xml character"),
    ("<a>\v</a>".encode("utf-16-le"), "character 4, illegal xml character"),
]


def test_well_formed_xml_is_judged_on_receipt(instance: sb.Instance) -> None:
    """SEND takes the body, and its conversation gets the Error."""
    database = instance.database("Judged", create=True)
    script = """
    CREATE MESSAGE TYPE Doc VALIDATION = WELL_FORMED_XML; CREATE CONTRACT C (Doc SENT BY INITIATOR);
    CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q (C); CREATE QUEUE I; CREATE SERVICE F ON QUEUE I
    DECLARE @h uniqueidentifier
    """
    for body, _ in JUDGED:
        script += f"""
        BEGIN DIALOG @h FROM SERVICE F TO SERVICE 'S' ON CONTRACT C WITH ENCRYPTION = OFF;
        SEND ON CONVERSATION @h MESSAGE TYPE Doc (0x{body.hex()});"""
    script += "SELECT CAST(CAST(message_body AS xml) AS nvarchar(max)) FROM I ORDER BY queuing_order"
    errors = [text for (text,) in database.execute_tsql(script).rows]
    for text, (_, said) in zip(errors, JUDGED, strict=True):
        assert "9615" in text
        assert f"XML parsing: line 1, {said}" in text


def test_the_error_of_a_conversion_in_python_is_that_of_postgresql(db: sb.Database) -> None:
    simple, computed = (failing(db, f"DECLARE @x xml = {value}") for value in ("N'<a>&x;</a>'", "LOWER(N'<a>&x;</a>')"))
    assert (simple.number, simple.text) == (computed.number, computed.text)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT CHAR(11) AS a FOR XML PATH('')", "<a>&#x0B;</a>"),
        ("SELECT 'x' + CHAR(1) + 'y' + CHAR(31) FOR XML PATH('')", "x&#x01;y&#x1F;"),
        ("SELECT CHAR(12) AS '@a' FOR XML PATH('r')", '<r a="&#x0C;"/>'),
        ("SELECT CHAR(9) AS a FOR XML PATH('')", "<a>&#x09;</a>"),
        ("SELECT CHAR(11) AS a FOR XML RAW", '<row a="&#x0B;"/>'),
        ("SELECT CHAR(11) AS a FOR XML PATH(''), TYPE", 6841),
        ("SELECT CAST((SELECT CHAR(11) AS a FOR XML PATH('')) AS xml)", 9420),
        ("SELECT CAST('<a/>' AS xml).query('<b>{sql:variable(\"@v\")}</b>')", 9420),
        ("DECLARE @x xml = '<a/>'; SET @x.modify('insert text{sql:variable(\"@v\")} into (/a)[1]')", 9420),
    ],
)
def test_no_control_character_gets_into_xml(db: sb.Database, query: str, found: object) -> None:
    output = output_of(db, f"DECLARE @v nvarchar(9) = N'a' + NCHAR(11); {query}")
    assert output == ([found] if isinstance(found, int) else [[(found,)]])
