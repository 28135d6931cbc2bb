"""Fixtures for the tests of security."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import servicebroker as sb
from fence_support import ALICE, MALLORY, TwoRoles
from servicebroker.store.embedded import EmbeddedServer
from support import as_role, let_in


@pytest.fixture(scope="module")
def two_roles(server: EmbeddedServer, make_instance_url: Callable[[], str]) -> Iterator[TwoRoles]:
    url = make_instance_url()
    with let_in(server.url, MALLORY, ALICE), sb.open(url, upkeep=None) as instance:
        bank = instance.database("Bank", create=True)
        bank.create_message_type("//bank/Order")
        bank.create_contract("//bank/Contract", {"//bank/Order": "ANY"})
        for who in ("Alice", "Vault", "Mallory", "Den"):
            bank.create_queue(who)
            bank.create_service(f"//bank/{who}", who, ["//bank/Contract"])
        with instance.connection() as connection:
            for role in (MALLORY, ALICE):
                connection.execute(f"create role {role} login")  # type: ignore[call-overload]
                connection.execute(f"grant create on database {connection.info.dbname} to {role}")  # type: ignore[call-overload]
        for role, own, far in ((MALLORY, "Mallory", "Den"), (ALICE, "Alice", "Vault")):
            instance.grant_rights(role, database="Bank", receive=[own], send=[f"//bank/{own}", f"//bank/{far}"])
        yield TwoRoles(bank, as_role(url, ALICE), as_role(url, MALLORY))
        with instance.connection() as connection:
            connection.execute(f"drop owned by {MALLORY}, {ALICE} cascade; drop role {MALLORY}, {ALICE}")  # type: ignore[call-overload]
