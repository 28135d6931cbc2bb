"""The subjects of which a daemon tells, and what a person does about a trouble with each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Subject(StrEnum):
    """What a report of the daemon is about."""

    LISTENS = "listens"  # at an address: no trouble
    ENDPOINT = "endpoint"
    PRINCIPAL = "principal"
    MIRROR = "mirror"


TROUBLE_REMEDIES: Mapping[Subject, str] = {
    Subject.ENDPOINT: "See who uses the port (ss -ltnp), and free it; or give the endpoint another one: ALTER ENDPOINT "
    "... AS TCP (LISTENER_PORT = ...), or the option --listen of servicebroker serve.",
    Subject.PRINCIPAL: "See which server of the cluster is the primary. Make the other one its standby, or mend the "
    "standby; end no conversation before.",
    Subject.MIRROR: "Set synchronous_standby_names on this server, and synchronous_commit to on.",
}
