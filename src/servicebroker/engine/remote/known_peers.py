"""Who answered where we connected, what peers have claimed that is not theirs, and what was accepted of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.security.transport_certificates import find_certificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.peers import ADDRESS, INSTANCE, Answer, Mistrust
from servicebroker.protocol.routing import Address, parse_address
from servicebroker.store.statements import Statement, Steps

MOST = 10_000  # addresses that are kept
MOST_CLAIMS = 1_000  # of those that are not theirs


def find_answers() -> Steps[dict[Address, Answer]]:
    """Who answered at each address."""
    rows = yield Statement(
        "known_peers.find_answers", "select address, owner, instance_id from servicebroker.peers order by since"
    )
    found = {parse_address(address): Answer(owner, instance) for address, owner, instance in rows}
    return {address: answer for address, answer in found.items() if address is not None}


def save_answers(answers: Mapping[Address, Answer], now: datetime) -> Steps[None]:
    """Who answered now; the oldest are forgotten when there are too many."""
    yield Statement(
        "known_peers.save_answers.insert_peers",
        "insert into servicebroker.peers (address, owner, instance_id, since) "
        "select address, owner, instance, $4 from unnest($1::text[], $2::text[], $3::uuid[]) "
        "  a (address, owner, instance) where owner in (select owner from servicebroker.transport_certificates) "
        "on conflict (address) do update set owner = excluded.owner, instance_id = excluded.instance_id, "
        "since = excluded.since",
        (
            [str(address) for address in answers],
            [one.owner for one in answers.values()],
            [one.instance for one in answers.values()],
            now,
        ),
    )
    yield Statement(
        "known_peers.save_answers.delete_peers",
        "delete from servicebroker.peers where address in "
        f"(select address from servicebroker.peers order by since desc offset {MOST})",
    )


def save_mistrusted(found: Mapping[Mistrust, tuple[int, str]], now: datetime) -> Steps[None]:
    """Add these, with how often and lately what, to those of before; the oldest are forgotten when there are many."""
    yield Statement(
        "known_peers.save_mistrusted",
        "insert into servicebroker.mistrusted as m (owner, claim, subject, times, last_time, last_detail) "
        "select owner, claim, subject, times, $6, detail "
        "from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[]) "
        "  n (owner, claim, subject, times, detail) "
        "on conflict (owner, claim, subject) do update set times = m.times + excluded.times, "
        "last_time = excluded.last_time, last_detail = excluded.last_detail",
        (
            [one.owner for one in found],
            [one.claim for one in found],
            [one.subject for one in found],
            [times for times, _ in found.values()],
            [detail for _, detail in found.values()],
            now,
        ),
    )
    yield Statement(
        "known_peers.save_mistrusted.forget",
        "delete from servicebroker.mistrusted where (owner, claim, subject) in "
        f"(select owner, claim, subject from servicebroker.mistrusted order by last_time desc offset {MOST_CLAIMS})",
    )


class Accepted(NamedTuple):
    """What was settled: whose these instances are, and who is at these addresses."""

    instances: tuple[UUID, ...]
    addresses: tuple[str, ...]


def accept(name: str, now: datetime) -> Steps[Accepted]:
    """The owner of a peer's certificate is what it has claimed to be, and nobody else is.

    Raises:
        BrokerError: 15151 when there is no certificate of that name, or it is our own.
    """
    found = yield from find_certificate("accept", name)
    if found.is_own:
        raise BrokerError(15151, "accept", "certificate of a peer", name)
    owner = found.proved.owner
    instances = yield Statement(
        "known_peers.accept.insert_accepted_peers",
        "with claims as ("
        "select owner, instance_id from servicebroker.transport_certificates "
        "where instance_id is not null and not is_own "
        "union select owner, instance_id from servicebroker.peers "
        "union select owner, instance_id from servicebroker.accepted_peers "
        "union select owner, subject::uuid from servicebroker.mistrusted where claim = $2 and subject <> '') "
        "insert into servicebroker.accepted_peers (instance_id, owner) select instance_id, $1 from claims "
        "group by instance_id having bool_or(owner = $1) and bool_or(owner <> $1) "
        "on conflict (instance_id) do update set owner = excluded.owner returning instance_id",
        (owner, INSTANCE),
    )
    yield Statement(
        "known_peers.accept.delete_others",
        "delete from servicebroker.peers where owner <> $1 and instance_id = any ($2)",
        (owner, [instance for (instance,) in instances]),
    )
    addresses = yield Statement(
        "known_peers.accept.delete_left",
        "with left_it as (delete from servicebroker.peers p using servicebroker.mistrusted m where m.owner = $1 "
        "and m.claim = $2 and m.subject = p.address and p.owner <> $1 returning p.address) select address from left_it",
        (owner, ADDRESS),
    )
    yield Statement(
        "known_peers.accept.delete_mistrusted",
        "delete from servicebroker.mistrusted where owner = $1 and claim in ($2, $3)",
        (owner, INSTANCE, ADDRESS),
    )
    yield Statement(
        "known_peers.accept.update_certificates",
        "update servicebroker.transport_certificates set accepted = $2 where owner = $1",
        (owner, now),
    )
    return Accepted(tuple(instance for (instance,) in instances), tuple(address for (address,) in addresses))
