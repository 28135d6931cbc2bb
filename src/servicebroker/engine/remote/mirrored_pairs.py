"""Pairs that mirrored routes lead to: the known principal and the highest timeline seen of each.

Also the state of this instance in a pair of its own.
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
_IS_LED_TO = (
    "exists (select from servicebroker.routes r "
    "where lower(r.address) = lower(p.address) and lower(r.mirror_address) = lower(p.mirror_address))"
)


class Row(NamedTuple):
    """A pair; `principal` is None while neither of the two is known to be it, and `explanation` says why."""

    address: str
    mirror_address: str
    principal: str | None
    system: str
    timeline: int
    evidence: bytes
    explanation: str


def known(pairs: Iterable[Elsewhere]) -> Steps[dict[Elsewhere, KnownTimeline]]:
    """Return the highest timeline that was seen of each of these pairs."""
    found = {_pair(row): KnownTimeline(row.system, row.timeline, row.evidence) for row in (yield from find_pairs())}
    return {pair: found.get(pair, KnownTimeline()) for pair in pairs}


def pairs() -> Steps[list[Elsewhere]]:
    """Return the stored pairs to which a route leads.

    A row written while its route was dropped escapes `forget_unused`, and is filtered out here.
    """
    rows = yield Statement(
        "mirrored_pairs.pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs p where {_IS_LED_TO}",
    )
    return [_pair(Row(*row)) for row in rows]


def find_explanations() -> Steps[dict[Elsewhere, str]]:
    """Return, for each pair, which side was chosen and why, or why neither was, in a sentence."""
    return {_pair(row): row.explanation for row in (yield from find_pairs())}


def find_pairs() -> Steps[list[Row]]:
    """Return the stored pairs."""
    rows = yield Statement(
        "mirrored_pairs.find_pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs",
    )
    return [Row(*row) for row in rows]


def save(rows: Sequence[Row], now: datetime) -> Statement:
    """Store the knowledge about these pairs, as known since `now`, for those to which a route leads.

    Within one cluster the highest timeline stays, regardless of the order of writers.
    """
    return Statement(
        "mirrored_pairs.save",
        "insert into servicebroker.mirrored_pairs as p "
        f"({_COLUMNS}, since) select p.*, $8 "
        "from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], $7::text[]) "
        f"as p ({_COLUMNS}) where {_IS_LED_TO} "
        "on conflict (address, mirror_address) do update set principal = excluded.principal, "
        "system = excluded.system, "
        "timeline = case when p.system = excluded.system then greatest(p.timeline, excluded.timeline) "
        "else excluded.timeline end, "
        "evidence = case when p.system = excluded.system and p.timeline > excluded.timeline then p.evidence "
        "else excluded.evidence end, "
        "explanation = excluded.explanation, since = excluded.since",
        (*map(list, zip(*sorted(rows, key=_pair_of), strict=True)), now),
    )


def _pair_of(row: Row) -> tuple[str, str]:
    """Return the sort key. All writers use one order, so that two that write the same pairs never deadlock."""
    return row.address, row.mirror_address


def forget_unused() -> Statement:
    """Delete pairs to which no route leads any more: a new route starts without old knowledge."""
    return Statement(
        "mirrored_pairs.forget_unused",
        f"delete from servicebroker.mirrored_pairs p where not {_IS_LED_TO}",
    )


def _pair(row: Row) -> Elsewhere:
    address, mirror = parse_address(row.address), parse_address(row.mirror_address)
    assert isinstance(address, Address)
    return Elsewhere(address, mirror)


def read_role() -> Steps[RoleReport]:
    """Return the server's role, its timeline, and whether its commits wait for a standby.

    A server that is no standby is the principal once a `proof` has been committed, not before.
    """
    rows = yield SQL("read_role")
    is_standby, system, timeline, is_synchronous = rows[0]
    return RoleReport(Role.MIRROR if is_standby else Role.PRINCIPAL, system, timeline, is_synchronous)


def proof() -> Steps[None]:
    """Write a record, so that the commit waits for the synchronous standby, if there is one.

    With that commit the standby has all earlier commits of this server, also those it had alone when it went down.
    """
    yield SQL("proof")
