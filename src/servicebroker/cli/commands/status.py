"""`servicebroker status`: the queues of an instance, what connects to it, and what will need attention."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Annotated

import typer

from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, finite, span
from servicebroker.cli.output import say, say_json
from servicebroker.cli.printable_text import blocks
from servicebroker.cli.tables import Listing, Terminal, states
from servicebroker.engine.diagnosis.history import Course, courses
from servicebroker.engine.diagnosis.peer_findings import megabytes, peer_with
from servicebroker.engine.diagnosis.queue_counts import (
    COUNT_LIMIT,
    Backlog,
    ProcessStatus,
    connections,
    is_standby,
    processes,
    queue_statuses,
    refusals,
    transmission_status,
)
from servicebroker.engine.diagnosis.totals import StatementTotal, statement_totals
from servicebroker.engine.remote.unfinished_arrivals import sum_by_peer
from servicebroker.engine.security.certificate_ages import find_used_certificates
from servicebroker.model.wording import about_instance, counted

SERVICES_SHOWN = 3  # of one queue; --json has all
PEERS_SHOWN = 20  # by bytes of incomplete messages, the most first


def status(
    instance: InstanceOption = DEFAULT_INSTANCE,
    statements: Annotated[
        bool,
        typer.Option("--statements", help="Show the statements of all processes instead, the slowest in total first."),
    ] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(
            "--since", metavar="TIME", parser=span, help="Show messages in and out in the last 10min, 1h, 7d instead."
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            callback=finite,
            min=0.1,
            help="Refresh every so many seconds.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every queue: its services, how many messages wait, since when, and its conversations by state."""
    with diagnose(instance, "servicebroker status") as opened:
        while True:
            if statements:
                _show_statements(opened.look("statements", statement_totals(), []), as_json=as_json)
            elif since is not None:
                _show_history(opened.look("the history", courses(opened.clock(), since), {}), as_json=as_json)
            else:
                _show(opened, instance, as_json=as_json)
            is_whole = opened.tell_unseen()
            if watch is None:
                break
            time.sleep(watch)
            if not as_json:
                Terminal().clear()
    if not is_whole:
        raise typer.Exit(1)


def _show(opened: DiagnosedInstance, instance: str, *, as_json: bool) -> None:
    """Show the current state of the instance."""
    now = opened.clock()
    queues = opened.look("queues", queue_statuses(), [])
    waiting = opened.look("the transmission queue", transmission_status(), Backlog(0, None, ""))
    serving = opened.look("processes of the daemon", processes(), [])
    links = opened.look("connections", connections(), [])
    refused = opened.look("refusals", refusals(), [])
    mirrors = opened.look("the role of the server", is_standby(), False)
    unfinished = opened.look("unfinished messages", sum_by_peer(PEERS_SHOWN), [])
    used = opened.look("certificates", find_used_certificates(now), [])
    expiring = [certificate for certificate in used if certificate.is_expiring(now)]
    if as_json:
        told = {
            "is_standby": mirrors,
            "queues": [queue._asdict() for queue in queues],
            "transmission_queue": waiting._asdict(),
            "processes": [process._asdict() for process in serving],
            "connections": [link._asdict() for link in links],
            "refused_connections": [refusal._asdict() for refusal in refused],
            "unfinished_messages": [begun._asdict() for begun in unfinished],
            "expiring_certificates": [certificate._asdict() for certificate in expiring],
            "unseen": [one._asdict() for one in opened.unseen],
        }
        say_json(told)
        return
    table = Listing(
        *("queue", "services", "messages", "oldest", "conversations"), right=(2, 3), title=f"Queues of {instance}"
    )
    for queue in queues:
        table.row(
            f"{queue.database}.{queue.queue}",
            _some(queue.services),
            f"over {COUNT_LIMIT:,}" if queue.messages >= COUNT_LIMIT else f"{queue.messages:,}",
            _age(queue.oldest, now),
            states(queue.conversations),
        )
    if queues:
        Terminal().print(table)
    elif not any(one.subject == "queues" for one in opened.unseen):
        say("No queues yet.")
    if mirrors:
        say("This server is a standby. What connects and what runs is known to its primary only: ask there.")
    if waiting.messages:
        delayed = f"{counted(waiting.delayed, 'is', 'are')} delayed (servicebroker delayed list); "
        say(
            f"{counted(waiting.messages, 'message waits', 'messages wait')} in the transmission queue; "
            f"{delayed if waiting.delayed else ''}the oldest because: {about_instance(waiting.status)}"
        )
    if serving:
        say(f"Served by {counted(len(serving), 'process', 'processes')}: {', '.join(map(_process, serving))}")
    for link in links:
        how = f"certificate {link.principal_name}" if link.principal_name else "no encryption"
        say(f"Connection {'from' if link.is_accept else 'to'} {link.peer}: {link.state}, {how}")
    for refusal in refused:
        why = f"{refusal.number}, the last from {refusal.last_peer}: {refusal.text or 'see servicebroker doctor.'}"
        say(f"{counted(refusal.times, 'connection')} refused with {why}")
    for begun in unfinished:
        say(
            f"Not complete of {peer_with(begun.owner)}: {counted(begun.messages, 'message')} of "
            f"{counted(begun.conversations, 'conversation')}, {megabytes(begun.bytes)} MB, "
            f"the last of it {_age(begun.last_time, now)} ago"
        )
    for old in expiring:
        over = "has expired" if old.expires <= now else "expires"
        where = f" of {old.user} in {old.database}" if old.database else ""
        say(f"Certificate {old.name}{where} {over} on {old.expires:%Y-%m-%d}: servicebroker doctor")


def _process(process: ProcessStatus) -> str:
    memory = [] if process.memory is None else [f"{process.memory >> 20} MB"]
    replaced = [f"replaced {counted(process.replaced, 'time')}"] if process.replaced else []
    return f"{process.process_id} ({', '.join(memory + replaced)})" if memory or replaced else str(process.process_id)


def _show_statements(totals: list[StatementTotal], *, as_json: bool) -> None:
    if as_json:
        say_json({"statements": [total._asdict() for total in totals]})
        return
    if not totals:
        say("No statements yet: a process adds what it has run every half minute.")
        return
    table = Listing("statement", "calls", "seconds", "ms each", right=(1, 2, 3))
    for total in totals:
        milliseconds = total.microseconds / 1000
        table.row(total.name, f"{total.calls:,}", f"{milliseconds / 1000:,.1f}", f"{milliseconds / total.calls:,.3f}")
    Terminal().print(table)


def _show_history(found: dict[tuple[str, str], Course], *, as_json: bool) -> None:
    """Show the history of each queue; in JSON by the names of the metrics."""
    if as_json:
        told = [
            {
                "database": database,
                "queue": queue,
                "since": course.since,
                "seconds": course.width,
                "servicebroker_enqueued_messages_per_second": course.came,
                "servicebroker_dequeued_messages_per_second": course.left,
                "servicebroker_queue_messages": course.depths,
            }
            for (database, queue), course in found.items()
        ]
        say_json({"history": told})
        return
    if not found:
        say("No history yet: a process that has the instance open, or serves it, writes it.")
        return
    table = Listing("queue", "in", "out", "most at once", right=(1, 2, 3))
    table.add_column("in, by time", no_wrap=True)
    for (database, queue), course in found.items():
        came, left = (round(sum(rate or 0.0 for rate in rates) * course.width) for rates in (course.came, course.left))
        most = max((depth for depth in course.depths if depth is not None), default=0)
        name = f"{database}.{queue}" if queue else "on the way"
        table.row(name, f"{came:,}", f"{left:,}", f"{most:,}", blocks(course.came))
    Terminal().print(table)


def _some(services: list[str]) -> list[str]:
    """Return the first services, and how many more there are."""
    more = len(services) - SERVICES_SHOWN
    return services if more <= 1 else [*services[:SERVICES_SHOWN], f"and {more:,} more"]


def _age(since: datetime | None, now: datetime) -> str:
    """Return the time since then, in the largest unit that fits."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
