"""Mirrored pairs: pairs of servers (primary and standby) to which mirrored routes lead.

A route with MIRROR_ADDRESS names two servers. The broker sends to the primary ("principal" in Service Broker's words),
and must not believe a former primary. So the highest timeline of each pair is stored, with the primary's signature.

Also reads the role of this server, which may belong to a pair itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address, Elsewhere, parse_address
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_COLUMNS = "address, mirror_address, principal, system, timeline, evidence, explanation"
_HAS_ROUTE = (
    "exists (select from servicebroker.routes r "
    "where lower(r.address) = lower(p.address) and lower(r.mirror_address) = lower(p.mirror_address))"
)


class StoredPair(NamedTuple):
    """A stored pair. `principal` is the primary's address, None while unknown; `explanation` has the reason.

    `system` is the system identifier of the PostgreSQL cluster, `evidence` the primary's signature of it and the
    timeline (protocol/mirroring.py).
    """

    address: str
    mirror_address: str
    principal: str | None
    system: str
    timeline: int
    evidence: bytes
    explanation: str


def find_timelines(pairs: Iterable[Elsewhere]) -> Steps[dict[Elsewhere, KnownTimeline]]:
    """Return the highest known timeline of each of these pairs."""
    timelines = {
        _to_pair(row): KnownTimeline(row.system, row.timeline, row.evidence) for row in (yield from find_pairs())
    }
    return {pair: timelines.get(pair, KnownTimeline()) for pair in pairs}


def find_routed_pairs() -> Steps[list[Elsewhere]]:
    """Return the stored pairs to which a route leads.

    `forget_unused` may have missed a pair that was stored while its route was dropped, so the query checks the routes.
    """
    rows = yield Statement(
        "mirrored_pairs.find_routed_pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs p where {_HAS_ROUTE}",
    )
    return [_to_pair(StoredPair(*row)) for row in rows]


def find_explanations() -> Steps[dict[Elsewhere, str]]:
    """Return a sentence for each pair: the chosen server and the reason, or the reason why none was chosen."""
    return {_to_pair(row): row.explanation for row in (yield from find_pairs())}


def find_pairs() -> Steps[list[StoredPair]]:
    """Return the stored pairs."""
    rows = yield Statement(
        "mirrored_pairs.find_pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs",
    )
    return [StoredPair(*row) for row in rows]


def save(rows: Sequence[StoredPair], now: datetime) -> Statement:
    """Store these pairs, except pairs to which no route leads. `now` is stored as the time of the change.

    Within one cluster the highest timeline is kept, whatever the order of writers.
    """
    return Statement(
        "mirrored_pairs.save",
        "insert into servicebroker.mirrored_pairs as p "
        f"({_COLUMNS}, since) select p.*, $8 "
        "from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::text[]) "
        f"as p ({_COLUMNS}) where {_HAS_ROUTE} "
        "on conflict (address, mirror_address) do update set principal = excluded.principal, "
        "system = excluded.system, "
        "timeline = case when p.system = excluded.system then greatest(p.timeline, excluded.timeline) "
        "else excluded.timeline end, "
        "evidence = case when p.system = excluded.system and p.timeline > excluded.timeline then p.evidence "
        "else excluded.evidence end, "
        "explanation = excluded.explanation, since = excluded.since",
        (*map(list, zip(*sorted(rows, key=_sort_key), strict=True)), now),
    )


def _sort_key(row: StoredPair) -> tuple[str, str]:
    """Return the sort key. All writers use this order, so two sessions that write equal pairs never deadlock."""
    return row.address, row.mirror_address


def forget_unused() -> Statement:
    """Delete pairs to which no route leads any more, so that a new route starts without old values."""
    return Statement(
        "mirrored_pairs.forget_unused",
        f"delete from servicebroker.mirrored_pairs p where not {_HAS_ROUTE}",
    )


def _to_pair(row: StoredPair) -> Elsewhere:
    address, mirror = parse_address(row.address), parse_address(row.mirror_address)
    assert isinstance(address, Address)
    return Elsewhere(address, mirror)


def read_role() -> Steps[RoleReport]:
    """Return the server's role, its timeline, and whether its commits wait for a synchronous standby.

    A former primary may still take itself for the primary. The role PRINCIPAL is certain only after the commit of
    `write_proof`, which waits for the synchronous standby.
    """
    rows = yield SQL("read_role")
    is_standby, system, timeline, is_synchronous = rows[0]
    return RoleReport(Role.MIRROR if is_standby else Role.PRINCIPAL, system, timeline, is_synchronous)


def write_proof() -> Steps[None]:
    """Write a record, so that this transaction's commit waits for the synchronous standby, if the server has one.

    After that commit the standby also has all earlier commits of this server.
    """
    yield SQL("write_proof")
