"""`servicebroker sql`: scripts from a file, from the command line, from a pipe, or typed at a prompt."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from rich.cells import cell_len

from servicebroker.activation.activate import activate
from servicebroker.activation.output import capturing_stdout
from servicebroker.activation.task import LOG as ACTIVATION_LOG
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_block, say_json
from servicebroker.cli.sqlcmd import MAXIMUM_SIZE, Sqlcmd, decoded, variables_of
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.named_files import read_argument, read_standard_input
from servicebroker.tsql.results import ResultSet, RowCount, ScriptOutput
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import Message, TsqlError

Teller = Callable[[ScriptOutput], None]

SETTLE_TIMEOUT_S = 3.0  # for activated procedures to process the last messages of the script
_GOES_ON = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"  # ends a line of a value that has more lines
STOP_PATIENCE_S = 1.0  # for them to end after that; the transaction of one that still waits is rolled back


def sql(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[
        str, typer.Option("--database", "-d", metavar="DATABASE", help="The broker database, made if it is missing.")
    ] = "master",
    file: Annotated[Path | None, typer.Option("--input", "-i", metavar="FILE", help="A script to run.")] = None,
    text: Annotated[str | None, typer.Option("--query", "-Q", metavar="TEXT", help="T-SQL to run.")] = None,
    variables: Annotated[
        list[str],
        typer.Option(
            "--variable", "-v", metavar="NAME=VALUE", help="The value of $(NAME) in the text; may be repeated."
        ),
    ] = [],  # noqa: B006 # typer reads it
    as_json: JsonOption = False,
) -> None:
    """Run T-SQL: a script, the text of an option, or typed batches. Exit code 1 after an error."""
    try:
        sqlcmd = Sqlcmd(variables_of(variables))
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    folder = Path.cwd() if file is None else file.parent
    if not run_sql(instance, database, read_script(file, text), sqlcmd, folder, as_json=as_json):
        raise typer.Exit(1)


class Told:
    """The receiver of a session's output; it remembers whether there was an error."""

    def __init__(self, tell: Teller) -> None:
        self._tell = tell
        self.failed = False

    def __call__(self, said: ScriptOutput) -> None:
        """Show a piece of output."""
        self.failed = self.failed or isinstance(said, TsqlError)
        self._tell(said)


def run_sql(instance: str, database: str, script: str | None, sqlcmd: Sqlcmd, folder: Path, *, as_json: bool) -> bool:
    """Run a script, or typed batches if there is none. Return whether there was no error.

    Names of files in the script are relative to `folder`.
    """
    results: list[dict[str, object]] = []
    told = Told((lambda said: results.extend(for_a_program(said))) if as_json else tell_plainly)
    try:
        return _run(instance, database, script, sqlcmd, folder, told)
    finally:
        if as_json:
            say_json({"results": results})


def _run(instance: str, database: str, script: str | None, sqlcmd: Sqlcmd, folder: Path, told: Told) -> bool:
    try:
        expanded = None if script is None else sqlcmd.expand(script, folder)
    except TsqlError as unreadable:
        told(unreadable)
        return False
    databases: set[str] = {database.lower()}
    with (
        after_the_script(databases) if expanded is not None else nullcontext(),
        open_instance(instance) as opened,
        activated(opened),
        Session(opened.database(database, create=True), told) as session,
    ):
        if expanded is not None:
            try:
                session.run(expanded.text, should_stop_after=expanded.should_stop_after)
            finally:
                databases |= session.machine.context.used_databases
            return not told.failed
        from servicebroker.cli.prompt import prompt

        prompt(session, sqlcmd)
        return True


@contextmanager
def activated(instance: Instance) -> Iterator[None]:
    """Queues start their readers while a script runs, and those get some time for what it has sent last.

    What they have not done then is done by the daemon, or in the next session.
    """
    host = activate(instance, patience=STOP_PATIENCE_S)
    with capturing_stdout():
        host.start()
        try:
            yield
            host.settle(SETTLE_TIMEOUT_S)
        finally:
            host.stop()


@contextmanager
def after_the_script(databases: Set[str]) -> Iterator[None]:
    """Collect the log of activated procedures in the block, and at its end show that of these databases."""
    kept: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.name == ACTIVATION_LOG:
            kept.append(record)
        return record.name != ACTIVATION_LOG

    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(keep)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(keep)
        for record in kept:
            if getattr(record, "database", "").lower() in databases | {""}:
                logging.getLogger().handle(record)


def read_script(file: Path | None, text: str | None) -> str | None:
    """The script that the options name; from a pipe when they name none; None for a terminal."""
    if text is not None:
        return text
    if file is not None:
        return decoded(read_argument(file, MAXIMUM_SIZE))
    return None if sys.stdin.isatty() else decoded(read_standard_input(MAXIMUM_SIZE))


# ---------------------------------------------------------------- what is shown


def for_a_program(said: ScriptOutput) -> Iterator[dict[str, object]]:
    """A result set or a message, in JSON; that the database was changed is none."""
    match said:
        case ResultSet(columns, rows):
            yield {"columns": columns, "rows": [[plain(value) for value in row] for row in rows]}
        case RowCount(rows=count):
            yield {"message": f"({count} rows affected)"}
        case Message() if said.number != 5701:
            yield {"message": message_text(said)}
        case TsqlError():
            told = {"message": said.shown(), "number": said.number, "level": said.severity, "state": said.state}
            yield told | {"procedure": said.procedure or None, "line": said.line}


def tell_plainly(said: ScriptOutput) -> None:
    """Tables and sentences."""
    match said:
        case ResultSet(columns, rows):
            _show_table(columns, rows)
        case RowCount(rows=count):
            say(f"({count} row{'s' if count != 1 else ''} affected)")
        case Message():
            _say_message(said)
        case TsqlError():
            say(said.headline(), error=True)
            say_block(said.text, error=True)


def _is_printed(message: Message) -> bool:
    """Return whether the script has printed the text, by PRINT or RAISERROR; then its line ends are kept."""
    return not message.severity or message.number == 50000


def _say_message(message: Message) -> None:
    """Print the text of PRINT as it is, a warning with its number and place."""
    if _is_printed(message):
        say_block(message.text, hanging="")
        return
    say(message.headline())
    say_block(message.text)


def message_text(message: Message) -> str:
    """Return a message as one text."""
    return message.text if _is_printed(message) else f"{message.headline()}\n{message.text}"


def _show_table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    cells = [[_cell(value) for value in row] for row in rows]
    table = Listing(*columns, right=[place for place in range(len(columns)) if _are_numbers(rows, place)])
    for row in cells:
        table.row(*row)
    console = Terminal()
    if not console.is_terminal:  # a program reads whole lines
        console = Terminal(width=_whole_width(columns, cells))
    console.print(table)
    say(f"({len(rows)} row{'s' if len(rows) != 1 else ''} returned)")


def _are_numbers(rows: list[tuple[object, ...]], place: int) -> bool:
    return bool(rows) and all(isinstance(row[place], int | float | Decimal | None) for row in rows)


def _cell(value: object) -> list[str]:
    """Return the lines of a value in a table. A sign ends each line but the last, so that none looks like a row."""
    *begun, last = shown(value).replace("\r\n", "\n").expandtabs().split("\n")
    return [*(text + _GOES_ON for text in begun), last]


def _whole_width(columns: tuple[str, ...], rows: list[list[list[str]]]) -> int:
    """Return the width of a table that breaks no value."""
    width = 2
    for place, column in enumerate(columns):
        width += 4 + max(map(cell_len, (column, *(text for row in rows for text in row[place]))))
    return width


def shown(value: object) -> str:
    """Return a value as text for a table."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return "0x" + value.hex().upper()
    if isinstance(value, UUID):
        return str(value).upper()
    if isinstance(value, datetime) and value.microsecond % 1000 == 0:  # a datetime has three digits
        return value.isoformat(" ", "milliseconds")
    return str(int(value)) if isinstance(value, bool) else str(value)


def plain(value: object) -> object:
    """Return a value for JSON: binary as 0x..., a decimal that a float would change as text."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal) and len(value.as_tuple().digits) <= 15:
        return int(value) if value == value.to_integral_value() else float(value)
    return shown(value)
