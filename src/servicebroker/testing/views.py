"""Catalog views of conversations and messages: their rows as dictionaries, in no particular order."""

from __future__ import annotations

from typing import Any

from servicebroker.model.states import EndpointState
from servicebroker.testing.catalog import Broker, Queue
from servicebroker.testing.memory import Endpoint, Session

Row = dict[str, Any]


def conversation_endpoints(session: Session, broker: Broker) -> list[Row]:
    """Return sys.conversation_endpoints of one database, without session keys and stamps."""
    return [_endpoint(session, endpoint) for endpoint in session.endpoints.all() if endpoint.broker is broker]


def conversation_groups(session: Session, broker: Broker) -> list[Row]:
    """Return sys.conversation_groups of one database, with the name of the service."""
    return [
        {"conversation_group_id": group, "service_name": service.name}
        for group, service in session.groups.items()
        if service.broker is broker
    ]


def transmission_queue(session: Session, broker: Broker) -> list[Row]:
    """Return sys.transmission_queue of one database."""
    rows = []
    for message in session.waiting.all():
        endpoint = session.endpoint(message.conversation_handle)
        if endpoint.broker is broker:
            rows.append(
                {
                    "conversation_handle": message.conversation_handle,
                    "to_service_name": endpoint.far_service,
                    "to_broker_instance": endpoint.far_broker_instance,
                    "from_service_name": endpoint.service.name,
                    "service_contract_name": None if endpoint.contract.is_dropped else endpoint.contract.name,
                    "enqueue_time": message.enqueue_time,
                    "message_sequence_number": message.message_sequence_number,
                    "message_type_name": message.message_type,
                    "is_conversation_error": int(message.is_error),
                    "is_end_of_dialog": int(message.is_end),
                    "message_body": message.message_body,
                    "transmission_status": message.status,
                    "priority": endpoint.priority,
                }
            )
    return rows


def queue_messages(session: Session, queue: Queue) -> list[Row]:
    """Return the rows of SELECT * FROM the queue, in the order of arrival."""
    return [
        {
            "status": 1,
            "priority": message.priority,
            "queuing_order": message.queuing_order,
            "conversation_group_id": message.conversation_group_id,
            "conversation_handle": message.conversation_handle,
            "message_sequence_number": message.message_sequence_number,
            "service_name": message.service.name,
            "service_id": message.service.service_id,
            "service_contract_name": None if message.contract.is_dropped else message.contract.name,
            "service_contract_id": message.contract.service_contract_id,
            "message_type_name": None if message.message_type.is_dropped else message.message_type.name,
            "message_type_id": message.message_type.message_type_id,
            "validation": message.validation,
            "message_body": message.message_body,
            "message_enqueue_time": message.message_enqueue_time,
        }
        for message in sorted(session.messages_in(queue), key=lambda message: message.queuing_order)
    ]


def _endpoint(session: Session, endpoint: Endpoint) -> Row:
    return {
        "conversation_handle": endpoint.conversation_handle,
        "conversation_id": endpoint.conversation_id,
        "is_initiator": int(endpoint.is_initiator),
        "service_contract_id": endpoint.contract.service_contract_id,
        "conversation_group_id": endpoint.conversation_group_id,
        "service_id": endpoint.service.service_id,
        "lifetime": endpoint.lifetime,
        "state": endpoint.state.value,
        "state_desc": endpoint.state.name,
        "far_service": endpoint.far_service,
        "far_broker_instance": endpoint.far_broker_instance,
        "security_timestamp": endpoint.security_timestamp,
        "dialog_timer": endpoint.dialog_timer,
        "send_sequence": endpoint.send_sequence,
        "end_dialog_sequence": _end_dialog_sequence(session, endpoint),
        "receive_sequence": _receive_sequence(session, endpoint),
        "priority": endpoint.priority,
    }


def _receive_sequence(session: Session, endpoint: Endpoint) -> int:
    """Return the next number to receive: that of the first undelivered message, else of the peer's next SEND."""
    peer = session.other_side(endpoint)
    if peer is None:
        return endpoint.last_received or 0
    waiting = session.undelivered(peer.conversation_handle)
    return waiting[0].message_sequence_number if waiting else peer.send_sequence


def _end_dialog_sequence(session: Session, endpoint: Endpoint) -> int:
    if endpoint.state is EndpointState.DISCONNECTED_INBOUND:
        return _receive_sequence(session, endpoint) - 1
    if endpoint.state is EndpointState.DISCONNECTED_OUTBOUND:
        return endpoint.send_sequence - 1
    return -1
