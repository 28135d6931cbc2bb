"""`servicebroker trail`: the life of conversations, written while it happens."""

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

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Trails: a log of what happens to conversations.")

_LOCK_TIMEOUT_S = 30.0  # to lock each table for a moment


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
            min=0.0, max=1.0, help="A share of the conversations, 0 to 1. Default: all, but 0 with --conversation."
        ),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Write a trail: of all conversations, of those of some services, of a share of them, or of some conversations."""
    if share is None:
        share = 0.0 if conversation and not service else 1.0
    with open_existing(instance) as opened:
        _switch(opened, TrailSettings(True, share, service or [], conversation or []))
        with opened.connection() as connection:
            say(_said(run(connection, trail.settings())))


@app.command()
def off(instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Stop writing trails. Written ones are kept for their time."""
    with open_existing(instance) as opened:
        _switch(opened, TrailSettings(False, 1.0, [], []))
    say("The trail is off.")


@app.command()
def status(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show which conversations have a trail."""
    with open_existing(instance) as opened, opened.connection() as connection:
        found = run(connection, trail.settings())
    say_json(found._asdict()) if as_json else say(_said(found))


@app.command()
def show(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="Either side of the conversation.")],
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the trail of a conversation."""
    with open_existing(instance) as opened, opened.connection() as connection:
        events = run(connection, trail.life(conversation))
        settings = run(connection, trail.settings())
    if as_json:
        say_json({"events": [event._asdict() for event in events]})
        return
    for event in events:
        where = f"{event.at:%Y-%m-%d %H:%M:%S.%f} UTC {event.handle}"
        say(f"{where} {told(event)} [transaction {event.transaction}]")
    if not events:
        say(f"The trail has no event of it. {_said(settings)}")


def record_conversation(opened: Instance, handle: UUID) -> None:
    """Record the events of a conversation, in addition to what is recorded already.

    Raises:
        BrokerError: 8426 no such conversation.
    """
    with opened.connection() as connection:
        wanted = run(connection, trail.with_conversation(handle))
    _switch(opened, wanted)


def told(event: Event) -> str:
    """Return an event in words."""
    happened = trail.EVENT_WORDS.get(event.what, event.what)
    if event.messages:
        which = f"message {event.first}"
        if event.last != event.first:
            which = f"{counted(event.messages, 'message')}, {event.first} to {event.last}"
        kind = f" of type {event.message_type}" if event.message_type else ""
        return f"{which}{kind}: {happened}" + (f", {event.detail}" if event.detail else "")
    if event.what == "S":
        before, _, after = event.detail.partition(" ")
        return f"state {before} -> {after}"
    if event.what == "T":
        return f"timer set for {event.detail}" if event.detail else "timer fired, or was taken away"
    return f"{happened} {event.detail}".rstrip() if event.what == "M" else f"{happened}, state {event.detail}"


def _said(settings: TrailSettings) -> str:
    if not settings.is_on:
        return "The trail is off."
    share = "every conversation" if settings.share == 1 else f"a share of {settings.share:g} of the conversations"
    told = [f"{share} of {', '.join(settings.services)}" if settings.services else share] if settings.share else []
    told += [f"conversation {handle}" for handle in settings.conversations]
    return f"The trail is on: {', '.join(told) or 'of nothing'}."


def _switch(opened: Instance, wanted: TrailSettings) -> None:
    """Store the settings, and change the tables one after the other; each waits for current writers."""
    with opened.connection() as connection:
        in_transaction(connection, trail.switch(wanted))
        statements = run(connection, trail.partitions(opened.clock()))
        statements += [change.statement for change in run(connection, trail.changes())]
        for statement in statements:
            ends = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                try:
                    in_transaction(connection, trail.briefly(statement))
                    break
                except psycopg.errors.LockNotAvailable:
                    if time.monotonic() > ends:
                        raise InstanceError(
                            f"An open transaction has used a table for more than {_LOCK_TIMEOUT_S:.0f} s (see "
                            "servicebroker doctor). When it ends, the instance's upkeep completes this change."
                        ) from None
                    time.sleep(0.05)
