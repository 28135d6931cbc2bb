"""`servicebroker sql`: runs T-SQL from a file, an option, a pipe, or a prompt.

While a script runs, this process also runs the activation procedures of its queues.
"""

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
from servicebroker.activation.output import capture_stdout
from servicebroker.activation.task import LOG as ACTIVATION_LOG
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_block, say_json
from servicebroker.cli.sqlcmd import MAX_SIZE, Sqlcmd, decode_script, variables_of
from servicebroker.cli.tables import Listing, Terminal
from servicebroker.model.named_files import read_argument, read_standard_input
from servicebroker.tsql.results import ResultSet, RowCount, ScriptOutput
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import Message, TsqlError

OutputHandler = Callable[[ScriptOutput], None]

SETTLE_TIMEOUT_S = 3.0  # the time for activated procedures to process the script's last messages
STOP_TIMEOUT_S = 1.0  # the time for these procedures to end then; a transaction still open is rolled back
_CONTINUED = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"  # ends each line of a value but the last


def sql(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[
        str, typer.Option("--database", "-d", metavar="DATABASE", help="The broker database, created if missing.")
    ] = "master",
    file: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="The file of the script to run.")
    ] = None,
    text: Annotated[str | None, typer.Option("--query", "-Q", metavar="TEXT", help="T-SQL to run.")] = None,
    variables: Annotated[
        list[str],
        typer.Option(
            "--variable", "-v", metavar="NAME=VALUE", help="The value of $(NAME) in the script; may be repeated."
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


class ErrorRecorder:
    """An output handler that passes output on to another one. `has_error` is True after an error."""

    def __init__(self, handler: OutputHandler) -> None:
        self._handler = handler
        self.has_error = False

    def __call__(self, output: ScriptOutput) -> None:
        """Pass on a result set, row count, message or error."""
        self.has_error = self.has_error or isinstance(output, TsqlError)
        self._handler(output)


def run_sql(instance: str, database: str, script: str | None, sqlcmd: Sqlcmd, folder: Path, *, as_json: bool) -> bool:
    """Run a script, or with None batches typed at a prompt. Return whether there was no error.

    File names in the script are relative to `folder`.
    """
    results: list[dict[str, object]] = []
    handler = ErrorRecorder((lambda output: results.extend(to_json(output))) if as_json else print_output)
    try:
        return _run(instance, database, script, sqlcmd, folder, handler)
    finally:
        if as_json:
            say_json({"results": results})


def _run(
    instance: str, database: str, script: str | None, sqlcmd: Sqlcmd, folder: Path, handler: ErrorRecorder
) -> bool:
    try:
        expanded = None if script is None else sqlcmd.expand(script, folder)
    except TsqlError as unreadable:
        handler(unreadable)
        return False
    databases: set[str] = {database.lower()}
    with (
        activation_log_deferred(databases) if expanded is not None else nullcontext(),
        open_instance(instance) as opened,
        run_activation(opened),
        Session(opened.database(database, create=True), handler) as session,
    ):
        if expanded is not None:
            try:
                session.run(expanded.text, should_stop_after=expanded.should_stop_after)
            finally:
                databases |= session.machine.context.used_databases
            return not handler.has_error
        from servicebroker.cli.prompt import prompt

        prompt(session, sqlcmd)
        return True


@contextmanager
def run_activation(instance: Instance) -> Iterator[None]:
    """Run activation procedures during the block, and up to `SETTLE_TIMEOUT_S` longer for its last messages.

    Messages that are left then wait for the daemon, or for the next `servicebroker sql`.
    """
    host = activate(instance, patience=STOP_TIMEOUT_S)
    with capture_stdout():
        host.start()
        try:
            yield
            host.settle(SETTLE_TIMEOUT_S)
        finally:
            host.stop()


@contextmanager
def activation_log_deferred(databases: Set[str]) -> Iterator[None]:
    """Hold back the log of activation procedures during the block. Then log the records of these databases."""
    held_back: list[logging.LogRecord] = []

    def hold_back(record: logging.LogRecord) -> bool:
        if record.name == ACTIVATION_LOG:
            held_back.append(record)
        return record.name != ACTIVATION_LOG

    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(hold_back)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(hold_back)
        for record in held_back:
            if getattr(record, "database", "").lower() in databases | {""}:
                logging.getLogger().handle(record)


def read_script(file: Path | None, text: str | None) -> str | None:
    """Return the script of the options, else that of standard input; None if standard input is a terminal."""
    if text is not None:
        return text
    if file is not None:
        return decode_script(read_argument(file, MAX_SIZE))
    return None if sys.stdin.isatty() else decode_script(read_standard_input(MAX_SIZE))


# ---------------------------------------------------------------- output


def to_json(output: ScriptOutput) -> Iterator[dict[str, object]]:
    """Yield a result set, a message or an error as a JSON object; nothing for USE (message 5701)."""
    match output:
        case ResultSet(columns, rows):
            yield {"columns": columns, "rows": [[json_value(value) for value in row] for row in rows]}
        case RowCount(rows=count):
            yield {"message": f"({count} rows affected)"}
        case Message() if output.number != 5701:
            yield {"message": message_text(output)}
        case TsqlError():
            yield {
                "message": output.shown(),
                "number": output.number,
                "level": output.severity,
                "state": output.state,
                "procedure": output.procedure or None,
                "line": output.line,
            }


def print_output(output: ScriptOutput) -> None:
    """Print a result set as a table, a message or an error as lines."""
    match output:
        case ResultSet(columns, rows):
            _print_table(columns, rows)
        case RowCount(rows=count):
            say(f"({count} row{'s' if count != 1 else ''} affected)")
        case Message():
            _print_message(output)
        case TsqlError():
            say(output.headline(), error=True)
            say_block(output.text, error=True)


def _is_printed(message: Message) -> bool:
    """Return whether PRINT or RAISERROR of the script has written the text; then its line ends are kept."""
    return not message.severity or message.number == 50000


def _print_message(message: Message) -> None:
    """Print the text of PRINT unchanged, and a warning with its number and line."""
    if _is_printed(message):
        say_block(message.text, hanging="")
        return
    say(message.headline())
    say_block(message.text)


def message_text(message: Message) -> str:
    """Return the text of a message; for a warning below its headline."""
    return message.text if _is_printed(message) else f"{message.headline()}\n{message.text}"


def _print_table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    cells = [[_cell_lines(value) for value in row] for row in rows]
    table = Listing(*columns, right=[index for index in range(len(columns)) if _is_numeric(rows, index)])
    for row in cells:
        table.row(*row)
    console = Terminal()
    if not console.is_terminal:  # for programs: no value is broken into several lines
        console = Terminal(width=_unbroken_width(columns, cells))
    console.print(table)
    say(f"({len(rows)} row{'s' if len(rows) != 1 else ''} returned)")


def _is_numeric(rows: list[tuple[object, ...]], column: int) -> bool:
    return bool(rows) and all(isinstance(row[column], int | float | Decimal | None) for row in rows)


def _cell_lines(value: object) -> list[str]:
    """Return the lines of a value in a table. An arrow ends each line but the last, so no line looks like a row."""
    *lines, last = format_value(value).replace("\r\n", "\n").expandtabs().split("\n")
    return [*(text + _CONTINUED for text in lines), last]


def _unbroken_width(columns: tuple[str, ...], rows: list[list[list[str]]]) -> int:
    """Return the width at which the table breaks no value, in terminal cells."""
    width = 2
    for index, column in enumerate(columns):
        width += 4 + max(map(cell_len, (column, *(text for row in rows for text in row[index]))))
    return width


def format_value(value: object) -> str:
    """Return a value as text for a table."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return "0x" + value.hex().upper()
    if isinstance(value, UUID):
        return str(value).upper()
    if isinstance(value, datetime) and value.microsecond % 1000 == 0:  # DATETIME prints three decimals
        return value.isoformat(" ", "milliseconds")
    return str(int(value)) if isinstance(value, bool) else str(value)


def json_value(value: object) -> object:
    """Return a value for JSON: binary as 0x..., and a decimal that a float cannot represent as text."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal) and len(value.as_tuple().digits) <= 15:
        return int(value) if value == value.to_integral_value() else float(value)
    return format_value(value)
