"""`servicebroker queue list | create | alter | drop | purge`."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.api.transaction import Transaction
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.operation_commands import add_command
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption, QueueArgument
from servicebroker.cli.output import say, say_json
from servicebroker.cli.tables import Listing, show_rows, state
from servicebroker.engine.catalog.current_application import find_application
from servicebroker.engine.diagnosis.queue_counts import queue_statuses
from servicebroker.model.messages import Message
from servicebroker.model.wording import counted
from servicebroker.operations.queues import AlterQueue, CreateQueue, DropQueue
from servicebroker.store.running import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Queues: list, create, alter, drop, purge.")


@app.command("list")
def list_(database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show the queues of a database, how many messages wait, and whether they are on."""
    with open_database(instance, database) as opened:
        definitions = opened._do(find_application(opened.database_id, opened.name)).queues
        with opened.instance.connection() as connection:
            statuses = run(connection, queue_statuses())
    status_by_name = {status.queue: status for status in statuses if status.database.lower() == database.lower()}
    rows = []
    for name, definition in definitions.items():
        status = status_by_name.get(name) or status_by_name.get(f"dbo.{name}")
        rows.append(
            {
                "queue": name,
                "messages": status.messages if status else 0,
                "oldest": status.oldest if status else None,
                "is_on": definition.status,
                "retention": definition.retention,
                "poison_message_handling": definition.poison_message_handling,
                "services": status.services if status else [],
            }
        )
    if as_json:
        say_json({"queues": rows})
        return
    table = Listing("queue", "messages", "state", "services", right=(1,))
    for row in rows:
        table.row(row["queue"], f"{row['messages']:,}", state("ON" if row["is_on"] else "OFF"), row["services"])
    show_rows(table, "No queues yet.")


_OPTIONS = {"status": "--on/--off"}
_OMITTED_CLAUSES = {"activation"}  # a procedure is named in T-SQL, or by `define`
add_command(
    app, "create", "queue", CreateQueue, "The queue {name} is created.", options=_OPTIONS, without=_OMITTED_CLAUSES
)
add_command(
    app, "alter", "queue", AlterQueue, "The queue {name} is altered.", options=_OPTIONS, without=_OMITTED_CLAUSES
)
add_command(app, "drop", "queue", DropQueue, "The queue {name} is dropped.")


@app.command()
def purge(
    name: QueueArgument,
    database: DatabaseOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Delete all messages of a queue, and end conversations whose other side has ended them."""
    with open_database(instance, database) as opened:
        if not yes:
            typer.confirm(f"All messages of {name} will be lost. Go on?", abort=True)
        count = opened.process(name, _end_if_ended, top=None)
    say(f"{counted(count, 'message is', 'messages are')} deleted.")


def _end_if_ended(transaction: Transaction, messages: list[Message]) -> None:
    """End this side of each conversation with an EndDialog or Error among the messages."""
    for handle in {message.conversation_handle for message in messages if message.is_end_dialog or message.is_error}:
        transaction.end_conversation(handle)
