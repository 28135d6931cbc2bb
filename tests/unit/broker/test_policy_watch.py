"""Changes of the stored endpoint, certificates and rights, each of which makes another policy of the network."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from servicebroker.broker import policy
from servicebroker.broker.policy import OFF, Policy, PolicyWatch
from servicebroker.engine.catalog.network_endpoints import DISABLED, REQUIRED, STARTED, STOPPED, NetworkEndpoint
from servicebroker.engine.security.logins import Connect
from servicebroker.engine.security.transport_certificates import TransportCertificate
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
        self.stored, self.now, self.watch = STORED, NOW, PolicyWatch(None)
        monkeypatch.setattr(policy, "_read", lambda connection: self.stored)
        monkeypatch.setattr(policy, "run", lambda connection, steps: {})

    def poll(self) -> Policy | None:
        return self.watch.poll(cast("Any", None), self.now)


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
