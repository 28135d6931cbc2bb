"""Triggers that send what has changed as XML, and receivers that take it apart: names and types survive the way."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import create_database

TABLES = """
CREATE TABLE Clients (ClientID INT PRIMARY KEY, FullName NVARCHAR(50), IsActive BIT, Balance MONEY, Notes XML);
CREATE TABLE Visits (VisitID INT PRIMARY KEY, ClientID INT, Room VARCHAR(10));
INSERT Clients VALUES (1, N'Ada & Co', 1, 12.5, '<n a="1"/>'), (2, N'Bo', 0, NULL, NULL), (3, N'Cy', 1, 3, NULL);
INSERT Visits VALUES (10, 1, 'blue'), (11, 1, 'red'), (12, 2, 'blue'), (13, 1, 'blue');
"""


@pytest.fixture(scope="module")
def clinic(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Clinic", TABLES)


def document(database: sb.Database, query: str) -> str:
    ((text,),) = database.execute_tsql(query).rows
    return str(text)


def test_a_trigger_sends_columns_under_their_names_and_types(clinic: sb.Database) -> None:
    clinic.execute_tsql("""
    CREATE QUEUE Changes; CREATE SERVICE Changes ON QUEUE Changes ([DEFAULT]);
    GO
    CREATE TRIGGER TellChange ON Clients AFTER UPDATE AS
    BEGIN
        SET NOCOUNT ON;
        DECLARE @h UNIQUEIDENTIFIER, @body XML = (
            SELECT OBJECT_NAME(@@PROCID) AS [@By],
                   (SELECT * FROM inserted FOR XML AUTO, ELEMENTS, TYPE), (SELECT * FROM deleted FOR XML RAW, TYPE)
            FOR XML PATH('Change'));
        BEGIN DIALOG @h FROM SERVICE Changes TO SERVICE 'Changes', 'current database' WITH ENCRYPTION = OFF;
        SEND ON CONVERSATION @h (@body);
    END
    GO
    UPDATE Clients SET FullName = N'Ada Ltd', IsActive = 0 WHERE ClientID = 1
    """)
    received = document(clinic, "RECEIVE TOP (1) CAST(message_body AS XML) FROM Changes")
    assert received.startswith(
        '<Change By="TellChange"><inserted><ClientID>1</ClientID><FullName>Ada Ltd</FullName><IsActive>0</IsActive>'
        '<Balance>12.5000</Balance><Notes><n a="1"/></Notes></inserted>'
        '<row ClientID="1" FullName="Ada &amp; Co" IsActive="1" Balance="12.5000"'
    )
    found = clinic.execute_tsql(f"""
    DECLARE @x XML = N'{received}';
    SELECT r.value('(FullName)[1]', 'NVARCHAR(50)'), r.value('(IsActive)[1]', 'BIT'), r.value('(Balance)[1]', 'MONEY')
    FROM @x.nodes('/Change/inserted') AS t(r)
    """).rows
    assert [(name, active, float(balance)) for name, active, balance in found] == [("Ada Ltd", False, 12.5)]


def test_xml_auto_nests_tables(clinic: sb.Database) -> None:
    query = """
    SELECT c.ClientID, v.VisitID, v.Room FROM Clients c JOIN Visits v ON v.ClientID = c.ClientID
    ORDER BY c.ClientID, v.VisitID FOR XML AUTO"""
    assert document(clinic, query) == (
        '<c ClientID="1"><v VisitID="10" Room="blue"/><v VisitID="11" Room="red"/><v VisitID="13" Room="blue"/></c>'
        '<c ClientID="2"><v VisitID="12" Room="blue"/></c>'
    )


def test_for_xml_auto_nests_consecutive_rows(clinic: sb.Database) -> None:
    query = """
    SELECT Room, v.VisitID, v.VisitID * 2 AS Twice, ClientName = c.FullName
    FROM Visits v, Clients AS c WHERE c.ClientID = v.ClientID ORDER BY v.VisitID FOR XML AUTO, ELEMENTS, ROOT('all')"""
    one, two = "<c><ClientName>Ada Ltd</ClientName></c>", "<c><ClientName>Bo</ClientName></c>"
    assert document(clinic, query) == "<all>" + "".join(
        f"<v><Room>{room}</Room><VisitID>{number}</VisitID><Twice>{2 * number}</Twice>{inner}</v>"
        for room, number, inner in (("blue", 10, one), ("red", 11, one), ("blue", 12, two), ("blue", 13, one))
    ) + "</all>"  # fmt: skip


def test_xml_auto_of_three_tables_with_rows_that_are_missing(clinic: sb.Database) -> None:
    query = """
    SELECT v.Room, c.ClientID, other.VisitID FROM Visits v JOIN Clients c ON c.ClientID = v.ClientID
    LEFT JOIN Visits other ON other.ClientID = c.ClientID AND other.VisitID > v.VisitID
    WHERE v.VisitID > 10 ORDER BY v.Room, c.ClientID, other.VisitID FOR XML AUTO"""
    assert document(clinic, query) == (
        '<v Room="blue"><c ClientID="1"><other/></c><c ClientID="2"><other/></c></v>'
        '<v Room="red"><c ClientID="1"><other VisitID="13"/></c></v>'
    )


def test_xml_auto_names_a_table_as_from_does(clinic: sb.Database) -> None:
    assert document(clinic, "SELECT VisitID FROM dbo.Visits WHERE VisitID = 10 FOR XML AUTO") == (
        '<dbo.Visits VisitID="10"/>'
    )
    with pytest.raises(TsqlError) as error:
        clinic.execute_tsql("SELECT 1 AS a FOR XML AUTO")
    assert error.value.number == 6800


def test_procedures_know_their_number(clinic: sb.Database) -> None:
    clinic.execute_tsql("""CREATE PROCEDURE WhoAmI AS
    EXEC (N'SELECT OBJECT_SCHEMA_NAME(@@PROCID) + ''.'' + OBJECT_NAME(@@PROCID)')""")
    assert document(clinic, "EXEC WhoAmI; ") == "dbo.WhoAmI"
    assert clinic.execute_tsql("SELECT OBJECT_NAME(@@PROCID)").rows == [(None,)]


def test_a_trigger_asks_which_columns_were_set(clinic: sb.Database) -> None:
    script = """
    CREATE TABLE Beds (Bed INT PRIMARY KEY, Room VARCHAR(10), State VARCHAR(10), Moves INT);
    CREATE TABLE Log (Said VARCHAR(20));
    INSERT Beds VALUES (1, 'blue', 'free', 0);
    GO
    CREATE TRIGGER BedChanged ON Beds AFTER INSERT, UPDATE, DELETE AS
    BEGIN
        IF UPDATE(State) AND NOT UPDATE([Room]) INSERT Log VALUES ('state alone');
        IF UPDATE(Room) OR UPDATE(Moves) INSERT Log VALUES ('room or moves');
        IF NOT UPDATE(Bed) INSERT Log VALUES ('same bed');
    END
    """
    clinic.execute_tsql(script)

    def log_of(change: str) -> list[object]:
        clinic.execute_tsql("DELETE Log; " + change)
        return [said for (said,) in clinic.execute_tsql("SELECT Said FROM Log ORDER BY Said").rows]

    assert log_of("UPDATE Beds SET State = 'taken' WHERE Room = 'blue'") == ["same bed", "state alone"]
    assert log_of("UPDATE b SET b.Moves += 1, [Room] = 'red' FROM Beds b") == ["room or moves", "same bed"]
    counted = "DECLARE @n INT; UPDATE Beds SET @n = Moves = Moves + 1; INSERT Log SELECT @n"
    assert log_of(counted) == ["2", "room or moves", "same bed"]  # also if the statement assigns to a variable
    assert log_of("INSERT Beds VALUES (2, 'red', 'free', 0)") == ["room or moves"]
    assert log_of("DELETE Beds WHERE Bed = 2") == ["same bed"]
    with pytest.raises(TsqlError) as error:
        clinic.execute_tsql("UPDATE Beds SET Moves = 1 / 0")
    assert error.value.number == 8134
    assert clinic.execute_tsql("SELECT @@TRANCOUNT").rows == [(0,)]
