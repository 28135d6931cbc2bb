"""`servicebroker trail`: an optional event log of conversations, written in the transactions that change them."""

from __future__ import annotations

import time
from typing import Annotated
from uuid import UUID

import psycopg
import typer

from servicebroker.api.instance import Instance
from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.engine.diagnosis import trail
from servicebroker.engine.diagnosis.trail import Event, TrailSettings
from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import counted
from servicebroker.store.running import in_transaction, run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Trails: event logs of conversations.")

_LOCK_TIMEOUT_S = 30.0  # the time to get a short lock on each table, which transactions of users may delay


@app.command()
def on(
    service: Annotated[
        list[str] | None,
        typer.Option("--service", metavar="DATABASE.SERVICE", help="Conversations of this service; may be repeated."),
    ] = None,
    conversation: Annotated[
        list[UUID] | None, typer.Option("--conversation", metavar="HANDLE", help="This conversation; may be repeated.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="The sampled fraction of conversations, 0 to 1. Default: 1, or 0 with --conversation alone.",
        ),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Record the events of all conversations, or of those that the options choose."""
    if share is None:
        share = 0.0 if conversation and not service else 1.0
    with open_existing(instance) as opened:
        _switch(opened, TrailSettings(True, share, service or [], conversation or []))
        with opened.connection() as connection:
            say(_describe(run(connection, trail.settings())))


@app.command()
def off(instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Stop recording events. Recorded events stay until their retention time ends."""
    with open_existing(instance) as opened:
        _switch(opened, TrailSettings(False, 1.0, [], []))
    say("The trail is off.")


@app.command()
def status(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show which conversations are recorded."""
    with open_existing(instance) as opened, opened.connection() as connection:
        settings = run(connection, trail.settings())
    say_json(settings._asdict()) if as_json else say(_describe(settings))


@app.command()
def show(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="Either side of the conversation.")],
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the recorded events of a conversation."""
    with open_existing(instance) as opened, opened.connection() as connection:
        events = run(connection, trail.find_events(conversation))
        settings = run(connection, trail.settings())
    if as_json:
        say_json({"events": [event._asdict() for event in events]})
        return
    for event in events:
        time_and_side = f"{event.at:%Y-%m-%d %H:%M:%S.%f} UTC {event.handle}"
        say(f"{time_and_side} {describe_event(event)} [transaction {event.transaction}]")
    if not events:
        say(f"The trail has no event of this conversation. {_describe(settings)}")


def record_conversation(opened: Instance, handle: UUID) -> None:
    """Record the events of one more conversation.

    Raises:
        BrokerError: 8426 no such conversation.
    """
    with opened.connection() as connection:
        settings = run(connection, trail.with_conversation(handle))
    _switch(opened, settings)


def describe_event(event: Event) -> str:
    """Return an event in words."""
    kind = trail.EVENT_WORDS.get(event.what, event.what)
    if event.messages:
        messages = f"message {event.first}"
        if event.last != event.first:
            messages = f"{counted(event.messages, 'message')}, {event.first} to {event.last}"
        of_type = f" of type {event.message_type}" if event.message_type else ""
        return f"{messages}{of_type}: {kind}" + (f", {event.detail}" if event.detail else "")
    if event.what == "S":
        before, _, after = event.detail.partition(" ")
        return f"state {before} -> {after}"
    if event.what == "T":
        return f"timer set for {event.detail}" if event.detail else "timer fired, or was cancelled"
    return f"{kind} {event.detail}".rstrip() if event.what == "M" else f"{kind}, state {event.detail}"


def _describe(settings: TrailSettings) -> str:
    """Return in words whether the trail is on, and which conversations it records."""
    if not settings.is_on:
        return "The trail is off."
    fraction = "every conversation" if settings.share == 1 else f"{settings.share * 100:g} % of the conversations"
    recorded = []
    if settings.share:
        recorded.append(f"{fraction} of {', '.join(settings.services)}" if settings.services else fraction)
    recorded += [f"conversation {handle}" for handle in settings.conversations]
    return f"The trail is on: {', '.join(recorded) or 'no conversation'}."


def _switch(opened: Instance, settings: TrailSettings) -> None:
    """Store the settings, then change the tables one after the other. Each change waits for a short lock."""
    with opened.connection() as connection:
        in_transaction(connection, trail.save_settings(settings))
        statements = run(connection, trail.partitions(opened.clock()))
        statements += [change.statement for change in run(connection, trail.find_trigger_changes())]
        for statement in statements:
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                try:
                    in_transaction(connection, trail.with_short_lock_timeout(statement))
                    break
                except psycopg.errors.LockNotAvailable:
                    if time.monotonic() > deadline:
                        raise InstanceError(
                            f"An open transaction has used a table for more than {_LOCK_TIMEOUT_S:.0f} s (see "
                            "servicebroker doctor). When it ends, the instance's maintenance completes this change."
                        ) from None
                    time.sleep(0.05)
