"""`servicebroker delayed list | cancel` and `servicebroker schedule list | drop`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from servicebroker.cli.audited_act import audited_transaction
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, show_rows
from servicebroker.model.wording import counted

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Delayed messages: list and cancel them.")
schedules = typer.Typer(no_args_is_help=True, add_completion=False, help="Schedules of workers: list and drop them.")


@app.command("list")
def list_(
    database: DatabaseOption,
    conversation: Annotated[UUID | None, typer.Option(metavar="HANDLE", help="Only this conversation.")] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show delayed messages and the later messages of their conversations, which wait with them, by delivery time."""
    with open_database(instance, database) as opened:
        messages = opened.delayed_messages(conversation)
    if as_json:
        say_json({"messages": [message._asdict() for message in messages]})
        return
    table = Listing("until (UTC)", "conversation", "message", "type", "from", "to", "bytes", right=(2, 6))
    for message in messages:
        table.row(
            f"{message.delayed_until:%Y-%m-%d %H:%M:%S}",
            message.conversation_handle,
            message.message_sequence_number,
            message.message_type_name,
            message.from_service,
            message.to_service,
            f"{message.bytes:,}",
        )
    show_rows(table, "No message is delayed.")


@app.command()
def cancel(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="The conversation.")],
    database: DatabaseOption,
    number: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The sequence number of one message. Default: all delayed messages."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Cancel delayed messages of a conversation. Later messages take the sequence numbers of the cancelled ones."""
    with (
        open_database(instance, database) as opened,
        audited_transaction(opened, "CANCEL DELAYED MESSAGES", conversation, number=number) as transaction,
    ):
        cancelled = transaction.cancel_delayed(conversation, number)
    if as_json:
        say_json({"conversation_handle": conversation, "cancelled": cancelled})
    else:
        say(f"{counted(cancelled, 'message is', 'messages are')} cancelled.")


@schedules.command("list")
def list_schedules(
    database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False
) -> None:
    """Show active schedules of workers, the next due first."""
    with open_database(instance, database) as opened:
        active = opened.schedules()
    if as_json:
        say_json({"schedules": [schedule._asdict() for schedule in active]})
        return
    table = Listing("next (UTC)", "schedule", "queue", "rule", "time zone", "missed")
    for schedule in active:
        next_time = f"{schedule.next_time:%Y-%m-%d %H:%M:%S}"
        table.row(next_time, schedule.name, schedule.queue, schedule.rule, schedule.time_zone, schedule.missed)
    show_rows(table, "No worker has started a schedule.")


@schedules.command()
def drop(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="`queue` or `schema.queue`.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")],
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Drop a schedule. A worker that declares the schedule creates it again at its next start."""
    with open_database(instance, database) as opened:
        opened.drop_schedule(queue, name)
    if as_json:
        say_json({"schedule": name, "queue": queue, "database": database, "done": "dropped"})
    else:
        say(f"The schedule {name} of {queue} is dropped.")
