"""What the network has to obey: the endpoint of the instance and its certificates, read again every second."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from servicebroker.broker.tls import Tls
from servicebroker.engine.network_endpoints import (
    DISABLED,
    REQUIRED,
    STARTED,
    STOPPED,
    NetworkEndpoint,
    find_endpoint,
)
from servicebroker.engine.peers import find_answers
from servicebroker.engine.transport_certificates import Certificate, all_certificates, shown
from servicebroker.model.errors import RULES, InstanceError
from servicebroker.model.peers import Answer
from servicebroker.protocol.routing import Address
from servicebroker.store.addresses import own_addresses
from servicebroker.store.keys import KeyFolder
from servicebroker.store.running import run

_log = logging.getLogger("servicebroker.broker")


EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Policy(NamedTuple):
    """What the network does.

    Attributes:
        port: where it listens, None for nowhere; `host` is '' for every address of the machine.
        refusal: the number of the error that every peer is answered with, 0 for none.
        silence: the number of the reason why nothing leaves, 0 when it does.
        encryption: DISABLED, SUPPORTED or REQUIRED.
        tls: None while there is no certificate to show.
        owners: of the certificates that are imported.
        named: for an instance, the owners of the imported certificates that name it.
        accepted: for an instance that several have claimed, whose it is.
        answers: who has answered where we connected, as it was kept.
    """

    host: str = ""
    port: int | None = None
    refusal: int = 0
    silence: int = 0
    encryption: str = DISABLED
    tls: Tls | None = None
    forwards: bool = False
    forward_size: int = 0  # MB
    owners: frozenset[str] = frozenset()
    named: Mapping[UUID, frozenset[str]] = EMPTY
    accepted: Mapping[UUID, str] = EMPTY
    answers: Mapping[Address, Answer] = EMPTY

    @property
    def proves(self) -> bool:
        """Whether connections prove who their peers are."""
        return self.tls is not None and self.encryption != DISABLED

    @property
    def addresses(self) -> frozenset[Address]:
        """Where routes mean this instance."""
        if self.port is None:
            return frozenset()
        return own_addresses(self.host, self.port)


OFF = Policy(silence=9666)  # no endpoint, or not the daemon that serves the instance


class PolicyWatch:
    """Makes the policy of what the database holds. `listener` stands for the stored endpoint when it is given."""

    def __init__(self, keys: KeyFolder | None, listener: NetworkEndpoint | None = None) -> None:
        self.listener = listener
        self._keys = keys
        self._basis: tuple[object, ...] | None = None

    def look(self, connection: psycopg.Connection[Any], now: datetime) -> Policy | None:
        """The policy, when it is another one than at the last look; else None."""
        endpoint = self.listener or run(connection, find_endpoint())
        certificates = run(connection, all_certificates())
        own = shown(endpoint, certificates, now)
        basis = (endpoint, certificates, own)
        if basis == self._basis:
            return None
        if self._basis is not None:
            _log.info(RULES[11295 if self._basis[0] != endpoint else 11296].text)
        self._basis = basis
        policy = self._policy(endpoint, certificates, own)
        return policy._replace(**_trust(certificates), answers=run(connection, find_answers()))

    def forget(self) -> None:
        """Make the policy anew at the next look."""
        self._basis = None

    def _policy(
        self, endpoint: NetworkEndpoint | None, certificates: list[Certificate], own: Certificate | None
    ) -> Policy:
        if endpoint is None:
            return OFF
        if endpoint.state == STOPPED:
            return Policy(silence=9748)
        policy = Policy(
            endpoint.host,
            endpoint.port,
            0,
            0,
            endpoint.encryption,
            self._tls(own, certificates),
            endpoint.forwards,
            endpoint.forward_size,
        )
        if endpoint.warning is not None:
            _log.warning(endpoint.warning)
        if endpoint.state != STARTED:
            return policy._replace(refusal=28080, silence=9666)
        if endpoint.encryption == REQUIRED and policy.tls is None:
            _log.error(
                "There is no valid certificate of this instance with its key, and the endpoint requires encryption: "
                "make one with servicebroker certificate create, or set ENCRYPTION = DISABLED."
            )
            is_old = any(one.is_own for one in certificates)
            return policy._replace(refusal=28036, silence=9763 if is_old else 9762)
        return policy

    def _tls(self, own: Certificate | None, certificates: list[Certificate]) -> Tls | None:
        if own is None or self._keys is None:
            return None
        try:
            identity = self._keys.find(own.facts.thumbprint)
            if identity is None:
                _log.error("The private key of certificate %s is not in %s.", own.name, self._keys.path)
                return None
            return Tls(
                identity,
                [one for one in certificates if not one.is_own],
                [one for one in certificates if one.is_own],
            )
        except (InstanceError, ssl.SSLError, OSError) as problem:
            _log.error("Certificate %s cannot be used: %s", own.name, problem)
            return None


def _trust(certificates: list[Certificate]) -> dict[str, Any]:
    """Whom the imported certificates stand for."""
    imported = [one for one in certificates if not one.is_own]
    named: dict[UUID, frozenset[str]] = {}
    for owner, instance in (one.proved for one in imported):
        if instance is not None:
            named[instance] = named.get(instance, frozenset()) | {owner}
    accepted = {instance: one.proved.owner for one in imported for instance in one.claims}
    return {"owners": frozenset(one.proved.owner for one in imported), "named": named, "accepted": accepted}
