"""Brokers that have signed with a certificate of this database: their capabilities, and clocks that are ahead.

`broker/dialog_security.py` demands a known protecting capability from then on. Dropping the certificate forgets its
brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MOST_OF_CERTIFICATE = 1_000  # brokers; the holder of one key can claim to be any number of them


class KnownBroker(NamedTuple):
    """A broker that has signed.

    `capabilities` are those it has announced. `ahead_until` is the latest time that its clock showed when it was
    further ahead of ours than clocks may differ, in seconds since 1970.
    """

    capabilities: frozenset[str] = frozenset()
    ahead_until: int = 0


def find_broker(certificate_id: int, broker: UUID) -> Steps[KnownBroker]:
    """Return the known facts of a broker that signs with this certificate."""
    rows = yield SQL("find_broker", (certificate_id, broker))
    return KnownBroker(frozenset(rows[0][0]), rows[0][1]) if rows else KnownBroker()


def save_broker(certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> Statement:
    """Add to the known facts of a broker, unless the certificate has been dropped meanwhile."""
    return SQL("save_broker", (certificate_id, broker, list(capabilities), ahead_until, MOST_OF_CERTIFICATE))
