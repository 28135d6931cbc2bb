"""Owners, GRANT, DENY and REVOKE, and the resulting rows of sys.database_permissions."""

from __future__ import annotations

import pytest

import servicebroker as sb
from support import (
    APP,
    CONTRACT,
    ORDER,
    ROUTE,
    STOCK,
    STOCK_QUEUE,
    as_user,
    query,
    refused,
)


def permissions(database: sb.Database) -> set[tuple[str, str, str, str]]:
    """Return grantee, grantor, permission and state of all rows of sys.database_permissions except CONNECT."""
    text = (
        "select e.name, o.name, permission_name, state from sys.database_permissions p "
        "join sys.database_principals e on e.principal_id = grantee_principal_id "
        "join sys.database_principals o on o.principal_id = grantor_principal_id "
        "where (e.broker_database, o.broker_database) = (p.broker_database, p.broker_database) "
        "and p.broker_database = %s and permission_name <> 'CONNECT'"
    )
    return set(query(database, text, database.name))


# ---------------------------------------------------------------- owners


@pytest.mark.feature(26)
def test_the_creator_owns_its_objects_and_has_all_permissions(database: sb.Database, app: sb.Database) -> None:
    for what in ("MESSAGE TYPE", "CONTRACT", "QUEUE", "SERVICE"):
        database.grant(f"CREATE {what}", APP)
    app.create_message_type("t")
    app.create_contract("c", iter([("t", "ANY"), ("DEFAULT", "ANY")]))
    app.create_queue("q")
    app.create_service("s", "q", iter(["c"]))
    number = app.user.principal_id
    owners = (
        "select principal_id from sys.service_message_types where name = 't' and broker_database = %s union all "
        "select principal_id from sys.service_contracts where name = 'c' and broker_database = %s union all "
        "select principal_id from sys.service_queues where name = 'q' and broker_database = %s union all "
        "select principal_id from sys.services where name = 's' and broker_database = %s"
    )
    assert query(database, owners, *[database.name] * 4) == [(number,)] * 4
    handle = app.begin_dialog("s", "s", contract="c")
    app.send(handle, "t", b"to itself")
    (message,) = app.receive("q")
    app.move_conversation(message.conversation_handle, message.conversation_group_id)
    app.begin_conversation_timer(handle, 60)
    app.end_conversation(message.conversation_handle)
    app.end_conversation(handle)
    database.create_user("Other")
    app.grant("SEND", "Other", service="s")
    app.alter_queue("q", status=False)
    app.alter_message_type("t", "EMPTY")
    app.alter_service("s", add_contracts=["DEFAULT"])
    app.drop_service("s")
    app.drop_contract("c")
    app.drop_message_type("t")
    app.drop_queue("q")
    assert permissions(database) == {
        (APP, "dbo", f"CREATE {what}", "G") for what in ("MESSAGE TYPE", "CONTRACT", "QUEUE", "SERVICE")
    }


@pytest.mark.feature(26)
def test_authorization_names_another_owner(database: sb.Database, app: sb.Database) -> None:
    database.create_role("Team")
    database.add_role_member("Team", APP)
    database.create_queue("q")
    database.create_message_type("t", authorization=APP)
    database.create_contract("c", {"t": "ANY"}, authorization="team")
    database.create_service("s", "q", ["c"], authorization="Team")
    app.alter_message_type("t", "EMPTY")
    app.drop_service("s")
    for create in (
        lambda: database.create_message_type("x", authorization="nobody"),
        lambda: database.create_contract("x", {"t": "ANY"}, authorization="nobody"),
        lambda: database.create_service("x", "q", authorization="nobody"),
        lambda: database.create_route("x", address="LOCAL", authorization="nobody"),
        lambda: database.alter_authorization("nobody", message_type="t"),
    ):
        with refused(15151, "find the user 'nobody'"):
            create()
    for special in ("public", "guest"):
        with refused(15405, special):
            database.create_message_type("x", authorization=special)
    database.grant("CREATE MESSAGE TYPE", APP)
    database.create_user("Other")
    app.create_message_type("ours", authorization="Team")
    app.create_message_type("mine", authorization=APP)
    for other in ("Other", "dbo"):
        with refused(15151, other):
            app.create_message_type("x", authorization=other)


@pytest.mark.both_apis
@pytest.mark.feature(26)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("service", STOCK),
        ("queue", STOCK_QUEUE),
        ("contract", CONTRACT),
        ("message_type", ORDER),
        ("route", ROUTE),
    ],
)
def test_alter_authorization_changes_the_owner(database: sb.Database, app: sb.Database, kind: str, name: str) -> None:
    on = {kind: name}
    database.create_user("Other")
    database.grant("CONTROL", "Other", **on)
    other_user = as_user(database, "Other")
    other_user.grant("VIEW DEFINITION", APP, **on)
    database.alter_authorization(APP, **on)
    assert permissions(database) == set()  # all permissions on it were removed
    app.grant("VIEW DEFINITION", "Other", **on)
    with refused(4624):
        database.deny("CONTROL", APP, **on)
    word = {"contract": "service contract", "message_type": "message type"}.get(kind, kind)
    with refused(15138, word):
        database.drop_user(APP)
    with refused(15151, name):
        other_user.alter_authorization("Other", **on)
    app.grant("TAKE OWNERSHIP", "Other", **on)
    with refused(15151, "find the user 'dbo'"):
        other_user.alter_authorization("dbo", **on)
    other_user.alter_authorization("Other", **on)
    with refused(15151):
        app.grant("VIEW DEFINITION", "guest", **on)
    database.drop_user(APP)
    database.alter_authorization("dbo", **on)
    database.drop_user("Other")


def test_invalid_changes_of_owner_are_refused(database: sb.Database, app: sb.Database) -> None:
    for on in ({"service": "x"}, {"queue": "x"}, {"contract": "x"}, {"message_type": "x"}, {"route": "x"}):
        with refused(15151, "find the", "'x'"):
            database.alter_authorization(APP, **on)
        with refused(15151, "find the", "'x'"):
            database.grant("CONTROL", APP, **on)
    for on in ({"contract": sb.DEFAULT}, {"message_type": sb.DEFAULT}):
        with refused(9663):
            database.alter_authorization(APP, **on)
        with refused(9663):
            database.grant("CONTROL", APP, **on)
    with refused(402):
        database.alter_authorization(APP)
    with refused(402):
        database.alter_authorization(APP, service=STOCK, queue=STOCK_QUEUE)
    for kind in ("user", "schema", "table"):  # these have no owner of their own, or are not keywords
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{kind}'"):
            database.alter_authorization(APP, **{kind: "x"})


def test_a_user_that_has_granted_something_stays(database: sb.Database, app: sb.Database) -> None:
    database.create_user("Other")
    database.grant("SEND", APP, service=STOCK, with_grant_option=True)
    app.grant("SEND", "Other", service=STOCK)
    with refused(15284):
        database.drop_user(APP)
    database.revoke("SEND", APP, service=STOCK, cascade=True)
    database.drop_user(APP)


# ---------------------------------------------------------------- GRANT, DENY, REVOKE

KINDS = [
    ("service", STOCK, 17),
    ("queue", STOCK_QUEUE, 1),
    ("contract", CONTRACT, 16),
    ("message_type", ORDER, 15),
    ("route", ROUTE.lower(), 19),
]
OF_KIND = {"service": "SEND", "queue": "RECEIVE", "contract": "REFERENCES", "message_type": "REFERENCES"}


@pytest.mark.feature(27)
@pytest.mark.parametrize(("kind", "name", "number"), KINDS)
def test_grant_deny_and_revoke_change_the_permissions_of_each_kind(
    database: sb.Database, app: sb.Database, kind: str, name: str, number: int
) -> None:
    on = {kind: name}
    text = (
        "select class, type, state, state_desc from sys.database_permissions "
        "where grantee_principal_id = %s and broker_database = %s and class <> 0"
    )
    letters = {"CONTROL": "CL", "ALTER": "AL", "TAKE OWNERSHIP": "TO", "VIEW DEFINITION": "VW"}
    if kind in OF_KIND:
        letters[OF_KIND[kind]] = {"SEND": "SN", "RECEIVE": "RC", "REFERENCES": "RF"}[OF_KIND[kind]]
    for permission, letter in letters.items():
        for verb, state_letter, word in (
            (database.grant, "G", "GRANT"),
            (database.deny, "D", "DENY"),
            (database.grant, "G", "GRANT"),
        ):
            verb(permission, APP, **on)
            rows = query(database, text, app.user.principal_id, database.name)
            assert rows == [(number, letter, state_letter, word)]
        database.revoke(permission, APP, **on)
        database.revoke(permission, APP, **on)  # REVOKE without a grant is not an error
        assert query(database, text, app.user.principal_id, database.name) == []
    for wrong in ("EXECUTE", "SEND" if kind != "service" else "RECEIVE", "CREATE QUEUE", "control"):
        for verb in (database.grant, database.deny, database.revoke):
            with refused(4606, wrong):
                verb(wrong, APP, **on)


def test_invalid_grantees_are_refused(database: sb.Database, app: sb.Database) -> None:
    for verb in (database.grant, database.deny, database.revoke):
        with refused(4624):
            verb("SEND", "dbo", service=STOCK)
        with refused(4617):
            verb("SEND", "db_owner", service=STOCK)
        with refused(15151, "nobody"):
            verb("SEND", "nobody", service=STOCK)
        with refused(402):
            verb(5, APP, service=STOCK)
        with refused(402):
            verb("SEND", APP, service=STOCK, queue=STOCK_QUEUE)
        with pytest.raises(TypeError, match="unexpected keyword argument 'table'"):
            verb("SEND", APP, table="x")
    database.grant("CONTROL", APP, service=STOCK)
    for verb in (app.grant, app.deny, app.revoke):
        with refused(4624):
            verb("SEND", APP, service=STOCK)


def test_a_user_without_grant_option_cannot_grant(database: sb.Database, app: sb.Database) -> None:
    database.grant("SEND", APP, service=STOCK)
    for verb in (app.grant, app.deny, app.revoke):
        with refused(15151, STOCK):
            verb("SEND", "guest", service=STOCK)
        with refused(4613):
            verb("CREATE QUEUE", "guest")


@pytest.mark.both_apis
@pytest.mark.feature(27)
def test_revoke_cascades_to_permissions_of_the_grant_option(database: sb.Database, app: sb.Database) -> None:
    for name in ("B", "C"):
        database.create_user(name)
    b = as_user(database, "B")
    database.grant("SEND", APP, service=STOCK, with_grant_option=True)
    database.grant("SEND", APP, service=STOCK)  # keeps the option
    app.grant("SEND", "B", service=STOCK, with_grant_option=True)
    b.grant("SEND", "C", service=STOCK)
    everything = {(APP, "dbo", "SEND", "W"), ("B", APP, "SEND", "W"), ("C", "B", "SEND", "G")}
    assert permissions(database) == everything
    with refused(4606):
        app.grant("RECEIVE", "B", service=STOCK)
    with refused(15151):
        app.grant("CONTROL", "B", service=STOCK)
    for verb in (database.revoke, database.deny):
        with refused(4611):
            verb("SEND", APP, service=STOCK)
    with refused(4611):
        database.revoke("SEND", APP, service=STOCK, grant_option_for=True)
    assert permissions(database) == everything
    database.revoke("SEND", APP, service=STOCK, grant_option_for=True, cascade=True)
    assert permissions(database) == {(APP, "dbo", "SEND", "G")}
    database.grant("SEND", APP, service=STOCK, with_grant_option=True)
    app.grant("SEND", "B", service=STOCK, with_grant_option=True)
    b.grant("SEND", "C", service=STOCK)
    database.deny("SEND", APP, service=STOCK, cascade=True)
    assert permissions(database) == {(name, "dbo", "SEND", "D") for name in (APP, "B", "C")}
    with refused(15151):
        app.grant("SEND", "B", service=STOCK)
    for name in (APP, "B", "C"):
        database.revoke("SEND", name, service=STOCK)
    assert permissions(database) == set()


def test_a_user_with_grant_option_revokes_only_its_own_grants(database: sb.Database, app: sb.Database) -> None:
    database.create_user("B")
    database.grant("SEND", APP, service=STOCK, with_grant_option=True)
    database.deny("SEND", "B", service=STOCK)
    app.grant("SEND", "B", service=STOCK)
    app.revoke("SEND", "B", service=STOCK)
    assert ("B", "dbo", "SEND", "D") in permissions(database)
    app.grant("SEND", "B", service=STOCK)
    database.revoke("SEND", "B", service=STOCK)  # CONTROL: from any grantor
    assert permissions(database) == {(APP, "dbo", "SEND", "W")}
    for grantor in (database, app):
        grantor.grant("SEND", "B", service=STOCK, with_grant_option=True)
    app.revoke("SEND", "B", service=STOCK, grant_option_for=True, cascade=True)
    assert permissions(database) == {(APP, "dbo", "SEND", "W"), ("B", "dbo", "SEND", "W"), ("B", APP, "SEND", "G")}
