"""The sockets: an event loop in a thread of its own, and the connections that the policy allows.

Received frames and events go into the inboxes (`broker/inboxes.py`), which the threads of relays empty.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.inboxes import Answered, Inboxes, Lost, Outdated, Reached, Unreached
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import OFF, Policy
from servicebroker.broker.refusals import Refusals
from servicebroker.broker.transport.accepting import Acceptor, Terms, bind, unproven_places
from servicebroker.broker.transport.connections import ConnectionRefusals, Observed
from servicebroker.broker.transport.links import Link
from servicebroker.broker.transport.stream import STEP_TIME, Stream
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED, SUPPORTED
from servicebroker.model.errors import RULES, InstanceError
from servicebroker.model.security.peers import STANDING, TWINS, FalseClaim, Peer
from servicebroker.protocol.adjacent import Closed, LocalIdentity, Online, Phase
from servicebroker.protocol.arbitration import Arbiter
from servicebroker.protocol.mirroring import IN_DOUBT, NEVER, KnownTimeline, Role, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker.protocol.twins import Identity, Twins

MAX_LINKS_PER_HOST = 256  # connections of one host without certificates, if the endpoint accepts these
CONNECT_TIME = 15.0  # seconds until an attempt to connect is given up
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds after a failed attempt; the pause doubles with each failure
# seconds for which an address is retried after a request; dialogs repeat their requests after at most 64 s
RETRY_PERIOD_S = 100.0
MAX_ADDRESSES = 10_000  # addresses whose last peer, or whose mirrored pair, is kept in memory
RELAY_TIMEOUT_S = 10.0  # seconds without `announce_role`: the relay waits for a commit, and is not the principal
DOUBT_TIMEOUT_S = 5.0  # seconds in doubt, for example while the database is down, until all connections are closed
TICK_INTERVAL_S = 0.5  # seconds between two calls of `_tick`
UNTRUSTED = (9751, 28035)  # numbers of errors: one side does not trust the other's certificate
NOT_IN_SERVICE = RULES[28012].text.format("Its PostgreSQL server does not answer, or does not commit.")

_log = logging.getLogger("servicebroker.broker")


class Attempt(NamedTuple):
    """The last failed attempt to reach an address: time of the next one, the pause before it, and the reason."""

    retry_at: float
    pause: float
    status: str


class Backlog(NamedTuple):
    """Bytes and fragments that wait: received for the next round, ready to be sent, and unsent in socket buffers."""

    received_bytes: int
    received: int
    ready_bytes: int
    ready: int
    unsent_bytes: int
    unsent: int


_NO_ATTEMPT = Attempt(0.0, 0.0, "")


class Network:
    """The connections of one instance: those it opens, and those it accepts, as its policy says.

    `seconds` is a clock that never goes back.

    Attributes:
        is_mirror: the server is a standby, and messages are refused.
        unreachable: addresses to which the last attempt to connect has failed.
    """

    def __init__(
        self,
        daemon_id: UUID,
        incarnation: UUID,
        inbox: Inboxes,
        clock: Callable[[], datetime],
        instance: UUID | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox = inbox
        self.clock = clock
        self.seconds = seconds
        self.policy = OFF
        self.me = LocalIdentity(daemon_id, incarnation, instance=instance)
        self.peers = Peers(instance)
        self.arbiter: Arbiter[Stream] = Arbiter(daemon_id)
        self.streams: set[Stream] = set()
        self._twins = Twins()
        self._lock = threading.Lock()
        self._peers: dict[Address, Peer] = {}  # the peer at an address, while its link is online
        self._attempts: dict[Address, Attempt] = {}
        self.unreachable: frozenset[Address] = frozenset()
        self._wanted_at: dict[Address, float] = {}  # time of the relay's last request for an address without a link
        self._last: dict[Address, Peer] = {}  # the last peer at an address
        self._connecting: set[Address] = set()
        self._wanted_later: set[Address] = set()  # requested while the policy let nothing be sent
        self._plain_addresses: set[Address] = set()  # addresses whose peer accepts no TLS
        self._certificate_indexes: dict[
            Address, int
        ] = {}  # which of our certificates to show at an address; default: the first
        # halves of mirrored pairs: asked whenever they are reached
        self._questions: dict[Address, KnownTimeline] = {}
        self._role_report, self._announced_at = IN_DOUBT, 0.0
        self.is_mirror = False
        self._out_of_service_at = NEVER  # from this time on the daemon serves nobody
        self._announced = IN_DOUBT  # the last role sent to peers that have asked
        self._signed_report: tuple[RoleReport, Tls | None, RoleReport] = (IN_DOUBT, None, IN_DOUBT)
        self.was_asked = False  # a peer has asked whether this server is the principal
        self._refused: dict[int, ConnectionRefusals] = {}
        self.refusals = Refusals()
        self._listening: tuple[str, int | None] = "", None
        inbox.on_room = self._resume_soon
        self._acceptor: Acceptor | None = None
        self.loop = self._start_loop()
        self.loop.call_soon_threadsafe(self._tick)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        """Start the event loop, in a thread of its own."""
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="servicebroker network", daemon=True)
        self._thread.start()
        return loop

    # ---------------------------------------------------------------- for the relay's thread

    def apply(self, policy: Policy) -> int | None:
        """Apply the policy, and close connections that were made under another one. Returns the port.

        Raises:
            InstanceError: the address cannot be used. The rest of the policy is in force; `apply` may be called again.
        """
        return asyncio.run_coroutine_threadsafe(self._apply(policy), self.loop).result()

    def observe(self) -> list[Observed]:
        """Return the rows of sys.dm_broker_connections."""
        return [stream.observed() for stream in list(self.streams)]

    def backlog(self) -> Backlog:
        """Return the frames that wait between sockets and rounds."""
        sums = [sum(column) for column in zip(*(stream.backlog() for stream in list(self.streams)), strict=True)]
        return Backlog(self.inbox.size, len(self.inbox), *(sums or [0, 0, 0, 0]))

    def take_refused(self) -> dict[int, ConnectionRefusals]:
        """Return the peers refused since the last call, by error number."""
        with self._lock:
            refused, self._refused = self._refused, {}
        return refused

    def reach(self, address: Address) -> Link | str:
        """Return the link to an address. Without one, start to connect, and return the reason of the last failure."""
        with self._lock:
            if self.policy.silence:
                self._wanted_later.add(address)
                return _text(self.policy.silence, "Service Broker")
            peer = self._peers.get(address)
            link = None if peer is None else self.arbiter.find(peer)
            if link is not None:
                return link
            now = self.seconds()
            self._wanted_at[address] = now
            attempt = self._attempts.get(address, _NO_ATTEMPT)
            if now >= attempt.retry_at:
                self._begin_connecting(address)
            return attempt.status

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Ask the broker at an address whether it is the principal. An event `Answered` or `Unreached` follows."""
        with self._lock:
            self._questions.pop(address, None)
            self._questions[address] = known
            if len(self._questions) > MAX_ADDRESSES:
                del self._questions[next(iter(self._questions))]
        link = self.reach(address)
        if isinstance(link, Stream):
            self.loop.call_soon_threadsafe(link.ask, known)
        elif link:
            self.inbox.put(Unreached(address, str(link)))

    def announce_role(self, role_report: RoleReport) -> None:
        """Set the role for peers that ask. Without another call within `RELAY_TIMEOUT_S` it becomes IN_DOUBT."""
        self._role_report, self._announced_at = role_report, self.seconds()
        self.is_mirror = role_report.role is Role.MIRROR
        in_doubt = role_report.role is Role.IN_DOUBT
        self._out_of_service_at = (
            min(self._out_of_service_at, self._announced_at + DOUBT_TIMEOUT_S) if in_doubt else NEVER
        )
        if role_report != self._announced:
            self.loop.call_soon_threadsafe(self._send_roles)

    @property
    def role_report(self) -> RoleReport:
        """The present role of this server."""
        is_silent = self._role_report.role is Role.PRINCIPAL and self.seconds() > self._announced_at + RELAY_TIMEOUT_S
        return IN_DOUBT if is_silent else self._role_report

    @property
    def is_out_of_service(self) -> bool:
        """Return whether no round accepts messages for now. Then there are no connections.

        A peer with an open connection would keep sending on it, even if the host name leads to another server now.
        """
        return self.seconds() > self._out_of_service_at

    def close(self) -> None:
        """Close all connections, with a reason for the peers, and stop the loop."""
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    # ---------------------------------------------------------------- in the loop

    async def _apply(self, policy: Policy) -> int | None:
        before, self.policy = self.policy, policy
        self.peers.apply(policy)
        if policy._replace(forwards=before.forwards, forward_size=before.forward_size) != before:
            self._plain_addresses.clear()
            self._certificate_indexes.clear()
            self._end_all(
                policy.silence, _text(policy.silence, "Service Broker") if policy.silence else "The transport restarts."
            )
        if self._listening != (policy.host, policy.port) and self._acceptor is not None:
            self._acceptor.close()
            self._acceptor, self._listening = None, ("", None)
        if not policy.silence and policy != before:
            with self._lock:
                self._set_attempts({})
                wanted, self._wanted_later = self._wanted_later, set()
            for address in wanted:
                self.reach(address)
        if self._acceptor is None and policy.port is not None:
            self._acceptor = await self._listen(policy.host, policy.port)
            self._listening = policy.host, policy.port
        return self._acceptor.port if self._acceptor else None

    async def _listen(self, host: str, port: int) -> Acceptor:
        try:
            sockets = await bind(host, port)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise InstanceError(_text(9692, port)) from None
            raise InstanceError(_text(9693, problem.strerror or problem)) from None
        acceptor = Acceptor(lambda visitor: Stream(self, None, visitor), Terms(unproven_places(), STEP_TIME))
        acceptor.listen(sockets)
        return acceptor

    def _begin_connecting(self, address: Address) -> None:
        """Start to connect to an address. The caller holds the lock."""
        if address not in self._connecting and not self.is_out_of_service:
            self._connecting.add(address)
            self._start(self._connect(address))

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in the loop, without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def _retry_connections(self) -> None:
        """Retry requested addresses that were not reached, before their conversations request them again."""
        now = self.seconds()
        with self._lock:
            self._wanted_at = {address: at for address, at in self._wanted_at.items() if at + RETRY_PERIOD_S > now}
            self._set_attempts(
                {address: attempt for address, attempt in self._attempts.items() if address in self._wanted_at}
            )
            for address in () if self.policy.silence else self._wanted_at:
                if now >= self._attempts.get(address, _NO_ATTEMPT).retry_at:
                    self._begin_connecting(address)

    async def _connect(self, address: Address) -> None:
        journal.connection("Connecting", str(address))
        try:
            await asyncio.wait_for(
                self.loop.create_connection(lambda: Stream(self, address), address.host, address.port), CONNECT_TIME
            )
        except UnicodeError:
            self.failed(address, f"{RULES[9753].text} {address}: No host can have this name.")
        except (OSError, TimeoutError) as problem:
            self.failed(address, f"{RULES[9753].text} {address}: {_why(problem)}.")

    def is_secured(self, address: Address) -> bool:
        """Return whether a connection to this address begins with TLS."""
        policy = self.policy
        if policy.encryption == SUPPORTED:
            return policy.tls is not None and address not in self._plain_addresses
        return policy.encryption == REQUIRED

    def note_plain_peer(self, address: Address) -> None:
        """Handle a peer that accepts no TLS: if TLS is only SUPPORTED, the next attempt goes without it."""
        if self.policy.encryption == SUPPORTED:
            self._plain_addresses.add(address)

    def certificate_index(self, address: Address) -> int:
        """Return the index of the certificate to show at an address: the next one after each refusal."""
        return self._certificate_indexes.get(address, 0)

    def refuse(self, number: int, peer: str) -> None:
        """Count a refused peer."""
        with self._lock:
            before = self._refused.get(number)
            self._refused[number] = ConnectionRefusals((before.times if before else 0) + 1, peer)

    def failed(self, address: Address, status: str) -> None:
        """Record a failed attempt to connect, and schedule the next one."""
        journal.connection("Connect Failed", str(address), status)
        with self._lock:
            self._connecting.discard(address)
            before = self._attempts.get(address, _NO_ATTEMPT)
            pause = min(before.pause * 2, LAST_PAUSE) or FIRST_PAUSE
            self._set_attempts({**self._attempts, address: Attempt(self.seconds() + pause, pause, status)})
        self.inbox.put(Unreached(address, status))

    def _set_attempts(self, attempts: dict[Address, Attempt]) -> None:
        """Set the failed attempts. The caller holds the lock."""
        self._attempts, self.unreachable = attempts, frozenset(attempts)

    def objection_to(self, stream: Stream) -> str | None:
        """Return why the peer's claimed identity is refused, or None. Record the identity of a peer that we reached."""
        objection = self.peers.objection_to(stream.address, stream.proved, stream.instance)
        if stream.address is None:
            return objection or self._is_crowded(stream)
        for other in [
            other for other in self.streams if other.phase is Phase.ONLINE and other.instance == stream.instance
        ]:
            claimed = self.peers.objection(other.owner, other.instance)  # two peers claim this instance now
            if claimed is not None and other is not stream:
                other.refuse(claimed)
        return objection

    def _is_crowded(self, stream: Stream) -> str | None:
        """Return why one more connection of the peer is refused: it would use up the sockets of this process."""
        count = sum(other.phase is Phase.ONLINE and other.known_as == stream.known_as for other in self.streams)
        if stream.owner:
            limit = self.peers.budgets.of(stream.owner).connections
            return f"its owner has {count} connections" if count >= limit else None
        return f"its host has {count} connections without a certificate" if count >= MAX_LINKS_PER_HOST else None

    def _divide_outboxes(self, name: str) -> None:
        """Divide the buffers of an owner among its links: a peer that reads none of them may not fill the memory."""
        links = [stream for stream in self.streams if stream.phase is Phase.ONLINE and stream.known_as == name]
        for link in links:
            link.divide_outbox(len(links))

    def online(self, stream: Stream, event: Online) -> None:
        """Handle an established connection. If there are two with the peer, one of them is closed."""
        peer = Peer(stream.owner, event.daemon_id)
        with self._lock:
            loser = self.arbiter.online(
                stream,
                event,
                is_opener=stream.address is not None,
                connection_number=stream.connection_number,
                owner=peer.owner,
            )
            if stream.address is not None:
                self._connecting.discard(stream.address)
                self._set_attempts(
                    {address: attempt for address, attempt in self._attempts.items() if address != stream.address}
                )
                self._wanted_at.pop(stream.address, None)
                self._peers[stream.address] = peer
                self._last.pop(stream.address, None)
                self._last[stream.address] = peer
                if len(self._last) > MAX_ADDRESSES:
                    del self._last[next(iter(self._last))]
            else:
                self._connect_back(peer)
        if loser is not None:
            loser.shut(28033, RULES[28033].text)
        self._divide_outboxes(stream.known_as)
        if stream.address is not None:
            self.inbox.put(Reached(stream.address))
        self.loop.call_soon(self._repeat_question, peer)

    def _repeat_question(self, peer: Peer) -> None:
        """Ask a reached broker of a mirrored pair for its role."""
        with self._lock:
            link = self.arbiter.find(peer)
            known = next((self._questions[address] for address in self._pair_addresses(peer)), None)
        if link is not None and known is not None:
            link.ask(known)

    def _pair_addresses(self, peer: Peer) -> list[Address]:
        """Return the addresses of mirrored pairs at which this peer answers. The caller holds the lock."""
        return [address for address, other in self._peers.items() if other == peer and address in self._questions]

    def on_role(self, stream: Stream, role_report: RoleReport) -> None:
        """Handle the role that a peer has stated."""
        assert stream.peer is not None
        with self._lock:
            halves = self._pair_addresses(stream.peer)
        for address in halves:
            self.inbox.put(Answered(address, role_report))
        if not halves and self.peers.proves:
            self.peers.mistrust(FalseClaim(stream.owner, STANDING), f"{role_report.role.name} of {role_report.system}")

    def on_question(self, stream: Stream, known: KnownTimeline) -> None:
        """Handle a peer's question whether this server is the principal. `known` is the timeline that the peer knows.

        If connections prove identities, a higher timeline than ours counts only with the signature of our other half.
        """
        self.was_asked = True
        own_role, tls = self._role_report, self.policy.tls
        if (
            own_role.role is not Role.PRINCIPAL
            or known.system != own_role.system
            or known.timeline <= own_role.timeline
        ):
            return
        if self.peers.proves and tls is not None and not tls.is_ours(known):
            self.peers.mistrust(FalseClaim(stream.owner, STANDING), f"timeline {known.timeline} of {known.system}")
        else:
            self.inbox.put(Outdated(known))

    def signed_report(self, role_report: RoleReport) -> RoleReport:
        """Return the role report with its signature, for peers."""
        tls = self.policy.tls if self.peers.proves else None
        if self._signed_report[:2] != (role_report, tls):
            self._signed_report = role_report, tls, role_report if tls is None else tls.signed(role_report)
        return self._signed_report[2]

    def _send_roles(self) -> None:
        self._announced = self.role_report
        for stream in list(self.streams):
            stream.send_role(self._announced)

    def _connect_back(self, peer: Peer) -> None:
        """Retry the addresses of a peer that has just connected to us. The caller holds the lock."""
        for address in self._wanted_at:
            if self._last.get(address) == peer:
                self._begin_connecting(address)

    def on_closed(self, stream: Stream, closed: Closed, *, was_online: bool) -> None:
        """Handle the end of a connection."""
        self.streams.discard(stream)
        with self._lock:
            self.arbiter.gone(stream)
            peer = stream.peer
            lost: list[Address] = []
            if peer is not None and self.arbiter.find(peer) is None:
                lost = self._pair_addresses(peer)
                self._peers = {address: other for address, other in self._peers.items() if other != peer}
        if was_online:
            self._divide_outboxes(stream.known_as)
            if closed.number == 28012 and stream.address is not None:  # a mirror accepts no messages
                lost.append(stream.address)
            for address in set(lost) if closed.number else ():
                self.failed(address, closed.text)
            self.inbox.put(Lost(stream, closed.text if closed.number else ""))
        elif stream.address is not None:
            if closed.number in UNTRUSTED and self.policy.tls is not None and self.policy.tls.certificate_count > 1:
                self._certificate_indexes[stream.address] = self.certificate_index(stream.address) + 1
            self.failed(stream.address, closed.text)

    def _tick(self) -> None:
        self.loop.call_later(TICK_INTERVAL_S, self._tick)  # first, so that an exception below does not end the ticks
        if self.inbox.reset_noise():
            self._resume()
        if self.is_out_of_service:
            self._end_all(28012, NOT_IN_SERVICE)
        for stream in list(self.streams):
            stream.tick()
            self._check_for_twins(stream)
        self._retry_connections()
        if self.role_report != self._announced:
            self._send_roles()

    def _check_for_twins(self, stream: Stream) -> None:
        """Check whether another daemon with the peer's identity sends messages as well."""
        if not stream.has_new_fragments():
            return
        identity, address = Identity(stream.owner, stream.instance), stream.peer_address
        other_address = self._twins.heard(identity, stream.incarnation, address, self.seconds())
        if other_address is not None:
            self.peers.mistrust(
                FalseClaim(stream.owner, TWINS, str(stream.instance)), f"one at {other_address}, one at {address}"
            )

    def _resume_soon(self) -> None:
        """Resume reading after the current callback, which may be pausing a stream. The inbox has room again."""
        self.loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for stream in list(self.streams):  # frames not read yet may end some of them
            stream.resume()

    async def _close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        self._end_all(0, "The broker is shut down.")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # let the loop close the sockets

    def _end_all(self, number: int, text: str) -> None:
        for stream in list(self.streams):
            stream.shut(number, text)


def _why(problem: OSError | TimeoutError) -> str:
    """Return why a connection could not be made, without the address that asyncio puts into the text."""
    if problem.errno and problem.errno > 0:
        return os.strerror(problem.errno)
    return problem.strerror or str(problem) or "no answer"


def _text(number: int, *values: object) -> str:
    return RULES[number].text.format(*values)
