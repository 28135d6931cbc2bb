"""`servicebroker dead-letters list | show | replay | export | discard`: messages that handlers could not process."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import UUID

import typer

from servicebroker.api.database import Database
from servicebroker.cli.audited_act import END_DESCRIPTION, END_ERROR, end_with_error
from servicebroker.cli.completion import complete_queue, complete_service
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_block, say_bytes, say_json
from servicebroker.cli.printable_text import shown_body
from servicebroker.cli.tables import Listing, show_rows
from servicebroker.engine.conversation import failed_messages
from servicebroker.engine.diagnosis import poison_report
from servicebroker.model.arguments import HIGHEST_MAX_BODY_BYTES, OMITTED, Omitted
from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.model.named_files import read_argument, read_file, read_standard_input
from servicebroker.model.poison import SetAsideMessage
from servicebroker.model.wording import counted

MAX_LISTED_CONVERSATIONS = 10  # each is a line with its command
PAGE_SIZE = 100  # messages of one query, whose bodies are in memory at the same time

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Dead letters, messages that failed too often: list, show, replay (requeue), export, discard.",
)

NumbersArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="N", help="Numbers of dead letters, as in the list. Default: all that the options select."),
]
NumberArgument = Annotated[int, typer.Argument(metavar="N", help="The number of the dead letter in the list.")]
QueueOption = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Only dead letters of this queue.", autocompletion=complete_queue),
]
TypeOption = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only dead letters of this message type.")
]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TEXT",
        help="Only dead letters whose error contains this text, or belongs to this group of `list --grouped`.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the database.")]


@app.command("list")
def list_(
    database: DatabaseOption,
    queue: QueueOption = None,
    message_type: TypeOption = None,
    error: ErrorOption = None,
    grouped: Annotated[
        bool, typer.Option("--grouped", help="Count dead letters by queue, message type and kind of error.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="The maximum number of messages.")] = 20,
    after: Annotated[
        int, typer.Option(metavar="N", min=0, help="Only dead letters after number N, to page through a long list.")
    ] = 0,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters, the oldest first, each with its error; or their number by kind of error."""
    with open_database(instance, database) as opened:
        if grouped:
            _show_groups(opened, queue, as_json=as_json)
            return
        letters = opened.set_aside_messages(queue, message_type=message_type, error=error, after=after, limit=top + 1)
    page, has_more = letters[:top], len(letters) > top
    if as_json:
        say_json({"messages": [letter._asdict() for letter in page], "more": has_more})
        return
    table = Listing("number", "dead since (UTC)", "queue", "type", "failed", "error", right=(0, 4))
    for letter in page:
        first_line = letter.error.partition("\n")[0]
        table.row(
            letter.set_aside_id,
            f"{letter.set_aside_at:%Y-%m-%d %H:%M:%S}",
            letter.queue,
            letter.message_type_name,
            letter.failures,
            first_line,
        )
    show_rows(table, "No dead letters.")
    if has_more:
        say(f"There are more: --after {page[-1].set_aside_id}")


def _show_groups(database: Database, queue: str | None, *, as_json: bool) -> None:
    groups = database.dead_letter_groups(queue)
    if as_json:
        say_json({"groups": [group._asdict() for group in groups]})
        return
    table = Listing("messages", "queue", "type", "kind of error", "first (UTC)", "last (UTC)", right=(0,))
    for group in groups:
        times = (f"{at:%Y-%m-%d %H:%M}" for at in (group.first_set_aside_at, group.last_set_aside_at))
        table.row(f"{group.messages:,}", group.queue, group.message_type_name, group.error_kind, *times)
    show_rows(table, "No dead letters.")


@app.command()
def show(
    number: NumberArgument,
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its sender, body, error and traceback."""
    with open_database(instance, database) as opened:
        letter = _find(opened, number)
    if as_json:
        say_json(letter._asdict())
        return
    say(
        f"Dead letter {number}: {letter.message_type_name} in {letter.queue}, for {letter.service_name}",
        f"from {letter.far_service} of the broker {letter.far_broker_instance}, message "
        f"{letter.message_sequence_number} of conversation {letter.conversation_handle}",
        *([] if letter.far_handle is None else [f"the sender's handle of this conversation: {letter.far_handle}"]),
        f"received {_time(letter.message_enqueue_time)}, failed {counted(letter.failures, 'time')} since "
        f"{_time(letter.first_failed_at)}, dead letter since {_time(letter.set_aside_at)}",
        "",
    )
    say_block(shown_body(letter.validation, letter.message_body), hanging="")
    say("")
    say_block(shown_body("X", (letter.traceback or letter.error).encode()), hanging="")


@app.command()
def replay(
    database: DatabaseOption,
    numbers: NumbersArgument = None,
    every: AllOption = False,
    queue: QueueOption = None,
    message_type: TypeOption = None,
    error: ErrorOption = None,
    body: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with the new body; - reads standard input. The audit log records the change."
        ),
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the body in $EDITOR first.")] = False,
    from_service: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SERVICE",
            help="Send each message again on a new conversation, from this service of the database.",
            autocompletion=complete_service,
        ),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Return dead letters to their queues, on a new conversation if the old one has ended.

    Each is replayed in its own transaction. If one cannot be replayed, it stays a dead letter, the others are replayed,
    and the exit code is 1.
    """
    _check_choice(numbers, every, queue, message_type, error)
    if (body is not None or edit) and len(numbers or ()) != 1:
        raise typer.BadParameter(f"--{'edit' if edit else 'body'} is for one message")
    content: bytes | Omitted = OMITTED
    if body is not None:
        is_piped = str(body) == "-"
        content = (
            read_standard_input(HIGHEST_MAX_BODY_BYTES) if is_piped else read_argument(body, HIGHEST_MAX_BODY_BYTES)
        )
    with open_database(instance, database) as opened:
        if edit and numbers:
            content = _edited(_find(opened, numbers[0]).message_body or b"")
        replayed = refused = 0
        for number in _matching_numbers(opened, numbers, queue, message_type, error):
            try:
                handle = opened.replay_message(number, body=content, from_service=from_service)
            except ServiceBrokerError as problem:
                if numbers and len(numbers) == 1:
                    raise
                refused += 1
                say(f"Dead letter {number} was not replayed: {problem}", error=True)
                continue
            replayed += 1
            conversation = "" if handle is None else f", on the new conversation {handle}"
            say(f"Dead letter {number} is in its queue again{conversation}.")
    if not numbers:
        say(f"{counted(replayed, 'dead letter is', 'dead letters are')} in their queues again; {refused} stay.")
    if refused:
        raise typer.Exit(1)


app.command("requeue", hidden=True)(replay)  # the word of other queues


@app.command()
def export(
    database: DatabaseOption,
    numbers: NumbersArgument = None,
    every: AllOption = False,
    queue: QueueOption = None,
    message_type: TypeOption = None,
    error: ErrorOption = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file, or a folder for several messages. Default: standard output."),
    ] = None,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Write the bodies of dead letters to files, byte for byte. The messages stay dead letters.

    With several messages --to is a folder, and the name of each file is the number of its message.
    """
    _check_choice(numbers, every, queue, message_type, error)
    is_one = len(numbers or ()) == 1
    if not is_one and to is None:
        raise typer.BadParameter("--to names a folder for several messages")
    with open_database(instance, database) as opened:
        letters = (
            (_find(opened, number) for number in numbers) if numbers else _letters(opened, queue, message_type, error)
        )
        written = 0
        for letter in letters:
            content = letter.message_body or b""
            if to is None:
                say_bytes(content)
                return
            file = to if is_one else to / str(letter.set_aside_id)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            say(f"The body of dead letter {letter.set_aside_id} is in '{file}', {counted(len(content), 'byte')}.")
            written += 1
    if not written:
        say("No dead letters.")


@app.command()
def discard(
    database: DatabaseOption,
    numbers: NumbersArgument = None,
    every: AllOption = False,
    queue: QueueOption = None,
    message_type: TypeOption = None,
    error: ErrorOption = None,
    end: Annotated[
        bool,
        typer.Option("--end", help="Also end the conversation of each with an error, which its sender gets."),
    ] = False,
    description: Annotated[
        str, typer.Option(metavar="TEXT", help="With --end: the text of the error.")
    ] = END_DESCRIPTION,
    yes: Annotated[bool, typer.Option("--yes", help="With a filter: do not ask for confirmation.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
) -> None:
    """Delete dead letters. Without --end their conversations stay open, and the senders are not told."""
    _check_choice(numbers, every, queue, message_type, error)
    with open_database(instance, database) as opened:
        matching = _matching_numbers(opened, numbers, queue, message_type, error)
        if not numbers and matching and not yes:
            typer.confirm(f"{counted(len(matching), 'dead letter')} will be lost. Go on?", abort=True)
        left_open: set[UUID] = set()
        for number in matching:
            handle = _find(opened, number).conversation_handle
            opened.discard_message(number)
            say(f"Dead letter {number} is discarded.")
            is_open = handle in opened._do(poison_report.open_conversations(opened.database_id, [handle]))
            if is_open and end:
                end_with_error(opened, handle, END_ERROR, description)
                say(f"The conversation {handle} has ended with the error {END_ERROR}.")
            elif is_open:
                left_open.add(handle)
    if not matching:
        say("No dead letters.")
    for handle in sorted(left_open)[:MAX_LISTED_CONVERSATIONS]:
        say(f"Conversation {handle} is still open, and its sender is not told.")
        say(f"  next: servicebroker poison end {handle} --database {database}")
    if len(left_open) > MAX_LISTED_CONVERSATIONS:
        say(f"{len(left_open) - MAX_LISTED_CONVERSATIONS} more conversations are still open. discard --end ends them.")


def _check_choice(
    numbers: list[int] | None, every: bool, queue: str | None, message_type: str | None, error: str | None
) -> None:
    """Require either numbers or a filter, so that a forgotten option does not select all dead letters."""
    if error == "":
        raise typer.BadParameter("an empty text matches every error: use --all", param_hint="--error")
    filters = every or queue is not None or message_type is not None or error is not None
    if bool(numbers) == filters:
        raise typer.BadParameter("give numbers, a filter (--queue, --type, --error), or --all")


def _matching_numbers(
    database: Database, numbers: list[int] | None, queue: str | None, message_type: str | None, error: str | None
) -> list[int]:
    """Return the numbers given, else those that the filter matches now.

    The list is complete before the first replay, so a message that fails again in the meantime is not replayed twice.
    """
    return numbers or [letter.set_aside_id for letter in _letters(database, queue, message_type, error)]


def _letters(
    database: Database, queue: str | None, message_type: str | None, error: str | None
) -> Iterator[SetAsideMessage]:
    """Yield the dead letters that the filter matches; query `PAGE_SIZE` at a time."""
    after = 0
    while page := database.set_aside_messages(
        queue, message_type=message_type, error=error, after=after, limit=PAGE_SIZE
    ):
        yield from page
        after = page[-1].set_aside_id


def _find(database: Database, number: int) -> SetAsideMessage:
    """Return the dead letter with this number.

    Raises:
        BrokerError: 402 there is no such dead letter.
    """
    for letter in database.set_aside_messages(after=number - 1, limit=1):
        if letter.set_aside_id == number:
            return letter
    raise failed_messages.unknown_dead_letter(number)


def _edited(body: bytes) -> bytes:
    """Let the operator edit a body in $EDITOR, and return the new body.

    Raises:
        InstanceError: the body is not UTF-8 text, the editor failed, or nothing was changed.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InstanceError(
            "The body is not UTF-8 text: export it, change the file, and replay it with --body FILE."
        ) from None
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory() as folder:  # only this user can read it: the body may be secret
        file = Path(folder, "body.txt")
        file.write_text(text, newline="")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
        except subprocess.CalledProcessError as problem:
            raise InstanceError(f"The editor has ended with code {problem.returncode}: nothing is replayed.") from None
        changed = read_file(file, HIGHEST_MAX_BODY_BYTES)
    if changed == body or changed == body + b"\n":  # many editors add a final line end
        raise InstanceError("The body was not changed: nothing is replayed.")
    return changed


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
