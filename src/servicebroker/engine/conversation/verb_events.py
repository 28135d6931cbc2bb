"""Events of conversations and groups, found by comparing snapshots from before and after a verb.

Used only if an observer is registered. A snapshot is two statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from servicebroker.model.conversation_events import (
    ConversationEvent,
    ConversationSnapshot,
    EndpointSnapshot,
    VerbEvent,
    find_events,
)
from servicebroker.operations.begin import RepeatedHandle
from servicebroker.operations.operation import Operation
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


T = TypeVar("T")


def observe(operation: Operation[T], steps: Steps[T], report: Callable[[VerbEvent], None]) -> Steps[T]:
    """Run the steps of an operation, and report the events of its conversations.

    The conversation of BEGIN DIALOG is known only afterwards, from the result.
    """
    event_class, handles = operation.event_class, operation.handles
    before = yield from _take_snapshot(handles, operation.joined_groups)
    result = yield from steps
    if event_class is ConversationEvent.BEGIN and isinstance(result, UUID) and not isinstance(result, RepeatedHandle):
        handles = [result]
    groups = [*operation.joined_groups, *(endpoint.conversation_group_id for endpoint in before.endpoints.values())]
    after = yield from _take_snapshot(handles, groups)
    for event in find_events(event_class, before, after, handles, operation.messages):
        report(event)
    return result


def _take_snapshot(handles: Sequence[UUID], groups: Sequence[UUID]) -> Steps[ConversationSnapshot]:
    rows = yield SQL(
        "take_snapshot.find_endpoints", ([handle for handle in _listed(handles) if isinstance(handle, UUID)],)
    )
    endpoints = {row[0]: EndpointSnapshot(*row) for row in rows}
    possible_groups = {
        *(group for group in groups if isinstance(group, UUID)),
        *(endpoint.conversation_group_id for endpoint in endpoints.values()),
    }
    rows = yield SQL("take_snapshot.find_groups", (list(possible_groups),))
    return ConversationSnapshot(endpoints, frozenset(group for (group,) in rows))


def _listed(handles: Sequence[UUID]) -> Sequence[UUID]:
    """Return the handles; none if the argument is not a sequence, which the verb will refuse."""
    return handles if isinstance(handles, Sequence) else ()
