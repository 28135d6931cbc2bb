"""A domain: a certificate authority in a folder that instances share.

    authority.pem     the certificate of the authority
    authority.key     its private key, which only the creator of the domain may read
    revoked.json      revoked members
    members.json      members with a certificate
    invitations/      a file for each token, which only the owner of the key may read
    requests/         a file for each certificate request; anybody may create one
    answers/          answers of the authority to requests

Every process that can read the key acts as the authority: it answers waiting requests when it polls the folder.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import pwd
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from servicebroker.model.errors import BrokerError, DomainError, InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.domain import TOKEN_RANDOM_BYTES, Member, Token, checked_name, usable_name
from servicebroker.store.keys import domain_certificates as x509
from servicebroker.store.keys.key_files import check_private, replace, write_private
from servicebroker.store.keys.x509_certificates import PrivateKey, as_pem, key_pem, read, read_key

MAX_REQUEST_BYTES = 64 * 1024
MAX_REQUESTS = 100  # answered in one poll
INVITATIONS_KEPT = timedelta(days=30)  # the time for which an expired invitation is kept


class Request(msgspec.Struct):
    """A request for a certificate.

    Attributes:
        request: the certificate signing request (DER) with the key.
        instance: the instance that the certificate will name.
        invitation: the number of an invitation, in the first request of a member.
        proof: the result of `proof_of` with the secret of that invitation.
        certificate: the current certificate (DER), in later requests.
    """

    request: bytes
    instance: UUID
    invitation: str = ""
    proof: bytes = b""
    certificate: bytes = b""

    @property
    def name(self) -> str:
        """The file name of the request and of its answer, derived from its key."""
        return x509.public_key_of(self.request).hex()[-64:]


class SignedAnswer(msgspec.Struct):
    """The answer to a request: a certificate (DER), or the reason for a refusal."""

    certificate: bytes = b""
    refusal: str = ""


class Invitation(msgspec.Struct):
    """The stored form of a token. `used_by`: the public key (DER) that was admitted with it; empty before that."""

    member: str
    secret: bytes
    expires: datetime
    used_by: bytes = b""


class Issued(msgspec.Struct):
    """The dates of the latest certificate of an instance."""

    issued: datetime
    expires: datetime


Ledger = dict[str, dict[UUID, Issued]]  # issued certificates, by member and instance
Revoked = dict[str, datetime]  # times of revocation, by member in lower case


class InvitationState(NamedTuple):
    """The part of an invitation that commands print."""

    member: str
    expires: datetime
    is_used: bool


class Domain:
    """The domain in a folder. Methods that need the private key take a lock.

    Raises:
        DomainError: the folder has no domain, or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.authority = read(read_file(folder / "authority.pem"))
        except FileNotFoundError:
            raise DomainError(f"There is no domain in {folder}: make one with servicebroker domain create.") from None
        except (OSError, BrokerError) as problem:
            raise DomainError(f"The domain in {folder} cannot be read: {problem}") from None
        if not x509.is_authority(self.authority):
            raise DomainError(f"The certificate in {folder} is not that of a domain.")
        self.name = x509.domain_of(self.authority)

    @classmethod
    def create(cls, folder: Path, name: str, now: datetime, *, is_shared: bool = True) -> Domain:
        """Create a domain in a new or empty folder. The caller owns its key.

        `is_shared`: other users may read the folder.

        Raises:
            DomainError: the folder is in use or cannot be created, or the name is not valid.
        """
        facts, key = x509.make_authority(checked_name("domain", name), now)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                _fill(temporary, facts, key)
                temporary.chmod(0o755 if is_shared else 0o700)
                os.rename(temporary, folder)  # atomic; if two processes create the domain, the first one succeeds
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as problem:
            if (folder / "authority.pem").exists():
                raise DomainError(f"There is a domain in {folder} already.") from None
            raise DomainError(f"No domain can be made in {folder}: {problem.strerror or problem}.") from None
        return cls(folder)

    @property
    def holds_key(self) -> bool:
        """True if this process can read the key, and so sign certificates.

        Raises:
            InstanceError: others than the owner may read the key.
        """
        file = self.folder / "authority.key"
        if not os.access(file, os.R_OK):
            return False
        check_private(file)
        return True

    def check_key(self) -> None:
        """Check that this process can sign certificates.

        Raises:
            DomainError: the key belongs to another user.
            InstanceError: others may read the key.
        """
        if not self.holds_key:
            raise DomainError(f"Only the user who owns the key of the domain in {self.folder} can do that.")

    def revoked(self) -> Revoked:
        """Return the revoked members (in lower case), with the times of their revocation.

        Raises:
            DomainError: the file cannot be read.
        """
        return dict(self._read("revoked.json", Revoked))

    def members(self) -> Ledger:
        """Return the members that have a certificate.

        Raises:
            DomainError: the file cannot be read.
        """
        return dict(self._read("members.json", Ledger))

    def invitations(self) -> list[InvitationState]:
        """Return the stored invitations. The list is empty for a process that may not read them."""
        invitations: list[Invitation] = [_decoded(read_file(file), Invitation) for file in self._invitations()]
        return sorted(
            InvitationState(invitation.member, invitation.expires, bool(invitation.used_by))
            for invitation in invitations
        )

    # ---------------------------------------------------------------- what the owner of the key does

    def invite(self, member: str, now: datetime, life: timedelta) -> Token:
        """Create a token with which one instance can join as this member, once, within `life`.

        Raises:
            DomainError: the name is not valid, or the member was revoked; the key belongs to another user.
        """
        checked_name("member", member)
        with self._owner():
            if member.lower() in self.revoked():
                raise DomainError(f"{member} was revoked, and stays so: invite it under another name.")
            for file in self._invitations():
                if _decoded(read_file(file), Invitation).expires + INVITATIONS_KEPT < now:
                    file.unlink()
            token = Token.make(os.urandom(TOKEN_RANDOM_BYTES), self.authority.thumbprint)
            invitation = Invitation(member, token.secret, now + life)
            write_private(self._invitation(token.number.hex()), msgspec.json.encode(invitation))
        return token

    def revoke(self, member: str, now: datetime) -> None:
        """Revoke a member permanently. It gets no more certificates, and instances that read this folder refuse it.

        Raises:
            DomainError: the key belongs to another user; no member or invitation has this name; it is the owner.
        """
        with self._owner():
            wanted = member.lower()
            if wanted == own_name().lower():
                raise DomainError(
                    f"{member} holds the key of the domain {self.name} and can impersonate every member, so a "
                    "revocation has no effect: create another domain."
                )
            known = {name.lower() for name in self.members()} | {guest.member.lower() for guest in self.invitations()}
            if wanted not in known:
                raise DomainError(f"{self.name} has neither a member nor an invitation named {member}.")
            self._write("revoked.json", self.revoked() | {wanted: now})

    def issue(self, key: bytes, member: str, instance: UUID, now: datetime) -> Facts:
        """Issue a certificate for a public key (DER) without a request. For instances of the owner of the domain's key.

        Raises:
            DomainError: the key belongs to another user, or the member was revoked.
        """
        with self._owner() as authority_key:
            return self._issue(authority_key, key, Member(self.name, member, instance), now)

    def answer(self, now: datetime) -> int:
        """Answer at most `MAX_REQUESTS` waiting requests. Returns the number that were waiting.

        Raises:
            DomainError: the key belongs to another user, or a file cannot be read or written.
        """
        with os.scandir(self.folder / "requests") as entries:
            waiting = [
                entry.name for entry in entries if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False)
            ]
        if not waiting:
            return 0
        with self._owner() as authority_key:
            for name in waiting[:MAX_REQUESTS]:
                file = self.folder / "requests" / name
                self._answer(authority_key, file, now)
                file.unlink(missing_ok=True)
        return len(waiting)

    def _answer(self, authority_key: PrivateKey, file: Path, now: datetime) -> None:
        """Answer one request.

        A request without proof gets no answer: otherwise it could overwrite the answer to another member.
        """
        try:
            asked: Request = _decoded(_read_request(file), Request)
            name, key = asked.name, x509.public_key_of(asked.request)
            member, invitation = self._proven(asked, key)
        except (OSError, ValueError, DomainError):
            return
        try:
            if invitation is not None:
                self._use(invitation, key, asked.instance, now)
            answer = SignedAnswer(self._issue(authority_key, key, member, now).der)
        except DomainError as refused:
            answer = SignedAnswer(refusal=str(refused))
        replace(self._answers(name), msgspec.json.encode(answer), 0o644)

    def _proven(self, asked: Request, key: bytes) -> tuple[Member, Path | None]:
        """Return the member that requests a certificate, and the file of its invitation, if it has no certificate yet.

        Raises:
            DomainError: the request has neither a certificate of the domain nor the proof of an invitation.
        """
        if asked.certificate:
            member = x509.member_of(asked.certificate, self.authority.der)
            if member is None or x509.public_key_of_certificate(asked.certificate) != key:
                raise DomainError("The certificate is not of this domain, or not that of the key.")
            return member, None
        file = self._invitation(asked.invitation)
        invitation: Invitation = _decoded(read_file(file), Invitation)
        if not hmac.compare_digest(proof_of(invitation.secret, asked.request, asked.instance), asked.proof):
            raise DomainError(
                "The token does not match the invitation. Ask for a new token: servicebroker domain invite NAME."
            )
        return Member(self.name, invitation.member, asked.instance), file

    def _use(self, file: Path, key: bytes, instance: UUID, now: datetime) -> None:
        """Mark an invitation as used by a key. The same key may use it again, for a repeated request."""
        invitation: Invitation = _decoded(read_file(file), Invitation)
        if invitation.used_by not in (b"", key):
            raise DomainError("The token was used already: ask for a new one.")
        if invitation.expires <= now:
            raise DomainError(f"The token has expired on {invitation.expires:%Y-%m-%d %H:%M} UTC: ask for a new one.")
        self._check_alone(invitation.member, instance)
        replace(file, msgspec.json.encode(msgspec.structs.replace(invitation, used_by=key)))

    def _check_alone(self, member: str, instance: UUID) -> None:
        """Refuse an instance that belongs to another member, unless that member was revoked."""
        revoked = self.revoked()
        for name, instances in self.members().items():
            if instance in instances and name.lower() not in (member.lower(), *revoked):
                raise DomainError(f"The instance {instance} is that of the member {name}.")

    def _issue(self, authority_key: PrivateKey, key: bytes, member: Member, now: datetime) -> Facts:
        if member.name.lower() in self.revoked():
            raise DomainError(f"{member.account} was revoked.")
        issued = x509.issue(self.authority, authority_key, key, member, now)
        ledger = self.members()
        ledger.setdefault(member.name, {})[member.instance] = Issued(now, issued.expiry_date)
        self._write("members.json", ledger)
        return issued

    @contextmanager
    def _owner(self) -> Iterator[PrivateKey]:
        """Lock the private key for the block, and yield it."""
        try:
            self.check_key()
            with (self.folder / "authority.key").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield read_key(file.read(), None, self.authority)
        except (OSError, InstanceError, BrokerError, msgspec.MsgspecError) as problem:
            raise DomainError(f"The domain in {self.folder} cannot be used: {problem}") from None

    # ---------------------------------------------------------------- what a member does

    def ask(self, asked: Request) -> None:
        """Write a request. It replaces an earlier one for the same key.

        Raises:
            DomainError: the file cannot be written.
        """
        try:
            replace(self.folder / "requests" / f"{asked.name}.json", msgspec.json.encode(asked), 0o644)
        except OSError as problem:
            raise DomainError(f"Nothing can be asked of the domain in {self.folder}: {problem}") from None

    def answered(self, key: PrivateKey) -> SignedAnswer | None:
        """Return the latest answer to requests for a key; None without one.

        Raises:
            DomainError: the file cannot be read.
        """
        file = self._answers(x509.public_bytes(key).hex()[-64:])
        try:
            answer: SignedAnswer = _decoded(read_file(file), SignedAnswer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as problem:
            raise DomainError(f"The answer of the domain in {self.folder} cannot be read: {problem}") from None
        return answer

    # ---------------------------------------------------------------- files

    def _answers(self, name: str) -> Path:
        return self.folder / "answers" / f"{name}.json"

    def _invitation(self, number: str) -> Path:
        return self.folder / "invitations" / f"{Path(number).name}.json"

    def _invitations(self) -> list[Path]:
        with suppress(PermissionError):
            return sorted((self.folder / "invitations").glob("*.json"))
        return []

    def _read(self, name: str, kind: Any) -> Any:
        file = self.folder / name
        try:
            return _decoded(read_file(file), kind)
        except (OSError, msgspec.MsgspecError) as problem:
            raise DomainError(f"{file} cannot be read: {problem}") from None

    def _write(self, name: str, value: Ledger | Revoked) -> None:
        replace(self.folder / name, msgspec.json.encode(value), 0o644)


def proof_of(secret: bytes, request: bytes, instance: UUID) -> bytes:
    """Return an HMAC of the request, which proves that the requester has the secret of an invitation."""
    return hmac.digest(secret, instance.bytes + request, "sha256")


def machine_name() -> str:
    """Return the default name of a domain: the host name."""
    return usable_name(socket.gethostname().split(".")[0].upper())


def own_name() -> str:
    """Return the member name of the owner of a domain's key: the name of the operating-system user."""
    try:
        return usable_name(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return f"user-{os.geteuid()}"


def _fill(folder: Path, facts: Facts, key: PrivateKey) -> None:
    """Create the files of a new domain."""
    for name, mode in (("invitations", 0o700), ("requests", 0o1777), ("answers", 0o755)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    write_private(folder / "authority.key", key_pem(key))
    replace(folder / "authority.pem", as_pem(facts.der), 0o644)
    for name in ("revoked.json", "members.json"):
        replace(folder / name, b"{}", 0o644)


def _decoded(data: bytes, kind: Any) -> Any:
    """Decode JSON, which may be from an untrusted user, as a value of a type.

    Raises:
        msgspec.MsgspecError: the JSON has no such value.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def _read_request(file: Path) -> bytes:
    """Read a request file. Anybody may have created it, so a link or pipe is refused, and the length is limited."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DomainError("It is not a regular file.")
        return opened.read(MAX_REQUEST_BYTES)
