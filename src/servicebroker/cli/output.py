"""The only way to standard output and standard error, for every command and for the log.

Names, bodies, errors and addresses come from strangers: peers, roles of the database, whoever sends a message. Printed
as they are, they could move the cursor, set the clipboard, or look like a line of ours. Three rules keep them apart:

1. A line end is ours: `say` prints one line for each argument, and whatever in it is no printable character becomes
   U+FFFD.
2. Text of several lines goes through `say_block`, which indents every line after the first, unless a script of the
   operator has printed it.
3. JSON escapes for itself (`say_json`). Where standard error is a log in JSON (`errors_into`), each text that is said
   there becomes one object of it. Only `say_document` writes text unchanged, and only where no terminal reads.

`tables.py` is the same for what rich draws. The linter refuses print, typer.echo, sys.stdout, sys.stderr, rich.console
and handlers of logging in all other modules (`banned-api` in pyproject.toml).
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
    """The destination of text for standard error: the stream, or a log whose lines are JSON."""

    log: Callable[[str], None] | None = None


def _unmasked(text: str) -> str:
    return text


class _Mask:
    """The function that hides secrets of this process in what it prints."""

    hide: Callable[[str], str] = staticmethod(_unmasked)


_standard_error = _StandardError()

SILENCE_S = 1.0  # longer, and a person wonders whether the command hangs
HANGING = "  "  # begins each further line of a text from outside: no line of ours begins so where one could be forged


def mask_with(hide: Callable[[str], str]) -> None:
    """Hide secrets from now on, in lines, in blocks and in the log: `hide` returns a text without them."""
    _Mask.hide = staticmethod(hide)


def hidden(text: str) -> str:
    """Return text without secrets."""
    return _Mask.hide(text)


def line(text: object) -> str:
    """Return text as one line that steers no terminal."""
    return cleaned(hidden(str(text)), None)


def block(text: str, *, hanging: str = HANGING) -> str:
    """Return text of several lines; every line after the first begins with `hanging`, and tabs stay."""
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


def errors_into(log: Callable[[str], None] | None) -> None:
    """Redirect messages for standard error to a log from now on; None ends that."""
    _standard_error.log = log


def say_json(told: object) -> None:
    """Print one JSON object on one line; JSON escapes every character that is not ASCII."""
    typer.echo(as_json_text(told if _Mask.hide is _unmasked else _without_secrets(told)))


def _without_secrets(told: object) -> object:
    """Return a value for JSON whose texts have no secrets."""
    if isinstance(told, dict):
        return {key: _without_secrets(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [_without_secrets(value) for value in told]
    return hidden(told) if isinstance(told, str) else told


def say_document(text: str) -> None:
    """Write a file's text (a definition, a certificate, SQL) unchanged to a pipe or file, and cleaned to a terminal."""
    if sys.stdout.isatty():
        typer.echo(block(text, hanging=""), nl=False)
    else:
        typer.echo(text, nl=False, color=True)  # without `color` it would take escape sequences out


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say on standard error what the block waits for, if it takes longer than a second and a terminal reads."""
    if _standard_error.log or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(SILENCE_S, say, (f"{what} ...",), {"error": True})
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
    """Return a handler that writes the log to standard error. Its formatter must clean what it returns."""
    return logging.StreamHandler()


def trace(text: str) -> str:
    """Return a traceback; its further lines are indented, since the error's text may come from outside."""
    return block(text.rstrip("\n"))


def clean_tracebacks() -> None:
    """Print the traceback of an unexpected error by the same rules: its text may come from outside too."""
    sys.excepthook = _print_traceback
    threading.excepthook = lambda args: _print_traceback(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _print_traceback(args.exc_type, args.exc_value, args.exc_traceback)


def _print_traceback(kind: type[BaseException], problem: BaseException | None, where: TracebackType | None, /) -> None:
    if not issubclass(kind, SystemExit):
        say_block(trace("".join(traceback.format_exception(kind, problem, where))), hanging="", error=True)


def say_bytes(content: bytes) -> None:
    """Write bytes unchanged, but to a terminal as cleaned text."""
    if sys.stdout.isatty():
        say_block(content.decode(errors="replace"), hanging="")
    else:
        sys.stdout.buffer.write(content)
