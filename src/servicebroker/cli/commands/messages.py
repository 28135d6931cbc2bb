"""`servicebroker send | receive | peek | end`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from servicebroker.api.database import Database
from servicebroker.cli.audited_act import audited_transaction
from servicebroker.cli.completion import complete_service
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import (
    DEFAULT_INSTANCE,
    DatabaseOption,
    InstanceOption,
    JsonOption,
    QueueArgument,
    require_finite,
)
from servicebroker.cli.output import say, say_block, say_json
from servicebroker.cli.printable_text import shown_body
from servicebroker.engine.catalog.catalog import find_queue_uncached
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis import facts, poison_report
from servicebroker.model import names
from servicebroker.model.arguments import HIGHEST_MAX_BODY_BYTES
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_standard_input
from servicebroker.model.wording import about_instance, counted
from servicebroker.operations.begin import RepeatedHandle
from servicebroker.store.running import run

TopOption = Annotated[int, typer.Option(min=1, help="The maximum number of messages.")]


def send(
    database: DatabaseOption,
    body: Annotated[
        str | None,
        typer.Argument(metavar="BODY", help="The body as text; - reads standard input. Default: empty."),
    ] = None,
    from_service: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SERVICE", help="Begin a conversation from this service.", autocompletion=complete_service
        ),
    ] = None,
    to_service: Annotated[
        str | None,
        typer.Option("--to", metavar="SERVICE", help="The dialog's target.", autocompletion=complete_service),
    ] = None,
    contract: Annotated[str, typer.Option(help="The dialog's contract.")] = names.DEFAULT,
    message_type: Annotated[str, typer.Option("--type", metavar="TYPE", help="The message type.")] = names.DEFAULT,
    conversation: Annotated[
        UUID | None, typer.Option(metavar="HANDLE", help="An existing conversation, instead of a new dialog.")
    ] = None,
    encryption: Annotated[bool, typer.Option(help="Encrypt the dialog, if it leaves the instance.")] = True,
    priority: Annotated[int | None, typer.Option(min=1, max=10, help="The dialog's priority.")] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A key for the new dialog. A second send with the same key does nothing."),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            callback=require_finite,
            min=0,
            help="Deliver the message after this time.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Deliver the message at this time, such as 2030-01-31T09:00+01:00."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Send one message on a new or an existing conversation."""
    if (conversation is None) == (from_service is None or to_service is None):
        raise InstanceError("Give --from and --to for a new dialog, or --conversation for an existing one.")
    if conversation is not None and (priority is not None or idempotency_key is not None):
        raise InstanceError("--priority and --idempotency-key are for a new dialog, not for an existing one.")
    content = read_standard_input(HIGHEST_MAX_BODY_BYTES) if body == "-" else (body or "").encode()
    with open_database(instance, database) as opened:
        with opened.transaction() as transaction:
            if conversation is None and from_service is not None and to_service is not None:
                conversation = transaction.begin_dialog(
                    from_service,
                    to_service,
                    contract=contract,
                    encryption=encryption,
                    priority=priority,
                    idempotency_key=idempotency_key,
                )
            assert conversation is not None
            number = None
            if not isinstance(conversation, RepeatedHandle):
                number = transaction.send(conversation, message_type, content, delay=delay, at=_time(at))
        result = {"conversation_handle": conversation, "message_sequence_number": number}
        say_json(result) if as_json else say(conversation)
        if to_service is not None:
            _warn_of_similar_service(opened, conversation, to_service)


def _warn_of_similar_service(database: Database, conversation: UUID, service: str) -> None:
    """If the message cannot be delivered, and a service with a similar name exists, print a warning."""
    if database.instance.engine is RestrictedVerbs:  # a restricted role may not read the names of services
        return
    with database.instance.connection() as connection:
        similar = run(connection, facts.find_similar_services([service])).get(service)
    if similar is not None and (status := database.get_transmission_status(conversation)):
        say(
            f"The message waits: {about_instance(status)} Did you mean {similar}? Then remove it: "
            f"servicebroker end {conversation} --database {database.name} --cleanup",
            error=True,
        )


def _time(text: str | None) -> datetime | None:
    """Return the time that `--at` names; None without the option.

    Raises:
        typer.BadParameter: the text is not a time in ISO 8601, or has no time zone.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time, such as 2030-01-31T09:00+01:00", param_hint="--at") from None
    if time.utcoffset() is None:
        raise typer.BadParameter(f"{text!r} has no time zone: add Z, or an offset such as +01:00", param_hint="--at")
    return time


def end(
    conversation: Annotated[UUID, typer.Argument(metavar="HANDLE", help="The conversation.")],
    database: DatabaseOption,
    error: Annotated[
        int | None, typer.Option(metavar="CODE", min=1, help="End with this error, which the other side receives.")
    ] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="With --error: the text of the error.")] = "",
    cleanup: Annotated[
        bool,
        typer.Option("--cleanup", help="Remove this side and its undelivered messages, without notifying the other."),
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """End a conversation, and delete its messages that still wait in this side's queue."""
    if description and error is None:
        raise typer.BadParameter("it needs --error", param_hint="--description")
    with open_database(instance, database) as opened:
        details = {"code": error, "text": description, "cleanup": cleanup}
        with audited_transaction(opened, "END CONVERSATION", conversation, **details) as transaction:
            code_and_text = None if error is None else (error, description)
            transaction.end_conversation(conversation, error=code_and_text, cleanup=cleanup)
    say(f"The conversation {conversation} has ended on this side.")


def receive(
    queue: QueueArgument,
    database: DatabaseOption,
    top: TopOption = 1,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="The time to wait for a message.")] = 0.0,
    end: Annotated[
        bool, typer.Option("--end", help="END CONVERSATION after EndDialog or Error: end this side, too.")
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Receive messages of one conversation group, print them, and remove them from the queue."""
    with open_database(instance, database) as opened, opened.transaction() as transaction:
        messages = transaction.receive(queue, top=top, wait=wait)
        for message in messages:
            if end and (message.is_end_dialog or message.is_error):
                transaction.end_conversation(message.conversation_handle)
        show([message._asdict() for message in messages], as_json=as_json)


def peek(
    queue: QueueArgument,
    database: DatabaseOption,
    conversation: Annotated[UUID | None, typer.Option(metavar="HANDLE", help="Only this conversation.")] = None,
    top: TopOption = 10,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show messages of a queue without receiving them, even while the queue is off."""
    with open_database(instance, database) as opened:
        show(peek_messages(opened, queue, conversation, top), as_json=as_json)


def peek_messages(database: Database, queue: str, conversation: UUID | None, top: int) -> list[dict[str, Any]]:
    """Return the first `top` messages of a queue, or of one of its conversations, without receiving them."""
    queue_id = database._do(find_queue_uncached("find", database.database_id, queue)).queue_id
    messages = database._do(poison_report.queued_messages(queue_id, conversation, top))
    return [message._asdict() for message in messages]


def show(messages: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print messages, which have the columns of a queue; --json adds the body as text."""
    if as_json:
        say_json({"messages": [{**message, "text": _text(message)} for message in messages]})
        return
    for message in messages:
        failed = f", failed {counted(message['failures'], 'time')}" if message.get("failures") else ""
        say(
            f"conversation {message['conversation_handle']}, message {message['message_sequence_number']}, "
            f"{message['message_type_name']} for {message['service_name']}, since "
            f"{message['message_enqueue_time']:%Y-%m-%d %H:%M:%S} UTC{failed}"
        )
        say_block(shown_body(message["validation"], message["message_body"]))
    if not messages:
        say("No message available.")


def _text(message: Mapping[str, Any]) -> str | None:
    """Return the body as text if it is UTF-8, else None."""
    with suppress(UnicodeDecodeError):
        return (message["message_body"] or b"").decode()
    return None
