"""What is remembered of the pairs that mirrored routes lead to: who is the principal, and the highest timeline seen;
and how this instance stands in a pair of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from servicebroker.protocol.mirroring import Known, Role, Standing
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
    """A pair; `principal` is None while neither of the two is known to be it, `explanation` says why."""

    address: str
    mirror_address: str
    principal: str | None
    system: str
    timeline: int
    evidence: bytes
    explanation: str


def known(pairs: Iterable[Elsewhere]) -> Steps[dict[Elsewhere, Known]]:
    """The highest timeline that was seen of each of these pairs."""
    found = {_pair(row): Known(row.system, row.timeline, row.evidence) for row in (yield from find_pairs())}
    return {pair: found.get(pair, Known()) for pair in pairs}


def pairs() -> Steps[list[Elsewhere]]:
    """The pairs of which anything is remembered, and to which a route leads.

    Who wrote of one while its route was dropped has left a row that `forget_unused` did not see.
    """
    rows = yield Statement(
        "mirrored_pairs.pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs p where {_IS_LED_TO}",
    )
    return [_pair(Row(*row)) for row in rows]


def find_explanations() -> Steps[dict[Elsewhere, str]]:
    """Which of each pair was chosen and why, or why neither was, in a sentence."""
    return {_pair(row): row.explanation for row in (yield from find_pairs())}


def find_pairs() -> Steps[list[Row]]:
    """What is remembered."""
    rows = yield Statement(
        "mirrored_pairs.find_pairs",
        f"select {_COLUMNS} from servicebroker.mirrored_pairs",
    )
    return [Row(*row) for row in rows]


def save(rows: Sequence[Row], now: datetime) -> Statement:
    """This is known of these pairs since `now`, as far as a route leads to them.

    Of one cluster the highest timeline stays, whoever writes last.
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
    """In one order for all, so that two who write the same pairs wait for each other in no circle."""
    return row.address, row.mirror_address


def forget_unused() -> Statement:
    """No route leads to them any more: who makes one anew begins without what was seen."""
    return Statement(
        "mirrored_pairs.forget_unused",
        f"delete from servicebroker.mirrored_pairs p where not {_IS_LED_TO}",
    )


def _pair(row: Row) -> Elsewhere:
    address, mirror = parse_address(row.address), parse_address(row.mirror_address)
    assert isinstance(address, Address)
    return Elsewhere(address, mirror)


def find_standing() -> Steps[Standing]:
    """Whether the server is a standby, on which timeline it is, and whether its commits wait for a standby.

    A server that is no standby is the principal once a `proof` has been committed, not before.
    """
    rows = yield SQL("find_standing")
    is_standby, system, timeline, is_guarded = rows[0]
    return Standing(Role.MIRROR if is_standby else Role.PRINCIPAL, system, timeline, is_guarded)


def proof() -> Steps[None]:
    """A commit that is written down, and waits for the synchronous standby where there is one.

    With it the standby has all that was committed here before, also what this server alone had when it went down.
    """
    yield SQL("proof")
