"""Reports of the daemon about itself: their subjects, and advice for those about problems."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class Subject(StrEnum):
    """The subject of a report of the daemon."""

    LISTENS = "listens"  # its address: no problem
    VERSION = "version"  # no problem
    ENDPOINT = "endpoint"
    PRINCIPAL = "principal"
    MIRROR = "mirror"


class DaemonReport(NamedTuple):
    """One row of servicebroker.daemon_reports, without its pid: the report on a subject, and its time."""

    subject: str
    report: str
    since: datetime


TROUBLE_REMEDIES: Mapping[str, str] = {  # subject -> advice, for subjects that mean a problem
    Subject.ENDPOINT: "See who uses the port (ss -ltnp), and free it; or give the endpoint another one: ALTER ENDPOINT "
    "... AS TCP (LISTENER_PORT = ...), or the option --listen of servicebroker serve.",
    Subject.PRINCIPAL: "See which server of the cluster is the primary. Make the other one its standby, or mend the "
    "standby; end no conversation before.",
    Subject.MIRROR: "Set synchronous_standby_names on this server, and synchronous_commit to on.",
}
