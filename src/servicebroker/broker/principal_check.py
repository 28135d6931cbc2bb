"""The check that the server behind a daemon is the principal: a commit proves it (decision 105)."""

from __future__ import annotations

import logging
import threading
from typing import Any

import psycopg

from servicebroker.broker.self_report import SelfReport
from servicebroker.broker.sharing.takeover import Challenges, Event
from servicebroker.broker.transport.sockets import Network
from servicebroker.engine.remote.mirrored_pairs import read_role, write_proof
from servicebroker.model.daemon_reports import Subject
from servicebroker.protocol.mirroring import KnownTimeline, Role
from servicebroker.store.running import run

COMMIT_TIMEOUT_S = 5.0  # seconds that a commit may wait for the synchronous standby before that is reported

NOT_SYNCHRONOUS = (
    "A peer sends to this instance by a mirrored route, and no commit here waits for a synchronous standby "
    "(synchronous_standby_names, synchronous_commit): what is acknowledged may be lost with this server."
)

_log = logging.getLogger("servicebroker.broker")


class PrincipalCheck:
    """Sets the role for peers: this server is the principal after a commit, as long as commits succeed."""

    def __init__(self, network: Network, reports: SelfReport) -> None:
        self._network = network
        self._reports = reports
        self._challenges = Challenges()

    def attempt(self, connection: psycopg.Connection[Any]) -> Event:
        """Wait for a commit, and for the synchronous standby if there is one. Returns the result."""
        role_report = run(connection, read_role())
        if role_report.role is Role.MIRROR:
            return Event.MIRROR
        problem = self._challenges.objection(role_report) or self._commit(connection)
        self._tell(Subject.PRINCIPAL, problem)
        if problem:
            return Event.UNPROVED
        self._challenges.refute()
        self._network.announce_role(role_report)
        return Event.PROVED

    def report(self, connection: psycopg.Connection[Any]) -> None:
        """Report to doctor why this server is not the principal."""
        self._reports.write(connection, anew=True)  # its table is unlogged: no commit waits for the standby

    def renew(self, connection: psycopg.Connection[Any]) -> None:
        """Announce the role again after a successful commit. This server may have been promoted meanwhile."""
        role_report = run(connection, read_role())
        self._network.announce_role(role_report)
        is_unguarded = self._network.was_asked and not role_report.is_synchronous
        self._tell(Subject.MIRROR, NOT_SYNCHRONOUS if is_unguarded else "")

    def challenge(self, known: KnownTimeline) -> None:
        """Handle the report of a peer that it knows a higher timeline of this cluster.

        Raises:
            InstanceError: this server must prove again that it is the principal.
        """
        self._challenges.take(known)

    def _commit(self, connection: psycopg.Connection[Any]) -> str:
        """Wait for a commit. Returns why this server is not the principal, or ''."""
        given_up: list[bool] = []

        def notice(diagnostic: psycopg.errors.Diagnostic) -> None:
            given_up.append(diagnostic.source_function == "SyncRepWaitForLSN")

        connection.add_notice_handler(notice)
        impatient = threading.Timer(COMMIT_TIMEOUT_S, connection.cancel_safe)
        impatient.start()
        try:
            run(connection, write_proof())
        finally:
            impatient.cancel()
            connection.remove_notice_handler(notice)
        if any(given_up):
            return (
                "The synchronous standby does not confirm what is committed here, so this server is not the principal; "
                "it takes and sends no messages until the standby is back."
            )
        return ""

    def _tell(self, subject: Subject, problem: str) -> None:
        """Log a problem once, and report it as long as it lasts."""
        if self._reports.tell(subject, problem) and problem:
            _log.warning("%s", problem)
