"""Schedules of workers: begin them, take their turns, list and drop them."""

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
from servicebroker.testing.memory import KeptSchedule, Session

if TYPE_CHECKING:
    from servicebroker.testing.verbs import Verbs


def keep(verbs: Verbs, operation: KeepSchedule) -> None:
    """Begin a schedule, or give it another rule."""
    broker = verbs.database.broker
    queue = find_queue(broker, operation.queue)
    with verbs._verb() as session:
        schedule, now = operation.schedule, session.now
        kept = session.schedules.get((queue.queue_id, operation.name))
        is_open = kept is not None and _is_open(session, kept, queue)
        if kept is not None and is_open:
            if kept.schedule == schedule:
                return
            is_same = kept.schedule._replace(missed=schedule.missed) == schedule
            handle, next_time = kept.handle, kept.next_time if is_same else schedule.following(now)
        else:
            services = [service.name for service in broker.services.values() if service.queue is queue]
            if not services:
                raise InstanceError(f"The queue {queue.name} has no service: a schedule of its worker needs one.")
            handle = dialogs.begin_dialog(session, broker, operation.begin(services[0]))
            next_time = schedule.following(now)
        _put(session, KeptSchedule(broker, queue, operation.name, handle, schedule, next_time))


def take_turn(verbs: Verbs, operation: TakeTurn) -> Firing | None:
    """Take the turn of a schedule, and set its timer to the next time."""
    with verbs._verb() as session:
        kept = next((one for one in session.schedules.all() if one.handle == operation.handle), None)
        if kept is None:
            ending.end_conversation(session, EndConversation(operation.handle, cleanup=True))
            return None
        if operation.is_replayed:
            return Firing(kept.name, None)
        turn = kept.schedule.turn(kept.next_time, session.now)
        _put(session, kept._replace(next_time=turn.following))
        return Firing(kept.name, turn.time)


def find_all(verbs: Verbs, operation: Schedules) -> list[ScheduledJob]:
    """Return the schedules of a database, the next one first."""
    broker = verbs.database.broker
    with verbs._verb() as session:
        found = [one for one in session.schedules.all() if one.broker is broker]
        schemas = {id(queue): schema for (schema, _), queue in broker.queues.items()}
        jobs = [
            ScheduledJob(
                f"{schemas[id(one.queue)]}.{one.queue.name}", one.name, *one.schedule, one.next_time, one.handle
            )
            for one in found
        ]
    return sorted(jobs, key=lambda job: (job.next_time, job.name))


def drop(verbs: Verbs, operation: DropSchedule) -> None:
    """Drop a schedule, with its conversation."""
    operation.check()
    queue = find_queue(verbs.database.broker, operation.queue)
    with verbs._verb() as session:
        kept = session.schedules.get((queue.queue_id, operation.name))
        if kept is None:
            raise BrokerError(15151, "drop", "schedule", operation.name)
        session.schedules.remove((queue.queue_id, operation.name))
        if session.endpoints.get(kept.handle) is not None:
            ending.end_conversation(session, EndConversation(kept.handle, cleanup=True))


def _put(session: Session, kept: KeptSchedule) -> None:
    session.schedules.put((kept.queue.queue_id, kept.name), kept)
    session.update(session.endpoint(kept.handle), dialog_timer=kept.next_time)


def _is_open(session: Session, kept: KeptSchedule, queue: Queue) -> bool:
    endpoint = session.endpoints.get(kept.handle)
    return bool(endpoint and endpoint.state is EndpointState.STARTED_OUTBOUND and endpoint.service.queue is queue)
