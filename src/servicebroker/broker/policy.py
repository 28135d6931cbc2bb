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
from servicebroker.engine.remote.domain_state import ReportedMembership
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
        host: the address to listen at, '' for all interfaces.
        port: None if the daemon does not listen.
        refusal: number of the error with which every peer is refused, 0 for none.
        silence: number of the reason why nothing is sent, 0 if messages are sent.
        encryption: DISABLED, SUPPORTED or REQUIRED.
        tls: None if there is no certificate to show.
        owners: owners of the imported certificates.
        named: instance -> owners of the imported certificates that name it.
        accepted: instance -> the owner that an administrator has accepted for it.
        answers: address -> the last identity that answered there, as stored.
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
        """Return whether connections prove the identities of peers."""
        return self.tls is not None and self.encryption != DISABLED

    @property
    def addresses(self) -> frozenset[Address]:
        """The addresses that routes use for this instance."""
        if self.port is None:
            return frozenset()
        return own_addresses(self.host, self.port)


class _Stored(NamedTuple):
    """The stored endpoint, certificates, CONNECT permissions and budgets."""

    endpoint: NetworkEndpoint | None
    certificates: list[TransportCertificate]
    connect: Connect
    budgets: Mapping[str, Mapping[str, int]] = EMPTY


OFF = Policy(silence=9666)  # there is no endpoint, or another daemon serves the instance


class PolicyWatch:
    """Makes the policy from the database. `listener` replaces the stored endpoint, if given.

    Attributes:
        membership: the state of the instance in its domain; None unless the endpoint has AUTHENTICATION = WINDOWS.
    """

    def __init__(self, keys: KeyFolder | None, listener: NetworkEndpoint | None = None) -> None:
        self.listener = listener
        self.membership: ReportedMembership | None = None
        self._keys = keys
        self._member: Membership | None = None
        self._basis: tuple[object, ...] | None = None
        self._seen: Snapshot | None = None  # taken before `_stored` was read
        self._stored = _Stored(None, [], Connect(None, {}))

    @property
    def budgets(self) -> Mapping[str, Mapping[str, int]]:
        """Return the amounts that single owners have instead of the default budget."""
        return self._stored.budgets

    def poll(
        self, connection: psycopg.Connection[Any], now: datetime, snapshot: Snapshot | None = None
    ) -> Policy | None:
        """Return the policy if it has changed since the last poll; else None.

        `snapshot`: that of the last round. If it has not changed, nothing was committed and the database is not read.
        """
        if snapshot is None or snapshot != self._seen:
            self._stored, self._seen = _read(connection), snapshot
        endpoint = self.listener or self._stored.endpoint
        stored = self._stored.certificates
        certificates = stored if endpoint is None or _accepts(endpoint, Method.CERTIFICATE) else []
        own = choose_own(endpoint, certificates, now)
        membership = self._membership_state(connection, now) if _accepts(endpoint, Method.WINDOWS) else None
        if not _accepts(endpoint, Method.WINDOWS):
            self.membership = None
        connect = self._stored.connect
        basis = (endpoint, certificates, own, _essence(membership), connect)
        if basis == self._basis:
            return None
        if self._basis is not None:
            _log.info(RULES[11295 if self._basis[0] != endpoint else 11296].text)
        self._basis = basis
        policy = self._policy(endpoint, certificates, own, membership, connect)
        if policy.tls is not None and own is not None:
            _log_shown_certificate(own, certificates, now)
        return policy._replace(**find_trust(certificates), answers=run(connection, find_answers()))

    def forget(self) -> None:
        """Read the whole policy again at the next poll."""
        self._basis = self._seen = None

    def _membership_state(self, connection: psycopg.Connection[Any], now: datetime) -> MemberState | None:
        """Return the state of this instance in its domain. A new problem is logged once."""
        if self._keys is None:
            return None
        if self._member is None:
            self._member = Membership(self._keys, run(connection, find_instance()))
        membership = None
        try:
            membership = self._member.look(now)
            report = _to_report(membership)
        except (DomainError, InstanceError, OSError) as trouble:
            report = ReportedMembership(None, None, None, None, str(trouble))
        if report.problem and (self.membership is None or self.membership.problem != report.problem):
            _log.error("AUTHENTICATION = WINDOWS: %s", report.problem)
        self.membership = report
        return membership

    def _policy(
        self,
        endpoint: NetworkEndpoint | None,
        certificates: list[TransportCertificate],
        own: TransportCertificate | None,
        membership: MemberState | None,
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
            self._tls(endpoint, certificates, own, membership, connect),
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
            is_expired = any(certificate.is_own for certificate in certificates)
            return policy._replace(refusal=28036, silence=9763 if is_expired else 9762)
        return policy

    def _tls(
        self,
        endpoint: NetworkEndpoint,
        certificates: list[TransportCertificate],
        own: TransportCertificate | None,
        membership: MemberState | None,
        connect: Connect,
    ) -> Tls | None:
        if endpoint.encryption == DISABLED:
            return None
        domain = membership if membership is not None and membership.identity is not None else None
        identity = None if own is None else self._identity(own)
        if identity is None and domain is None:
            _warn_of_passwords(certificates)
            return None
        try:
            tls = Tls(
                identity,
                [certificate for certificate in certificates if not certificate.is_own],
                [certificate for certificate in certificates if certificate.is_own],
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
        return tls

    def _identity(self, own: TransportCertificate) -> Path | None:
        """Return the file with the private key of a certificate of this instance, or None."""
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


def _accepts(endpoint: NetworkEndpoint | None, method: Method) -> bool:
    return endpoint is not None and method in endpoint.authentication.methods


def _to_report(membership: MemberState) -> ReportedMembership:
    account = None if membership.member is None else membership.member.account
    facts = membership.facts
    if facts is None:
        return ReportedMembership(account, None, None, None, membership.problem)
    return ReportedMembership(account, facts.thumbprint, facts.start_date, facts.expiry_date, membership.problem)


def _essence(membership: MemberState | None) -> object:
    """Return the part of a membership on which connections depend: all but the problem."""
    return None if membership is None else membership._replace(problem="")


def _log_shown_certificate(own: TransportCertificate, certificates: list[TransportCertificate], now: datetime) -> None:
    """Log which certificate peers see, and which others would be valid."""
    others = ", ".join(other.name for other in certificates if other.is_usable(now) and other != own)
    until = f"{own.facts.expiry_date:%Y-%m-%d %H:%M} UTC"
    also = f" Valid too, and not shown: {others}." if others else ""
    _log.info("Peers are shown the certificate %s, until %s.%s", own.name, until, also)


def _warn_of_passwords(certificates: list[TransportCertificate]) -> None:
    for certificate in certificates:
        if certificate.by_password:
            _log.error(
                "The private key of certificate %s lies under a password, so that the endpoint cannot use it: "
                "ALTER CERTIFICATE ... WITH PRIVATE KEY (DECRYPTION BY PASSWORD = ...).",
                certificate.name,
            )


def find_trust(certificates: list[TransportCertificate]) -> dict[str, Any]:
    """Return the fields of the policy that the imported certificates decide."""
    imported = [certificate for certificate in certificates if not certificate.is_own]
    named: dict[UUID, frozenset[str]] = {}
    for owner, instance, _ in (certificate.proved for certificate in imported):
        if instance is not None:
            named[instance] = named.get(instance, frozenset()) | {owner}
    accepted = {instance: peer.proved.owner for peer in imported for instance in peer.accepted_instances}
    return {"owners": frozenset(peer.proved.owner for peer in imported), "named": named, "accepted": accepted}


def _read(connection: psycopg.Connection[Any]) -> _Stored:
    endpoint, certificates = run(connection, find_endpoint()), run(connection, all_certificates())
    return _Stored(endpoint, certificates, run(connection, find_connect()), run(connection, find_amounts()))
