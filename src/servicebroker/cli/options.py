"""Options that several commands have."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import Annotated

import typer

from servicebroker.cli.completion import DEFAULT_INSTANCE as DEFAULT_INSTANCE
from servicebroker.cli.completion import complete_database, complete_queue


def finite(value: float | None) -> float | None:
    """Refuse a number that is none, as the callback of an option: `nan` is in every range of numbers.

    Raises:
        typer.BadParameter: nan, or an infinite number.
    """
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is no number to wait for")
    return value


HEALTH_VARIABLE = "SERVICEBROKER_HEALTH"  # an empty one is none

InstanceOption = Annotated[
    str,
    typer.Option(
        "--instance",
        envvar="SERVICEBROKER_INSTANCE",
        metavar="PATH_OR_URL",
        help="A data folder (an embedded PostgreSQL lives there) or a postgresql:// URL.",
    ),
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        "-d",
        envvar="SERVICEBROKER_DATABASE",
        metavar="D",
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
        help="The folder of private keys. Default: keys in the data folder, for a URL in the user's own data.",
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
        callback=finite,
        min=0,
        help="Seconds that work in progress gets to finish after SIGTERM; then it is rolled back.",
    ),
]

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_LEAST_SPAN, _MOST_SPAN = timedelta(seconds=10), timedelta(days=366)


def span(text: str) -> timedelta:
    """Return the time of `90s`, `10min`, `1h` or `2d`.

    Raises:
        typer.BadParameter: it is none, or too short or too long.
    """
    found = re.fullmatch(r"(\d{1,8}) ?(s|min|m|h|d)", text.strip())
    if not found:
        raise typer.BadParameter(f"{text!r} is no time: say 10min, 1h or 7d")
    asked = timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    if not _LEAST_SPAN <= asked <= _MOST_SPAN:
        raise typer.BadParameter(f"{text!r} is not from 10s to 366d")
    return asked
