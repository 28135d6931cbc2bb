"""The columns of the catalog views and DMVs, their types and values, as the tables of the reference have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import servicebroker as sb
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.known_columns import COLUMNS_SQL, columns_of
from servicebroker.tsql.translation.values.catalog_views import TSQL_VIEWS
from servicebroker.tsql.types import parse_type
from support import query
from tsql_support import SEEDS, create_database

REFERENCE = SEEDS.parent / "reference" / "05-catalog.md"
_TYPE = (
    r"uniqueidentifier|tinyint|smallint|int|bigint|bit|datetime|sysname|"
    r"nvarchar\(\d+\)|varbinary\(max\)|char\(2\)|binary\(6\)"
)
_NAMED = re.compile(rf"((?:\w+(?:, | / ))*)(\w+) ({_TYPE})(?: ([N0])\b)?(?![\w(])")
_ASIDE = re.compile(r"\((?!\d+\)|max\))[^()]*\)")
# Lists of names with one type; elsewhere a comma parts columns without types.
_LISTS = ("sys.dm_broker_connections", "sys.dm_broker_forwarded_messages")


class DocumentedColumn(NamedTuple):
    view: str
    column: str
    type: str
    is_nullable: bool


def documented_columns() -> Iterator[DocumentedColumn]:
    if not REFERENCE.exists():
        return
    for section in re.split(r"^## ", REFERENCE.read_text(), flags=re.MULTILINE)[1:]:
        head = re.match(r"(\d+)\. (sys\.\w+)", section)
        for line in section.splitlines()[1:] if head and int(head[1]) <= 20 else ():
            assert head is not None
            yield from _row(head[2], line) if line.startswith("|") else _sentence(head[2], line)


def _row(view: str, line: str) -> Iterator[DocumentedColumn]:
    names, of, required = (cell.strip() for cell in line.split("|")[1:4])
    if re.fullmatch(_TYPE, of):
        yield from (DocumentedColumn(view, name, of, required != "N") for name in names.split(" / "))


def _sentence(view: str, line: str) -> Iterator[DocumentedColumn]:
    own = re.match(r"(sys\.\w+): ", line)
    at = own[1] if own else view
    for others, last, of, required in _NAMED.findall(_ASIDE.sub("", line)):
        listed = re.findall(r"\w+", others) if at in _LISTS or "/" in others else []
        yield from (DocumentedColumn(at, name, of, required != "N") for name in [*listed, last])


TOLD = list(documented_columns())
VIEWS = sorted({one.view for one in TOLD})
OBJECTS = """
ALTER DATABASE CURRENT SET HONOR_BROKER_PRIORITY ON
CREATE MESSAGE TYPE [//c/Ask] VALIDATION = WELL_FORMED_XML
CREATE CONTRACT [//c/C] ([//c/Ask] SENT BY ANY)
GO
CREATE PROCEDURE dbo.Work AS RETURN 0
GO
CREATE QUEUE dbo.Q WITH ACTIVATION (STATUS = OFF, PROCEDURE_NAME = dbo.Work, MAX_QUEUE_READERS = 3, EXECUTE AS OWNER)
CREATE SERVICE [//c/S] ON QUEUE dbo.Q ([//c/C])
CREATE ROUTE Away WITH SERVICE_NAME = '//c/Far', BROKER_INSTANCE = 'C47C2EFB-0EB0-4D65-A3DA-4F1F5B4F6C22',
    LIFETIME = 3600, ADDRESS = 'TCP://far:4022', MIRROR_ADDRESS = 'TCP://further:4022'
CREATE BROKER PRIORITY P FOR CONVERSATION
    SET (CONTRACT_NAME = [//c/C], LOCAL_SERVICE_NAME = [//c/S], PRIORITY_LEVEL = 9)
CREATE USER Someone WITHOUT LOGIN
CREATE REMOTE SERVICE BINDING B TO SERVICE '//c/Far' WITH USER = Someone, ANONYMOUS = ON
DECLARE @near uniqueidentifier, @far uniqueidentifier
BEGIN DIALOG @near FROM SERVICE [//c/S] TO SERVICE '//c/S' ON CONTRACT [//c/C] WITH ENCRYPTION = OFF, LIFETIME = 600;
SEND ON CONVERSATION @near MESSAGE TYPE [//c/Ask] (N'<a/>');
BEGIN CONVERSATION TIMER (@near) TIMEOUT = 500
BEGIN DIALOG @far FROM SERVICE [//c/S] TO SERVICE '//c/Far' ON CONTRACT [//c/C] WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @far MESSAGE TYPE [//c/Ask] (N'<a/>');
"""


@pytest.fixture(scope="module")
def filled_database(instance: sb.Instance) -> sb.Database:
    """A database with a row in most views."""
    return create_database(instance, "Catalogued", OBJECTS)


def test_the_reference_is_read() -> None:
    if not REFERENCE.exists():
        pytest.skip(f"the reference stands in {REFERENCE}, which is not here")
    assert len(VIEWS) == 22
    assert len(TOLD) > 150
    assert (
        DocumentedColumn("sys.conversation_endpoints", "inbound_session_key_identifier", "uniqueidentifier", False)
        in TOLD
    )
    assert DocumentedColumn("sys.dm_broker_connections", "connection_id", "uniqueidentifier", True) in TOLD
    assert DocumentedColumn("sys.endpoints", "type", "tinyint", True) in TOLD


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_columns_and_types_of_the_reference(filled_database: sb.Database, view: str) -> None:
    own = view.removeprefix("sys.")
    name = f"{'tsql' if own in TSQL_VIEWS else 'sys'}.{own}"
    columns = {
        column.name: column.type
        for column in columns_of(query(filled_database, COLUMNS_SQL.replace("$1", "%s"), [name]))[name]
    }
    expected = {
        one.column: parse_type(one.type.replace("sysname", "nvarchar(128)")) for one in TOLD if one.view == view
    }
    assert {name: str(columns.get(name)) for name in expected} == {name: str(of) for name, of in expected.items()}


@pytest.mark.parametrize("view", VIEWS)
def test_every_value_is_one_of_its_type(filled_database: sb.Database, view: str) -> None:
    expected = [one for one in TOLD if one.view == view]
    found = filled_database.execute_tsql(f"SELECT {', '.join(one.column for one in expected)} FROM {view}").rows
    if view not in ("sys.message_type_xml_schema_collection_usages",) and "endpoints" not in view and "dm_" not in view:
        assert found
    for row in found:
        for one, value in zip(expected, row, strict=True):
            of = parse_type(one.type)
            assert value is not None or one.is_nullable, one
            fitted = convert(value, of, of)
            assert (fitted.rstrip() if isinstance(value, str) and of.name == "char" else fitted) == value, one


def test_ids_types_and_procedures_have_sql_servers_values(filled_database: sb.Database) -> None:
    def row_of(text: str) -> tuple[object, ...]:
        return tuple(filled_database.execute_tsql(text).rows[0])

    assert row_of("SELECT database_id FROM sys.databases WHERE name = 'master'") == (1,)
    assert row_of("SELECT database_id FROM sys.databases WHERE name = 'msdb'") == (4,)
    assert row_of("SELECT CASE WHEN MIN(database_id) > 4 THEN 1 END FROM sys.databases WHERE name NOT IN "
               "('master', 'tempdb', 'model', 'msdb')") == (1,)  # fmt: skip
    assert row_of("SELECT type, type_desc FROM sys.service_queues WHERE name = 'q'") == ("SQ", "SERVICE_QUEUE")
    assert row_of("SELECT activation_procedure, execute_as_principal_id FROM sys.service_queues WHERE name = 'Q'") == (
        "[Catalogued].[dbo].[Work]",
        -2,
    )
    assert row_of(
        "SELECT COUNT(*) FROM sys.columns WHERE object_id = OBJECT_ID('dbo.Q') AND name = 'message_body'"
    ) == (1,)
    assert row_of("SELECT state, state_desc FROM sys.conversation_endpoints WHERE far_service = '//c/Far'") == (
        "CO",
        "CONVERSING",
    )
