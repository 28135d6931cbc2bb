"""Schedules of workers: begin, fire, list and drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers.schedules import Firing, ScheduledJob
from servicebroker.model.states import EndpointState
from servicebroker.operations.end import EndConversation
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, Schedules, TakeTurn
from servicebroker.testing import dialogs, ending
from servicebroker.testing.catalog import Queue
from servicebroker.testing.definitions import find_queue
from servicebroker.testing.memory import Session, StoredSchedule

if TYPE_CHECKING:
    from servicebroker.testing.verbs import Verbs


def keep(verbs: Verbs, operation: KeepSchedule) -> None:
    """Begin a schedule, or change its times."""
    broker = verbs.database.broker
    queue = find_queue(broker, operation.queue)
    with verbs._verb() as session:
        schedule, now = operation.schedule, session.now
        stored = session.schedules.get((queue.queue_id, operation.name))
        is_open = stored is not None and _is_open(session, stored, queue)
        if stored is not None and is_open:
            if stored.schedule == schedule:
                return
            is_same = stored.schedule._replace(missed=schedule.missed) == schedule
            handle, next_time = stored.handle, stored.next_time if is_same else schedule.following(now)
        else:
            services = [service.name for service in broker.services.values() if service.queue is queue]
            if not services:
                raise InstanceError(f"The queue {queue.name} has no service: a schedule of its worker needs one.")
            handle = dialogs.begin_dialog(session, broker, operation.begin(services[0]))
            next_time = schedule.following(now)
        _put(session, StoredSchedule(broker, queue, operation.name, handle, schedule, next_time))


def take_turn(verbs: Verbs, operation: TakeTurn) -> Firing | None:
    """Return the due time of a schedule's message, and set its timer to the next time."""
    with verbs._verb() as session:
        stored = next((row for row in session.schedules.all() if row.handle == operation.handle), None)
        if stored is None:
            ending.end_conversation(session, EndConversation(operation.handle, cleanup=True))
            return None
        if operation.is_replayed:
            return Firing(stored.name, None)
        turn = stored.schedule.turn(stored.next_time, session.now)
        _put(session, stored._replace(next_time=turn.following))
        return Firing(stored.name, turn.time)


def find_all(verbs: Verbs, operation: Schedules) -> list[ScheduledJob]:
    """Return the schedules of a database, the next one first."""
    broker = verbs.database.broker
    with verbs._verb() as session:
        rows = [row for row in session.schedules.all() if row.broker is broker]
        schemas = {id(queue): schema for (schema, _), queue in broker.queues.items()}
        jobs = [
            ScheduledJob(
                f"{schemas[id(row.queue)]}.{row.queue.name}", row.name, *row.schedule, row.next_time, row.handle
            )
            for row in rows
        ]
    return sorted(jobs, key=lambda job: (job.next_time, job.name))


def drop(verbs: Verbs, operation: DropSchedule) -> None:
    """Drop a schedule, with its conversation."""
    operation.check()
    queue = find_queue(verbs.database.broker, operation.queue)
    with verbs._verb() as session:
        stored = session.schedules.get((queue.queue_id, operation.name))
        if stored is None:
            raise BrokerError(15151, "drop", "schedule", operation.name)
        session.schedules.remove((queue.queue_id, operation.name))
        if session.endpoints.get(stored.handle) is not None:
            ending.end_conversation(session, EndConversation(stored.handle, cleanup=True))


def _put(session: Session, stored: StoredSchedule) -> None:
    session.schedules.put((stored.queue.queue_id, stored.name), stored)
    session.update(session.endpoint(stored.handle), dialog_timer=stored.next_time)


def _is_open(session: Session, stored: StoredSchedule, queue: Queue) -> bool:
    endpoint = session.endpoints.get(stored.handle)
    return bool(endpoint and endpoint.state is EndpointState.STARTED_OUTBOUND and endpoint.service.queue is queue)
