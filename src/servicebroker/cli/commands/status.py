"""`servicebroker status`: the queues of an instance, what connects to it, and what will need attention."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Annotated

import typer

from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, parse_duration, require_finite
from servicebroker.cli.output import say, say_json
from servicebroker.cli.printable_text import blocks
from servicebroker.cli.tables import Listing, Terminal, state, states
from servicebroker.engine.diagnosis.history import RateHistory, queue_histories
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
from servicebroker.engine.diagnosis.tds_clients import TdsServerStatus, tds_servers
from servicebroker.engine.diagnosis.totals import StatementTotal, statement_totals
from servicebroker.engine.remote.unfinished_arrivals import sum_by_peer
from servicebroker.engine.security.certificate_ages import find_used_certificates
from servicebroker.model.hidden_passwords import without_password
from servicebroker.model.wording import about_instance, counted

SERVICES_SHOWN = 3  # the most services shown for one queue; --json has all
PEERS_SHOWN = 20  # the peers with the most bytes of incomplete messages


def status(
    instance: InstanceOption = DEFAULT_INSTANCE,
    statements: Annotated[
        bool,
        typer.Option("--statements", help="Instead of queues show the SQL statements of all processes, by total time."),
    ] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=parse_duration,
            help="Instead of queues show message rates of the last TIME, such as 10min, 1h or 7d.",
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            callback=require_finite,
            min=0.1,
            help="Refresh after this many seconds, until Ctrl-C.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every queue: whether it is ON, its messages and dead letters, and its conversations by state."""
    with diagnose(instance, "servicebroker status") as opened:
        while True:
            if statements:
                _show_statements(opened.query("statements", statement_totals(), []), as_json=as_json)
            elif since is not None:
                _show_history(opened.query("the history", queue_histories(opened.clock(), since), {}), as_json=as_json)
            else:
                _show(opened, instance, as_json=as_json)
            is_complete = opened.report_failed_queries()
            if watch is None:
                break
            time.sleep(watch)
            if not as_json:
                Terminal().clear()
    if not is_complete:
        raise typer.Exit(1)


def _show(opened: DiagnosedInstance, instance: str, *, as_json: bool) -> None:
    """Show the current state of the instance."""
    now = opened.clock()
    queues = opened.query("queues", queue_statuses(), [])
    waiting = opened.query("the transmission queue", transmission_status(), Backlog(0, None, ""))
    serving = opened.query("processes of the daemon", processes(), [])
    links = opened.query("connections", connections(), [])
    refused = opened.query("refusals", refusals(), [])
    on_standby = opened.query("the role of the server", is_standby(), False)
    unfinished = opened.query("unfinished messages", sum_by_peer(PEERS_SHOWN), [])
    used = opened.query("certificates", find_used_certificates(now), [])
    clients = opened.query("SQL Server's clients", tds_servers(), [])
    expiring = [certificate for certificate in used if certificate.is_expiring(now)]
    if as_json:
        document = {
            "is_standby": on_standby,
            "queues": [queue._asdict() | {"limits": queue.limits and queue.limits.as_json()} for queue in queues],
            "transmission_queue": waiting._asdict(),
            "processes": [process._asdict() for process in serving],
            "connections": [link._asdict() for link in links],
            "tds_servers": [server._asdict() for server in clients],
            "refused_connections": [refusal._asdict() for refusal in refused],
            "unfinished_messages": [of_peer._asdict() for of_peer in unfinished],
            "expiring_certificates": [certificate._asdict() for certificate in expiring],
            "unseen": [failure._asdict() for failure in opened.failed_queries],
        }
        say_json(document)
        return
    table = Listing(
        *("queue", "state", "services", "messages", "oldest", "dead letters", "conversations"),
        right=(3, 4, 5),
        title=f"Queues of {without_password(instance)}",
    )
    for queue in queues:
        table.row(
            f"{queue.database}.{queue.queue}",
            state("ON" if queue.is_on else "OFF"),
            _shorten_services(queue.services),
            _amount(queue.messages),
            _age(queue.oldest, now),
            state(_amount(queue.dead_letters), "warning") if queue.dead_letters else "",
            states(queue.conversations),
        )
    if queues:
        Terminal().print(table)
    elif not any(failure.subject == "queues" for failure in opened.failed_queries):
        say("No queues yet.")
    for queue in queues:
        if queue.limits is not None:
            say(f"Limits of all workers of {queue.database}.{queue.queue}: {queue.limits.describe(now)}")
    if on_standby:
        say("This server is a standby. Only its primary knows connections and processes: run status there.")
    if waiting.messages:
        delayed = f"{counted(waiting.delayed, 'is', 'are')} delayed (servicebroker delayed list); "
        say(
            f"{counted(waiting.messages, 'message waits', 'messages wait')} in the transmission queue; "
            f"{delayed if waiting.delayed else ''}reason of the oldest: {about_instance(waiting.status)}"
        )
    if serving:
        say(f"Served by {counted(len(serving), 'process', 'processes')}: {', '.join(map(_process, serving))}")
    for link in links:
        security = f"certificate {link.principal_name}" if link.principal_name else "no encryption"
        say(f"Connection {'from' if link.is_accept else 'to'} {link.peer}: {link.state}, {security}")
    for server in clients:
        say(_clients(server))
    for refusal in refused:
        why = f"{refusal.number}, the last from {refusal.last_peer}: {refusal.text or 'see servicebroker doctor.'}"
        say(f"{counted(refusal.times, 'connection')} refused with {why}")
    for of_peer in unfinished:
        say(
            f"Incomplete messages from {peer_with(of_peer.owner)}: {of_peer.messages:,} in "
            f"{counted(of_peer.conversations, 'conversation')}, {megabytes(of_peer.bytes)} MB, "
            f"the last part {_age(of_peer.last_time, now)} ago"
        )
    for certificate in expiring:
        expires = "has expired" if certificate.expires <= now else "expires"
        owner = f" of {certificate.user} in {certificate.database}" if certificate.database else ""
        say(
            f"Certificate {certificate.name}{owner} {expires} on {certificate.expires:%Y-%m-%d}: "
            "see servicebroker doctor."
        )


def _clients(server: TdsServerStatus) -> str:
    idle = server.clients - server.sessions
    more = f", {counted(idle, 'is idle and holds', 'are idle and hold')} no session of PostgreSQL" if idle else ""
    return f"SQL Server's clients at {server.address}: {counted(server.clients, 'is', 'are')} connected{more}"


def _process(process: ProcessStatus) -> str:
    """Return a process of the daemon in words: its id, memory, and how often it was replaced."""
    memory = [] if process.memory is None else [f"{process.memory >> 20} MB"]
    replaced = [f"replaced {counted(process.replaced, 'time')}"] if process.replaced else []
    return f"{process.process_id} ({', '.join(memory + replaced)})" if memory or replaced else str(process.process_id)


def _show_statements(totals: list[StatementTotal], *, as_json: bool) -> None:
    if as_json:
        say_json({"statements": [total._asdict() for total in totals]})
        return
    if not totals:
        say("No statements yet: each process reports its totals every 30 s.")
        return
    table = Listing("statement", "calls", "seconds", "ms each", right=(1, 2, 3))
    for total in totals:
        milliseconds = total.microseconds / 1000
        table.row(total.name, f"{total.calls:,}", f"{milliseconds / 1000:,.1f}", f"{milliseconds / total.calls:,.3f}")
    Terminal().print(table)


def _show_history(histories: dict[tuple[str, str], RateHistory], *, as_json: bool) -> None:
    """Show the history of each queue, by (database, queue). JSON uses the names of the metrics.

    The queue '' is the transmission queue.
    """
    if as_json:
        rows = [
            {
                "database": database,
                "queue": queue,
                "since": history.since,
                "seconds": history.part_s,
                "servicebroker_enqueued_messages_per_second": history.rates_in,
                "servicebroker_dequeued_messages_per_second": history.rates_out,
                "servicebroker_queue_messages": history.depths,
            }
            for (database, queue), history in histories.items()
        ]
        say_json({"history": rows})
        return
    if not histories:
        say("No history yet: applications and the daemon write it while they have the instance open.")
        return
    table = Listing("queue", "in", "out", "peak depth", right=(1, 2, 3))
    table.add_column("in, by time", no_wrap=True)
    for (database, queue), history in histories.items():
        added, removed = (
            round(sum(rate or 0.0 for rate in rates) * history.part_s)
            for rates in (history.rates_in, history.rates_out)
        )
        peak = max((depth for depth in history.depths if depth is not None), default=0)
        name = f"{database}.{queue}" if queue else "(transmission queue)"
        table.row(name, f"{added:,}", f"{removed:,}", f"{peak:,}", blocks(history.rates_in))
    Terminal().print(table)


def _amount(count: int) -> str:
    """Return a count in words that stops at COUNT_LIMIT."""
    return f"over {COUNT_LIMIT:,}" if count >= COUNT_LIMIT else f"{count:,}"


def _shorten_services(services: list[str]) -> list[str]:
    """Return the first services, and the number of the others."""
    more = len(services) - SERVICES_SHOWN
    return services if more <= 1 else [*services[:SERVICES_SHOWN], f"and {more:,} more"]


def _age(since: datetime | None, now: datetime) -> str:
    """Return how long ago `since` was, in the largest unit that fits; '' for None."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
