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
        *(_refusal(refusal) for refusal in refusals if refusal.number not in (CONNECTION_BROKEN, ROUND_FAILED)),
        *(_failed_round(refusal) for refusal in refusals if refusal.number == ROUND_FAILED),
        *(
            _broken_connection(refusal)
            for refusal in refusals
            if refusal.number == CONNECTION_BROKEN and _lasts(refusal, now)
        ),
    ]


def _refusal(refusal: RefusalRecord) -> Finding:
    """Report a connection or a message that the peer or this instance has refused."""
    side = "Refused here" if refusal.is_ours else "It refuses us"
    return Finding(
        f"peer {refusal.peer}",
        f"{side}, {_occurrences(refusal)}: {refusal.number} {refusal.text}",
        after_refusal(refusal.number, is_ours=refusal.is_ours),
    )


def _failed_round(refusal: RefusalRecord) -> Finding:
    """Report a failed round of the daemon, after which it has restarted its work."""
    return Finding(
        refusal.peer,
        f"It has failed {_occurrences(refusal)}: {refusal.number} {refusal.text}",
        REMEDIES[refusal.number],
    )


def _lasts(refusal: RefusalRecord, now: datetime) -> bool:
    """Check whether connections with a peer broke repeatedly and recently. A single one is not a problem: a restart."""
    return refusal.occurrences >= REPEATED_TIMES and abs(now - refusal.last) < LONG_WAIT


def _broken_connection(refusal: RefusalRecord) -> Finding:
    return Finding(
        f"peer {refusal.peer}",
        f"The connection with it broke, {_occurrences(refusal)}: {refusal.text}",
        "Check the network between the two instances, and the log of servicebroker serve at both.",
    )


def _occurrences(refusal: RefusalRecord) -> str:
    times = counted(refusal.occurrences, "time")
    return f"{times} since {refusal.first:%H:%M:%S}, lately {refusal.last:%Y-%m-%d %H:%M:%S} UTC"


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
            yield _unfinished_messages(peer)


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


def _peer(peer: PeerFacts) -> Finding:
    """Report a peer's false claims. They had no effect."""
    problem = _CLAIM_TEXTS[peer.claim].format(
        f"{counted(peer.times, 'time')} until {peer.last:%Y-%m-%d %H:%M:%S} UTC", peer.detail
    )
    if peer.claim == TWINS:
        return Finding(f"peer {peer.owner}".rstrip(), problem, _COPY, Severity.WARNING)
    if (
        peer.certificate is None and peer.owner != NOBODY
    ):  # a member of the domain, or an unknown peer that public admits
        advice = "servicebroker domain revoke, or DENY CONNECT ON ENDPOINT to its login or to public."
        return Finding(f"peer {peer.owner}", problem, advice, Severity.WARNING)
    if peer.certificate is None:
        return Finding(
            "a peer without certificate", problem, "ALTER ENDPOINT ... ENCRYPTION = REQUIRED.", Severity.WARNING
        )
    right = {MESSAGES: _ROUTE, STANDING: "It should not."}.get(
        peer.claim, f"If it is right: servicebroker certificate accept {peer.certificate}."
    )
    return Finding(
        f"peer with {peer.owner}",
        problem,
        f"{right} If not, stop accepting it: servicebroker certificate drop {peer.certificate}.",
        Severity.WARNING,
    )


def _dispute(dispute: DisputeFacts) -> Finding:
    return Finding(
        f"instance {dispute.instance}",
        f"The owners of the certificates {' and '.join(dispute.certificates)} claim to be it, so none may connect.",
        f"Choose the right one: servicebroker certificate accept {' | '.join(dispute.certificates)}. If both "
        "belong to one "
        "peer, drop one and import it with the same --login as the other.",
    )


def is_much(unfinished: UnfinishedOfPeer) -> bool:
    """Check whether a peer has used up its quota."""
    return unfinished.bytes >= unfinished.quota


def _unfinished_messages(unfinished: UnfinishedOfPeer) -> Finding:
    """Report messages of which a peer has sent only a part."""
    begun = (
        f"{counted(unfinished.messages, 'message')} of {counted(unfinished.conversations, 'conversation')} "
        f"{'is' if unfinished.messages == 1 else 'are'} not complete, {megabytes(unfinished.bytes)} MB, the "
        "last part arrived at "
        f"{unfinished.last_time:%Y-%m-%d %H:%M:%S} UTC."
    )
    full = (
        " That is the peer's limit: other long messages have to wait until these are complete."
        if is_much(unfinished)
        else ""
    )
    advice = (
        "Check at the peer whether it still sends. Parts without progress for an hour (5 minutes at the limit) are "
        "deleted, and sent again."
    )
    if unfinished.certificate:
        advice += f" If it means harm: servicebroker certificate drop {unfinished.certificate}."
        advice += f" If it needs more: servicebroker certificate budget {unfinished.certificate}."
    severity = Severity.TROUBLE if is_much(unfinished) else Severity.WARNING
    return Finding(peer_with(unfinished.owner), begun + full, advice, severity)


def _old_copy(old_copy: OldCopyFacts) -> Finding:
    ended = (
        f"{counted(old_copy.times, 'conversation')} with broker {old_copy.peer_broker} (service "
        f"{old_copy.far_service}) ended with an "
        f"Error, the last at {old_copy.last:%Y-%m-%d %H:%M:%S} UTC: {old_copy.detail}"
    )
    subject = f"database {old_copy.database}, broker {old_copy.own_broker}"
    if old_copy.is_here:
        return Finding(
            subject,
            f"This database has gone back to an old copy: {ended}",
            f"Only broker {old_copy.peer_broker} still knows what was sent and received here since that copy: "
            "compare with "
            "it, then begin new conversations. After a restore: servicebroker instance adopt.",
        )
    return Finding(
        subject,
        f"That database has gone back to an old copy: {ended}",
        f"Broker {old_copy.peer_broker} has lost the messages that it received since that copy: send them again on new "
        "conversations. At that instance: servicebroker instance adopt, servicebroker doctor.",
    )


def _certificate(certificate: UsedCertificate, now: datetime) -> Finding:
    is_expired = certificate.expires <= now
    over = f"{'has expired' if is_expired else 'expires'} on {certificate.expires:%Y-%m-%d}"
    severity = Severity.TROUBLE if is_expired else Severity.WARNING
    if certificate.problem:
        return Finding(
            f"domain member {certificate.name}",
            f"Its certificate {over}, and is not renewed: {certificate.problem}",
            "See the log of servicebroker serve, and servicebroker domain show.",
            severity,
        )
    if certificate.database:
        return Finding(
            f"certificate {certificate.name}",
            f"It belongs to the user {certificate.user} in {certificate.database} and {over}: without it no "
            "secured dialog begins.",
            "Make or import a new one under the same user: servicebroker certificate create or import, --database.",
            severity,
        )
    whose = "of this instance" if certificate.is_own else "of a peer"
    return Finding(
        f"certificate {certificate.name}",
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
