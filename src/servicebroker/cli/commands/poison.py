"""`servicebroker poison`: find the message that cannot be processed, look at it, end its conversation, go on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from servicebroker.api.database import Database
from servicebroker.cli.audited_act import audited
from servicebroker.cli.commands.messages import queued, show
from servicebroker.cli.existing_instance import open_database, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_block, say_bytes, say_json
from servicebroker.cli.printable_text import shown_body
from servicebroker.engine.catalog.catalog import find_queue_now
from servicebroker.engine.conversation import failed_messages
from servicebroker.engine.diagnosis import poison_report
from servicebroker.model.arguments import HIGHEST_MAX_BODY_BYTES, OMITTED, Omitted
from servicebroker.model.named_files import read_argument, read_standard_input
from servicebroker.model.wording import counted
from servicebroker.store.running import run

RECEIVE_WAIT_S = 2.0  # that --receive waits for the message

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Poison messages and dead letters: inspect, end, replay, discard."
)

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="`queue` or `schema.queue`.")]
NumbersArgument = Annotated[list[int], typer.Argument(metavar="N", help="Their numbers in the list.")]


class _Undo(Exception):
    """Rolls the inspecting transaction back."""


@app.command("list")
def list_(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show disabled queues, and failed messages that wait for their next attempt."""
    with open_existing(instance) as opened, opened.connection() as connection:
        off = run(connection, poison_report.off_queues())
        failing = run(connection, poison_report.failing_messages())
    if as_json:
        told = {"off": [queue._asdict() for queue in off], "failing": [message._asdict() for message in failing]}
        say_json(told)
        return
    for queue in off:
        since = f", the oldest since {queue.oldest:%Y-%m-%d %H:%M:%S} UTC" if queue.oldest else ""
        say(f"{queue.database}.{queue.queue} is OFF with {counted(queue.messages, 'message')}{since}.")
        say(f"  next: servicebroker poison inspect {queue.queue} --database {queue.database}")
    for failure in failing:
        held = f", held until {failure.held_until:%H:%M:%S} UTC" if failure.held_until else ""
        say_block(
            f"{failure.database}.{failure.queue}: message {failure.message_sequence_number} of conversation "
            f"{failure.conversation_handle} has failed {counted(failure.failures, 'time')} "
            f"since {failure.first_failed_at:%Y-%m-%d %H:%M:%S} "
            f"UTC{held}; the last time with {shown_body('X', failure.last_error.encode())}"
        )
    if not off and not failing:
        say("No queue is off, and no message has failed.")


@app.command()
def inspect(
    queue: QueueArgument,
    database: DatabaseOption,
    conversation: Annotated[UUID | None, typer.Option(metavar="HANDLE", help="Only this conversation.")] = None,
    top: Annotated[int, typer.Option(min=1, help="The maximum number of messages.")] = 10,
    receive: Annotated[
        bool,
        typer.Option("--receive", help="Use RECEIVE in a transaction that is rolled back; poison detection counts it."),
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show messages of a queue without taking them, also while it is off."""
    with open_database(instance, database) as opened:
        messages = _received(opened, queue, conversation) if receive else queued(opened, queue, conversation, top)
    show(messages, as_json=as_json)
    if messages and receive and not as_json:
        say(
            "The transaction was rolled back, and the message is in the queue as before. That counts: five rollbacks "
            "in a row switch a queue off."
        )


@app.command()
def end(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="The conversation of the message.")],
    database: DatabaseOption,
    error: Annotated[int, typer.Option(metavar="CODE", help="The error number that the other side gets.")] = 127,
    description: Annotated[str, typer.Option(metavar="TEXT", help="Its text.")] = "Unable to process message.",
    switch_on: Annotated[bool, typer.Option("--switch-on", help="Enable its queue, too.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """End a conversation WITH ERROR: its messages are removed, and the other side gets the error."""
    with open_database(instance, database) as opened:
        queue = opened._do(poison_report.queue_of_conversation(opened.database_id, conversation))
        with audited(opened, "END CONVERSATION WITH ERROR", conversation, code=error, text=description) as transaction:
            transaction.end_conversation(conversation, error=(error, description))
        if switch_on:
            opened.alter_queue(queue, status=True)
    say(f"The conversation {conversation} has ended with the error {error}.")
    say("The application that reads the queue is not told: clean what it keeps of the conversation yourself.")
    if switch_on:
        say(f"The queue {queue} is ON.")


@app.command()
def retry(queue: QueueArgument, database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Enable a queue, and process its messages again as if they had never failed."""
    with open_database(instance, database) as opened:
        found = opened._do(find_queue_now("alter", opened.database_id, queue))
        opened.alter_queue(queue, status=True)
        count = opened._alone(poison_report.forget_failures(found.queue_id))
    again = counted(count, "message that has failed is", "messages that have failed are")
    say(f"The queue {queue} is ON; {again} tried again.")


@app.command("set-aside")
def set_aside(
    database: DatabaseOption,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show the dead letters: messages that a policy has set aside."""
    with open_database(instance, database) as opened:
        messages = opened.set_aside_messages(queue)
    if as_json:
        say_json({"messages": [message._asdict() for message in messages]})
        return
    for message in messages:
        say_block(
            f"{message.set_aside_id}: {message.message_type_name} from {message.far_service} at "
            f"{message.far_broker_instance}, message {message.message_sequence_number} of conversation "
            f"{message.conversation_handle} in {message.queue}; "
            f"failed {counted(message.failures, 'time')}, set aside {message.set_aside_at:%Y-%m-%d %H:%M:%S} UTC: "
            f"{shown_body('X', message.error.encode())}"
        )
        say_block(shown_body(message.validation, message.message_body))
    if not messages:
        say("Nothing was set aside.")


@app.command()
def replay(
    numbers: NumbersArgument,
    database: DatabaseOption,
    body: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A new body, - for standard input; the audit log records the edit."),
    ] = None,
    from_service: Annotated[
        str | None,
        typer.Option("--from", metavar="SERVICE", help="The service of this database that sends them again."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Replay dead letters: put them into their queues again, on a new conversation if the old one has ended."""
    if body is not None and len(numbers) > 1:
        raise typer.BadParameter("--body is for one message")
    content: bytes | Omitted = OMITTED
    if body is not None:
        is_piped = str(body) == "-"
        content = (
            read_standard_input(HIGHEST_MAX_BODY_BYTES) if is_piped else read_argument(body, HIGHEST_MAX_BODY_BYTES)
        )
    with open_database(instance, database) as opened:
        for number in numbers:
            handle = opened.replay_message(number, body=content, from_service=from_service)
            where = "" if handle is None else f", on the new conversation {handle}"
            say(f"Message {number} is in its queue again{where}.")


@app.command()
def export(
    number: Annotated[int, typer.Argument(metavar="N", help="Its number in the list.")],
    database: DatabaseOption,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="The file; standard output without it.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Write the body of a dead letter, byte for byte. The message stays."""
    with open_database(instance, database) as opened:
        bodies = [
            message.message_body or b"" for message in opened.set_aside_messages() if message.set_aside_id == number
        ]
    if not bodies:
        raise failed_messages.unknown_dead_letter(number)
    if to is None:
        say_bytes(bodies[0])
        return
    to.write_bytes(bodies[0])
    say(f"The body of message {number} is in '{to}', {counted(len(bodies[0]), 'byte')}.")


@app.command()
def discard(numbers: NumbersArgument, database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Discard dead letters."""
    with open_database(instance, database) as opened:
        for number in numbers:
            opened.discard_message(number)
            say(f"Message {number} is gone.")


def _received(database: Database, queue: str, conversation: UUID | None) -> list[dict[str, Any]]:
    messages = []
    with suppress(_Undo), database.transaction() as transaction:
        messages = transaction.receive(queue, top=1, conversation_handle=conversation, wait=RECEIVE_WAIT_S)
        raise _Undo
    return [message._asdict() for message in messages]
