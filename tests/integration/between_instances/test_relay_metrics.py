"""Counters and records of a relay: each counter and each event moves with its action."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from remote_support import EAST, Pair, begin
from servicebroker.broker import metrics
from servicebroker.protocol.routing import parse_address
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, STOCK_QUEUE, query, waiting_messages


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"servicebroker_{name}", labels) or 0.0


class CounterChanges:
    """Returns the changes of counters since this object was created."""

    def __init__(self) -> None:
        self._before = self._values()

    def __call__(self, name: str, **labels: str) -> float:
        return value(name, **labels) - self._before.get((name, tuple(sorted(labels.items()))), 0.0)

    @staticmethod
    def _values() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {
            (sample.name.removeprefix(metrics.PREFIX), tuple(sorted(sample.labels.items()))): sample.value
            for family in metrics.REGISTRY.collect()
            for sample in family.samples
        }


def event_fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """Return the fields of the logged events of this class."""
    events = [getattr(record, "fields", {}) for record in caplog.records]
    return [fields for fields in events if fields.get("event") == event]


@pytest.fixture
def event_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "servicebroker.broker")
    return caplog


@pytest.mark.feature(200)
def test_messages_from_another_instance_are_counted_once(pair: Pair) -> None:
    changes = CounterChanges()
    handle = begin(pair, 3)
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.rounds()
    assert changes("enqueued_transport_messages_total") == changes("enqueued_transport_fragments_total") == 3
    assert pair.east.relay.remembered == 1
    pair.east.round(frames)  # a duplicate
    assert changes("enqueued_transport_messages_total") == 3
    pair.west.database.send(handle, ORDER, b"x" * 200_000)
    pair.rounds(20)
    assert changes("enqueued_transport_messages_total") == 4
    assert changes("enqueued_transport_fragments_total") == 3 + 7  # of 32 KB


def test_messages_of_a_failed_round_are_not_counted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = CounterChanges()
    begin(pair)
    pair.west.round([])
    monkeypatch.setattr("servicebroker.engine.remote.departing.look", None)  # after arrivals were stored
    with pytest.raises(TypeError):
        pair.rounds(1)
    monkeypatch.undo()
    assert changes("enqueued_transport_messages_total") == 0
    pair.east.relay.forget()
    pair.pass_time(5)
    pair.rounds()
    assert changes("enqueued_transport_messages_total") == 1


@pytest.mark.feature(200)
def test_fragments_are_counted_by_priority(pair: Pair) -> None:
    west = pair.west.database
    west.create_broker_priority("High", contract_name=CONTRACT, priority_level=9)
    changes = CounterChanges()
    begin(pair)
    pair.west.round([])
    assert (
        changes("priority_fragment_sends_total", priority="5"),
        changes("priority_fragment_sends_total", priority="9"),
    ) == (1, 0)
    west.alter(honor_broker_priority=True)
    begin(pair)
    pair.west.round([])
    assert changes("priority_fragment_sends_total", priority="9") == 1


@pytest.mark.feature(201)
def test_acknowledgements_are_events(pair: Pair, event_log: pytest.LogCaptureFixture) -> None:
    changes = CounterChanges()
    event = "Broker:Remote Message Acknowledgement"
    handle = begin(pair)
    pair.rounds()
    alone = [f"Acknowledgement {what}" for what in ("Sent", "Received")]
    beside = [f"Message with {what}" for what in alone]
    name = "remote_message_acknowledgement_events_total"
    assert [changes(name, subclass=subclass) for subclass in (*alone, *beside)] == [1, 1, 0, 0]
    sent, received = event_fields(event_log, event)
    assert [sent["subclass"], received["subclass"]] == alone
    assert sent["below"] == received["below"] == "1"
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.send(message.conversation_handle, REPLY, b"r")
    pair.rounds()
    assert [changes(name, subclass=subclass) for subclass in beside] == [1, 1]
    conversation = query(
        pair.west.database,
        "select conversation_id::text from sys.conversation_endpoints where conversation_handle = %s",
        handle,
    )
    assert {(fields["conversation"],) for fields in event_fields(event_log, event)} == set(conversation)


@pytest.mark.feature(201)
def test_classified_messages_are_events(pair: Pair, event_log: pytest.LogCaptureFixture) -> None:
    changes = CounterChanges()
    event = "Broker:Message Classify"
    begin(pair)
    pair.rounds()
    departing, arriving, back = event_fields(event_log, event)
    address = str(parse_address(EAST))
    assert (departing["subclass"], departing["service"], departing["address"]) == ("Remote", STOCK, address)
    assert (departing["role"], arriving["role"]) == ("this instance", "network")
    assert (arriving["subclass"], arriving["service"]) == ("Local", STOCK)
    assert (back["subclass"], back["service"]) == ("Remote", ORDERS)  # events of the acknowledging side
    pair.west.database.drop_route("ToStock")
    event_log.clear()
    begin(pair)
    pair.rounds(1)
    assert {fields["subclass"] for fields in event_fields(event_log, event)} == {"Delayed"}
    assert changes("message_classify_events_total", subclass="Delayed") >= 1
    assert changes("message_classify_events_total", subclass="Local") >= 1


@pytest.mark.feature(201)
def test_a_missing_connection_is_one_event(pair: Pair, event_log: pytest.LogCaptureFixture) -> None:
    changes = CounterChanges()
    event = "Broker:Transmission"
    handle = begin(pair)
    pair.rounds()
    assert event_fields(event_log, event) == []
    pair.west.is_connected = False
    pair.west.relay.lost(pair.west.out, "The connection was lost.")
    assert [fields["error"] for fields in event_fields(event_log, event)] == ["The connection was lost."]
    pair.west.database.send(handle, ORDER, b"waits")
    for _ in range(3):
        pair.pass_time(70)
        pair.rounds(2)
    assert waiting_messages(pair.west.database) == 1
    errors = [fields["error"] for fields in event_fields(event_log, event)]
    assert errors == ["The connection was lost.", "The target service broker is unreachable."]
    assert changes("transmission_events_total") == 2


@pytest.mark.feature(201)
def test_arrivals_are_events_of_the_conversation(pair: Pair, event_log: pytest.LogCaptureFixture) -> None:
    changes = CounterChanges()
    event, name = "Broker:Conversation", "conversation_events_total"
    handle = begin(pair, 2)
    pair.rounds()
    events = event_fields(event_log, event)
    assert [(event["subclass"], event["role"]) for event in events] == [
        ("Dialog Created", "target"),
        ("Received Sequenced Message", "target"),
        ("Received Sequenced Message", "target"),
    ]
    ((conversation, group),) = query(
        pair.east.database, "select conversation_id::text, conversation_group_id::text from sys.conversation_endpoints"
    )
    assert {event["conversation"] for event in events} == {conversation}
    (created,) = event_fields(event_log, "Broker:Conversation Group")
    assert (created["subclass"], created["group"]) == ("Create", group)
    event_log.clear()
    (message, _) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.send(message.conversation_handle, REPLY, b"r")
    pair.east.database.end_conversation(message.conversation_handle)
    pair.rounds()
    pair.west.database.end_conversation(handle)
    pair.rounds()
    subclasses = [fields["subclass"] for fields in event_fields(event_log, event) if fields["role"] == "initiator"]
    assert subclasses[:2] == ["Received Sequenced Message", "Received END CONVERSATION"]
    assert "Received END CONVERSATION Ack" in [fields["subclass"] for fields in event_fields(event_log, event)]
    assert changes(name, subclass="Received Sequenced Message") == 3


@pytest.mark.feature(201)
def test_errors_are_events_of_the_conversation(pair: Pair, event_log: pytest.LogCaptureFixture) -> None:
    begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(message.conversation_handle, error=(500, "no"))
    pair.rounds()
    events = [
        fields["subclass"] for fields in event_fields(event_log, "Broker:Conversation") if fields["role"] == "initiator"
    ]
    assert events == ["Received END CONVERSATION WITH ERROR"]
    event_log.clear()
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract="DEFAULT", encryption=False)
    pair.west.database.send(handle, "DEFAULT", b"x")  # the service does not accept this contract
    pair.rounds()
    events = [fields["subclass"] for fields in event_fields(event_log, "Broker:Conversation")]
    assert events == ["Received Broker Error Message"]
    (dropped,) = event_fields(event_log, "Broker:Message Undeliverable")
    assert (dropped["subclass"], dropped["to_service"], dropped["sequence_number"]) == ("Sequenced Message", STOCK, "0")


@pytest.mark.feature(200)
def test_counters_of_transmission_objects_and_their_batches(pair: Pair) -> None:
    changes = CounterChanges()
    name = "transmission_object"
    begin(pair, 3)
    begin(pair, 2)
    pair.rounds()
    assert changes("enqueued_transport_priority_messages_total", priority="5") == 5
    assert changes(f"{name}_gets_total") >= 4
    # the target's object is written with stored messages, the sender's with acknowledged ones
    assert changes(f"{name}_writes_total") >= 4
    assert changes(f"{name}_batches_total") >= 2
    assert changes(f"{name}s_marked_dirty_total") >= changes(f"{name}_writes_total")
    assert changes(f"{name}_between_batches_seconds_total") >= 0
    before = changes(f"{name}_batches_total")
    for _ in range(3):
        pair.rounds(1)
    assert changes(f"{name}_batches_total") == before  # no batch to write
