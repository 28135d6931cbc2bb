"""Logins, master keys, certificates of a database, remote service bindings: definitions and refusals."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import servicebroker as sb
from servicebroker.api.certificates import a_year_after
from servicebroker.store.keys.x509_certificates import issue, key_pem
from support import APP, ORDERS, STOCK, as_user, query, refused

PASSWORD = "correct horse"


@pytest.fixture
def secure(database: sb.Database) -> sb.Database:
    """Return a database with a master key and a user."""
    database.create_user(APP)
    database.create_master_key(PASSWORD)
    return database


def rows(database: sb.Database, columns: str, view: str) -> list[tuple[object, ...]]:
    return query(database, f"select {columns} from sys.{view} where broker_database = %s order by 1", database.name)


# ---------------------------------------------------------------- master keys


def test_a_master_key_is_opened_by_the_service_master_key(secure: sb.Database) -> None:
    assert rows(secure, "name, algorithm_desc, key_length", "symmetric_keys") == [
        ("##MS_DatabaseMasterKey##", "AES_256", 256)
    ]
    assert rows(secure, "crypt_type", "key_encryptions") == [("ESKM",), ("ESKP",)]
    file = secure.instance.key_folder().path / "service-master-key"
    assert file.stat().st_mode & 0o777 == 0o600
    secure.create_certificate("c")
    os.chmod(file, 0o644)
    try:
        with pytest.raises(sb.InstanceError, match="chmod 600"):
            secure.create_certificate("d")
    finally:
        os.chmod(file, 0o600)


@pytest.mark.both_apis
def test_a_master_key_without_the_service_key_is_opened_by_its_password(secure: sb.Database) -> None:
    secure.alter_master_key(service_master_key=False)
    assert rows(secure, "crypt_type", "key_encryptions") == [("ESKP",)]
    with refused(15581):
        secure.create_certificate("c")
    with refused(15313):
        secure.open_master_key("another one")
    with refused(15315):
        secure.close_master_key()
    secure.open_master_key(PASSWORD)
    secure.create_certificate("c")
    secure.alter_master_key(service_master_key=True)
    secure.close_master_key()
    secure.create_certificate("d")


def test_one_master_key_that_goes_with_nothing_under_it(secure: sb.Database) -> None:
    with refused(15578):
        secure.create_master_key(PASSWORD)
    with refused(15116):
        secure.create_master_key("short")
    secure.create_certificate("c")
    with refused(15580):
        secure.drop_master_key()
    secure.drop_certificate("c")
    secure.open_master_key(PASSWORD)
    secure.drop_master_key()
    with refused(15151):
        secure.drop_master_key()
    for needs_one in (secure.create_certificate, secure.open_master_key):
        with refused(15581):
            needs_one(PASSWORD)
    secure.create_master_key("battery staple")  # the opened old key is not used for the new key
    secure.create_certificate("c")


def test_keys_and_certificates_need_permissions(secure: sb.Database) -> None:
    app = as_user(secure, APP)
    secure.create_certificate("c")
    for call in (app.drop_master_key, lambda: app.open_master_key(PASSWORD), lambda: app.create_master_key(PASSWORD)):
        with refused(15247):
            call()
    with refused(262):
        app.create_certificate("d", encryption_password=PASSWORD)
    for refuses in (
        lambda: app.drop_certificate("c"),
        lambda: app.alter_certificate("c", active_for_begin_dialog=False),
        lambda: app.backup_certificate("c", "x"),
    ):
        with refused(15151):
            refuses()
    secure.grant("CREATE CERTIFICATE", APP)
    app.create_certificate("d", encryption_password=PASSWORD)
    with refused(15151):
        app.create_certificate("e", encryption_password=PASSWORD, authorization="dbo")
    secure.grant("ALTER", APP, certificate="c")
    app.alter_certificate("c", active_for_begin_dialog=False)
    secure.alter_authorization(APP, certificate="c")
    app.drop_certificate("c")


# ---------------------------------------------------------------- certificates


@pytest.mark.both_apis
def test_a_certificate_that_signs_itself(secure: sb.Database) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    secure.create_certificate("Stock", authorization=APP, subject="CN=stock,O=Shop", start_date=now)
    secure.create_certificate("plain", expiry_date=now + timedelta(days=9), active_for_begin_dialog=False)
    secure.create_certificate("locked", encryption_password=PASSWORD)
    columns = "subject, name, pvt_key_encryption_type, is_active_for_begin_dialog"
    assert rows(secure, columns, "certificates") == [
        ("CN=locked", "locked", "PW", 1),
        ("CN=plain", "plain", "MK", 0),
        ("CN=stock,O=Shop", "Stock", "MK", 1),
    ]
    owner = (
        "select p.name from sys.certificates c join sys.database_principals p using (broker_database, principal_id) "
        "where c.name = 'Stock' and broker_database = %s"
    )
    assert query(secure, owner, secure.name) == [(APP,)]
    dates = rows(secure, "start_date, expiry_date", "certificates")
    assert (now, a_year_after(now)) in dates
    with refused(15232):
        secure.create_certificate("STOCK")
    with refused(402):
        secure.create_certificate("x", start_date=now, expiry_date=now)
    with refused(15138):
        secure.drop_user(APP)


@pytest.mark.parametrize(
    ("start", "expiry"),
    [((2027, 6, 1), (2028, 6, 1)), ((2028, 2, 29), (2029, 2, 28)), ((2026, 12, 31), (2027, 12, 31))],
)
def test_a_certificate_is_valid_for_a_calendar_year(
    secure: sb.Database, start: tuple[int, int, int], expiry: tuple[int, int, int]
) -> None:
    secure.create_certificate("Yearly", start_date=datetime(*start, tzinfo=UTC))
    dates = [(datetime(*start, tzinfo=UTC), datetime(*expiry, tzinfo=UTC))]
    assert rows(secure, "start_date, expiry_date", "certificates") == dates


def test_a_certificate_is_exported_and_imported_into_another_database(secure: sb.Database, tmp_path: Path) -> None:
    """A certificate is exported alone or with its key, and recognized at the second import."""
    secure.create_certificate("stock")
    secure.backup_certificate(
        "stock", tmp_path / "stock.pem", private_key_file=tmp_path / "stock.key", encryption_password=PASSWORD
    )
    assert (tmp_path / "stock.key").stat().st_mode & 0o777 == 0o600
    for taken in ("stock.pem", "new.pem"):
        with refused(15240):
            secure.backup_certificate(
                "stock", tmp_path / taken, private_key_file=tmp_path / "stock.key", encryption_password=PASSWORD
            )
    assert not (tmp_path / "new.pem").exists()
    other_database = secure.instance.database("Other", create=True)
    other_database.create_certificate("theirs", file=tmp_path / "stock.pem")
    with refused(15232):
        other_database.create_certificate("again", file=tmp_path / "stock.pem")
    with refused(15556):
        other_database.backup_certificate(
            "theirs", tmp_path / "x", private_key_file=tmp_path / "y", encryption_password=PASSWORD
        )
    other_database.drop_certificate("theirs")
    other_database.create_master_key(PASSWORD)
    with_key = {"file": tmp_path / "stock.pem", "private_key_file": tmp_path / "stock.key"}
    for wrong in (None, "another password"):
        with refused(15465):
            other_database.create_certificate("ours", **with_key, decryption_password=wrong)
    other_database.create_certificate("ours", **with_key, decryption_password=PASSWORD)
    assert rows(secure, "thumbprint", "certificates") == rows(other_database, "thumbprint", "certificates")
    other_database.drop_certificate("ours")
    other_database.drop_master_key()


def test_files_that_are_no_certificates(secure: sb.Database, tmp_path: Path) -> None:
    for name, data in (("empty", b""), ("text", b"-----BEGIN CERTIFICATE-----"), ("key", b"\x30\x82")):
        (tmp_path / name).write_bytes(data)
        with refused(15208):
            secure.create_certificate("c", file=tmp_path / name)
    with refused(15208):
        secure.create_certificate("c", file=tmp_path / "missing")
    now = datetime.now(UTC)
    facts, _ = issue("a", now, now + timedelta(days=1))
    (tmp_path / "a.cer").write_bytes(facts.der)
    (tmp_path / "b.key").write_bytes(key_pem(issue("b", now, now + timedelta(days=1))[1]))
    (tmp_path / "weak.key").write_bytes(
        rsa.generate_private_key(65537, 1024).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "odd.key").write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    for key in ("b.key", "weak.key", "odd.key", "a.cer", "missing"):
        with refused(15208):
            secure.create_certificate("c", file=tmp_path / "a.cer", private_key_file=tmp_path / key)
    assert rows(secure, "name", "certificates") == []


def test_alter_certificate_changes_the_encryption_of_its_private_key(secure: sb.Database, tmp_path: Path) -> None:
    secure.create_certificate("c", encryption_password=PASSWORD)

    def kind() -> list[tuple[object, ...]]:
        return rows(secure, "pvt_key_encryption_type", "certificates")

    with refused(15465):
        secure.alter_certificate("c", decryption_password="another password")
    secure.alter_certificate("c", decryption_password=PASSWORD)
    assert kind() == [("MK",)]
    secure.alter_certificate("c", encryption_password="battery staple")
    assert kind() == [("PW",)]
    key = {"private_key_file": tmp_path / "k", "encryption_password": PASSWORD}
    secure.backup_certificate("c", tmp_path / "c", **key, decryption_password="battery staple")
    secure.alter_certificate("c", remove_private_key=True)
    assert kind() == [("NA",)]
    with refused(15556):
        secure.alter_certificate("c", encryption_password=PASSWORD)
    secure.alter_certificate("c", private_key_file=tmp_path / "k", decryption_password=PASSWORD)
    assert kind() == [("MK",)]
    for wrong in ({}, {"remove_private_key": True, "encryption_password": PASSWORD}):
        with refused(402):
            secure.alter_certificate("c", **wrong)  # type: ignore[arg-type]
    with refused(15151):
        secure.alter_certificate("missing", active_for_begin_dialog=True)


# ---------------------------------------------------------------- remote service bindings


@pytest.mark.both_apis
@pytest.mark.feature(30)
def test_remote_service_bindings_are_created_altered_and_dropped(secure: sb.Database) -> None:
    secure.create_user("Remote")
    secure.create_role("Team")
    secure.create_remote_service_binding("ToStock", to_service=STOCK, user=APP, authorization=APP)
    columns = "name, remote_service_name, service_contract_id, is_anonymous_on"
    assert rows(secure, columns, "remote_service_bindings") == [("ToStock", STOCK, 0, 0)]
    with refused(9619):
        secure.create_remote_service_binding("Again", to_service=STOCK, user=APP)
    with refused(2714):
        secure.create_remote_service_binding("TOSTOCK", to_service=ORDERS, user=APP)
    for nobody in ("Team", "public", "guest", "db_owner"):
        with refused(28083):
            secure.create_remote_service_binding("x", to_service=ORDERS, user=nobody)
        with refused(28083):
            secure.alter_remote_service_binding("ToStock", user=nobody)
    with refused(15151):
        secure.create_remote_service_binding("x", to_service=ORDERS, user="missing")
    secure.create_remote_service_binding("ToOrders", to_service=ORDERS, user=APP, anonymous=True)
    secure.alter_remote_service_binding("toorders", anonymous=False)
    secure.alter_remote_service_binding("ToStock", user="Remote", anonymous=True)
    names = (
        "select b.name, u.name, b.is_anonymous_on from sys.remote_service_bindings b "
        "join sys.database_principals u on u.principal_id = remote_principal_id "
        "and u.broker_database = b.broker_database where b.broker_database = %s order by 1"
    )
    assert query(secure, names, secure.name) == [("ToOrders", APP, 0), ("ToStock", "Remote", 1)]
    with refused(15138):
        secure.drop_user("Remote")
    for call in (
        lambda: secure.alter_remote_service_binding("missing", anonymous=True),
        lambda: secure.drop_remote_service_binding("missing"),
    ):
        with refused(15151):
            call()
    with refused(402):
        secure.alter_remote_service_binding("ToStock")
    secure.drop_remote_service_binding("ToStock")
    secure.drop_remote_service_binding("ToOrders")
    secure.drop_user("Remote")
    assert rows(secure, "name", "remote_service_bindings") == []


@pytest.mark.feature(30)
def test_bindings_need_permissions(secure: sb.Database) -> None:
    app = as_user(secure, APP)
    secure.create_user("Remote")
    secure.create_remote_service_binding("bound", to_service=ORDERS, user="Remote")
    with refused(262):
        app.create_remote_service_binding("mine", to_service=STOCK, user=APP)
    secure.grant("CREATE REMOTE SERVICE BINDING", APP)
    with refused(15151):  # no permission to impersonate Remote
        app.create_remote_service_binding("mine", to_service=STOCK, user="Remote")
    app.create_remote_service_binding("mine", to_service=STOCK, user=APP)
    for refuses in (
        lambda: app.alter_remote_service_binding("bound", anonymous=True),
        lambda: app.drop_remote_service_binding("bound"),
    ):
        with refused(15151):
            refuses()
    secure.grant("ALTER", APP, remote_service_binding="bound")
    app.alter_remote_service_binding("bound", anonymous=True)
    with refused(4606):
        secure.grant("SEND", APP, remote_service_binding="bound")
    app.drop_remote_service_binding("mine")


# ---------------------------------------------------------------- logins and the endpoint


@pytest.mark.feature(148)
def test_logins_and_connect(fresh_instance: sb.Instance, tmp_path: Path) -> None:
    instance = fresh_instance
    instance.create_login("Western")
    with refused(15025):
        instance.create_login("WESTERN")
    instance.create_endpoint("broker", listener_port=4022)
    now = datetime.now(UTC)
    (tmp_path / "west.cer").write_bytes(issue("west", now, now + timedelta(days=1))[0].der)
    instance.create_certificate("west", file=tmp_path / "west.cer", authorization="western")
    granted = "select grantee_principal_id = 2, state_desc from sys.server_permissions order by 1"
    database = instance.database("Test", create=True)
    instance.grant_connect("broker", "Western")
    instance.deny_connect("BROKER", "public")
    assert query(database, granted) == [(False, "GRANT"), (True, "DENY")]
    instance.revoke_connect("broker", "public")
    instance.revoke_connect("broker", "public")
    assert query(database, granted) == [(False, "GRANT")]
    for endpoint, login in (("missing", "Western"), ("broker", "missing")):
        with refused(15151):
            instance.grant_connect(endpoint, login)
    with refused(15141):
        instance.drop_login("Western")
    with refused(15151):
        instance.drop_login("public")
    with refused(15151):
        instance.create_certificate("x", file=tmp_path / "west.cer", authorization="missing")
    database.create_user("FromWest", for_login="Western")
    with refused(15063):
        database.create_user("Again", for_login="Western")
    with refused(15007):
        database.create_user("x", for_login="missing")
    instance.drop_certificate("west")
    instance.drop_login("western")
    assert query(database, granted) == []
    assert query(database, "select name from sys.server_principals") == [("public",)]
    with refused(15151):
        instance.drop_login("Western")
