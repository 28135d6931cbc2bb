"""Two instances with their relays, and a simulated connection whose frames the test passes on."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

import servicebroker as sb
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.protocol.envelope import Kind, parse
from servicebroker.protocol.routing import Address, parse_address
from servicebroker.store.connection import connect
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, Clock, query, standard_database

WEST, EAST = "TCP://west:4022", "TCP://east:4022"
PASSWORD = "correct horse"  # of the master keys


_COLUMNS = (  # that can be written
    "select column_name from information_schema.columns where table_schema = 'servicebroker' and table_name = %s "
    "and is_generated = 'NEVER' order by ordinal_position"
)


@dataclass(eq=False)
class Wire:
    """One direction of the connection: the frames that were sent and have not arrived.

    `send` checks that no acknowledgement and no newly claimed message is sent before the round's transaction commits.
    """

    frames: deque[bytes] = field(default_factory=deque)
    room: int = 2**40
    owner: str = ""
    connection: psycopg.Connection[Any] | None = None
    refusals: Counter[int] = field(default_factory=Counter)  # by number

    def refused(self, number: int, text: str) -> None:
        """Count a refusal."""
        self.refusals[number] += 1

    def complain(self) -> None:
        """Do nothing, because no peer floods in these tests."""

    def opened(self) -> None:
        """Do nothing, as `complain`."""

    def charge(self, seconds: float) -> None:
        """Do nothing, because no peer is limited in these tests."""

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        assert not is_forwarded
        if self.connection is not None and self.connection.info.transaction_status != TransactionStatus.IDLE:
            header = parse(body).header
            assert header.kind == Kind.FAILURE or header.clock is not None
            assert header.acknowledgement is None
        self.frames.append(body)
        self.room -= len(body)


class Site:
    """An instance with its database, its relay and its connection to the other instance."""

    def __init__(self, url: str, clock: Clock, own: str, other: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.instance = sb.open(url, clock=clock, upkeep=None, keys=Path(self._folder.name) / "keys")
        self.database = standard_database(self.instance)
        self.clock, self.seconds = clock, 0.0
        self.address, self.other = own, parse_address(other)
        self.out = Wire()
        self.is_connected = True
        self.connection = connect(url)
        self.out.connection = self.connection
        self.store = PostgresStore(self.connection, clock)
        self.relay = self.new_relay()

    def new_relay(self) -> Relay:
        return Relay(self, self.clock, lambda: self.seconds, random.Random(1), keys=self.instance.key_folder())

    def reach(self, address: Address) -> Wire | str:
        assert address == self.other
        return self.out if self.is_connected else "The target service broker is unreachable."

    def round(self, frames: Iterable[bytes]) -> None:
        arrivals = [Arrival(self.out, body) for body in frames]
        self.relay.round(self.store, arrivals)

    def close(self) -> None:
        self.connection.close()
        self.instance.close()
        self._folder.cleanup()


@dataclass
class Pair:
    """Two instances. Services of `west` begin conversations with services of `east`."""

    west: Site
    east: Site

    def rounds(self, count: int = 6) -> None:
        """Run rounds of both relays, each with the frames that the other one has sent."""
        for _ in range(count):
            for receiver, sender in ((self.west, self.east), (self.east, self.west)):
                frames, sender.out.frames = sender.out.frames, deque()
                receiver.round(frames)

    def pass_time(self, seconds: float) -> None:
        for site in (self.west, self.east):
            site.seconds += seconds


@contextmanager
def open_pair(make_instance_url: Callable[..., str], west_clock: Clock | None = None) -> Iterator[Pair]:
    """Create two instances with routes to each other. Both share a clock, unless `west_clock` is given."""
    clock = Clock()
    west = Site(make_instance_url(1), west_clock or clock, WEST, EAST)
    east = Site(make_instance_url(1), clock, EAST, WEST)
    west.database.drop_service(STOCK)
    east.database.drop_service(ORDERS)
    west.database.create_route("ToStock", service_name=STOCK, address=EAST)
    east.database.grant("SEND", "public", service=STOCK)
    east.database.create_route("ToOrders", service_name=ORDERS, address=WEST)
    yield Pair(west, east)
    west.close()
    east.close()


def begin(pair: Pair, count: int = 1) -> Any:
    """Begin a conversation from west to east, and send `count` messages."""
    database = pair.west.database
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    for number in range(count):
        database.send(handle, ORDER, str(number))
    return handle


def introduce(
    pair: Pair,
    folder: Path,
    *,
    anonymous: bool = False,
    suffix: str = "",
    start_date: datetime | None = None,
    dates: Mapping[str, tuple[datetime, datetime]] = MappingProxyType({}),
) -> None:
    """Create a certificate for the owner of each service, and import it into the other database for a user.

    `dates`: start and expiry of the certificates `orders` and `stock`, if not the default.
    """
    west, east = pair.west.database, pair.east.database
    for database in (west, east):
        if not suffix:
            database.create_master_key(PASSWORD)
    for database, name in ((west, "orders"), (east, "stock")):
        start, expiry = dates.get(name, (start_date, None))
        database.create_certificate(name + suffix, start_date=start, expiry_date=expiry)
        database.backup_certificate(name + suffix, folder / f"{name}{suffix}.pem")
    if not suffix:
        west.create_user("Stock")
        west.create_remote_service_binding("ToStock", to_service=STOCK, user="Stock", anonymous=anonymous)
        east.create_user("Orders")
        east.grant("SEND", "public" if anonymous else "Orders", service=STOCK)
    west.create_certificate("stock" + suffix + "!", file=folder / f"stock{suffix}.pem", authorization="Stock")
    if not anonymous:
        east.create_certificate("orders" + suffix + "!", file=folder / f"orders{suffix}.pem", authorization="Orders")


def leftovers(site: Site) -> dict[str, int]:
    """Return the number of rows of conversations, by table. Empty if none is left."""
    tables = ["conversation_endpoints", "conversation_groups", "transmission_queue", "arrivals", "arrived_fragments"]
    tables += [
        f"queue_{n}"
        for (n,) in query(site.database, "select queue_id from servicebroker.queues where queue_id > 65535")
    ]
    counts = {table: query(site.database, f"select count(*) from servicebroker.{table}")[0][0] for table in tables}
    return {table: count for table, count in counts.items() if count}


class Copy:
    """A copy of the conversations of an instance, which can be restored."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._tables = [
            f"queue_{n}"
            for (n,) in query(site.database, "select queue_id from servicebroker.queues where queue_id > 65535")
        ]
        self._tables += ["conversation_groups", "conversation_endpoints", "conversation_keys"]
        self._tables += ["transmission_queue", "arrivals", "arrived_fragments"]
        for table in self._tables:
            self._do(f"create table public.was_{table} as select * from servicebroker.{table}")

    def restore(self) -> None:
        """Restore the copy, and start the relay again."""
        for table in self._tables:
            self._do(f"delete from servicebroker.{table}")
        for table in self._tables:
            columns = ", ".join(name for (name,) in query(self._site.database, _COLUMNS, table))
            self._do(f"insert into servicebroker.{table} ({columns}) select {columns} from public.was_{table}")
        self._site.relay = self._site.new_relay()
        self._site.out.frames.clear()

    def _do(self, text: str) -> None:
        with self._site.connection.transaction():
            self._site.connection.execute("set local session_replication_role = replica")
            self._site.connection.execute(text)


def open_conversation(pair: Pair) -> tuple[object, sb.Message]:
    """Begin a conversation, and receive its message. Returns the initiator's handle, and the message."""
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    return handle, message
