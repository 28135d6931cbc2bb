"""Findings about one conversation: the reasons why it makes no progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from servicebroker.engine.diagnosis.dashboard_queries import DeadLetterOfConversation
from servicebroker.engine.diagnosis.fact_types import LONG_WAIT, ConversationFacts
from servicebroker.engine.diagnosis.findings import (
    NO_REASON,
    UNEXPLAINED_WAIT,
    ConversationFinding,
    Finding,
    Remedy,
    Severity,
    duration,
    end_session,
)
from servicebroker.engine.diagnosis.session_findings import advise_on_transaction, describe_transaction
from servicebroker.model.poison import advise_replay, describe_dead_letter
from servicebroker.model.remedies import REMEDIES, after_status
from servicebroker.model.wording import about_instance, counted


def judge_conversation(facts: ConversationFacts) -> list[Finding]:
    """Return the reasons why a conversation makes no progress; none without a problem."""
    return [Finding(f"conversation {facts.handle}", *finding) for finding in _conversation(facts)]


def judge_dead_letters(handle: UUID, letters: Sequence[DeadLetterOfConversation]) -> list[Finding]:
    """Return a finding for each dead letter of a conversation."""
    return [
        Finding(
            f"conversation {handle}",
            describe_dead_letter(
                letter.number,
                f"{letter.database}.{letter.queue}",
                letter.sequence,
                letter.message_type,
                letter.failures,
                letter.error,
            ),
            advise_replay(letter.number, letter.database),
            Severity.WARNING,
        )
        for letter in letters
    ]


def say_why_unanswered(facts: ConversationFacts, letters: Sequence[DeadLetterOfConversation] = ()) -> str:
    """Return why a request has no answer: a problem of its conversation with advice, or how far the request is.

    `letters`: the dead letters of the conversation, where a message of it may be.
    """
    if findings := [*judge_dead_letters(facts.handle, letters), *judge_conversation(facts)]:
        return " ".join(f"{finding.problem} {finding.advice}" for finding in findings)
    if facts.waits:
        return f"It has not reached {facts.far_service} yet."
    return "No problem is known on this side; the other side has not answered yet."


def _conversation(facts: ConversationFacts) -> Iterable[ConversationFinding]:
    end = Remedy("end-conversation", str(facts.handle))
    if facts.error is not None:
        code, text = facts.error
        yield ConversationFinding(
            f"It has failed with {code}: {text} The Error message waits in {facts.queue}.",
            REMEDIES.get(
                -code, "Receive the Error and END CONVERSATION; begin a new conversation when the cause is repaired."
            ),
            acts=(end,),
        )
    elif facts.state == "ER":
        yield ConversationFinding(
            "It has failed, and its Error was received.",
            "END CONVERSATION; begin a new conversation when the cause is repaired.",
            acts=(end,),
        )
    if facts.state == "DI":
        yield ConversationFinding(
            "The other side has ended it; nothing can be sent.", "END CONVERSATION.", Severity.WARNING, (end,)
        )
    if facts.state == "CD":
        yield ConversationFinding(
            "It is closed.",
            "No action is needed: it is kept for a while, so that a repeated first message does not open it again.",
            Severity.NOTE,
        )
    if facts.state not in ("ER", "CD") and facts.lifetime <= facts.now:
        yield ConversationFinding(
            "Its lifetime is over.", "The next RECEIVE gets the Error -8489; begin a new conversation."
        )
    if facts.delayed_until is not None and facts.now - facts.delayed_until <= UNEXPLAINED_WAIT:
        what = counted(facts.waits, f"message to {facts.far_service} is", f"messages to {facts.far_service} are")
        yield ConversationFinding(
            f"{what} delayed until {facts.delayed_until:%Y-%m-%d %H:%M:%S} UTC.",
            "servicebroker delayed list shows them; delayed cancel deletes them.",
            Severity.NOTE,
        )
    elif facts.waits and (facts.status or facts.sent is None or facts.now - facts.sent > UNEXPLAINED_WAIT):
        reason = about_instance(facts.status or NO_REASON)
        peer_service = facts.far_service
        what = counted(facts.waits, f"message to {peer_service} waits", f"messages to {peer_service} wait")
        yield ConversationFinding(f"{what}: {reason}", after_status(facts.status))
    if not facts.is_on:
        yield ConversationFinding(
            f"Its queue {facts.queue} is OFF.",
            "servicebroker poison inspect shows the message at its head; poison retry switches the queue on.",
            acts=(Remedy("switch-on", facts.queue),),
        )
    for holder in facts.holders:
        if facts.now - holder.since > timedelta(seconds=5):
            yield ConversationFinding(
                f"Session {holder.pid} holds its conversation group. {describe_transaction(holder, facts.now)}",
                advise_on_transaction(holder),
                acts=(end_session(holder.pid),),
            )
    if facts.failures:
        held = f", and is held until {facts.held_until:%H:%M:%S} UTC" if facts.held_until else ""
        yield ConversationFinding(
            f"Its message has failed {counted(facts.failures, 'time')}{held}; the last time with {facts.last_error}",
            "Repair the cause and run servicebroker poison retry, or servicebroker poison end.",
            acts=(Remedy("retry", facts.queue),),
        )
    busy = facts.holders or facts.failures or facts.readers
    if (
        facts.messages
        and facts.is_on
        and not busy
        and facts.oldest is not None
        and facts.now - facts.oldest > LONG_WAIT
    ):
        age = duration(facts.now - facts.oldest)
        waits = f"{counted(facts.messages, 'message')} in {facts.queue}, the oldest for {age}"
        if facts.is_activated:
            yield ConversationFinding(
                f"The activation procedure has not received its {waits}.",
                "servicebroker doctor reports whether it runs.",
            )
        else:
            yield ConversationFinding(f"Nobody receives its {waits}.", "Start the program that reads the queue.")
    if facts.peer_messages and not facts.messages and not facts.waits:
        yield _unread_by_peer(facts)


def _unread_by_peer(facts: ConversationFacts) -> ConversationFinding:
    """Return why the other side has not received messages that are in its queue."""
    waits = counted(facts.peer_messages, "message")
    if not facts.peer_is_on:
        return ConversationFinding(
            f"The other side's queue {facts.peer_queue} is OFF, with {waits} of this conversation.",
            "servicebroker poison inspect shows the message at its head; poison retry switches the queue on.",
            acts=(Remedy("switch-on", facts.peer_queue),),
        )
    if not facts.peer_readers and not facts.peer_is_activated:
        return ConversationFinding(
            f"The other side has not received {waits} in {facts.peer_queue}, where no reader waits.",
            "Check whether the program that reads that queue runs, or is busy with other messages.",
            Severity.WARNING,
        )
    return ConversationFinding(
        f"The other side has not received {waits} in {facts.peer_queue}.",
        "Run servicebroker doctor with the other side's handle, or check which program reads that queue.",
        Severity.NOTE,
    )
