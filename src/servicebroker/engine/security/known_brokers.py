"""What is known of the brokers that have signed by a certificate of this database: capabilities, and a clock ahead.

`broker/dialog_security.py` asks for a capability that protects from then on. Whoever drops the certificate forgets what
is known by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MOST_OF_CERTIFICATE = 1_000  # brokers: whoever has the key can say of itself to be any number of them


class KnownBroker(NamedTuple):
    """A broker that has signed.

    `capabilities` are what it has told. `ahead_until` is the latest time that its clock showed when that was further
    ahead of ours than clocks may differ, in seconds since 1970.
    """

    capabilities: frozenset[str] = frozenset()
    ahead_until: int = 0


def find_broker(certificate_id: int, broker: UUID) -> Steps[KnownBroker]:
    """What is known of a broker that signs by this certificate."""
    rows = yield SQL("find_broker", (certificate_id, broker))
    return KnownBroker(frozenset(rows[0][0]), rows[0][1]) if rows else KnownBroker()


def save_broker(certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> Statement:
    """Add to what is known of a broker, unless the certificate has been dropped meanwhile."""
    return SQL("save_broker", (certificate_id, broker, list(capabilities), ahead_until, MOST_OF_CERTIFICATE))
