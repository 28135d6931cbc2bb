"""The bodies of ServiceDiagnostic messages, similar to BrokerConfigurationNotice (decision 117)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from lxml import etree

from servicebroker.model.messages import xml_text
from servicebroker.model.names import DESCRIPTION, MAXIMUM_SERVICE_NAME, QUERY, STATUS
from servicebroker.model.xml import parse


class ServiceState(Enum):
    """The state of a service in a Status: a message would be delivered, would wait, or would find no service."""

    READY = "READY"
    DISABLED = "DISABLED"
    UNKNOWN = "UNKNOWN"


def asked_service(body: bytes) -> str:
    """Return the service that a Query asks about.

    Raises:
        ValueError: the body is not a Query.
    """
    try:
        root = parse(body)
    except etree.XMLSyntaxError as problem:
        raise ValueError(str(problem)) from None
    if root.tag != f"{{{QUERY}}}Query":
        raise ValueError(f"The root is not Query of the namespace {QUERY}.")
    name = root[0].text if [child.tag for child in root] == [f"{{{QUERY}}}SERVICE_NAME"] else None
    if not name or len(root[0]) or len(name) > MAXIMUM_SERVICE_NAME:
        raise ValueError(f"A Query has one SERVICE_NAME of 1 to {MAXIMUM_SERVICE_NAME} characters, and nothing else.")
    return name


def status_body(service: str, broker: str, state: ServiceState) -> bytes:
    """Return the body of a Status about the service, at the broker of that identifier."""
    return _body(STATUS, [("SERVICE_NAME", service), ("BROKER_INSTANCE", broker), ("STATE", state.value)])


def description_body(service: str, contracts: Iterable[str]) -> bytes:
    """Return the body of a Description: the contracts under which the service is a target."""
    return _body(DESCRIPTION, [("SERVICE_NAME", service), *(("CONTRACT", contract) for contract in contracts)])


def _body(message_type: str, elements: Iterable[tuple[str, str]]) -> bytes:
    root = message_type.rpartition("/")[2]
    content = "".join(f"<{name}>{xml_text(text)}</{name}>" for name, text in elements)
    return f'<?xml version="1.0"?><{root} xmlns="{message_type}">{content}</{root}>'.encode("utf-16")
