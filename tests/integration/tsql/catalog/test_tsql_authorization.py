"""AUTHORIZATION and ALTER AUTHORIZATION: the named owner must exist, and the current user needs IMPERSONATE on it."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import output_of, scalar

SETUP = """
CREATE USER Clerk WITHOUT LOGIN; CREATE USER Boss WITHOUT LOGIN; CREATE USER Friend WITHOUT LOGIN;
CREATE ROLE Team; ALTER ROLE Team ADD MEMBER Clerk; CREATE ROLE Others;
GRANT IMPERSONATE ON USER::Friend TO Clerk;
GRANT CREATE SCHEMA, CREATE ROLE, CREATE SERVICE, CREATE CONTRACT, CREATE MESSAGE TYPE, CREATE ROUTE TO Clerk;
GRANT CREATE REMOTE SERVICE BINDING, CREATE CERTIFICATE TO Clerk;
CREATE QUEUE dbo.Inbox; GRANT REFERENCES ON dbo.Inbox TO Clerk;
CREATE SCHEMA Area; CREATE SERVICE Desk ON QUEUE dbo.Inbox; GRANT TAKE OWNERSHIP ON SERVICE::Desk TO Clerk;
"""
CREATED = {
    "schema": "CREATE SCHEMA Mine AUTHORIZATION {owner}",
    "role": "CREATE ROLE Mine AUTHORIZATION {owner}",
    "service": "CREATE SERVICE Mine AUTHORIZATION {owner} ON QUEUE dbo.Inbox",
    "contract": "CREATE CONTRACT Mine AUTHORIZATION {owner} ([DEFAULT] SENT BY ANY)",
    "message-type": "CREATE MESSAGE TYPE Mine AUTHORIZATION {owner}",
    "route": "CREATE ROUTE Mine AUTHORIZATION {owner} WITH ADDRESS = 'LOCAL'",
    "binding": "CREATE REMOTE SERVICE BINDING Mine AUTHORIZATION {owner} TO SERVICE 's' WITH USER = Friend",
    "certificate": "CREATE CERTIFICATE Mine AUTHORIZATION {owner} ENCRYPTION BY PASSWORD = 'p4ssW0rd!' "
    "WITH SUBJECT = 's'",
}
NAMES = """
SELECT (SELECT COUNT(*) FROM sys.schemas WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.database_principals WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.services WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.service_contracts WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.service_message_types WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.routes WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.remote_service_bindings WHERE name = 'Mine') +
       (SELECT COUNT(*) FROM sys.certificates WHERE name = 'Mine')
"""


@pytest.fixture
def office(database: sb.Database) -> sb.Database:
    assert output_of(database, SETUP) == []
    return database


def errors(database: sb.Database, text: str) -> list[int]:
    return [output for output in output_of(database, text) if isinstance(output, int)]


@pytest.mark.parametrize(
    ("owner", "number"), [("Nobody", 15151), ("Mine", 15151), ("[public]", 15405), ("guest", 15405)]
)
@pytest.mark.parametrize("kind", CREATED)
def test_an_invalid_owner_creates_nothing(office: sb.Database, kind: str, owner: str, number: int) -> None:
    assert errors(office, CREATED[kind].format(owner=owner)) == [number]
    assert scalar(office, NAMES) == 0


@pytest.mark.parametrize("owner", ["Boss", "dbo", "Others", "db_owner"])
@pytest.mark.parametrize("kind", CREATED)
@pytest.mark.sampled(12)
def test_create_without_impersonate_on_the_owner_is_refused(office: sb.Database, kind: str, owner: str) -> None:
    assert errors(office, f"EXECUTE AS USER = 'Clerk'; {CREATED[kind].format(owner=owner)}") == [15151]
    assert scalar(office, NAMES) == 0


@pytest.mark.parametrize("owner", ["Clerk", "Friend", "Team"])
@pytest.mark.parametrize("kind", CREATED)
@pytest.mark.sampled(10)
def test_create_with_impersonate_on_the_owner_succeeds(office: sb.Database, kind: str, owner: str) -> None:
    assert errors(office, f"EXECUTE AS USER = 'Clerk'; {CREATED[kind].format(owner=owner)}") == []
    assert scalar(office, NAMES) == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("CREATE SCHEMA Mine AUTHORIZATION Boss", "schema"),
        ("CREATE SCHEMA AUTHORIZATION Boss", "schema"),
        ("CREATE ROLE Mine AUTHORIZATION Boss", "role"),
    ],
)
def test_a_message_says_that_the_owner_has_no_effect(office: sb.Database, text: str, what: str) -> None:
    assert output_of(office, text) == [f"AUTHORIZATION Boss of a {what} changes nothing: dbo owns every {what}."]
    # for dbo itself there is no message; the schema needs another name than dbo
    owned_by_dbo = text.replace("Boss", "dbo").replace("Mine", "Theirs").replace("SCHEMA A", "SCHEMA x A")
    assert output_of(office, owned_by_dbo) == []


def test_a_schema_named_after_a_missing_owner_is_refused(office: sb.Database) -> None:
    assert output_of(office, "CREATE SCHEMA AUTHORIZATION Nobody") == [15151]
    assert scalar(office, "SELECT COUNT(*) FROM sys.schemas WHERE name = 'Nobody'") == 0


@pytest.mark.parametrize(
    "text",
    [
        "ALTER AUTHORIZATION ON SCHEMA::Area TO Nobody",
        "ALTER AUTHORIZATION ON SCHEMA::Nowhere TO Boss",
        "ALTER AUTHORIZATION ON ROLE::Team TO Nobody",
        "ALTER AUTHORIZATION ON ROLE::Nothing TO Boss",
        "ALTER AUTHORIZATION ON ROLE::Boss TO Friend",
        "ALTER AUTHORIZATION ON DATABASE::{database} TO Nobody",
        "ALTER AUTHORIZATION ON DATABASE::Nowhere TO sa",
        "ALTER AUTHORIZATION ON ENDPOINT::Nothing TO sa",
        "ALTER AUTHORIZATION ON SERVICE::Desk TO Nobody",
        "ALTER AUTHORIZATION ON SERVICE::Nothing TO Boss",
        "ALTER AUTHORIZATION ON OBJECT::dbo.Inbox TO Nobody",
        "EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON SCHEMA::Area TO Clerk",
        "EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON ROLE::Team TO Clerk",
        "EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON DATABASE::{database} TO Clerk",
        "EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON SERVICE::Desk TO Boss",
        "GRANT CONTROL TO Clerk; EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON DATABASE::{database} TO sa",
        "GRANT CONTROL TO Clerk; EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON DATABASE::master TO Clerk",
        "GRANT CONTROL TO Clerk; EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON ENDPOINT::Nothing TO Clerk",
    ],
)
def test_alter_authorization_needs_the_object_and_the_owner(office: sb.Database, text: str) -> None:
    office.execute_tsql("USE master")  # creates master
    assert errors(office, text.format(database=office.name)) == [15151]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER AUTHORIZATION ON SCHEMA::Area TO Boss",
        "ALTER AUTHORIZATION ON ROLE::Team TO Boss",
        "ALTER AUTHORIZATION ON DATABASE::{database} TO sa",
        "ALTER AUTHORIZATION ON SERVICE::Desk TO Boss",
        "ALTER AUTHORIZATION ON OBJECT::dbo.Inbox TO Boss",
        "EXECUTE AS USER = 'Clerk'; ALTER AUTHORIZATION ON SERVICE::Desk TO Friend",
    ],
)
def test_alter_authorization_accepts_an_existing_owner(office: sb.Database, text: str) -> None:
    assert errors(office, text.format(database=office.name)) == []


def test_the_owner_of_an_endpoint_is_a_login(instance: sb.Instance) -> None:
    master = instance.database("master", create=True)
    made = "CREATE ENDPOINT E {} STATE = STOPPED AS TCP (LISTENER_PORT = 4922) FOR SERVICE_BROKER"
    assert output_of(master, made.format("AUTHORIZATION nobody")) == [15151]
    assert scalar(master, "SELECT COUNT(*) FROM sys.endpoints WHERE name = 'E'") == 0
    assert errors(master, made.format("AUTHORIZATION sa")) == []
    assert errors(master, "ALTER AUTHORIZATION ON ENDPOINT::E TO nobody") == [15151]
    assert errors(master, "ALTER AUTHORIZATION ON ENDPOINT::E TO sa") == []
    master.execute_tsql("DROP ENDPOINT E")


@pytest.mark.parametrize("source", ["WITH SUBJECT = 's'", "FROM FILE = '/nowhere.cer' WITH PRIVATE KEY (FILE = '/k')"])
def test_a_certificate_in_master_needs_an_existing_owner(instance: sb.Instance, source: str) -> None:
    master = instance.database("master", create=True)
    assert output_of(master, f"CREATE CERTIFICATE Mine AUTHORIZATION Nobody {source}") == [15151]
    assert scalar(master, "SELECT COUNT(*) FROM sys.certificates WHERE name = 'Mine'") == 0


@pytest.mark.parametrize(
    "text",
    [
        "ALTER MESSAGE TYPE M AUTHORIZATION dbo VALIDATION = NONE",
        "ALTER SERVICE Desk AUTHORIZATION dbo ON QUEUE dbo.Inbox",
        "ALTER ROUTE AutoCreatedLocal AUTHORIZATION dbo WITH ADDRESS = 'LOCAL'",
        "DROP CONTRACT C AUTHORIZATION dbo",
        "ALTER ENDPOINT E AUTHORIZATION sa STATE = STARTED",
    ],
)
def test_authorization_belongs_to_create(office: sb.Database, text: str) -> None:
    assert output_of(office, text) == [102]
