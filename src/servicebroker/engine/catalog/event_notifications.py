"""CREATE and DROP EVENT NOTIFICATION, and the messages that they send.

The rules: docs/reference/rules.md#event-notifications.

Each notification has one conversation, which begins with the first event: from the built-in service of event
notifications to the service that the notification names. If the conversation has ended or failed, the notification is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.alter import RENEW_MONITOR, find_user_queue, wake_monitors
from servicebroker.engine.catalog.catalog import Catalog, find_queue_uncached, inserted_id
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.conversation.begin import begin_dialog
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.send import send
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.logins import demand_administrator
from servicebroker.model import arguments, names
from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.event_instances import Element, EventInstance, event_body, post_time
from servicebroker.model.event_types import DATABASE, QUEUE_ACTIVATION, SERVER, events_of
from servicebroker.model.security.permissions import User
from servicebroker.model.wording import short_repr
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.end import EndConversation
from servicebroker.operations.event_notifications import (
    CURRENT_DATABASE,
    CreateEventNotification,
    DropEventNotification,
)
from servicebroker.operations.send import Send
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_OPEN = {"SO", "SI", "CO"}


class _Notification(NamedTuple):
    object_id: int
    name: str
    database_id: int
    service_name: str
    broker_instance: str
    is_fan_in: bool
    creator: str
    conversation_handle: UUID | None
    state: str | None


def create_event_notification(definer: Definer, operation: CreateEventNotification) -> Steps[None]:
    """Insert the notification. For a notification on a queue, also notify the queue monitors."""
    user, name, scope, on_queue = definer.user, operation.name, operation.scope, operation.on_queue
    names.checked("event notification", name)
    names.checked("service", operation.to_service, names.MAXIMUM_SERVICE_NAME)
    check_switch("FAN_IN", operation.with_fan_in)
    check_switch("ON SERVER", operation.on_server)
    if on_queue is not None:
        yield from rights.authorize(user, "ALTER QUEUE", rights.queue(on_queue))
    elif scope == DATABASE:
        yield from rights.authorize(user, operation.permission)
    else:
        yield from demand_administrator()
    wanted, broker_instance = _checked_events(operation.events, scope), operation.broker_instance
    instance = arguments.broker_instance(broker_instance) if broker_instance != CURRENT_DATABASE else CURRENT_DATABASE
    if instance is None or instance == arguments.CURRENT_DATABASE:
        raise BrokerError(1093, broker_instance, hint=f"Give an identifier, or '{CURRENT_DATABASE}'.")
    queue_id = None if on_queue is None else (yield from _find_notified(user, on_queue, wanted))
    rows = yield SQL(
        "create_event_notification.insert_notifications",
        (
            *(user.database_id, name, queue_id, wanted, operation.with_fan_in, operation.to_service, instance),
            *(user.principal_id, scope == SERVER),
        ),
    )
    inserted_id(rows, name)
    if queue_id is not None:
        yield _update_monitors(queue_id)
        yield wake_monitors()


def _find_notified(user: User, queue: str, wanted: Sequence[str]) -> Steps[int]:
    """Return the id of the queue of a notification.

    Raises:
        BrokerError: 8197 no such queue, 9718 QUEUE_ACTIVATION of a queue with internal activation.
    """
    try:
        queue_id = (yield from find_user_queue("alter", user.database_id, queue)).queue_id
    except BrokerError as refused:
        raise BrokerError(8197, queue) if refused.number == 15151 else refused from None
    if QUEUE_ACTIVATION in wanted:
        rows = yield SQL("find_notified", (queue_id,))
        if rows:
            raise BrokerError(9718, *rows[0])
    return queue_id


def drop_event_notification(definer: Definer, operation: DropEventNotification) -> Steps[None]:
    """Delete the notification and end its conversation."""
    user, name = definer.user, names.checked("event notification", operation.name)
    if operation.on_queue is not None:
        yield from rights.authorize(user, "ALTER QUEUE", rights.queue(operation.on_queue))
        queue_id = (yield from find_queue_uncached("find", user.database_id, operation.on_queue)).queue_id
        place: tuple[str, tuple[object, ...]] = "queue_id = $2", (queue_id,)
    elif operation.on_server:
        yield from demand_administrator()
        place = "is_of_server", ()
    else:
        yield from rights.demand(user, operation.permission, "event notification", name)
        place = "database_id = $2 and queue_id is null and not is_of_server", (user.database_id,)
    rows = yield Statement(
        "event_notifications.drop_event_notification",
        f"select object_id from servicebroker.event_notifications where lower(name) = lower($1) and {place[0]}",
        (name, *place[1]),
    )
    if not rows:
        raise BrokerError(15151, "drop", "event notification", name)
    yield from _drop(rows[0][0], definer.clock())


def drop_notifications_on(database_id: int, queue: str, now: datetime) -> Steps[None]:
    """Drop the notifications on a queue that is about to be dropped."""
    queue_id = (yield from find_queue_uncached("drop", database_id, queue)).queue_id
    rows = yield SQL("drop_notifications_on", (queue_id,))
    for (object_id,) in rows:
        yield from _drop(object_id, now)


def post(event: str, queue_id: int, now: datetime) -> Steps[list[BrokerError]]:
    """Send an event of a queue to every notification for it. Returns the errors to log."""
    notifications = yield from _notifications(
        "$2 = any (n.events) and (n.queue_id = $1 or n.is_of_server or n.queue_id is null and n.database_id = "
        "(select database_id from servicebroker.queues where queue_id = $1))",
        queue_id,
        event,
    )
    if not notifications:
        return []
    rows = yield SQL("post", (queue_id,))
    return (yield from _send_to_all(notifications, event_body(EventInstance(event, post_time(now), *rows[0])), now))


def has_notification(database_id: int, event: str) -> Steps[bool]:
    """Check whether there is a notification for this DDL event of the database."""
    rows = yield Statement(
        "event_notifications.has_notification",
        f"select from servicebroker.event_notifications n where {_OF_DDL} limit 1",
        (database_id, event),
    )
    return bool(rows)


def send_ddl_event(
    database_id: int, happened: EventInstance, more: Sequence[Element], now: datetime
) -> Steps[list[BrokerError]]:
    """Send a DDL event of the database or the server, caused by T-SQL. Returns errors for the log.

    `happened` lacks the time and the server; `more` are elements of this type of event.
    """
    notifications = yield from _notifications(_OF_DDL, database_id, happened.event_type)
    rows = yield SQL("send_ddl_event")
    happened = happened._replace(post_time=post_time(now), server_name=rows[0][0])
    return (yield from _send_to_all(notifications, event_body(happened, more), now))


_OF_DDL = "$2 = any (n.events) and (n.is_of_server or n.queue_id is null and n.database_id = $1)"


def _send_to_all(notifications: Sequence[_Notification], body: bytes, now: datetime) -> Steps[list[BrokerError]]:
    """Send a message to each notification. Returns the errors to log.

    Notifications WITH FAN_IN with equal creator, service and broker identifier get one message in all.
    """
    problems = []
    notified: set[tuple[str, str, str]] = set()
    for notification in notifications:
        whom = (notification.creator, notification.service_name, notification.broker_instance)
        if notification.is_fan_in and whom in notified:
            continue
        notified |= {whom} if notification.is_fan_in else set()
        problem = yield from _send(notification, body, now)
        problems += [problem] if problem else []
    return problems


def send_pending_events(now: datetime) -> Steps[list[BrokerError]]:
    """Send the events that restricted roles have caused, but have no permission to send. Returns the errors to log."""
    problems: list[BrokerError] = []
    if (yield SQL("send_pending_events.find_events_to_post")):
        left = yield SQL("send_pending_events.take_events")
        for queue_id, event in left:
            problems += yield from post(event, queue_id, now)
    return problems


def drop_broken(now: datetime) -> Steps[list[BrokerError]]:
    """Drop the notifications whose conversation has ended. Returns the errors to log."""
    broken = yield from _notifications(
        "n.conversation_handle is not null and (e.state is null or e.state not in ('SO', 'SI', 'CO')) "
        "and not exists (select from servicebroker.databases d where d.database_id = n.database_id and d.is_read_only)"
    )
    problems = []
    for notification in broken:
        problems.append((yield from _drop_broken(notification, now)))
    return problems


def _checked_events(events: object, scope: str) -> list[str]:
    names = [events] if isinstance(events, str) else events
    if not isinstance(names, list | tuple) or not names or not all(isinstance(event, str) for event in names):
        raise BrokerError(402, "FOR", short_repr(events), "an event or several")
    return list(events_of(names, scope))


def _notifications(condition: str, *parameters: object) -> Steps[list[_Notification]]:
    rows = yield Statement(
        "event_notifications.notifications",
        "select n.object_id, n.name, n.database_id, n.service_name, n.broker_instance, n.is_fan_in, n.creator, "
        "n.conversation_handle, e.state from servicebroker.event_notifications n "
        f"left join servicebroker.conversation_endpoints e using (conversation_handle) where {condition} "
        "order by n.object_id",
        parameters,
    )
    return [_Notification(*row) for row in rows]


def _send(notification: _Notification, body: bytes, now: datetime) -> Steps[BrokerError | None]:
    if notification.conversation_handle is None:  # of two first events only one begins the conversation
        locked = yield from _locked(notification.object_id)
        if locked is None:  # dropped meanwhile
            return None
        notification = locked
    handle = notification.conversation_handle
    if handle is not None and notification.state not in _OPEN:
        return (yield from _drop_broken(notification, now))
    if handle is None:
        is_here = notification.broker_instance == CURRENT_DATABASE
        handle = yield from begin_dialog(
            notification.database_id,
            BeginDialog(
                names.EVENT_NOTIFICATION_SERVICE,
                notification.service_name,
                broker_instance=arguments.CURRENT_DATABASE if is_here else notification.broker_instance,
                contract=names.POST_EVENT_NOTIFICATION,
                encryption=False,
            ),
            now=now,
        )
        yield SQL("send", (notification.object_id, handle))
    try:
        yield from send(Catalog(), Send(handle, names.EVENT_NOTIFICATION, body), now=now)
    except BrokerError as problem:
        return BrokerError(17001, names.EVENT_NOTIFICATION, handle, problem.text)
    return None


def _locked(object_id: int) -> Steps[_Notification | None]:
    """Lock and return the notification, as it is after the lock was granted; None if it was dropped."""
    yield SQL("locked", (object_id,))
    notifications = yield from _notifications("n.object_id = $1", object_id)
    return notifications[0] if notifications else None


def _drop_broken(notification: _Notification, now: datetime) -> Steps[BrokerError]:
    yield from _drop(notification.object_id, now)
    return BrokerError(17003 if notification.state == "ER" else 17004, notification.name)


def _drop(object_id: int, now: datetime) -> Steps[None]:
    rows = yield SQL("drop", (object_id,))
    for queue_id, handle in rows:
        if handle is not None:
            with suppress(BrokerError):  # the conversation is gone
                yield from end_conversation(EndConversation(handle), now=now)
        if queue_id is not None:
            yield _update_monitors(queue_id)
            yield wake_monitors()


def _update_monitors(queue_id: int) -> Statement:
    return Statement(
        "event_notifications.update_monitors",
        "update servicebroker.queues set notifies_activation = exists ("
        "select from servicebroker.event_notifications n where n.queue_id = $1 and $2 = any (n.events)), "
        f"{RENEW_MONITOR} where queue_id = $1",
        (queue_id, QUEUE_ACTIVATION),
    )
