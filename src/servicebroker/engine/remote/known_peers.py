"""Known peers: the certificate owner who answered at each address, false claims of peers, and accepted claims.

A claim is a peer's statement to be an instance, or to answer at an address. It is false if another owner has that
instance or address.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.security.transport_certificates import find_certificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.peers import ADDRESS, INSTANCE, Answer, FalseClaim
from servicebroker.protocol.routing import Address, parse_address
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_ADDRESSES = 10_000  # stored addresses; the newest are kept
MAX_CLAIMS = 1_000  # stored false claims; the newest are kept


def find_answers() -> Steps[dict[Address, Answer]]:
    """Return the certificate owner and the instance that answered at each address."""
    rows = yield SQL("find_answers")
    answers = {parse_address(address): Answer(owner, instance) for address, owner, instance in rows}
    return {address: answer for address, answer in answers.items() if address is not None}


def save_answers(answers: Mapping[Address, Answer], now: datetime) -> Steps[None]:
    """Store the answers of a round, and delete the oldest beyond `MAX_ADDRESSES`."""
    yield SQL(
        "save_answers.insert_peers",
        (
            [str(address) for address in answers],
            [peer.owner for peer in answers.values()],
            [peer.instance for peer in answers.values()],
            now,
        ),
    )
    yield Statement(
        "known_peers.save_answers.delete_peers",
        "delete from servicebroker.peers where address in "
        f"(select address from servicebroker.peers order by since desc offset {MAX_ADDRESSES})",
    )


def save_false_claims(claims: Mapping[FalseClaim, tuple[int, str]], now: datetime) -> Steps[None]:
    """Add false claims, with count and latest detail, to the stored ones. Deletes the oldest beyond `MAX_CLAIMS`."""
    yield SQL(
        "save_false_claims",
        (
            [claim.owner for claim in claims],
            [claim.claim for claim in claims],
            [claim.subject for claim in claims],
            [count for count, _ in claims.values()],
            [detail for _, detail in claims.values()],
            now,
        ),
    )
    yield Statement(
        "known_peers.save_false_claims.forget",
        "delete from servicebroker.mistrusted where (owner, claim, subject) in "
        f"(select owner, claim, subject from servicebroker.mistrusted order by last_time desc offset {MAX_CLAIMS})",
    )


class AcceptedClaims(NamedTuple):
    """The result of `accept`: instances that now belong to the peer, and addresses whose former owner was deleted."""

    instances: tuple[UUID, ...]
    addresses: tuple[str, ...]


def accept(name: str, now: datetime) -> Steps[AcceptedClaims]:
    """Accept the claims of a peer's certificate owner: the claimed instances and addresses no longer belong to others.

    Raises:
        BrokerError: 15151 no certificate of a peer has that name; it may be a certificate of this instance.
    """
    certificate = yield from find_certificate("accept", name)
    if certificate.is_own:
        hint = "It is a certificate of this instance: name that of a peer."
        raise BrokerError(15151, "accept", "certificate of a peer", name, hint=hint)
    owner = certificate.proved.owner
    instances = yield SQL("accept.insert_accepted_peers", (owner, INSTANCE))
    yield SQL("accept.delete_other_owners", (owner, [instance for (instance,) in instances]))
    addresses = yield SQL("accept.delete_former_owners", (owner, ADDRESS))
    yield SQL("accept.delete_mistrusted", (owner, INSTANCE, ADDRESS))
    yield SQL("accept.update_certificates", (owner, now))
    return AcceptedClaims(tuple(instance for (instance,) in instances), tuple(address for (address,) in addresses))
