"""The broker's log of messages and connections, under the names of the event classes.

The attribute `fields` of a record has its values for programs.
"""

from __future__ import annotations

import logging
from uuid import UUID

from servicebroker.broker import metrics
from servicebroker.broker.transport.links import Link
from servicebroker.engine.conversation.failure import ConversationFailure
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.peers import MESSAGES, STANDING, STRANGER, TWINS, FalseClaim
from servicebroker.model.wording import cleaned
from servicebroker.protocol.dialog import Dropped
from servicebroker.protocol.envelope import Header, Kind
from servicebroker.protocol.routing import Destination, Elsewhere, Local, Refused
from servicebroker.protocol.wire_errors import CorruptedMessage, Undeliverable

_log = logging.getLogger("servicebroker.broker")

_MAX_LINE = 2_000  # characters of a line

UNDELIVERABLE = "Broker:Message Undeliverable"


def not_taken(problem: CorruptedMessage, link: Link) -> None:
    """Log Broker:Corrupted Message or Broker:Message Undeliverable for a message that was dropped."""
    if isinstance(problem, Undeliverable):
        metrics.DROPPED.inc()
        _tell(logging.INFO, UNDELIVERABLE, problem.text, {"error": problem.text})
        link.refused(problem.number, problem.text)
    else:
        log_corrupted(problem, link)


def log_corrupted(problem: CorruptedMessage, link: Link, peer: str = "") -> None:
    """Log Broker:Corrupted Message for a message that was dropped; its sender repeats it."""
    metrics.CORRUPTED.inc()
    fields = {"peer": peer} if peer else {}
    _tell(logging.WARNING, "Broker:Corrupted Message", str(problem), {**fields, "error": str(problem)})
    link.refused(problem.number, problem.text)


_AUDITED_CONVERSATIONS = {  # subclass -> number of the refusal
    "No Security Header": 11254,
    "No Certificate": 11230,
    "Bad Signature": 11230,
    "Run As Target Failure": 8401,
}


def conversation(subclass: str, header: Header, link: Link, error: str = "") -> None:
    """Log Audit Broker Conversation: No Security Header, No Certificate, Bad Signature or Run As Target Failure.

    The message was dropped without an answer; its sender repeats it.
    """
    fields = {"conversation": str(header.conversation_id), "from_service": header.from_service}
    _record(logging.WARNING, "Audit Broker Conversation", subclass=subclass, error=error, **fields)
    number = _AUDITED_CONVERSATIONS[subclass]
    link.refused(number, f"{subclass}: {error or RULES[number].text} {_where(header)}")


def trouble(text: str) -> None:
    """Log a problem that the administrator must solve."""
    _log.error("%s", text)


def undeliverable(dropped: Dropped, header: Header, link: Link) -> None:
    """Log Broker:Message Undeliverable (Dropped)."""
    metrics.DROPPED.inc()
    link.refused(dropped.number, f"{dropped.text} {_where(header)}")
    _tell_of_message(UNDELIVERABLE, dropped.text, header, _subclass(header))


def over_budget(event: BrokerError, header: Header, link: Link) -> None:
    """Log Broker:Message Undeliverable for a message beyond its owner's budget; its sender repeats it."""
    metrics.DROPPED.inc()
    link.refused(event.number, event.text)
    _tell_of_message(UNDELIVERABLE, event.text, header, _subclass(header))


def log_expired_fragments(owner: str, handle: UUID) -> None:
    """Log that incomplete messages of a conversation were deleted, because no more fragments arrived."""
    whose = owner or "a peer without certificate"
    text = "Deleted unfinished messages of %s, conversation %s: nothing more of them came."
    fields = {"event": UNDELIVERABLE, "subclass": "Expired", "conversation": str(handle), "peer_owner": owner}
    _log.warning(text, whose, handle, extra={"fields": fields})  # with fields, so that the log limits these lines


SEQUENCED, UNSEQUENCED = "Sequenced Message", "Unsequenced Message"


def _subclass(header: Header) -> str:
    return SEQUENCED if header.kind in (Kind.RUN, Kind.FRAGMENT) else UNSEQUENCED


def watches_conversations() -> bool:
    """Return whether Broker:Conversation events are logged: there is one for each message."""
    return _log.isEnabledFor(logging.DEBUG)


def log_conversation(deed: ConversationEvent, endpoint: RemoteEndpoint, state: str, many: int = 1) -> None:
    """Log Broker:Conversation for a message of another instance. `state`: the new state of the endpoint."""
    if not many:
        return
    metrics.CONVERSATIONS.labels(deed.value).inc(many)
    if watches_conversations():
        role = "initiator" if endpoint.is_initiator else "target"
        ids = {"conversation": str(endpoint.conversation_id), "handle": str(endpoint.conversation_handle)}
        for _ in range(many):
            _record(logging.DEBUG, "Broker:Conversation", subclass=deed.value, **ids, role=role, state=state)


def log_group(subclass: str, group: UUID) -> None:
    """Log Broker:Conversation Group: Create or Drop."""
    _record(logging.DEBUG, "Broker:Conversation Group", subclass=subclass, group=str(group))


_REJECTIONS = {-8428: 11225, -8498: 11226, -8457: 11227, -8437: 11228}  # Error of both sides -> number of the event


def log_rejected(failed: ConversationFailure, endpoint: RemoteEndpoint) -> None:
    """Log Broker:Message Undeliverable for a message that the contract or the validation does not allow."""
    metrics.DROPPED.inc()
    number = _REJECTIONS.get(failed.code)
    text = failed.description
    if number is not None:
        text = RULES[number].text.format(failed.message_type, endpoint.contract)
    fields = {
        "subclass": SEQUENCED,
        "conversation": str(endpoint.conversation_id),
        "from_service": endpoint.far_service,
        "to_service": endpoint.own_service,
        "error": text,
    }
    where = f"{text} (conversation {endpoint.conversation_id}, from {endpoint.far_service} to {endpoint.own_service})"
    _tell(logging.INFO, UNDELIVERABLE, where, fields)


def log_forwarded(header: Header, address: object, size: int) -> None:
    """Log Broker:Forwarded Message Sent, and count its bytes."""
    metrics.FORWARDED.inc()
    metrics.FORWARDED_BYTES.inc(size)
    if _log.isEnabledFor(logging.DEBUG):
        fields = _fields(header) | {"address": str(address)}
        _tell(logging.DEBUG, "Broker:Forwarded Message Sent", f"to {header.to_service} at {address}", fields)


def forwarded_dropped(error: BrokerError, header: Header) -> None:
    """Log Broker:Forwarded Message Dropped; the sender repeats the message."""
    metrics.DISCARDED.inc()
    _tell_of_message("Broker:Forwarded Message Dropped", str(error), header)


AUDITED = {  # the subclass of Audit Broker Login, by the number of the refusal
    28027: "Negotiate Failure",
    28034: "Authorization Failure",
    28035: "Authentication Failure",
    28036: "Authentication Failure",
    28038: "Authentication Failure",
    28080: "Authorization Failure",
    9751: "Authentication Failure",
    9758: "Login Protocol Error",
    28029: "Login Protocol Error",
    11235: "Message Format Error",
}


def connection(subclass: str, peer: str, error: str = "") -> None:
    """Log Broker:Connection: Connecting, Connected, Connect Failed, Accept, Closing, Closed, or an IO Error."""
    metrics.CONNECTIONS.labels(subclass).inc()
    _record(logging.INFO, "Broker:Connection", subclass=subclass, peer=peer, error=error)


def login(subclass: str, peer: str, certificate: str = "", error: str = "") -> None:
    """Log Audit Broker Login: a peer was accepted or refused."""
    metrics.LOGINS.labels(subclass).inc()
    level = logging.WARNING if error else logging.INFO
    _record(level, "Audit Broker Login", subclass=subclass, peer=peer, certificate=certificate, error=error)


def log_false_claims(what: FalseClaim, times: int, detail: str) -> None:
    """Log false claims of a peer as Audit Broker Conversation or Audit Broker Login: their number and the last one.

    A peer that claimed to be another instance was refused and logged at its greeting.
    """
    # one label for all unknown peers, whose number is unbounded
    owner = STRANGER if what.owner.startswith(STRANGER) else what.owner
    metrics.MISTRUSTED.labels(owner, what.claim).inc(times)
    fields = {"peer_owner": what.owner, "times": str(times), "error": detail}
    if what.claim == MESSAGES:
        _record(logging.WARNING, "Audit Broker Conversation", subclass="No Security Header", **fields)
    elif what.claim == STANDING:
        _record(logging.WARNING, "Audit Broker Login", subclass="Authorization Failure", **fields)
    elif what.claim == TWINS:
        _record(logging.WARNING, "Audit Broker Login", subclass="Two Daemons", instance=what.subject, **fields)


def transmission(conversation_id: UUID, error: str) -> None:
    """Log Broker:Transmission: why the messages of a conversation cannot be sent."""
    metrics.TRANSMISSIONS.inc()
    _record(logging.INFO, "Broker:Transmission", conversation=str(conversation_id), error=error)


def log_classified(destination: Destination, service: str, broker: object, *, is_arrival: bool = False) -> None:
    """Log Broker:Message Classify: messages for a service are Local (this instance), Remote (an address) or Delayed.

    `broker`: the broker identifier in the messages, None for any.
    """
    match destination:
        case Elsewhere(address):
            subclass, address_text = "Remote", str(address)
        case Local():
            subclass, address_text = "Local", ""
        case Refused():
            return
        case _:
            subclass, address_text = "Delayed", ""
    metrics.CLASSIFIED.labels(subclass).inc()
    if _log.isEnabledFor(logging.DEBUG):
        fields = {"service": service, "broker": str(broker or ""), "address": address_text}
        role = "network" if is_arrival else "this instance"
        _record(logging.DEBUG, "Broker:Message Classify", subclass=subclass, **fields, role=role)


def acknowledgement(header: Header, *, is_sent: bool) -> None:
    """Log Broker:Remote Message Acknowledgement for a header with an acknowledgement."""
    if header.acknowledgement is None:
        return
    what = "Acknowledgement" if header.kind is Kind.ACKNOWLEDGEMENT else "Message with Acknowledgement"
    subclass = f"{what} {'Sent' if is_sent else 'Received'}"
    metrics.ACKNOWLEDGEMENTS.labels(subclass).inc()
    if _log.isEnabledFor(logging.DEBUG):
        fields = {"conversation": header.conversation_id, "sequence_number": header.number, "fragment": header.fragment}
        texts = {name: str(value) for name, value in fields.items()}
        below = str(header.acknowledgement.below)
        _record(logging.DEBUG, "Broker:Remote Message Acknowledgement", subclass=subclass, **texts, below=below)


def _record(level: int, event: str, **fields: str) -> None:
    present = {name: value for name, value in fields.items() if value}
    text = " ".join(f"{name}={value!r}" if " " in value else f"{name}={value}" for name, value in present.items())
    _tell(level, event, text, present)


def _fields(header: Header) -> dict[str, str]:
    """Return the log fields of a message."""
    return {
        "conversation": str(header.conversation_id),
        "sequence_number": str(header.number),
        "fragment": str(header.fragment),
        "from_service": header.from_service,
        "from_broker": str(header.from_broker),
        "to_service": header.to_service,
        "to_broker": str(header.to_broker or ""),
        "role": "target" if header.is_from_initiator else "initiator",
    }


def _where(header: Header) -> str:
    return f"(conversation {header.conversation_id}, from {header.from_service} to {header.to_service})"


def _tell_of_message(event: str, why: str, header: Header, subclass: str = "") -> None:
    fields = {"subclass": subclass} if subclass else {}
    _tell(logging.INFO, event, f"{why} {_where(header)}", {**fields, **_fields(header), "error": why})


def _tell(level: int, event: str, text: str, fields: dict[str, str]) -> None:
    """Log an event. Texts of peers are cleaned."""
    clean = {name: cleaned(value) for name, value in fields.items()}
    _log.log(level, "%s: %s", event, cleaned(text, _MAX_LINE), extra={"fields": {"event": event, **clean}})
