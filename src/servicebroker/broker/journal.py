"""What the broker says of messages and connections: log records under the names of the event classes.

A record's attribute `fields` holds what a program wants to read of it.
"""

from __future__ import annotations

import logging

from servicebroker.broker import metrics
from servicebroker.engine.arriving import Failed
from servicebroker.engine.remote import Remote
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.protocol.dialog import Dropped
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.errors import CorruptedMessage, Undeliverable

_log = logging.getLogger("servicebroker.broker")


def not_taken(problem: CorruptedMessage) -> None:
    """Broker:Corrupted Message or Broker:Message Undeliverable: it is dropped and not acknowledged."""
    if isinstance(problem, Undeliverable):
        metrics.DROPPED.inc()
        _log.info("Broker:Message Undeliverable: %s", problem.text)
    else:
        corrupted(problem)


def corrupted(problem: CorruptedMessage) -> None:
    """Broker:Corrupted Message: it is dropped and not acknowledged; its sender will send it again."""
    metrics.CORRUPTED.inc()
    _log.warning("Broker:Corrupted Message: %s", problem)


def conversation(subclass: str, header: Header, error: str = "") -> None:
    """Audit Broker Conversation: No Security Header, No Certificate, Bad Signature or Run As Target Failure.

    The message is dropped and not answered; its sender will send it again.
    """
    fields = {"conversation": str(header.conversation_id), "from_service": header.from_service}
    _record(logging.WARNING, "Audit Broker Conversation", subclass=subclass, error=error, **fields)


def trouble(text: str) -> None:
    """What the administrator has to put right."""
    _log.error("%s", text)


def undeliverable(dropped: Dropped, header: Header) -> None:
    """Broker:Message Undeliverable (Dropped)."""
    metrics.DROPPED.inc()
    _log.info(
        "Broker:Message Undeliverable: %s (conversation %s, from %s to %s)",
        dropped.text,
        header.conversation_id,
        header.from_service,
        header.to_service,
    )


_REJECTIONS = {-8428: 11225, -8498: 11226, -8457: 11227, -8437: 11228}  # the event for the Error that both sides get


def rejected(failed: Failed, endpoint: Remote) -> None:
    """Broker:Message Undeliverable for a message that the contract or the validation of the endpoint does not allow."""
    metrics.DROPPED.inc()
    number = _REJECTIONS.get(failed.code)
    text = failed.description
    if number is not None:
        text = RULES[number].text.format(failed.message_type, endpoint.contract)
    _log.info(
        "Broker:Message Undeliverable: %s (conversation %s, from %s to %s)",
        text,
        endpoint.conversation_id,
        endpoint.far_service,
        endpoint.own_service,
    )


def forwarded(header: Header, address: object) -> None:
    """Broker:Forwarded Message Sent."""
    metrics.FORWARDED.inc()
    _log.debug("Broker:Forwarded Message Sent: to %s at %s", header.to_service, address)


def forwarded_dropped(error: BrokerError, header: Header) -> None:
    """Broker:Forwarded Message Dropped: its sender will send it again."""
    metrics.DISCARDED.inc()
    _log.info(
        "Broker:Forwarded Message Dropped: %s (conversation %s, from %s to %s)",
        error,
        header.conversation_id,
        header.from_service,
        header.to_service,
    )


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
    """Broker:Connection: Connecting, Connected, Connect Failed, Accept, Closing or Closed."""
    metrics.CONNECTIONS.labels(subclass).inc()
    _record(logging.INFO, "Broker:Connection", subclass=subclass, peer=peer, error=error)


def login(subclass: str, peer: str, certificate: str = "", error: str = "") -> None:
    """Audit Broker Login: a peer was let in, or refused."""
    metrics.LOGINS.labels(subclass).inc()
    level = logging.WARNING if error else logging.INFO
    _record(level, "Audit Broker Login", subclass=subclass, peer=peer, certificate=certificate, error=error)


def _record(level: int, event: str, **fields: str) -> None:
    told = {name: value for name, value in fields.items() if value}
    text = " ".join(f"{name}={value!r}" if " " in value else f"{name}={value}" for name, value in told.items())
    _log.log(level, "%s: %s", event, text, extra={"fields": {"event": event, **told}})
