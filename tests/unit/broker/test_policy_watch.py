"""Changes of the stored endpoint, certificates and rights, each of which makes another policy of the network."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from servicebroker.broker import policy
from servicebroker.broker.policy import OFF, Policy, PolicyWatch
from servicebroker.engine.catalog.network_endpoints import DISABLED, REQUIRED, STARTED, STOPPED, NetworkEndpoint
from servicebroker.engine.remote.domain_state import ReportedMembership
from servicebroker.engine.security.logins import Connect
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.security.authentication import parse_authentication
from servicebroker.model.security.peers import Proved
from servicebroker.store.keys import x509_certificates

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
VALID_DAYS = 10


def certificate(number: int, name: str, *, is_own: bool) -> TransportCertificate:
    facts, _ = x509_certificates.make(name, NOW - timedelta(days=1), VALID_DAYS + 1)
    return TransportCertificate(number, name, is_own, None, True, facts, Proved(f"certificate {name}"))


OWN, NEXT, PEER = (certificate(n, name, is_own=name != "peer") for n, name in enumerate(("own", "next", "peer")))
ENDPOINT = NetworkEndpoint(STARTED, "127.0.0.1", 4022, REQUIRED)
STORED = policy._Stored(ENDPOINT, [OWN, NEXT, PEER], Connect(None, {}))
CHANGES: dict[str, dict[str, Any]] = {
    "no endpoint": {"endpoint": None},
    "stopped": {"endpoint": ENDPOINT._replace(state=STOPPED)},
    "another port": {"endpoint": ENDPOINT._replace(port=4023)},
    "no encryption": {"endpoint": ENDPOINT._replace(encryption=DISABLED)},
    "forwarding": {"endpoint": ENDPOINT._replace(forwards=True)},
    "the certificate that is shown": {"endpoint": ENDPOINT._replace(certificate_id=NEXT.certificate_id)},
    "a dropped certificate": {"certificates": [OWN, NEXT]},
    "a login without CONNECT": {"certificates": [OWN, NEXT, PEER._replace(may_connect=False)]},
    "an accepted claim": {"certificates": [OWN, NEXT, PEER._replace(accepted=NOW)]},
    "CONNECT of public": {"connect": Connect("G", {})},
    "CONNECT of a member": {"connect": Connect(None, {"corp\\shop": "D"})},
}


class Watched:
    """A watch on rows that a test changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored, self.now, self.watch, self.reads = STORED, NOW, PolicyWatch(None), 0
        monkeypatch.setattr(policy, "_read", self.read)
        monkeypatch.setattr(policy, "run", lambda connection, steps: {})

    def read(self, connection: object) -> policy._Stored:
        self.reads += 1
        return self.stored

    def poll(self, snapshot: object = None) -> Policy | None:
        return self.watch.poll(cast("Any", None), self.now, cast("Any", snapshot))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_makes_a_new_policy_once(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    watched = Watched(monkeypatch)
    assert watched.poll() is not None
    assert watched.poll() is None
    for stored in (STORED._replace(**CHANGES[change]), STORED):
        watched.stored = stored
        assert watched.poll() is not None
        assert watched.poll() is None


def test_a_certificate_that_expires_or_begins_makes_a_new_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.poll()
    for days in (VALID_DAYS + 1, 0, -2):
        watched.now = NOW + timedelta(days=days)
        assert watched.poll() is not None
        assert watched.poll() is None


@pytest.mark.parametrize(
    ("changes", "refusal", "silence"),
    [
        ({"endpoint": None}, OFF.refusal, OFF.silence),
        ({"endpoint": ENDPOINT._replace(state=STOPPED)}, 0, 9748),
        ({"endpoint": ENDPOINT._replace(state="DISABLED")}, 28080, 9666),
        ({"certificates": [OWN]}, 28036, 9763),  # without its key, as if it had expired
        ({"certificates": [PEER]}, 28036, 9762),
        ({"certificates": []}, 28036, 9762),
        ({"endpoint": ENDPOINT._replace(encryption=DISABLED)}, 0, 0),
    ],
)
def test_the_reasons_for_refusal_and_silence(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], refusal: int, silence: int
) -> None:
    watched = Watched(monkeypatch)
    watched.stored = STORED._replace(**changes)
    made = watched.poll()
    assert made is not None
    assert (made.refusal, made.silence) == (refusal, silence)


def test_the_database_is_read_when_something_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshots are those of rounds; without one there was no round."""
    watched = Watched(monkeypatch)
    reads = []
    for snapshot in ("first", "first", "second", "second", None, "second", None):
        watched.poll(snapshot)
        reads.append(watched.reads)
    assert reads == [1, 1, 2, 2, 3, 4, 5]
    watched.stored = STORED._replace(endpoint=ENDPOINT._replace(state=STOPPED))
    made = watched.poll("third")
    assert made is not None
    assert made.silence == 9748


def test_a_forgotten_policy_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    assert watched.poll("first") is not None
    assert watched.poll("first") is None
    watched.watch.forget()
    assert watched.poll("first") is not None
    assert watched.reads == 2


@pytest.mark.parametrize(
    ("methods", "are_used"), [("CERTIFICATE", True), ("WINDOWS", False), ("WINDOWS CERTIFICATE", True)]
)
def test_certificates_count_only_where_the_endpoint_accepts_them(
    monkeypatch: pytest.MonkeyPatch, methods: str, are_used: bool
) -> None:
    watched = Watched(monkeypatch)
    encrypted = ENDPOINT._replace(authentication=parse_authentication(methods)[0])
    watched.stored = STORED._replace(endpoint=encrypted)
    made = watched.poll()
    assert made is not None
    assert made.owners == ({PEER.proved.owner} if are_used else frozenset())
    assert made.silence == (9763 if are_used else 9762)  # the own certificates are without their keys


def test_a_membership_is_reported_only_with_windows_authentication(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.watch.membership = ReportedMembership("CORP\\shop", None, None, None, "")
    watched.poll()
    assert watched.watch.membership is None


def test_the_owners_of_certificates_that_name_an_instance() -> None:
    """Two certificates may name one instance: then no peer may be it until an administrator has accepted one."""
    one, two = UUID(int=1), UUID(int=2)
    imported = [
        PEER._replace(name=name, proved=Proved(name, instance), accepted_instances=accepted)
        for name, instance, accepted in (("a", one, []), ("b", one, [two]), ("c", two, []), ("d", None, []))
    ]
    trusted = policy.find_trust([OWN._replace(proved=Proved("own", one)), *imported])
    assert trusted == {
        "owners": {"a", "b", "c", "d"}, "named": {one: {"a", "b"}, two: {"c"}}, "accepted": {two: "b"}
    }  # fmt: skip
