"""Who a peer is: what its certificate proves, what it says of itself, and whose an instance is. Plain values.

Instances are claimed in three ways: an administrator has accepted the claim, an imported certificate names the
instance, or it was learned where we connected. The first of them that knows an instance decides whose it is; a
greeting decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

STRANGER = "not imported"  # so begin owners whose certificate nobody has imported
NOBODY = ""  # the owner of what is not proved: whoever could reach us

WITHOUT_PROOF = (
    "With ENCRYPTION = {} nothing proves who a peer is: whoever reaches the port can be anybody, and read, send and "
    "acknowledge what dialog security does not seal."
)


class Proved(NamedTuple):
    """What a certificate stands for, once TLS has proved that a peer has its key.

    Attributes:
        owner: who has it here: `login NAME`, else `certificate NAME` after the one that was imported, or that its
            predecessor was imported under. It stays the same when the certificate is replaced.
        instance: the instance that the certificate itself names, None when it names none.
        is_vouched: the authority of the domain says so, and it can be no other one.
    """

    owner: str = NOBODY
    instance: UUID | None = None
    is_vouched: bool = False


UNPROVED = Proved()


class Peer(NamedTuple):
    """Who is at the other end of a connection: a seat (decision 106) of an owner; seats of others do not count."""

    owner: str
    seat: UUID


class Answer(NamedTuple):
    """Who answered at an address: the owner of the certificate, and which instance it said that it is."""

    owner: str
    instance: UUID


class Claims(NamedTuple):
    """Who has claimed which instance, and on what ground; the first ground that knows an instance counts.

    Attributes:
        accepted: an administrator has said whose it is.
        named: imported certificates name it.
        learned: it was said where we connected.
    """

    accepted: Mapping[UUID, str]
    named: Mapping[UUID, frozenset[str]]
    learned: Mapping[UUID, frozenset[str]]

    def owners(self, instance: UUID) -> frozenset[str]:
        """Whose it is; when they are several, nobody's until one is accepted."""
        accepted = self.accepted.get(instance)
        if accepted is not None:
            return frozenset({accepted})
        return self.named.get(instance) or self.learned.get(instance) or frozenset()

    def is_open(self, instance: UUID) -> bool:
        """Whether an answer where we connected may claim it: nobody has accepted or imported who it is."""
        return instance not in self.accepted and instance not in self.named

    def objection(self, instance: UUID, owner: str) -> str | None:
        """Why a peer with this owner's certificate is not believed to be that instance; None when it is."""
        owners = self.owners(instance)
        if not owners or owners == {owner}:
            return None
        others = " and ".join(sorted(owners - {owner}))
        if owner in owners:
            return f"{others} claims instance {instance} too, and an administrator has accepted neither"
        return f"instance {instance} is that of {others}"


class Mistrust(NamedTuple):
    """What a peer has done that only somebody else may.

    Attributes:
        owner: of its certificate.
        claim: INSTANCE or ADDRESS, and `subject` says which one it claimed; MESSAGES that it has brought and that are
            not its own; STANDING: it has said who is the principal of a pair that it is no half of; TWINS: two daemons
            that both say they are instance `subject` have brought messages at the same time.
    """

    owner: str
    claim: str
    subject: str = ""


INSTANCE, ADDRESS, MESSAGES, STANDING, TWINS = "instance", "address", "messages", "standing", "twins"
