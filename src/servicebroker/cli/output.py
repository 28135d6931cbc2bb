"""The only way to standard output and standard error, for all commands and for the log.

Names, bodies, errors and addresses are untrusted: peers, roles of the database and senders of messages choose them.
Printed unchanged, they could move the cursor, set the clipboard, or look like a line of the command. Three rules
prevent that:

1. `say` prints each argument as one line. Line ends and other unprintable characters in it become U+FFFD.
2. `say_block` prints text of several lines, and indents every line after the first. Only text that the operator's own
   script has printed is not indented.
3. `say_json` relies on the escapes of JSON. If standard error is a log in JSON (`redirect_errors`), each text for
   standard error becomes one object of that log. Only `say_document` and `say_bytes` write text unchanged, and never to
   a terminal.

`tables.py` does the same for tables of rich. The linter forbids print, typer.echo, sys.stdout, sys.stderr, rich.console
and logging handlers in all other modules (`banned-api` in pyproject.toml).
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import typer

from servicebroker.cli.printable_text import as_json_text
from servicebroker.model.wording import cleaned


class _StandardError:
    """The destination of text for standard error: the function of a JSON log, or None for the stream."""

    log: Callable[[str], None] | None = None


def _unmasked(text: str) -> str:
    return text


class _Mask:
    """The function that hides the secrets of this process in all output."""

    hide: Callable[[str], str] = staticmethod(_unmasked)


_standard_error = _StandardError()

SILENCE_S = 1.0  # the longest silence before a command prints what it waits for
HANGING = "  "  # begins every line but the first of untrusted text: lines of the command do not begin like that


def mask_with(hide: Callable[[str], str]) -> None:
    """Hide secrets from now on in all lines, blocks and log records. `hide` returns a text without secrets."""
    _Mask.hide = staticmethod(hide)


def hidden(text: str) -> str:
    """Return a text without secrets."""
    return _Mask.hide(text)


def line(text: object) -> str:
    """Return a text as one line without control characters."""
    return cleaned(hidden(str(text)), None)


def block(text: str, *, hanging: str = HANGING) -> str:
    """Return a text of several lines without control characters but tabs. `hanging` begins all lines but the first."""
    lines = hidden(text).replace("\r\n", "\n").split("\n")
    return f"\n{hanging}".join(cleaned(part, None, keep="\t") for part in lines)


def say(*lines: object, error: bool = False) -> None:
    """Print each argument as one line; `error` prints on standard error."""
    if error and _standard_error.log:
        for text in lines:
            _standard_error.log(line(text))
        return
    typer.echo("\n".join(map(line, lines)), err=error)


def say_block(text: str, *, hanging: str = HANGING, error: bool = False) -> None:
    """Print text of several lines, as `block` returns it."""
    if error and _standard_error.log:
        _standard_error.log(block(text, hanging=hanging))
        return
    typer.echo(block(text, hanging=hanging), err=error)


def redirect_errors(log: Callable[[str], None] | None) -> None:
    """Pass text for standard error to `log` from now on; None writes it to the stream again."""
    _standard_error.log = log


def say_json(document: object) -> None:
    """Print a JSON object on one line. Characters that are not ASCII are escaped."""
    typer.echo(as_json_text(document if _Mask.hide is _unmasked else _without_secrets(document)))


def _without_secrets(value: object) -> object:
    """Return a value for JSON without secrets in its texts."""
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in value]
    return hidden(value) if isinstance(value, str) else value


def say_document(text: str) -> None:
    """Write the text of a file, such as a definition or SQL, unchanged; to a terminal without control characters."""
    if sys.stdout.isatty():
        typer.echo(block(text, hanging=""), nl=False)
    else:
        typer.echo(text, nl=False, color=True)  # without `color` Typer would remove escape sequences


@contextmanager
def waiting_for(activity: str) -> Iterator[None]:
    """If the block takes longer than `SILENCE_S`, print the activity on standard error, if that is a terminal."""
    if _standard_error.log or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(SILENCE_S, say, (f"{activity} ...",), {"error": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def flush() -> None:
    """Write the buffered text."""
    sys.stdout.flush()
    sys.stderr.flush()


def log_handler() -> logging.Handler:
    """Return a handler that writes the log to standard error. Its formatter must remove control characters."""
    return logging.StreamHandler()


def trace(text: str) -> str:
    """Return a traceback with indented lines, since the text of the error may be untrusted."""
    return block(text.rstrip("\n"))


def clean_tracebacks() -> None:
    """Print tracebacks of unexpected errors by the rules of this module: their text may be untrusted, too."""
    sys.excepthook = _print_traceback
    threading.excepthook = lambda args: _print_traceback(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _print_traceback(args.exc_type, args.exc_value, args.exc_traceback)


def _print_traceback(kind: type[BaseException], problem: BaseException | None, where: TracebackType | None, /) -> None:
    if not issubclass(kind, SystemExit):
        say_block(trace("".join(traceback.format_exception(kind, problem, where))), hanging="", error=True)


def say_bytes(content: bytes) -> None:
    """Write bytes unchanged; to a terminal as text without control characters."""
    if sys.stdout.isatty():
        say_block(content.decode(errors="replace"), hanging="")
    else:
        sys.stdout.buffer.write(content)
