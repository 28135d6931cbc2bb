"""`servicebroker audit`: who has defined what, and what operators have done."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, span
from servicebroker.cli.output import say, say_json
from servicebroker.engine.diagnosis.audit import AuditRecord, find_records
from servicebroker.store.running import run


def audit(
    instance: InstanceOption = DEFAULT_INSTANCE,
    since: Annotated[
        timedelta | None,
        typer.Option("--since", metavar="TIME", parser=span, help="Only acts since that long ago: 10min, 1h, 7d."),
    ] = None,
    who: Annotated[
        str, typer.Option(metavar="TEXT", help="Only acts of a role or principal whose name contains this.")
    ] = "",
    text: Annotated[
        str, typer.Option(metavar="TEXT", help="Only acts whose text, database, object or changes contain this.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="The maximum number of acts to show.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the audit log: definitions and actions of operators, the latest first."""
    with open_existing(instance) as opened, opened.connection() as connection:
        after = None if since is None else opened.clock() - since
        found = run(connection, find_records(after, who, text, top))
    if as_json:
        say_json({"audit": [act._asdict() for act in found]})
        return
    for act in found:
        say(*told(act))
    if not found:
        say("The audit log has no such entry.")


def told(act: AuditRecord) -> list[str]:
    """Return an act in one or two lines."""
    where = f" in {act.database}" if act.database else ""
    by = f"{act.principal} ({act.role})" if act.principal and act.principal != act.role else act.role
    how = ", ".join(part for part in (act.client_kind or "not by servicebroker", act.program, act.address) if part)
    changes = changed(act)
    first = f"{act.at:%Y-%m-%d %H:%M:%S} UTC {by}: {act.act} {act.subject}{where} [{how}]"
    return [first, f"    {'; '.join(changes)}"] if changes else [first]


def changed(act: AuditRecord) -> list[str]:
    """Return a text for each change of an act; internal numbers are left out."""
    before, after = act.before or {}, act.after or {}
    shown = [name for name in {**before, **after} if not name.endswith("_id") and name != "create_date"]
    if act.before is None or act.after is None:
        return [f"{name} {_value((act.after or before)[name])}" for name in shown]
    return [f"{name} {_value(before.get(name))} -> {_value(after.get(name))}" for name in shown]


def _value(value: object) -> str:
    return "nothing" if value is None else "on" if value is True else "off" if value is False else str(value)
