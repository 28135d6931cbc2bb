"""Observed verbs: snapshots before and after tell which events of conversations and groups occurred.

Used only if an observer has asked for events; a snapshot costs two statements.
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


def observe(operation: Operation[T], steps: Steps[T], tell: Callable[[VerbEvent], None]) -> Steps[T]:
    """Run the steps of an operation, and report the events of its conversations.

    BEGIN DIALOG has no handle before: its result is one.
    """
    event_class, handles = operation.event_class, operation.handles
    before = yield from _look(handles, operation.joined_groups)
    result = yield from steps
    if event_class is ConversationEvent.BEGIN and isinstance(result, UUID) and not isinstance(result, RepeatedHandle):
        handles = [result]
    known = [*operation.joined_groups, *(one.conversation_group_id for one in before.endpoints.values())]
    for event in find_events(event_class, before, (yield from _look(handles, known)), handles, operation.messages):
        tell(event)
    return result


def _look(handles: Sequence[UUID], groups: Sequence[UUID]) -> Steps[ConversationSnapshot]:
    rows = yield SQL("look.find_endpoints", ([handle for handle in _listed(handles) if isinstance(handle, UUID)],))
    endpoints = {row[0]: EndpointSnapshot(*row) for row in rows}
    asked = {
        *(group for group in groups if isinstance(group, UUID)),
        *(one.conversation_group_id for one in endpoints.values()),
    }
    found = yield SQL("look.find_groups", (list(asked),))
    return ConversationSnapshot(endpoints, frozenset(group for (group,) in found))


def _listed(handles: Sequence[UUID]) -> Sequence[UUID]:
    """Return the handles, or none if the verb is about to refuse an argument that is no sequence."""
    return handles if isinstance(handles, Sequence) else ()
