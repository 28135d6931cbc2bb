"""CREATE, ALTER and DROP ENDPOINT, and the views that show it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.membership import Membership
from support import query, refused

# columns and types in their order, of views that belong to the instance
ENDPOINT = (
    "name text, endpoint_id integer, principal_id integer, protocol smallint, protocol_desc text, type smallint, "
    "type_desc text, state smallint, state_desc text, is_admin_endpoint smallint"
)
VIEWS = {
    "endpoints": ENDPOINT,
    "tcp_endpoints": f"{ENDPOINT}, port integer, is_dynamic_port smallint, ip_address text",
    "service_broker_endpoints": f"{ENDPOINT}, is_message_forwarding_enabled smallint, "
    "message_forwarding_size integer, connection_auth smallint, connection_auth_desc text, certificate_id integer, "
    "encryption_algorithm smallint, encryption_algorithm_desc text",
    "dm_broker_connections": "connection_id uuid, transport_stream_id uuid, state smallint, state_desc text, "
    "connect_time timestamptz, login_time timestamptz, authentication_method text, principal_name text, "
    "remote_user_name text, last_activity_time timestamptz, is_accept smallint, login_state smallint, "
    "login_state_desc text, peer_certificate_id integer, encryption_algorithm smallint, "
    "encryption_algorithm_desc text, receives_posted smallint, is_receive_flow_controlled smallint, "
    "sends_posted smallint, is_send_flow_controlled smallint, total_bytes_sent bigint, total_bytes_received bigint, "
    "total_fragments_sent bigint, total_fragments_received bigint, total_sends bigint, total_receives bigint, "
    "peer_arbitration_id uuid",
}


def rows(instance: sb.Instance, text: str) -> list[tuple[Any, ...]]:
    return query(instance.database("msdb"), text)


@pytest.fixture
def bare(instance: sb.Instance) -> Iterator[sb.Instance]:
    """The instance without an endpoint."""
    yield instance
    for (name,) in rows(instance, "select name from sys.endpoints"):
        instance.drop_endpoint(name)


@pytest.mark.feature(199)
@pytest.mark.parametrize("view", VIEWS)
def test_the_columns_and_types_are_those_of_the_reference(instance: sb.Instance, view: str) -> None:
    text = (
        "select attname || ' ' || replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz') "
        f"from pg_attribute where attrelid = to_regclass('sys.{view}') and attnum > 0 order by attnum"
    )
    assert [column for (column,) in rows(instance, text)] == VIEWS[view].split(", ")


@pytest.mark.feature(32, 142)
def test_no_endpoint_exists_by_default(bare: sb.Instance) -> None:
    for view in VIEWS:
        assert rows(bare, f"select * from sys.{view}") == []


@pytest.mark.feature(32)
def test_a_new_endpoint_has_the_default_options(bare: sb.Instance) -> None:
    bare.create_endpoint("BrokerEndpoint", listener_port=4022)
    ((endpoint_id,),) = rows(bare, "select endpoint_id from sys.endpoints")
    assert endpoint_id > 65535
    assert rows(bare, "select name, protocol_desc, type_desc, state, state_desc from sys.endpoints") == [
        ("BrokerEndpoint", "TCP", "SERVICE_BROKER", 1, "STOPPED")
    ]
    assert rows(bare, "select port, is_dynamic_port, ip_address from sys.tcp_endpoints") == [(4022, 0, None)]
    text = (
        "select is_message_forwarding_enabled, message_forwarding_size, connection_auth_desc, certificate_id, "
        "encryption_algorithm, encryption_algorithm_desc from sys.service_broker_endpoints"
    )
    assert rows(bare, text) == [(0, 10, "CERTIFICATE", None, 2, "AES")]


@pytest.mark.feature(32)
def test_alter_changes_only_the_given_options(bare: sb.Instance) -> None:
    bare.create_endpoint("e", listener_port=4022, listener_ip="127.0.0.1", state="started", encryption="Supported")
    text = (
        "select state_desc, port, ip_address, encryption_algorithm_desc, is_message_forwarding_enabled, "
        "message_forwarding_size "
        "from sys.service_broker_endpoints join sys.tcp_endpoints using (endpoint_id, state_desc)"
    )
    assert rows(bare, text) == [("STARTED", 4022, "127.0.0.1", "NONE, AES", 0, 10)]
    bare.alter_endpoint("E", state="DISABLED")
    assert rows(bare, text) == [("DISABLED", 4022, "127.0.0.1", "NONE, AES", 0, 10)]
    bare.alter_endpoint("e", listener_port=4023, listener_ip="(::1)", encryption="DISABLED")
    assert rows(bare, text) == [("DISABLED", 4023, "::1", "NONE", 0, 10)]
    bare.alter_endpoint("e", message_forwarding="ENABLED", message_forward_size=20, listener_ip="all")
    assert rows(bare, text) == [("DISABLED", 4023, None, "NONE", 1, 20)]


@pytest.mark.feature(32)
def test_an_instance_has_at_most_one_endpoint(bare: sb.Instance) -> None:
    bare.create_endpoint("first", listener_port=4022)
    for name in ("second", "first"):
        with refused(7874):
            bare.create_endpoint(name, listener_port=4023)
    assert rows(bare, "select name, port from sys.tcp_endpoints") == [("first", 4022)]
    bare.drop_endpoint("FIRST")
    bare.create_endpoint("second", listener_port=4023)


@pytest.mark.feature(32, 141)
@pytest.mark.parametrize("port", [0, 80, 1023, 32768, 65535, -1, True, "4022", 4022.0])
def test_an_invalid_port_is_refused(bare: sb.Instance, port: Any) -> None:
    with refused(5837, "1024", "32767"):
        bare.create_endpoint("e", listener_port=port)
    bare.create_endpoint("e", listener_port=1024)
    with refused(5837):
        bare.alter_endpoint("e", listener_port=port)
    bare.alter_endpoint("e", listener_port=32767)


@pytest.mark.feature(32, 146)
@pytest.mark.parametrize(
    ("number", "clause"),
    [
        (402, {"state": "RUNNING"}),
        (402, {"state": 1}),
        (402, {"encryption": "AES"}),
        (402, {"listener_ip": "localhost"}),
        (402, {"listener_ip": 1}),
        (402, {"message_forward_size": "10"}),
        (5838, {"authentication": "WINDOWS NTLM KERBEROS"}),
        (5838, {"authentication": "WINDOWS WINDOWS"}),
        (5838, {"authentication": "PASSWORD"}),
        (5838, {"authentication": ""}),
        (5838, {"authentication": 3}),
        (15151, {"authentication": "WINDOWS KERBEROS CERTIFICATE nobody"}),
        (15151, {"authentication": "CERTIFICATE nobody WINDOWS"}),
        (5839, {"message_forward_size": 0}),
        (5839, {"message_forward_size": -1}),
        (5840, {"message_forwarding": "ON"}),
        (15151, {"authentication": "CERTIFICATE nobody"}),
    ],
)
def test_invalid_clauses_are_refused(bare: sb.Instance, number: int, clause: dict[str, Any]) -> None:
    with refused(number):
        bare.create_endpoint("e", listener_port=4022, **clause)
    assert rows(bare, "select * from sys.endpoints") == []
    bare.create_endpoint("e", listener_port=4022)
    before = rows(bare, "select * from servicebroker.network_endpoints")
    with refused(number):
        bare.alter_endpoint("e", listener_port=4030, **clause)
    assert rows(bare, "select * from servicebroker.network_endpoints") == before


@pytest.mark.feature(32, 146)
def test_the_methods_of_authentication_and_their_order(bare: sb.Instance, tmp_path: Path) -> None:
    """The methods have SQL Server's numbers. WINDOWS alone has no certificate."""
    bare.create_endpoint("e", listener_port=4022, authentication="windows")
    with sb.open(bare.url, upkeep=None, keys=tmp_path) as instance:
        instance.create_certificate("my own")
    shown = "select connection_auth, connection_auth_desc, certificate_id from sys.service_broker_endpoints"
    own = rows(bare, "select certificate_id from servicebroker.transport_certificates")[0][0]
    assert rows(bare, shown) == [(3, "NEGOTIATE", 0)]
    for number, said, description in [
        (1, "WINDOWS NTLM", "NTLM"),
        (2, "Windows Kerberos", "KERBEROS"),
        (3, "WINDOWS NEGOTIATE", "NEGOTIATE"),
        (4, "CERTIFICATE [my own]", "CERTIFICATE"),
        (5, "WINDOWS NTLM CERTIFICATE my own", "NTLM, CERTIFICATE"),
        (6, "WINDOWS KERBEROS CERTIFICATE", "KERBEROS, CERTIFICATE"),
        (7, "WINDOWS CERTIFICATE", "NEGOTIATE, CERTIFICATE"),
        (8, "CERTIFICATE WINDOWS NTLM", "CERTIFICATE, NTLM"),
        (9, "CERTIFICATE my own WINDOWS KERBEROS", "CERTIFICATE, KERBEROS"),
        (10, "CERTIFICATE WINDOWS", "CERTIFICATE, NEGOTIATE"),
    ]:
        bare.alter_endpoint("e", authentication=said)
        assert rows(bare, shown) == [(number, description, 0 if number < 4 else own)]
    bare.drop_endpoint("e")
    with sb.open(bare.url, upkeep=None, keys=tmp_path) as instance:
        instance.drop_certificate("my own")


@pytest.mark.feature(32, 146)
def test_a_domain_member_without_a_certificate_uses_the_domain(
    bare: sb.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    shown = "select connection_auth_desc from sys.service_broker_endpoints"
    Membership(KeyFolder(tmp_path / "keys"), bare.identifier()).look(datetime.now(UTC))
    with sb.open(bare.url, upkeep=None, keys=tmp_path / "keys") as instance:
        instance.create_endpoint("e", listener_port=4022)
        assert rows(instance, shown) == [("NEGOTIATE",)]
        instance.drop_endpoint("e")
        instance.create_certificate("own")
        instance.create_endpoint("e", listener_port=4022)
        assert rows(instance, shown) == [("CERTIFICATE",)]
        instance.drop_certificate("own")


@pytest.mark.feature(32, 146)
def test_a_certificate_that_the_endpoint_cannot_use(bare: sb.Instance, tmp_path: Path) -> None:
    day, now = timedelta(days=1), datetime.now(UTC)
    with sb.open(bare.url, upkeep=None, keys=tmp_path) as instance:
        instance.create_certificate("early", start_date=now + day)
        instance.create_certificate("late", start_date=now - 9 * day, expiry_date=now - day)
        instance.create_certificate("locked", encryption_password="Pa55 of the key")
        for name in ("early", "late", "locked"):
            with refused(28055, name):
                instance.create_endpoint("e", listener_port=4022, authentication=f"CERTIFICATE {name}")
        instance.alter_certificate("locked", decryption_password="Pa55 of the key")
        instance.create_endpoint("e", listener_port=4022, authentication="CERTIFICATE locked")
        instance.drop_endpoint("e")
        for name in ("early", "late", "locked"):
            instance.drop_certificate(name)


@pytest.mark.feature(32)
def test_a_missing_endpoint_is_refused(bare: sb.Instance) -> None:
    with refused(15151, "alter", "nobody"):
        bare.alter_endpoint("nobody", state="STARTED")
    with refused(15151, "drop", "nobody"):
        bare.drop_endpoint("nobody")
    with refused(402):
        bare.alter_endpoint("nobody")


@pytest.mark.parametrize("encryption", ["DISABLED", "SUPPORTED"])
def test_a_warning_that_encryption_off_disables_authentication(bare: sb.Instance, encryption: str) -> None:
    warning = bare.create_endpoint("Broker", listener_port=4022, encryption=encryption)
    assert warning is not None
    assert warning.startswith(f"With ENCRYPTION = {encryption} nothing proves who a peer is")
    assert bare.alter_endpoint("Broker", encryption="REQUIRED") is None
    assert bare.alter_endpoint("Broker", encryption=encryption) == warning
