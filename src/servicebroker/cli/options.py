"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_INSTANCE = "servicebroker-data"

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
    typer.Option("--database", "-d", envvar="SERVICEBROKER_DATABASE", metavar="D", help="The broker database."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
KeysOption = Annotated[
    str | None,
    typer.Option(
        "--keys",
        envvar="SERVICEBROKER_KEYS",
        metavar="DIR",
        help="Where the private keys are. Default: keys in the data folder, for a URL in the user's own data.",
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        min=0,
        help="What work in progress has at SIGTERM; what goes on then is undone.",
    ),
]
