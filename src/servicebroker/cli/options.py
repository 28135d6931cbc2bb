"""Options that several commands have."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import Annotated

import typer

from servicebroker.cli.completion import DEFAULT_INSTANCE as DEFAULT_INSTANCE
from servicebroker.cli.completion import complete_database, complete_queue


def require_finite(value: float | None) -> float | None:
    """Refuse nan and inf as the value of an option: `min` and `max` of typer let nan pass.

    Raises:
        typer.BadParameter: the value is nan or infinite.
    """
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number of seconds")
    return value


HEALTH_VARIABLE = "SERVICEBROKER_HEALTH"  # an empty value means no probes, like an unset variable

InstanceOption = Annotated[
    str,
    typer.Option(
        "--instance",
        envvar="SERVICEBROKER_INSTANCE",
        metavar="PATH_OR_URL",
        help="A data folder (with a private PostgreSQL server in it) or a postgresql:// URL.",
    ),
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        "-d",
        envvar="SERVICEBROKER_DATABASE",
        metavar="NAME",
        help="The broker database.",
        autocompletion=complete_database,
    ),
]
QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="`queue` or `schema.queue`.", autocompletion=complete_queue)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
KeysOption = Annotated[
    str | None,
    typer.Option(
        "--keys",
        envvar="SERVICEBROKER_KEYS",
        metavar="DIR",
        help="The folder of private keys. Default: `keys` in the data folder; for a URL "
        "`~/.local/share/servicebroker/IDENTIFIER`, with the instance's identifier.",
    ),
]
HealthOption = Annotated[
    str | None,
    typer.Option(
        "--health",
        envvar=HEALTH_VARIABLE,
        metavar="HOST:PORT",
        help="Answer http://HOST:PORT/livez and /readyz, for an orchestrator; :8080 means all interfaces.",
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        callback=require_finite,
        min=0,
        help="The time for work in progress to finish after SIGTERM. Unfinished work is then rolled back.",
    ),
]

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_MIN_SPAN, _MAX_SPAN = timedelta(seconds=10), timedelta(days=366)


def parse_duration(text: str) -> timedelta:
    """Return the length of time that `90s`, `10min`, `1h` or `2d` means.

    Raises:
        typer.BadParameter: the text is no such time, or the time is too short or too long.
    """
    match = re.fullmatch(r"(\d{1,8}) ?(s|min|m|h|d)", text.strip())
    if not match:
        raise typer.BadParameter(f"{text!r} is not a time: write 10min, 1h or 7d")
    time = timedelta(seconds=int(match[1]) * _UNITS[match[2]])
    if not _MIN_SPAN <= time <= _MAX_SPAN:
        raise typer.BadParameter(f"{text!r} is not from 10s to 366d")
    return time
