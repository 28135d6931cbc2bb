"""Membership of an instance in a domain (`keys/domain_folder.py`): its key and certificate, and how they are renewed.

The folder `domain` in the key folder of the instance has `identity.pem`, the key with the certificate, and a copy of
the domain's `revoked.json`. After `servicebroker domain join` it also has `folder`, the path of the domain, and
`authority.pem`. An instance that has not joined a domain is in that of its operating-system user, which is created at
its first use.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec

from servicebroker.model.errors import BrokerError, DomainError, InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.domain import Member, Token
from servicebroker.store.keys import domain_certificates as x509
from servicebroker.store.keys.domain_folder import (
    Domain,
    Request,
    Revoked,
    SignedAnswer,
    machine_name,
    own_name,
    proof_of,
)
from servicebroker.store.keys.key_files import KeyFolder, read_private, replace, user_data
from servicebroker.store.keys.x509_certificates import PrivateKey, as_pem, key_pem, read, read_identity, read_key

RENEWAL = x509.CERTIFICATE_LIFE / 2  # a certificate with less than this time left is renewed
OVERDUE = x509.CERTIFICATE_LIFE / 3  # a missing renewal is reported if less than this time is left
REQUEST_INTERVAL = timedelta(minutes=1)  # the time between two requests for a renewal
REREAD_INTERVAL = timedelta(seconds=10)  # unchanged files are read again after this, since file times are coarse
_POLL_INTERVAL_S = 0.05  # the time between two polls for an answer


class MemberState(NamedTuple):
    """The state of an instance in its domain.

    Attributes:
        domain: the name of the domain.
        authority: the certificate of the domain's authority.
        member: the member that the certificate names; None without a certificate.
        identity: the file with the key and the certificate; None if that is not valid now.
        facts: the certificate; None without one.
        revoked: the names of revoked members in lower case.
        problem: why the certificate is missing, invalid or not renewed; '' without a problem.
    """

    domain: str
    authority: Facts
    member: Member | None
    identity: Path | None
    facts: Facts | None
    revoked: frozenset[str]
    problem: str = ""


class _Identity(NamedTuple):
    """The contents of `identity.pem`."""

    key: PrivateKey
    facts: Facts
    member: Member


def default_folder() -> Path:
    """Return the folder of the operating-system user's domain."""
    return user_data() / "domain"


def is_in_domain(keys: KeyFolder) -> bool:
    """Check whether the instance with this key folder is in a domain already."""
    return (keys.path / "domain" / "folder").is_file() or (default_folder() / "authority.pem").is_file()


class Membership:
    """Reads and renews the membership of one instance."""

    def __init__(self, keys: KeyFolder, instance: UUID) -> None:
        self._place = keys.path / "domain"
        self._instance = instance
        self._seen: tuple[tuple[object, ...], datetime, MemberState] | None = None
        self._ask_at: datetime | None = None

    @property
    def folder(self) -> Path:
        """The folder of the domain."""
        with suppress(FileNotFoundError):
            return Path(read_file(self._place / "folder").decode().rstrip("\n"))
        return default_folder()

    @property
    def _has_joined(self) -> bool:
        return (self._place / "folder").is_file()

    # ---------------------------------------------------------------- every day

    def look(self, now: datetime) -> MemberState:
        """Renew the certificate if needed, and return the state. With the domain's key, also answer other members.

        Unchanged files are not read again for `REREAD_INTERVAL`.

        Raises:
            DomainError: the domain cannot be determined.
        """
        signature = self._signature()
        if self._seen is not None:
            seen, at, standing = self._seen
            if seen == signature and at <= now < at + REREAD_INTERVAL:
                return standing
        standing = self._look(now)
        self._seen = None if standing.problem else (signature, now, standing)
        return standing

    def _signature(self) -> tuple[object, ...]:
        """Return values that change with the files."""
        folder = self.folder
        files = [folder / name for name in ("authority.pem", "authority.key", "revoked.json", "requests")]
        return tuple(_stamp(file) for file in (*files, self._file, self._place / "folder"))

    def _look(self, now: datetime) -> MemberState:
        problem, domain = "", None
        try:
            domain = self._domain(now)
            self._renew(domain, now)
            self._remember(domain.revoked())
            if domain.holds_key:
                domain.answer(now)
        except (DomainError, InstanceError, OSError) as trouble:
            problem = str(trouble)
        authority = self._pinned() if self._has_joined else Domain(self.folder).authority
        return self._judge(authority, self._known(), now, problem)

    def _judge(self, authority: Facts, revoked: frozenset[str], now: datetime, problem: str) -> MemberState:
        own_file = self._find(authority)
        name = x509.domain_of(authority)
        if own_file is None:
            return MemberState(name, authority, None, None, None, revoked, problem)
        usable = own_file.facts.is_valid(now)
        if own_file.member.name.lower() in revoked:
            usable, problem = False, f"{own_file.member.account} was revoked."
        elif not usable:
            valid = (
                f"from {own_file.facts.start_date:%Y-%m-%d %H:%M} to {own_file.facts.expiry_date:%Y-%m-%d %H:%M} UTC"
            )
            problem = f"The certificate of {own_file.member.account} is valid {valid}, and not now. {problem}".rstrip()
        elif not problem and own_file.facts.expiry_date - now < OVERDUE:
            problem = (
                f"{name} has not renewed the certificate: the daemon of whoever holds its key does, or servicebroker "
                "domain answer there."
            )
        file = self._file if usable else None
        return MemberState(name, authority, own_file.member, file, own_file.facts, revoked, problem)

    def _domain(self, now: datetime) -> Domain:
        """Return the instance's domain. The domain of the operating-system user is created if it is missing."""
        folder = self.folder
        if not self._has_joined and not folder.exists():
            with suppress(DomainError):  # another process may have created it; `Domain` raises other problems
                Domain.create(folder, machine_name(), now, is_shared=False)
        domain = Domain(folder)
        if self._has_joined and domain.authority.thumbprint != self._pinned().thumbprint:
            raise DomainError(f"The domain in {folder} is another one than the instance has joined.")
        return domain

    def _renew(self, domain: Domain, now: datetime) -> None:
        """Renew the certificate if it is due. Without the domain's key: write a request, and read the answer later."""
        own_file = self._find(domain.authority)
        if own_file is not None and own_file.facts.is_valid(now) and own_file.facts.expiry_date - now > RENEWAL:
            return
        if domain.holds_key:
            key = own_file.key if own_file is not None else x509.new_key()
            name = own_file.member.name if own_file is not None else own_name()
            self._keep(key, domain.issue(x509.public_bytes(key), name, self._instance, now))
            return
        if own_file is None:
            raise DomainError(f"The instance has no certificate of {domain.name}: servicebroker domain join.")
        answer = domain.answered(own_file.key)
        if answer is not None and not answer.refusal:
            facts = self._checked(domain, answer, own_file.key)
            if facts.expiry_date > own_file.facts.expiry_date:
                self._keep(own_file.key, facts)
                return
        if self._ask_at is None or not self._ask_at <= now < self._ask_at + REQUEST_INTERVAL:
            domain.ask(Request(x509.request(own_file.key), self._instance, certificate=own_file.facts.der))
            self._ask_at = now
        if answer is not None and answer.refusal:
            raise DomainError(f"{domain.name} does not renew the certificate: {answer.refusal}")

    # ---------------------------------------------------------------- joining

    def join(self, folder: Path, token: Token | None, now: datetime, seconds: float) -> MemberState:
        """Join the domain in a folder, and leave the present one. Waits up to `seconds` for the domain's answer.

        The owner of the domain's key needs no token.

        Raises:
            DomainError: the token is of another domain, was used, or has expired; no answer in time, and the same token
                may be used again; the folder cannot be used.
        """
        domain = Domain(folder.absolute())
        if token is not None and not token.is_of(domain.authority.thumbprint):
            raise DomainError(
                f"The token is not one of the domain {domain.name} in {folder}: get one of that domain from its owner "
                "(servicebroker domain invite)."
            )
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if token is None:
            if not domain.holds_key:
                raise DomainError(
                    f"The key of {domain.name} is not yours: get a token from its owner (servicebroker domain invite)."
                )
            key = x509.new_key()
            facts = domain.issue(x509.public_bytes(key), own_name(), self._instance, now)
        else:
            facts, key = self._be_let_in(domain, token, now, seconds)
        replace(self._place / "authority.pem", as_pem(domain.authority.der), 0o644)
        self._keep(key, facts)
        replace(self._place / "folder", f"{domain.folder}\n".encode(), 0o644)
        for file in self._place.glob("joining-*"):
            file.unlink()
        return self.look(now)

    def _be_let_in(self, domain: Domain, token: Token, now: datetime, seconds: float) -> tuple[Facts, PrivateKey]:
        """Request a certificate with a token, and wait for the answer."""
        joining = self._place / f"joining-{token.number.hex()}.pem"
        if not joining.is_file():  # a repeated attempt uses the same key, which the token may have admitted already
            replace(joining, key_pem(x509.new_key()))
        key = read_identity(read_private(joining))
        asked = x509.request(key)
        proof = proof_of(token.secret, asked, self._instance)
        domain.ask(Request(asked, self._instance, token.number.hex(), proof))
        end = time.monotonic() + seconds
        while (answer := domain.answered(key)) is None:
            if domain.holds_key and domain.answer(now):
                continue
            if time.monotonic() > end:
                raise DomainError(
                    f"No answer came within {seconds:g} s. The daemon of the user who holds the key of {domain.name} "
                    "answers, or servicebroker domain answer run by that user; then join again with the same token. An "
                    "unknown token gets no answer either."
                )
            time.sleep(_POLL_INTERVAL_S)
        if answer.refusal:
            joining.unlink(missing_ok=True)
            raise DomainError(answer.refusal)
        return self._checked(domain, answer, key), key

    def _checked(self, domain: Domain, answer: SignedAnswer, key: PrivateKey) -> Facts:
        """Return the certificate of an answer, after checking that it is for this instance and key."""
        member = x509.member_of(answer.certificate, domain.authority.der)
        is_ours = member is not None and member.instance == self._instance
        if not is_ours or x509.public_key_of_certificate(answer.certificate) != x509.public_bytes(key):
            raise DomainError(f"The answer of the domain in {domain.folder} is not a certificate of this instance.")
        return read(answer.certificate)

    # ---------------------------------------------------------------- files

    @property
    def _file(self) -> Path:
        return self._place / "identity.pem"

    def _keep(self, key: PrivateKey, facts: Facts) -> None:
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(self._file, key_pem(key) + as_pem(facts.der))

    def _find(self, authority: Facts) -> _Identity | None:
        """Return the key and certificate of this instance by an authority; None without one.

        Raises:
            DomainError: others may read the key, or the file is damaged.
        """
        try:
            if not self._file.exists():
                return None
            data = read_private(self._file)
            facts = read(data)
            key = read_key(data, None, facts)
        except (OSError, ValueError, BrokerError, InstanceError) as problem:
            raise DomainError(f"{self._file} cannot be used: {problem}") from None
        member = x509.member_of(facts.der, authority.der)
        if member is None or member.instance != self._instance:  # the file is of an earlier domain or instance
            return None
        return _Identity(key, facts, member)

    def _pinned(self) -> Facts:
        """Return the authority of the joined domain as of the join, whatever is in its folder now."""
        try:
            return read(read_file(self._place / "authority.pem"))
        except (OSError, BrokerError) as problem:
            raise DomainError(f"The authority in {self._place} cannot be read: {problem} Join again.") from None

    def _remember(self, revoked: Revoked) -> None:
        """Store a copy of the revoked members, for times when the domain's folder cannot be read."""
        if frozenset(revoked) != self._known():
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace(self._place / "revoked.json", msgspec.json.encode(revoked))

    def _known(self) -> frozenset[str]:
        with suppress(OSError, msgspec.MsgspecError, RecursionError):
            return frozenset(msgspec.json.decode(read_file(self._place / "revoked.json"), type=Revoked))
        return frozenset()


def _stamp(file: Path) -> object:
    """Return a value that changes with the file; None without the file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
