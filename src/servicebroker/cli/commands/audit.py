"""`servicebroker audit`: the audit log of definitions and of actions of operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, parse_duration
from servicebroker.cli.output import say, say_json
from servicebroker.engine.diagnosis.audit import AuditRecord, find_records
from servicebroker.store.running import run


def audit(
    instance: InstanceOption = DEFAULT_INSTANCE,
    since: Annotated[
        timedelta | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=parse_duration,
            help="Only entries of the last TIME, such as 10min, 1h or 7d.",
        ),
    ] = None,
    who: Annotated[
        str, typer.Option(metavar="TEXT", help="Only entries whose role or principal has a name with this text.")
    ] = "",
    text: Annotated[
        str, typer.Option(metavar="TEXT", help="Only entries whose action, database, object or changes have this text.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="The maximum number of entries to show.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the audit log: definitions and actions of operators, the latest first."""
    with open_existing(instance) as opened, opened.connection() as connection:
        after = None if since is None else opened.clock() - since
        entries = run(connection, find_records(after, who, text, top))
    if as_json:
        say_json({"audit": [entry._asdict() for entry in entries]})
        return
    for entry in entries:
        say(*entry_lines(entry))
    if not entries:
        say("The audit log has no such entry.")


def entry_lines(entry: AuditRecord) -> list[str]:
    """Return an entry as a line, and a second one with its changes, if there are any."""
    database = f" in {entry.database}" if entry.database else ""
    user = f"{entry.principal} ({entry.role})" if entry.principal and entry.principal != entry.role else entry.role
    client = ", ".join(filter(None, (entry.client_kind or "not by servicebroker", entry.program, entry.address)))
    changes = list_changes(entry)
    first = f"{entry.at:%Y-%m-%d %H:%M:%S} UTC {user}: {entry.act} {entry.subject}{database} [{client}]"
    return [first, f"    {'; '.join(changes)}"] if changes else [first]


def list_changes(entry: AuditRecord) -> list[str]:
    """Return a text for each changed property of the object, without internal numbers and the creation date."""
    before, after = entry.before or {}, entry.after or {}
    names = [name for name in {**before, **after} if not name.endswith("_id") and name != "create_date"]
    if entry.before is None or entry.after is None:  # created or dropped
        return [f"{name} {_format((entry.after or before)[name])}" for name in names]
    return [f"{name} {_format(before.get(name))} -> {_format(after.get(name))}" for name in names]


def _format(value: object) -> str:
    return "nothing" if value is None else "on" if value is True else "off" if value is False else str(value)
