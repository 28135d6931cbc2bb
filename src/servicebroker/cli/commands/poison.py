"""`servicebroker poison list | inspect | end | retry`: messages that fail again and again."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

import typer

from servicebroker.api.database import Database
from servicebroker.cli.audited_act import END_DESCRIPTION, END_ERROR, end_with_error
from servicebroker.cli.commands import dead_letters
from servicebroker.cli.commands.messages import peek_messages, show
from servicebroker.cli.existing_instance import open_database, open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption, QueueArgument
from servicebroker.cli.output import say, say_block, say_json
from servicebroker.cli.printable_text import shown_body
from servicebroker.engine.catalog.catalog import find_queue_uncached
from servicebroker.engine.conversation import failed_messages
from servicebroker.engine.diagnosis import poison_report
from servicebroker.model.wording import counted
from servicebroker.store.running import run

RECEIVE_WAIT_S = 2.0  # the time that --receive waits for a message

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Poison messages: list failing messages, inspect them, end their conversation, retry.",
)


class _Rollback(Exception):
    """Raised to roll back the transaction of --receive."""


@app.command("list")
def list_(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show disabled queues, and failed messages that wait for their next attempt."""
    with open_existing(instance) as opened, opened.connection() as connection:
        off = run(connection, poison_report.off_queues())
        failing = run(connection, poison_report.failing_messages())
    if as_json:
        say_json({"off": [queue._asdict() for queue in off], "failing": [message._asdict() for message in failing]})
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
        typer.Option("--receive", help="RECEIVE one message and roll back; poison detection counts this rollback."),
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show messages of a queue as peek does. With --receive show what an application would get."""
    with open_database(instance, database) as opened:
        messages = (
            _received(opened, queue, conversation) if receive else peek_messages(opened, queue, conversation, top)
        )
    show(messages, as_json=as_json)
    if messages and receive and not as_json:
        say(
            "The transaction was rolled back, so the message is in the queue as before. Poison detection counts this: "
            "five rollbacks in a row switch a queue off."
        )


@app.command()
def end(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="The conversation of the message.")],
    database: DatabaseOption,
    error: Annotated[
        int, typer.Option(metavar="CODE", help="The number of the error that the other side gets.")
    ] = END_ERROR,
    description: Annotated[str, typer.Option(metavar="TEXT", help="The text of the error.")] = END_DESCRIPTION,
    switch_on: Annotated[bool, typer.Option("--switch-on", help="Enable the queue of this side, too.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """End a conversation WITH ERROR: its messages are removed, and the other side gets the error."""
    with open_database(instance, database) as opened:
        queue = opened._do(poison_report.queue_of_conversation(opened.database_id, conversation))
        end_with_error(opened, conversation, error, description)
        queue_id = opened._do(find_queue_uncached("find", opened.database_id, queue)).queue_id
        opened._run_in_transaction(failed_messages.sweep(queue_id))  # no reader may be there to do it
        if switch_on:
            opened.alter_queue(queue, status=True)
    say(f"The conversation {conversation} has ended with the error {error}.")
    say("The application that reads the queue gets no message: remove its own state of the conversation yourself.")
    if switch_on:
        say(f"The queue {queue} is ON.")


@app.command()
def retry(queue: QueueArgument, database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE) -> None:
    """Enable a queue, and reset the failure counts of its messages, so that they are processed again."""
    with open_database(instance, database) as opened:
        queue_id = opened._do(find_queue_uncached("alter", opened.database_id, queue)).queue_id
        opened.alter_queue(queue, status=True)
        count = opened._run_in_transaction(poison_report.forget_failures(queue_id))
    retried = f"{counted(count, 'message that has failed is', 'messages that have failed are')} tried again"
    say(f"The queue {queue} is ON; {retried if count else 'no failed message waits for its next try'}.")


# deprecated names of `servicebroker dead-letters`
for _name, _command in (
    ("set-aside", dead_letters.list_),
    ("replay", dead_letters.replay),
    ("export", dead_letters.export),
    ("discard", dead_letters.discard),
):
    app.command(_name, hidden=True, deprecated=True)(_command)


def _received(database: Database, queue: str, conversation: UUID | None) -> list[dict[str, Any]]:
    messages = []
    with suppress(_Rollback), database.transaction() as transaction:
        messages = transaction.receive(queue, top=1, conversation_handle=conversation, wait=RECEIVE_WAIT_S)
        raise _Rollback
    return [message._asdict() for message in messages]
