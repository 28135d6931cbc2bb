"""Findings about the PostgreSQL server: failures, settings, standbys, disk, log, and publications."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from servicebroker.engine.diagnosis.fact_types import TIMEOUTS, Facts, HostFacts
from servicebroker.engine.diagnosis.findings import Finding, Severity, duration
from servicebroker.engine.diagnosis.peer_findings import judge_certificates
from servicebroker.engine.diagnosis.publications import BlockingPublication
from servicebroker.engine.security.certificate_ages import UsedCertificate
from servicebroker.model.security.certificates import Facts as CertificateFacts
from servicebroker.model.wording import counted

ENOUGH_DISK_BYTES = 2**30  # free bytes of a disk; on a small disk a twentieth of its size is enough
STANDBY_WAIT = timedelta(seconds=5)  # a commit that waits longer for its standby is reported
SHORT_TIMEOUT_MS = 1_000  # ms; a timeout up to this may interrupt a verb
_NO_CONNECTION = ("too many clients", "remaining connection slots", "too many connections")
# errors of a running server that refuses the connection of a wrong URL
_NO_ENTRANCE = re.compile(
    r"pg_hba\.conf|authentication failed|no password supplied|not permitted to log in"
    r'|(role|database) ".*" does not exist|permission denied for database'
)


def judge_down(problem: str, certificates: Sequence[CertificateFacts], now: datetime) -> list[Finding]:
    """Return findings while the database cannot be reached: the failure, and problems found in files."""
    problem_text = f"It is down, so doctor can check little: {problem}"
    advice = "Start the server; waiting work then continues by itself. Run doctor again."
    if any(words in problem for words in _NO_CONNECTION):
        problem_text = f"No connection is left, so doctor can check little: {problem}"
        advice = "End sessions that nobody needs, or raise max_connections (ALTER ROLE ... CONNECTION LIMIT)."
    elif _NO_ENTRANCE.search(problem):
        problem_text = f"It is up, but refuses this connection, so doctor can check little: {problem}"
        advice = "Correct the role, the password or the database in the URL, or let the role in by pg_hba.conf."
    findings = [Finding("PostgreSQL", problem_text, advice)]
    own = [UsedCertificate("", "", certificate.subject, True, certificate.expiry_date) for certificate in certificates]
    return [*findings, *judge_certificates(own, now)]


def judge_disk(folder: str, free: int, size: int) -> list[Finding]:
    """Report a data folder's disk with too little free space, in bytes: on a full disk, nothing can be stored."""
    if free >= min(size // 20, ENOUGH_DISK_BYTES):
        return []
    problem = f"Its disk is full but for {free // 2**20} MB."
    return [
        Finding(
            f"folder {folder}", problem, "Free space, or move the folder to a larger disk. Waiting work then goes on."
        )
    ]


def judge_hosts(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Report that several servers of a URL accept writes (split brain): an old primary still runs."""
    writable = sorted((host for host in hosts if not host.is_standby), key=lambda host: host.timeline)
    if len(writable) < 2:
        return []
    host_list = ", ".join(f"{host.host} on timeline {host.timeline}" for host in writable)
    if len({host.system for host in writable}) > 1:
        return [
            Finding(
                "PostgreSQL",
                f"The hosts of the URL are servers of different clusters, and each accepts writes: {host_list}.",
                "Name only one cluster in the URL: now each connection uses an arbitrary one of them.",
            )
        ]
    newest = writable[-1]
    return [
        Finding(
            "PostgreSQL",
            f"Several servers of the URL accept writes: {host_list}. Changes on a lower timeline will be lost.",
            f"Stop every one but {newest.host}, before anything else; then make it a standby of {newest.host} "
            "(pg_basebackup or pg_rewind). End no conversation before.",
        )
    ]


def judge_refused(problem: str) -> list[Finding]:
    """Report why no application can open the instance although PostgreSQL answers; none if `problem` is empty."""
    advice = "Until that is repaired, no application can open the instance."
    return [Finding("PostgreSQL", problem, advice)] if problem else []


def judge_log(path: str, written: str) -> Finding:
    """Report that the log of an embedded server is not at its path; `written` is the file that the server writes."""
    old_log = f" Until then {written} has it." if written else ""
    return Finding(
        "PostgreSQL",
        f"Its log '{path}' was deleted or moved while the server runs: new messages of the server are not in it.",
        f"End all processes that have the instance open, and start them again: the server begins a new log.{old_log}",
    )


def judge_timeouts(settings: Mapping[str, int]) -> list[Finding]:
    """Report timeouts of the role (in ms) that may interrupt applications. Sessions of the broker have none."""
    return [
        Finding(
            "PostgreSQL",
            f"{name} is {settings[name]} ms for this role: verbs and transactions that take longer are cancelled.",
            f"Raise or remove it: ALTER ROLE ... RESET {name}, in the server's settings, or in the URL.",
            Severity.WARNING,
        )
        for name in TIMEOUTS
        if 0 < settings.get(name, 0) <= SHORT_TIMEOUT_MS
    ]


def judge_settings(facts: Facts) -> Iterator[Finding]:
    """Report settings that can lose messages or make verbs fail, and a server that is a standby."""
    for name, loss in (
        ("fsync", "a crash of the machine can destroy the database"),
        ("full_page_writes", "a crash of the machine can destroy the database"),
        ("synchronous_commit", "a crash loses commits that were already answered, and messages with them"),
    ):
        if facts.settings.get(name) == "off":
            yield Finding("PostgreSQL", f"{name} is off: {loss}.", f"Set {name} = on, and reload the server.")
    if facts.settings.get("default_transaction_read_only") == "on":
        yield Finding(
            "PostgreSQL",
            "Transactions are read only (default_transaction_read_only is on): SEND and RECEIVE are refused.",
            "A managed server sets that when its disk is nearly full: make room there. Else: ALTER DATABASE ... SET "
            "default_transaction_read_only = off.",
        )
    if facts.in_recovery:
        yield Finding(
            "PostgreSQL", "The server is a standby: nothing can be sent or received.", "Connect to the primary."
        )


def judge_commits(facts: Facts) -> Iterator[Finding]:
    """Report that commits wait for a synchronous standby, so that SEND and RECEIVE do not return."""
    commits = facts.commits
    if not commits.standby_names or facts.in_recovery:
        return
    waits = commits.since is not None and facts.now - commits.since > STANDBY_WAIT
    is_missing = not commits.has_standby and commits.synchronous_commit not in ("off", "local")
    if not waits and not is_missing:
        return
    standby_state = "does not confirm them" if commits.has_standby else "is not connected"
    since = ""
    if commits.since is not None:
        sessions = counted(commits.waiting, "session waits", "sessions wait")
        since = f"; {sessions}, the first for {duration(facts.now - commits.since)}"
    yield Finding(
        "PostgreSQL",
        f"Commits wait for a synchronous standby ({commits.standby_names}), which {standby_state}{since}. No "
        "verb returns.",
        "Bring that standby back: waiting commits then return, and nothing is lost. End no waiting session. If it "
        "is lost for good: ALTER SYSTEM SET synchronous_standby_names = '' and reload; commits from then on "
        "may be lost with this server.",
    )


def judge_publications(publications: Iterable[BlockingPublication]) -> Iterator[Finding]:
    """Report publications for which PostgreSQL refuses to change rows of the broker."""
    for publication in publications:
        yield _publication_finding(publication)


def _publication_finding(publication: BlockingPublication) -> Finding:
    more = ", ..." if publication.table_count > 3 else ""
    tables = f"{counted(publication.table_count, 'table')} ({publication.tables}{more})"
    problem, advice = {
        "identity": (
            f"It publishes updates and deletes of {tables} without a replica identity",
            "Give each a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL; or publish other tables only.",
        ),
        "columns": (
            f"Its columns leave out some of the replica identity of {tables}",
            "ALTER PUBLICATION ... SET TABLE with all columns of the replica identity.",
        ),
        "filter": (
            f"Its condition asks for columns outside of the replica identity of {tables}",
            "ALTER PUBLICATION ... SET (publish = 'insert'), or ALTER TABLE ... REPLICA IDENTITY FULL.",
        ),
    }[publication.reason]
    return Finding(
        f"publication {publication.name}",
        f"{problem}: PostgreSQL refuses to update and delete their rows.",
        advice,
    )
