"""Brokers that have signed messages with a certificate of this database: their capabilities and clock errors.

If a broker has once announced a capability that protects messages, `broker/dialog_security.py` requires it from then
on. DROP CERTIFICATE also deletes the certificate's brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_OF_CERTIFICATE = 1_000  # brokers; the holder of one key can claim to be any number of them


class KnownBroker(NamedTuple):
    """The known facts of a broker.

    Attributes:
        capabilities: the capabilities that it has announced.
        ahead_until: the latest time of its clock, in seconds since 1970, at which that clock was too far ahead of this
            server's; 0 if never.
    """

    capabilities: frozenset[str] = frozenset()
    ahead_until: int = 0


def find_broker(certificate_id: int, broker: UUID) -> Steps[KnownBroker]:
    """Return the known facts of a broker that signs with this certificate."""
    rows = yield SQL("find_broker", (certificate_id, broker))
    return KnownBroker(frozenset(rows[0][0]), rows[0][1]) if rows else KnownBroker()


def save_broker(certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> Statement:
    """Add to the known facts of a broker, unless the certificate has been dropped meanwhile."""
    return SQL("save_broker", (certificate_id, broker, list(capabilities), ahead_until, MAX_OF_CERTIFICATE))
