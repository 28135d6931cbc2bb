"""The policy of the network: the endpoint of the instance and its certificates, read every second."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import (
    DISABLED,
    REQUIRED,
    STARTED,
    STOPPED,
    NetworkEndpoint,
    find_endpoint,
)
from servicebroker.engine.remote.departing import Snapshot
from servicebroker.engine.remote.domain_state import ToldMembership
from servicebroker.engine.remote.known_peers import find_answers
from servicebroker.engine.remote.local_topology import find_instance, own_addresses
from servicebroker.engine.security.budgets import find_amounts
from servicebroker.engine.security.logins import Connect, find_connect
from servicebroker.engine.security.transport_certificates import TransportCertificate, all_certificates, choose_own
from servicebroker.model.errors import RULES, DomainError, InstanceError
from servicebroker.model.security.authentication import Method
from servicebroker.model.security.peers import Answer
from servicebroker.protocol.routing import Address
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.membership import Membership, MemberState
from servicebroker.store.running import run

_log = logging.getLogger("servicebroker.broker")


EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Policy(NamedTuple):
    """The settings of the network.

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
        """Return whether connections prove who their peers are."""
        return self.tls is not None and self.encryption != DISABLED

    @property
    def addresses(self) -> frozenset[Address]:
        """The addresses by which routes mean this instance."""
        if self.port is None:
            return frozenset()
        return own_addresses(self.host, self.port)


class _Stored(NamedTuple):
    """The stored endpoint, certificates, CONNECT permissions and budgets."""

    endpoint: NetworkEndpoint | None
    certificates: list[TransportCertificate]
    connect: Connect
    budgets: Mapping[str, Mapping[str, int]] = EMPTY


OFF = Policy(silence=9666)  # no endpoint, or not the daemon that serves the instance


class PolicyWatch:
    """Makes the policy of what the database holds. `listener` stands for the stored endpoint when it is given.

    Attributes:
        membership: how the instance stands in its domain, None while its endpoint does not ask for one.
    """

    def __init__(self, keys: KeyFolder | None, listener: NetworkEndpoint | None = None) -> None:
        self.listener = listener
        self.membership: ToldMembership | None = None
        self._keys = keys
        self._member: Membership | None = None
        self._basis: tuple[object, ...] | None = None
        self._seen: Snapshot | None = None  # before `_stored` was read
        self._stored = _Stored(None, [], Connect(None, {}))

    @property
    def budgets(self) -> Mapping[str, Mapping[str, int]]:
        """Return the amounts that single owners have instead of the default budget."""
        return self._stored.budgets

    def look(
        self, connection: psycopg.Connection[Any], now: datetime, snapshot: Snapshot | None = None
    ) -> Policy | None:
        """The policy, when it is another one than at the last look; else None.

        `snapshot` is that of the last round: while it stays the same nothing was committed, and nothing is read again.
        """
        if snapshot is None or snapshot != self._seen:
            self._stored, self._seen = _read(connection), snapshot
        endpoint = self.listener or self._stored.endpoint
        found = self._stored.certificates
        certificates = found if endpoint is None or _takes(endpoint, Method.CERTIFICATE) else []
        own = choose_own(endpoint, certificates, now)
        standing = self._stand(connection, now) if _takes(endpoint, Method.WINDOWS) else None
        if not _takes(endpoint, Method.WINDOWS):
            self.membership = None
        connect = self._stored.connect
        basis = (endpoint, certificates, own, _essence(standing), connect)
        if basis == self._basis:
            return None
        if self._basis is not None:
            _log.info(RULES[11295 if self._basis[0] != endpoint else 11296].text)
        self._basis = basis
        policy = self._policy(endpoint, certificates, own, standing, connect)
        if policy.tls is not None and own is not None:
            _tell_which(own, certificates, now)
        return policy._replace(**trusted(certificates), answers=run(connection, find_answers()))

    def forget(self) -> None:
        """Read the whole policy again at the next poll."""
        self._basis = self._seen = None

    def _stand(self, connection: psycopg.Connection[Any], now: datetime) -> MemberState | None:
        """Return the state of this instance in its domain. A new problem is logged once."""
        if self._keys is None:
            return None
        if self._member is None:
            self._member = Membership(self._keys, run(connection, find_instance()))
        standing = None
        try:
            standing = self._member.look(now)
            told = _told(standing)
        except (DomainError, InstanceError, OSError) as trouble:
            told = ToldMembership(None, None, None, None, str(trouble))
        if told.problem and (self.membership is None or self.membership.problem != told.problem):
            _log.error("AUTHENTICATION = WINDOWS: %s", told.problem)
        self.membership = told
        return standing

    def _policy(
        self,
        endpoint: NetworkEndpoint | None,
        certificates: list[TransportCertificate],
        own: TransportCertificate | None,
        standing: MemberState | None,
        connect: Connect,
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
            self._tls(endpoint, certificates, own, standing, connect),
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

    def _tls(
        self,
        endpoint: NetworkEndpoint,
        certificates: list[TransportCertificate],
        own: TransportCertificate | None,
        standing: MemberState | None,
        connect: Connect,
    ) -> Tls | None:
        if endpoint.encryption == DISABLED:
            return None
        domain = standing if standing is not None and standing.identity is not None else None
        identity = None if own is None else self._identity(own)
        if identity is None and domain is None:
            _warn_of_passwords(certificates)
            return None
        try:
            made = Tls(
                identity,
                [one for one in certificates if not one.is_own],
                [one for one in certificates if one.is_own],
                domain=domain,
                authentication=endpoint.authentication,
                connect=connect,
            )
        except (InstanceError, ssl.SSLError, OSError) as problem:
            _log.error("%s cannot be used: %s", f"Certificate {own.name}" if own else "The domain's", problem)
            return None
        if domain is not None and domain.member is not None and domain.facts is not None:
            until = f"{domain.facts.expiry_date:%Y-%m-%d %H:%M} UTC"
            _log.info("Peers are shown a certificate of %s, until %s.", domain.member.account, until)
        return made

    def _identity(self, own: TransportCertificate) -> Path | None:
        """The file with the key of a certificate of ours."""
        if self._keys is None:
            return None
        try:
            identity = self._keys.find(own.facts.thumbprint)
        except InstanceError as problem:
            _log.error("Certificate %s cannot be used: %s", own.name, problem)
            return None
        if identity is None:
            _log.error("The private key of certificate %s is not in %s.", own.name, self._keys.path)
        return identity


def _takes(endpoint: NetworkEndpoint | None, method: Method) -> bool:
    return endpoint is not None and method in endpoint.authentication.methods


def _told(standing: MemberState) -> ToldMembership:
    account = None if standing.member is None else standing.member.account
    facts = standing.facts
    if facts is None:
        return ToldMembership(account, None, None, None, standing.problem)
    return ToldMembership(account, facts.thumbprint, facts.start_date, facts.expiry_date, standing.problem)


def _essence(standing: MemberState | None) -> object:
    """Return the part of a membership on which connections depend: all but the problem."""
    return None if standing is None else standing._replace(problem="")


def _tell_which(own: TransportCertificate, certificates: list[TransportCertificate], now: datetime) -> None:
    """Which of our certificates is shown, of several that could be."""
    others = ", ".join(one.name for one in certificates if one.is_usable(now) and one != own)
    until = f"{own.facts.expiry_date:%Y-%m-%d %H:%M} UTC"
    also = f" Valid too, and not shown: {others}." if others else ""
    _log.info("Peers are shown the certificate %s, until %s.%s", own.name, until, also)


def _warn_of_passwords(certificates: list[TransportCertificate]) -> None:
    for one in certificates:
        if one.by_password:
            _log.error(
                "The private key of certificate %s lies under a password, so that the endpoint cannot use it: "
                "ALTER CERTIFICATE ... WITH PRIVATE KEY (DECRYPTION BY PASSWORD = ...).",
                one.name,
            )


def trusted(certificates: list[TransportCertificate]) -> dict[str, Any]:
    """Return the fields of the policy that the imported certificates decide."""
    imported = [one for one in certificates if not one.is_own]
    named: dict[UUID, frozenset[str]] = {}
    for owner, instance, _ in (one.proved for one in imported):
        if instance is not None:
            named[instance] = named.get(instance, frozenset()) | {owner}
    accepted = {instance: one.proved.owner for one in imported for instance in one.accepted_instances}
    return {"owners": frozenset(one.proved.owner for one in imported), "named": named, "accepted": accepted}


def _read(connection: psycopg.Connection[Any]) -> _Stored:
    endpoint, certificates = run(connection, find_endpoint()), run(connection, all_certificates())
    return _Stored(endpoint, certificates, run(connection, find_connect()), run(connection, find_amounts()))
