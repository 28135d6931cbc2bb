"""The identity of a peer: what its certificate proves, what it claims, and the owner of an instance. Plain values.

There are three grounds for the owner of an instance: an administrator has accepted the claim, an imported certificate
names the instance, or it was learned where we connected. The first ground that knows an instance decides; a greeting
decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

STRANGER = "not imported"  # prefix of owners without an imported certificate
NOBODY = ""  # the owner of peers without a certificate: anybody that can connect

WITHOUT_PROOF = (
    "With ENCRYPTION = {} nothing proves who a peer is: whoever reaches the port can be anybody, and read, send and "
    "acknowledge what dialog security does not seal."
)


class Proved(NamedTuple):
    """The identity that a certificate proves, once TLS has proved that a peer has its key.

    Attributes:
        owner: the local name of its owner: `login NAME`, else `certificate NAME` with the name of the imported one, or
            of its imported predecessor. It stays the same if the certificate is replaced.
        instance: the instance that the certificate itself names, None if it names none.
        is_vouched: the authority of the domain confirms the instance.
    """

    owner: str = NOBODY
    instance: UUID | None = None
    is_vouched: bool = False


UNPROVED = Proved()


class Peer(NamedTuple):
    """The other end of a connection: a daemon (decision 150) and its owner. An equal id of another owner differs."""

    owner: str
    daemon_id: UUID


class Answer(NamedTuple):
    """The peer that answered at an address: the certificate's owner, and the instance that it claims to be."""

    owner: str
    instance: UUID


class Claims(NamedTuple):
    """The claims to instances by ground. The first ground that knows an instance decides.

    Attributes:
        accepted: owners that an administrator has accepted.
        named: owners of imported certificates that name the instance.
        learned: owners that claimed it at an address that we connected to.
    """

    accepted: Mapping[UUID, str]
    named: Mapping[UUID, frozenset[str]]
    learned: Mapping[UUID, frozenset[str]]

    def owners(self, instance: UUID) -> frozenset[str]:
        """Return the owners of an instance; several of them own it only once one is accepted."""
        accepted = self.accepted.get(instance)
        if accepted is not None:
            return frozenset({accepted})
        return self.named.get(instance) or self.learned.get(instance) or frozenset()

    def is_open(self, instance: UUID) -> bool:
        """Return whether a peer that we connected to may claim the instance: it is neither accepted nor named."""
        return instance not in self.accepted and instance not in self.named

    def objection(self, instance: UUID, owner: str) -> str | None:
        """Return why the claim of this owner to be an instance is refused; None if it is accepted."""
        owners = self.owners(instance)
        if not owners or owners == {owner}:
            return None
        others = " and ".join(sorted(owners - {owner}))
        if owner in owners:
            return f"{others} claims instance {instance} too, and an administrator has accepted neither"
        return f"instance {instance} is that of {others}"


class FalseClaim(NamedTuple):
    """A false claim of a peer, or messages that it may not send.

    Attributes:
        owner: the owner of its certificate.
        claim: INSTANCE or ADDRESS: it claimed the `subject`. MESSAGES: it sent messages of another source.
            STANDING: it named the principal of a mirrored pair without being part of it. TWINS: two daemons that claim
            to be instance `subject` sent messages at the same time.
    """

    owner: str
    claim: str
    subject: str = ""


INSTANCE, ADDRESS, MESSAGES, STANDING, TWINS = "instance", "address", "messages", "standing", "twins"
