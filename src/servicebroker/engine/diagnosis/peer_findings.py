"""Findings about peers: refusals, broken connections, false claims, incomplete messages, old copies, certificates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from servicebroker.engine.diagnosis.fact_types import LONG_WAIT, DisputeFacts, OldCopyFacts, PeerFacts
from servicebroker.engine.diagnosis.findings import REPEATED_TIMES, Finding, Severity
from servicebroker.engine.remote.refusals import CONNECTION_BROKEN, ROUND_FAILED, RefusalRecord
from servicebroker.engine.remote.unfinished_arrivals import UnfinishedOfPeer
from servicebroker.engine.security.certificate_ages import UsedCertificate
from servicebroker.model.remedies import REMEDIES, after_refusal
from servicebroker.model.security.peers import ADDRESS, INSTANCE, MESSAGES, NOBODY, STANDING, TWINS
from servicebroker.model.wording import counted
from servicebroker.protocol.limits import LIMITS

INCIDENT_AGE = timedelta(days=1)  # older incidents with peers are not reported
# a peer is reported if no fragment of its incomplete messages arrived for this time, in which it retries often
UNFINISHED_IDLE = timedelta(seconds=LIMITS.unfinished_idle_full)
_CLAIM_TEXTS = {
    INSTANCE: "It claims to be an instance that is another's, {0}: {1}.",
    ADDRESS: "It has answered at an address where another peer was, {0}: {1}.",
    MESSAGES: "Its messages were dropped, {0}: no route leads to it for the service that has sent them, lately {1}.",
    STANDING: "It has reported the primary of a mirrored pair to which it does not belong, {0}, lately {1}.",
    TWINS: "Two daemons that claim to be this instance have sent messages at the same time, {0}, {1}.",
}
_COPY = (
    "One of them is a copy of the other, as of a virtual machine or a base backup. Where the copy is: servicebroker "
    "instance adopt --identifier new, or stop it."
)
_ROUTE = (
    "If it is that service, or forwards for it, say where it listens: servicebroker route create NAME --database D "
    "--service S --address TCP://host:port, of the database or of msdb where the message is only passed on."
)


def judge_refusals(refusals: Sequence[RefusalRecord], now: datetime) -> list[Finding]:
    """Report refusals by peers and by this instance, failures of the daemon, and connections that break repeatedly."""
    return [
        *(_refusal(one) for one in refusals if one.number not in (CONNECTION_BROKEN, ROUND_FAILED)),
        *(_failed(one) for one in refusals if one.number == ROUND_FAILED),
        *(_broken(one) for one in refusals if one.number == CONNECTION_BROKEN and _lasts(one, now)),
    ]


def _refusal(one: RefusalRecord) -> Finding:
    """Report a connection or a message that the peer or this instance has refused."""
    what = "Refused here" if one.is_ours else "It refuses us"
    return Finding(
        f"peer {one.peer}",
        f"{what}, {_often(one)}: {one.number} {one.text}",
        after_refusal(one.number, is_ours=one.is_ours),
    )


def _failed(one: RefusalRecord) -> Finding:
    """Report a failed round of the daemon, after which it has restarted its work."""
    return Finding(one.peer, f"It has failed {_often(one)}: {one.number} {one.text}", REMEDIES[one.number])


def _lasts(one: RefusalRecord, now: datetime) -> bool:
    """Check whether connections with a peer broke repeatedly and recently. A single one is no problem: a restart."""
    return one.times >= REPEATED_TIMES and abs(now - one.last) < LONG_WAIT


def _broken(one: RefusalRecord) -> Finding:
    return Finding(
        f"peer {one.peer}",
        f"The connection with it broke, {_often(one)}: {one.text}",
        "Check the network between the two instances, and the log of servicebroker serve at both.",
    )


def _often(one: RefusalRecord) -> str:
    return f"{counted(one.times, 'time')} since {one.first:%H:%M:%S}, lately {one.last:%Y-%m-%d %H:%M:%S} UTC"


def judge_claims(peers: Iterable[PeerFacts], now: datetime) -> Iterator[Finding]:
    """Report false claims of peers, without old ones."""
    for peer in peers:
        if now - peer.last < INCIDENT_AGE:
            yield _peer(peer)


def judge_disputes(disputes: Iterable[DisputeFacts]) -> Iterator[Finding]:
    """Report that several peers claim to be the same instance."""
    for dispute in disputes:
        yield _dispute(dispute)


def judge_unfinished(unfinished: Iterable[UnfinishedOfPeer], now: datetime) -> Iterator[Finding]:
    """Report peers that have used up their quota, or whose incomplete messages have made no progress for long."""
    for peer in unfinished:
        if is_much(peer) or now - peer.last_time > UNFINISHED_IDLE:
            yield _unfinished(peer)


def judge_old_copies(old_copies: Iterable[OldCopyFacts], now: datetime) -> Iterator[Finding]:
    """Report databases of this instance or of peers that were restored from old copies, without old incidents."""
    for old_copy in old_copies:
        if now - old_copy.last < INCIDENT_AGE:
            yield _old_copy(old_copy)


def judge_certificates(certificates: Iterable[UsedCertificate], now: datetime) -> Iterator[Finding]:
    """Report certificates that have expired or expire soon."""
    for certificate in certificates:
        if certificate.is_expiring(now):
            yield _certificate(certificate, now)


def _peer(one: PeerFacts) -> Finding:
    """Report a peer's false claims. They had no effect."""
    said = _CLAIM_TEXTS[one.claim].format(
        f"{counted(one.times, 'time')} until {one.last:%Y-%m-%d %H:%M:%S} UTC", one.detail
    )
    if one.claim == TWINS:
        return Finding(f"peer {one.owner}".rstrip(), said, _COPY, Severity.WARNING)
    if one.certificate is None and one.owner != NOBODY:  # a member of the domain, or an unknown peer that public admits
        advice = "servicebroker domain revoke, or DENY CONNECT ON ENDPOINT to its login or to public."
        return Finding(f"peer {one.owner}", said, advice, Severity.WARNING)
    if one.certificate is None:
        return Finding(
            "a peer without certificate", said, "ALTER ENDPOINT ... ENCRYPTION = REQUIRED.", Severity.WARNING
        )
    right = {MESSAGES: _ROUTE, STANDING: "It should not."}.get(
        one.claim, f"If it is right: servicebroker certificate accept {one.certificate}."
    )
    return Finding(
        f"peer with {one.owner}",
        said,
        f"{right} If not, stop accepting it: servicebroker certificate drop {one.certificate}.",
        Severity.WARNING,
    )


def _dispute(one: DisputeFacts) -> Finding:
    return Finding(
        f"instance {one.instance}",
        f"The owners of the certificates {' and '.join(one.certificates)} claim to be it, so none may connect.",
        f"Choose the right one: servicebroker certificate accept {' | '.join(one.certificates)}. If both belong to one "
        "peer, drop one and import it with the same --login as the other.",
    )


def is_much(one: UnfinishedOfPeer) -> bool:
    """Check whether a peer has used up its quota."""
    return one.bytes >= one.quota


def _unfinished(one: UnfinishedOfPeer) -> Finding:
    """Report messages of which a peer has sent only a part."""
    begun = (
        f"{counted(one.messages, 'message')} of {counted(one.conversations, 'conversation')} "
        f"{'is' if one.messages == 1 else 'are'} not complete, {megabytes(one.bytes)} MB, the last part arrived at "
        f"{one.last_time:%Y-%m-%d %H:%M:%S} UTC."
    )
    full = (
        " That is the peer's limit: other long messages have to wait until these are complete." if is_much(one) else ""
    )
    advice = (
        "Check at the peer whether it still sends. Parts without progress for an hour (5 minutes at the limit) are "
        "deleted, and sent again."
    )
    if one.certificate:
        advice += f" If it means harm: servicebroker certificate drop {one.certificate}."
        advice += f" If it needs more: servicebroker certificate budget {one.certificate}."
    severity = Severity.TROUBLE if is_much(one) else Severity.WARNING
    return Finding(peer_with(one.owner), begun + full, advice, severity)


def _old_copy(one: OldCopyFacts) -> Finding:
    ended = (
        f"{counted(one.times, 'conversation')} with broker {one.peer_broker} (service {one.far_service}) ended with an "
        f"Error, the last at {one.last:%Y-%m-%d %H:%M:%S} UTC: {one.detail}"
    )
    subject = f"database {one.database}, broker {one.own_broker}"
    if one.is_here:
        return Finding(
            subject,
            f"This database has gone back to an old copy: {ended}",
            f"Only broker {one.peer_broker} still knows what was sent and received here since that copy: compare with "
            "it, then begin new conversations. After a restore: servicebroker instance adopt.",
        )
    return Finding(
        subject,
        f"That database has gone back to an old copy: {ended}",
        f"Broker {one.peer_broker} has lost the messages that it received since that copy: send them again on new "
        "conversations. At that instance: servicebroker instance adopt, servicebroker doctor.",
    )


def _certificate(one: UsedCertificate, now: datetime) -> Finding:
    is_expired = one.expires <= now
    over = f"{'has expired' if is_expired else 'expires'} on {one.expires:%Y-%m-%d}"
    severity = Severity.TROUBLE if is_expired else Severity.WARNING
    if one.problem:
        return Finding(
            f"domain member {one.name}",
            f"Its certificate {over}, and is not renewed: {one.problem}",
            "See the log of servicebroker serve, and servicebroker domain show.",
            severity,
        )
    if one.database:
        return Finding(
            f"certificate {one.name}",
            f"It belongs to the user {one.user} in {one.database} and {over}: without it no secured dialog begins.",
            "Make or import a new one under the same user: servicebroker certificate create or import, --database.",
            severity,
        )
    whose = "of this instance" if one.is_own else "of a peer"
    return Finding(
        f"certificate {one.name}",
        f"It is {whose} and {over}: without it no connection is accepted.",
        "Make a new one (servicebroker certificate create), export it, and import it at each peer.",
        severity,
    )


def peer_with(owner: str) -> str:
    """Return the name of a peer: the owner of its certificate."""
    return f"peer with {owner}" if owner != NOBODY else "a peer without certificate"


def megabytes(count: int) -> str:
    """Return a number of bytes as text, in megabytes."""
    return f"{count / 2**20:,.1f}"
