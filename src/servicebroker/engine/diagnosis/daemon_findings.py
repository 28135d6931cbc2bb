"""Findings about the serving daemon: its version, its processes, clocks, and its network endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from servicebroker.engine.diagnosis.fact_types import LONG_WAIT, REFUSAL_AGE, DaemonFacts, Facts
from servicebroker.engine.diagnosis.findings import (
    REPEATED_TIMES,
    UNEXPLAINED_WAIT,
    Finding,
    Severity,
    duration,
    end_session,
)
from servicebroker.engine.diagnosis.queue_counts import ProcessStatus
from servicebroker.engine.diagnosis.wrong_clocks import WrongClock
from servicebroker.model.daemon_reports import TROUBLE_REMEDIES, DaemonReport, Subject
from servicebroker.model.security.peers import WITHOUT_PROOF
from servicebroker.model.wording import counted


def judge_daemon_version(reports: Iterable[DaemonReport], version: str) -> list[Finding]:
    """Report a serving daemon of another version than this one, if the daemon reports its version."""
    return [
        Finding(
            "servicebroker serve",
            f"It is {entry.report}, and this is {version}.",
            "Restart it with the installed version, or run servicebroker doctor of its version.",
            Severity.WARNING,
        )
        for entry in reports
        if entry.subject == Subject.VERSION and entry.report != version
    ]


def judge_daemon(daemon: DaemonFacts | None, now: datetime) -> Iterator[Finding]:
    """Report problems that the daemon has recorded, and a stuck daemon: one without a query for several seconds."""
    for report in daemon.reports if daemon is not None else ():
        if report.subject in TROUBLE_REMEDIES:
            problem = f"{report.report} So it is since {report.since:%Y-%m-%d %H:%M:%S} UTC."
            yield Finding("servicebroker serve", problem, TROUBLE_REMEDIES[report.subject])
    if daemon is None or daemon.since is None or now - daemon.since <= UNEXPLAINED_WAIT:
        return
    if daemon.awaits_standby:  # `judge_commits` reports it, and another daemon would wait, too
        return
    long = duration(now - daemon.since)
    problem = f"has waited in one statement for {long}" if daemon.state == "active" else f"has done nothing for {long}"
    yield Finding(
        "servicebroker serve",
        f"The process that serves the instance (session {daemon.pid}) {problem}: messages from and to peers wait.",
        "Check whether it or its machine hangs; end it and start it again. Another waiting daemon takes over "
        f"after select pg_terminate_backend({daemon.pid}).",
        acts=(end_session(daemon.pid),),
    )


def judge_replaced(processes: Sequence[ProcessStatus], now: datetime) -> Iterator[Finding]:
    """Report processes of the daemon that were killed and replaced repeatedly."""
    for process in processes:
        if (
            process.replaced >= REPEATED_TIMES
            and process.last_time is not None
            and now - process.last_time < REFUSAL_AGE
        ):
            yield Finding(
                "servicebroker serve",
                f"Process {process.number} of {len(processes)} was replaced {counted(process.replaced, 'time')}, "
                f"lately {process.last_time:%Y-%m-%d %H:%M:%S} UTC: it {process.ending}.",
                "Find out what kills it: the system if memory is short (see its log), or a limit of the service.",
            )


def judge_network(facts: Facts) -> Iterator[Finding]:
    """Report problems that keep messages from other instances, or let unknown peers send some."""
    if facts.is_public:
        yield Finding(
            "endpoint",
            "CONNECT is granted to public: anybody may connect with a self-signed certificate.",
            "Import the certificates of the peers, then REVOKE CONNECT ON ENDPOINT::... FROM PUBLIC.",
            Severity.WARNING,
        )
    if facts.membership is not None and facts.membership.account is None:
        yield Finding(
            "domain",
            f"AUTHENTICATION of the endpoint is WINDOWS, and this is in no domain: {facts.membership.problem}",
            "Join a domain (servicebroker domain join), or set AUTHENTICATION = CERTIFICATE.",
        )
    if facts.endpoint == "STARTED" and facts.encryption in ("DISABLED", "SUPPORTED"):
        yield Finding(
            "network",
            WITHOUT_PROOF.format(facts.encryption),
            "ALTER ENDPOINT ... ENCRYPTION = REQUIRED, with certificates; or dialog security for the conversations.",
            Severity.WARNING,
        )
    if not facts.remote_routes:
        return
    if facts.daemon is None:
        yield Finding(
            "network",
            f"{facts.remote_routes} routes lead to other instances, and no servicebroker serve runs here.",
            "Start servicebroker serve.",
        )
    listens = facts.daemon is not None and any(entry.subject == Subject.LISTENS for entry in facts.daemon.reports)
    if facts.endpoint is None and not listens:
        yield Finding(
            "network",
            "Routes lead to other instances, and there is no endpoint: no answer can come in.",
            "CREATE ENDPOINT, or servicebroker serve --listen.",
        )
    elif facts.endpoint not in (None, "STARTED"):
        yield Finding("network", f"The endpoint is {facts.endpoint}.", "ALTER ENDPOINT ... STATE = STARTED.")


def judge_clocks(clocks: Iterable[WrongClock], now: datetime) -> Iterator[Finding]:
    """Report clocks that were wrong within the last minute."""
    for clock in clocks:
        if abs(now - clock.last) < LONG_WAIT:
            yield _clock(clock)


def _clock(clock: WrongClock) -> Finding:
    """Report a wrong clock. The broker uses the server's clock only, but logs have times of the wrong one."""
    where = f"machine {clock.host}" if clock.host else "machine of the PostgreSQL server"
    off = f"{abs(clock.seconds_ahead):,} s {'ahead of' if clock.seconds_ahead > 0 else 'behind'}"
    return Finding(
        where,
        f"The clock of {clock.program} there is {off} that of the PostgreSQL server, whose time the broker uses.",
        "Set the clock that is wrong.",
        Severity.WARNING,
    )
