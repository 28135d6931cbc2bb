"""Arrivals: store messages from other instances in batches, one transaction each. They are acknowledged afterwards.

The transaction waits for no lock: a conversation whose row another session has locked is stored with the next batch.
Messages that arrive while the queue is off are stored beside it (in arrived_fragments), in order, and acknowledged too
(engine/remote/waiting_arrivals.py). A large message, and those after it, also stay there until the message is assembled
outside the daemon's rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Usages, find_usages
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import close_endpoints
from servicebroker.engine.conversation.enqueue import RANK_DATA, RANK_ERROR
from servicebroker.engine.conversation.failure import (
    ConversationFailure,
    delete_parked,
    fail_endpoints,
    store_remote_error,
)
from servicebroker.engine.conversation.validation import Sender, rejection
from servicebroker.engine.remote.remote_endpoints import find_gone, lock_alone
from servicebroker.engine.remote.remote_opening import (
    CreatedTarget,
    FirstMessages,
    NewTarget,
    insert_targets,
    insert_with_messages,
)
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import error_body, read_error
from servicebroker.model.rejection import Rejection
from servicebroker.model.states import REMOVED, TRANSITIONS, EndpointState, Event
from servicebroker.model.wording import cleaned
from servicebroker.model.xml import MAX_XML_BYTES
from servicebroker.protocol.envelope import Content, Part
from servicebroker.protocol.incoming import Batch, Complete, Deliver, Discard, Keep
from servicebroker.protocol.limits import LIMITS
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement, Steps

SQL = SqlFile(__file__)


class StoreResult(NamedTuple):
    """The result of `store`. Conversations are named by their handles.

    Attributes:
        stored: the batches that are durable at commit.
        postponed: the batches to store again, because another session has locked their rows.
        gone: conversations without an endpoint.
        closed: conversations that are stored but whose endpoint is closed.
        failures: the Error to send to the peer, for refused conversations.
        queues: the queues with new messages: `enqueue.wake` them after the commit.
        made: the targets that were created.
        is_beside: messages are beside a queue that is on: `deliver_free` has to deliver them.
    """

    stored: list[UUID]
    postponed: list[UUID]
    gone: set[UUID]
    closed: list[UUID]
    failures: dict[UUID, ConversationFailure]
    queues: set[int]
    made: dict[UUID, CreatedTarget]
    is_beside: bool = False


class ReceivingEndpoint(NamedTuple):
    """The columns of an endpoint that storing needs. `waits`: its queue `is_off`, or earlier messages are beside it."""

    conversation_handle: UUID
    conversation_id: UUID
    is_initiator: bool
    database_id: int
    service_contract_id: int
    queue_id: int
    state: str
    catalog_version: int
    waits: bool
    failure_code: int | None  # sent to the peer
    failure_text: str
    is_off: bool


class MessageRun(NamedTuple):
    """A run: consecutive messages of one type, from the sequence number `first` on.

    `is_fragmented`: a single message whose fragments are stored; its body may still be in them. `is_large`: the message
    is too large to be assembled in a round of the daemon.
    """

    first: int
    message_type: str
    content: Content
    bodies: list[bytes | None]
    is_fragmented: bool
    is_large: bool = False


class DeliverableRun(NamedTuple):
    """A run that is next in order, with the values that its rows in the queue need."""

    handle: UUID
    run: MessageRun
    message_type_id: int
    validation: str
    rank: int


class Plan(NamedTuple):
    """The effect of one batch on its endpoint.

    Attributes:
        messages: the messages to write into the queue.
        event: the event for the endpoint's state: an EndDialog or Error arrived.
        failure, refused_type: the reason why a message was refused, and its type.
    """

    endpoint: ReceivingEndpoint
    batch: Batch
    messages: list[DeliverableRun]
    event: Event | None = None
    failure: Rejection | None = None
    refused_type: str = ""

    @property
    def changes(self) -> bool:
        """True if the endpoint's row is written, not only read."""
        begins = self.endpoint.state == EndpointState.STARTED_INBOUND and bool(self.messages)
        return begins or self.event is not None or self.failure is not None


_RECEIVING_STATES = (
    EndpointState.STARTED_INBOUND,
    EndpointState.CONVERSING,
    EndpointState.DISCONNECTED_INBOUND,
)  # states in which the application can receive
LARGE_FRAGMENTS = 256  # fragments, 8 MiB; assembling more would delay the other conversations of a round
_ERROR_FRAGMENTS = 4  # the largest possible Error of this product, in fragments
_CONTROL = {
    Content.END: (names.END_DIALOG_ID, "E", RANK_DATA),
    Content.ERROR: (names.ERROR_ID, "X", RANK_ERROR),
}


def store(
    catalog: Catalog,
    batches: Mapping[UUID, Batch],
    owners: Mapping[UUID, str],
    now: datetime,
    *,
    targets: Mapping[UUID, NewTarget] = MappingProxyType({}),
    locked: Collection[int] = (),
    large: int = LIMITS.most_fragments,
) -> Steps[StoreResult]:
    """Store the batches of these endpoints, each of them completely or not at all.

    Args:
        catalog: the cache of definitions.
        batches: the messages and fragments to store, by handle.
        owners: the certificate owners of the peers that sent them, stored with fragments of incomplete messages.
        now: the server's time.
        targets: the targets to create first, by handle.
        locked: the queues of `find_locked_queues`; batches for them are postponed.
        large: a message with more fragments stays beside its queue.

    Raises:
        InstanceError: another process has stored messages of the same conversations. Roll back, and start again.
    """
    rows = yield _TRY_PARKING
    is_free = rows[0][0]  # else a queue is being switched on, or a service moved: what waits beside queues goes first
    free = {handle: target for handle, target in targets.items() if target.home.queue_id not in locked}
    first = (yield from _plan_new_targets(catalog, batches, free, large)) if is_free else []
    created = yield from _create_targets(first)
    handled = {new_target.target.conversation_handle for new_target in first}
    if rest := [target for handle, target in targets.items() if handle not in handled]:
        created |= yield from insert_targets(rest)
    opened = [new_target.plan for new_target in first if new_target.target.conversation_handle in created]
    later = {handle: batch for handle, batch in batches.items() if handle not in handled}
    if not is_free:
        return StoreResult([], list(later), set(), [], {}, set(), created)
    endpoints = (yield from _lock_shared(later)) if later else []
    existing = {endpoint.conversation_handle for endpoint in endpoints}
    missing = yield from find_gone([handle for handle in later if handle not in existing])
    endpoints = [endpoint for endpoint in endpoints if endpoint.queue_id not in locked]
    missing |= handled - created.keys()
    plans = []
    for endpoint in endpoints:
        plans.append((yield from _plan(catalog, endpoint, batches[endpoint.conversation_handle], large)))
    plans = yield from _lock_changing((yield from _lock_beside(plans)))
    yield from _keep(plans, owners)
    yield from _advance(plans)
    yield from _deliver(plans)
    yield from _update_endpoints(plans, now)
    stored = [plan.endpoint.conversation_handle for plan in (*opened, *plans)]
    finished = missing.union(stored)
    return StoreResult(
        stored,
        [handle for handle in batches if handle not in finished],
        missing,
        [plan.endpoint.conversation_handle for plan in plans if plan.endpoint.state == EndpointState.CLOSED],
        {plan.endpoint.conversation_handle: failed for plan in plans if (failed := _error_for_peer(plan)) is not None},
        {plan.endpoint.queue_id for plan in (*opened, *plans) if plan.messages or plan.failure},
        created,
        any(plan.endpoint.waits and not plan.endpoint.is_off and plan.messages for plan in plans),
    )


def find_locked_queues() -> Steps[dict[int, str]]:
    """Return the queues, with their names, whose tables other sessions have locked for longer than a second.

    To insert into such a table, a round would wait, and with it all peers. A REINDEX of a queue takes such a lock.
    """
    rows = yield SQL("find_locked_queues", ())
    return dict(rows)


class NewTargetPlan(NamedTuple):
    """A target to create together with its first messages."""

    target: NewTarget
    plan: Plan


def _plan_new_targets(
    catalog: Catalog, batches: Mapping[UUID, Batch], targets: Mapping[UUID, NewTarget], large: int
) -> Steps[list[NewTargetPlan]]:
    """Return plans for the new targets whose whole batch can be written into an open queue."""
    plans = []
    for handle, target in targets.items():
        batch, home = batches.get(handle), target.home
        if batch is None or not home.is_open or not all(isinstance(step, Deliver) for step in batch.steps):
            continue
        endpoint = ReceivingEndpoint(
            conversation_handle=handle,
            conversation_id=target.header.conversation_id,
            is_initiator=False,
            database_id=home.database_id,
            service_contract_id=home.contract_id or 0,
            queue_id=home.queue_id,
            state=EndpointState.STARTED_INBOUND,
            catalog_version=home.catalog_version,
            waits=False,
            failure_code=None,
            failure_text="",
            is_off=False,
        )
        plan = yield from _plan(catalog, endpoint, batch, large)
        if plan.messages and plan.failure is None and plan.event is None:
            plans.append(NewTargetPlan(target, plan))
    return plans


def _create_targets(first: list[NewTargetPlan]) -> Steps[dict[UUID, CreatedTarget]]:
    """Create targets with their messages, in one statement for each queue. Returns the created ones."""
    queues: dict[int, list[NewTargetPlan]] = defaultdict(list)
    for new_target in first:
        queues[new_target.target.home.queue_id].append(new_target)
    created: dict[UUID, CreatedTarget] = {}
    for queue_id, new_targets in queues.items():
        messages = [arrived for new_target in new_targets for arrived in new_target.plan.messages]
        created |= yield from insert_with_messages(
            queue_id,
            [new_target.target for new_target in new_targets],
            [FirstMessages(new_target.plan.batch.reached, new_target.plan.batch.token) for new_target in new_targets],
            [run[:-1] for run in _runs(messages)],  # none has its body in fragments
            Bodies(chain.from_iterable(arrived.run.bodies for arrived in messages)),
        )
    return created


# as `endpoints.lock_parking`, but without waiting
_TRY_PARKING = SQL("try_parking", (locks.PARKED_DELIVERY,))


def _lock_shared(handles: Iterable[UUID]) -> Steps[list[ReceivingEndpoint]]:
    """Lock and return these endpoints, as `remote_endpoints.lock_shared`, without those whose broker is disabled."""
    rows = yield SQL("lock_shared", (list(handles),))
    return [ReceivingEndpoint(*row) for row in rows]


def _lock_beside(plans: list[Plan]) -> Steps[list[Plan]]:
    """Lock the counters of endpoints with messages beside their queue. Returns the plans, without the blocked ones.

    A plan is blocked if another session is moving the stored messages into the queue: it updates the same counters.
    """
    waiting = [plan.endpoint.conversation_handle for plan in plans if plan.endpoint.waits and plan.batch.expected > 0]
    if not waiting:
        return plans
    rows = yield SQL("lock_beside", (waiting,))
    blocked = set(waiting) - {handle for (handle,) in rows}
    return [plan for plan in plans if plan.endpoint.conversation_handle not in blocked]


def _lock_changing(plans: list[Plan]) -> Steps[list[Plan]]:
    """Lock the endpoint rows that the plans change. Returns the plans, without those whose row a sender has locked."""
    changing = {plan.endpoint.conversation_handle for plan in plans if plan.changes}
    blocked = changing - (yield from lock_alone(list(changing)))
    return [plan for plan in plans if plan.endpoint.conversation_handle not in blocked]


def _error_for_peer(plan: Plan) -> ConversationFailure | None:
    """Return the Error to send to the peer, because of this batch or an earlier one; None without an Error."""
    if plan.failure is not None:
        return ConversationFailure.of(plan.failure.to_sender)._replace(message_type=plan.refused_type)
    endpoint = plan.endpoint
    return None if endpoint.failure_code is None else ConversationFailure(endpoint.failure_code, endpoint.failure_text)


def _plan(catalog: Catalog, endpoint: ReceivingEndpoint, batch: Batch, large: int) -> Steps[Plan]:
    """Plan which messages of the batch are written: those next in order. An endpoint that has ended accepts none.

    For an endpoint that has closed meanwhile the plan is empty: its stored fragments were deleted.
    """
    if endpoint.state == EndpointState.CLOSED:
        return Plan(endpoint, batch, [])
    usages = yield from find_usages(
        catalog, endpoint.database_id, endpoint.service_contract_id, endpoint.catalog_version
    )
    sender = Sender(endpoint.conversation_id, not endpoint.is_initiator, endpoint.database_id)
    taken: list[DeliverableRun] = []
    runs = yield from _next_messages(endpoint, batch, usages, large)
    if any(run.is_large for run in runs):
        endpoint = endpoint._replace(waits=True)
    for run in runs:
        if run.content is not Content.DATA:
            run = _make_readable(sender, run)
            event = Event.END_DIALOG_ARRIVED if run.content is Content.END else Event.ERROR_ARRIVED
            if endpoint.state in _RECEIVING_STATES:
                taken.append(DeliverableRun(endpoint.conversation_handle, run, *_CONTROL[run.content]))
            happens = taken or (EndpointState(endpoint.state), event) in TRANSITIONS
            return Plan(endpoint, batch, taken, event if happens else None)
        if endpoint.state in _RECEIVING_STATES[:2]:
            count, failure = yield from _count_accepted(sender, usages, run)
            if count:
                usage = usages[run.message_type]
                part = run._replace(bodies=run.bodies[:count])
                taken.append(
                    DeliverableRun(
                        endpoint.conversation_handle, part, usage.message_type_id, usage.validation, RANK_DATA
                    )
                )
            if failure is not None:
                return Plan(endpoint, batch, taken, None, failure, run.message_type)
    return Plan(endpoint, batch, taken)


def _make_readable(sender: Sender, end: MessageRun) -> MessageRun:
    """Return an EndDialog or Error with a readable body: an unreadable Error is replaced by error 9616."""
    if end.content is Content.END:
        return end._replace(message_type=names.END_DIALOG, bodies=[None], is_fragmented=False)
    (body,) = end.bodies
    try:
        read_error(body)
    except ValueError as problem:
        where = sender.conversation_id, int(sender.is_initiator), end.first
        error = BrokerError(9616, names.ERROR, cleaned(str(problem)), *where)
        body = error_body(-error.number, error.text)
    return end._replace(message_type=names.ERROR, bodies=[body], is_fragmented=False)


def _next_messages(endpoint: ReceivingEndpoint, batch: Batch, usages: Usages, large: int) -> Steps[list[MessageRun]]:
    """Return the messages of the batch that are next in order, as runs."""
    runs = []
    for step in batch.steps:
        if isinstance(step, Deliver):
            number = step.number
            for (message_type, content), group in groupby(step.parts, attrgetter("message_type", "content")):
                bodies = [part.body for part in group]
                runs.append(MessageRun(number, message_type, content, bodies, is_fragmented=False))
                number += len(bodies)
        elif isinstance(step, Complete):
            part, fragments = yield from _assemble(endpoint, batch, step.number, usages)
            is_large = fragments > large and part.content is Content.DATA
            runs.append(MessageRun(step.number, part.message_type, part.content, [part.body], True, is_large))
    return runs


def _count_accepted(sender: Sender, usages: Usages, run: MessageRun) -> Steps[tuple[int, Rejection | None]]:
    """Return the number of messages before the first refused one, and the reason of the refusal."""
    usage = usages.get(run.message_type)
    has_validation = usage is not None and usage.validation != "N"
    for place, body in enumerate(run.bodies if has_validation else run.bodies[:1]):  # else one stands for all
        failure = yield from rejection(sender, usages, run.message_type, run.first + place, body)
        if failure is not None:
            return place, failure
    return len(run.bodies), None


def _assemble(endpoint: ReceivingEndpoint, batch: Batch, number: int, usages: Usages) -> Steps[tuple[Part, int]]:
    """Assemble a message from stored fragments and those in the batch. Returns the message and its fragment count.

    If the message needs no validation, its body stays in the fragments: the returned message has no body.
    """
    new = {step.fragment: step.part for step in batch.steps if isinstance(step, Keep) and step.number == number}
    kinds = yield SQL("assemble.find_kind", (endpoint.conversation_handle, number))
    message_type, content, fragments = (
        kinds[0] if kinds else next((part.message_type, part.content, 0) for part in new.values())
    )
    usage = usages.get(message_type)
    if content == Content.DATA and usage is not None and usage.validation == "N":
        return Part(message_type, Content(content), None), fragments
    is_data = content == Content.DATA
    rows = yield SQL(
        "assemble.find_bodies",
        (endpoint.conversation_handle, number, MAX_XML_BYTES, None if is_data else _ERROR_FRAGMENTS),
    )
    pieces = dict(rows) | {fragment: part.body for fragment, part in new.items()}
    body = b"".join(piece or b"" for _, piece in sorted(pieces.items()))
    return Part(message_type, Content(content), body), fragments


# ---------------------------------------------------------------- writing


def _keep(plans: list[Plan], owners: Mapping[UUID, str]) -> Steps[None]:
    """Store fragments and messages that arrived before their turn. Delete stored ones that the batch discards."""
    takes = [plan for plan in plans if plan.endpoint.state != EndpointState.CLOSED]
    handle_steps = [(plan.endpoint.conversation_handle, step) for plan in takes for step in plan.batch.steps]
    keeps = [(handle, step) for handle, step in handle_steps if isinstance(step, Keep)]
    discards = [(handle, *step) for handle, step in handle_steps if isinstance(step, Discard)]
    if keeps:
        yield SQL(
            "keep.insert_fragments",
            (
                [handle for handle, _ in keeps],
                [step.number for _, step in keeps],
                [step.fragment for _, step in keeps],
                [step.fragments for _, step in keeps],
                [step.part.message_type for _, step in keeps],
                [int(step.part.content) for _, step in keeps],
                Bodies(step.part.body for _, step in keeps),
                Bodies(step.part.token for _, step in keeps),
                [owners.get(handle, "") for handle, _ in keeps],
            ),
        )
    if discards:
        yield SQL("keep.delete_fragments", tuple(map(list, zip(*discards, strict=True))))


def _advance(plans: list[Plan]) -> Steps[None]:
    """Advance the receiving counters.

    Raises:
        InstanceError: another process has advanced a counter, because it stored the same messages.
    """
    moving = [plan for plan in plans if plan.batch.reached != plan.batch.expected]
    if not moving:
        return
    handles = [plan.endpoint.conversation_handle for plan in moving]
    if any(plan.batch.expected == 0 for plan in moving):
        yield SQL("advance.insert_arrivals", (handles,))
    rows = yield SQL(
        "advance.update_arrivals",
        (
            handles,
            [plan.batch.expected for plan in moving],
            [plan.batch.reached for plan in moving],
            Bodies(plan.batch.token for plan in moving),
        ),
    )
    if len(rows) != len(moving):
        raise InstanceError(
            "Another process stores messages of the same conversations: only one may serve an instance."
        )


def _deliver(plans: list[Plan]) -> Steps[None]:
    """Insert messages into their queues, or beside queues that are off. Delete the fragments of inserted messages."""
    queues: dict[int, list[DeliverableRun]] = defaultdict(list)
    beside: list[DeliverableRun] = []
    for plan in plans:
        (beside if plan.endpoint.waits else queues[plan.endpoint.queue_id]).extend(plan.messages)
    for queue_id, messages in queues.items():
        if messages:
            yield Statement(
                "arriving.deliver.enqueue",
                enqueue.insert_arrived(queue_id),
                (
                    *map(list, zip(*_runs(messages), strict=True)),
                    Bodies(chain.from_iterable(arrived.run.bodies for arrived in messages)),
                ),
            )
    obsolete = [(plan.endpoint.conversation_handle, number) for plan in plans for number in _fragments_to_delete(plan)]
    if obsolete:
        yield SQL("deliver.delete_fragments", ([handle for handle, _ in obsolete], [number for _, number in obsolete]))
    complete = [
        (arrived.handle, number, arrived.run.message_type, int(arrived.run.content), body)
        for arrived in beside
        for number, body in enumerate(arrived.run.bodies, arrived.run.first)
        if not arrived.run.is_fragmented
    ]
    if complete:
        *columns, bodies = zip(*complete, strict=True)
        yield SQL("deliver.keep_beside", (*map(list, columns), Bodies(bodies)))


def _fragments_to_delete(plan: Plan) -> set[int]:
    """Return the completed messages whose fragments are to be deleted: they are in the queue, or were not accepted."""
    complete = {step.number for step in plan.batch.steps if isinstance(step, Complete)}
    waits = {message.run.first for message in plan.messages if plan.endpoint.waits and message.run.is_fragmented}
    return complete - waits


def _runs(messages: list[DeliverableRun]) -> list[tuple[object, ...]]:
    """Return the parameters of `enqueue.insert_arrived` for each run."""
    runs: list[tuple[object, ...]] = []
    start = 1
    for handle, run, *rest in messages:
        runs.append((handle, run.first, len(run.bodies), start, *rest, run.is_fragmented))
        start += len(run.bodies)
    return runs


def _update_endpoints(plans: list[Plan], now: datetime) -> Steps[None]:
    """Update the endpoints: their states, ends of conversations, and failures of refused messages."""
    ends: list[ArrivedEnd] = []
    states: dict[UUID, EndpointState] = {}
    for plan in plans:
        endpoint, handle = plan.endpoint, plan.endpoint.conversation_handle
        if plan.failure is not None:
            yield store_remote_error([handle], ConversationFailure.of(plan.failure.to_sender))
            yield from fail_endpoints([handle], plan.failure.to_receiver)
            continue
        if endpoint.waits and endpoint.state in _RECEIVING_STATES:  # its turn comes with the messages before it
            continue
        state = EndpointState(endpoint.state)
        if state is EndpointState.STARTED_INBOUND and plan.messages:
            state = EndpointState.CONVERSING
        if plan.event is not None:
            ends.append(ArrivedEnd(handle, state, plan.event))
        elif state != endpoint.state:
            states[handle] = state
    yield from apply_ends(ends, states, now)


class ArrivedEnd(NamedTuple):
    """An EndDialog or an Error that arrived on an endpoint, whose row is locked. `state` is the state before."""

    handle: UUID
    state: EndpointState
    event: Event


def apply_ends(ends: Sequence[ArrivedEnd], states: Mapping[UUID, EndpointState], now: datetime) -> Steps[None]:
    """Change the states of endpoints by the ends that arrived, and close endpoints. `states` are of other endpoints."""
    after = {end.handle: TRANSITIONS.get((end.state, end.event), end.state) for end in ends}
    if failed := [end.handle for end in ends if end.event is Event.ERROR_ARRIVED]:
        yield delete_parked(failed)
    # endpoints that this side had ended, too; targets stay closed, or a late first message would create them again
    if closed := [handle for handle, state in after.items() if state is REMOVED]:
        yield from close_endpoints(closed, now)
    changed = {
        end.handle: state
        for end in ends
        if isinstance(state := after[end.handle], EndpointState)
        and (state is not end.state or state is EndpointState.CONVERSING)
    }
    changed.update(states)
    if changed:
        yield SQL("apply_ends", (list(changed), [state.value for state in changed.values()]))
