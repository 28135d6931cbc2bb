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
from servicebroker.broker.transport.accepting import Acceptor, Terms, bind, share
from servicebroker.broker.transport.connections import Counted, Observed
from servicebroker.broker.transport.links import Link
from servicebroker.broker.transport.stream import STEP_TIME, Stream
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED, SUPPORTED
from servicebroker.model.errors import RULES, InstanceError
from servicebroker.model.security.peers import STANDING, TWINS, Mistrust, Peer
from servicebroker.protocol.adjacent import Closed, Myself, Online, Phase
from servicebroker.protocol.arbitration import Arbiter
from servicebroker.protocol.mirroring import IN_DOUBT, NEVER, Known, Role, Standing
from servicebroker.protocol.routing import Address
from servicebroker.protocol.twins import Identity, Twins

LINKS_OF_HOST = 256  # connections of one host without certificates, where the endpoint takes such
CONNECT_TIME = 15.0  # seconds
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds after a failed attempt before the next one; each is twice the last
WANTED_S = 100.0  # seconds for which an address is tried again after it was asked for: dialogs ask every 64 s or so
MAX_ADDRESSES = 10_000  # addresses of which it is remembered who answered there, or that they are half of a pair
RELAY_TIMEOUT_S = 10.0  # seconds without a sign of the relay's thread: it waits for a commit, and is not the principal
DOUBT_TIMEOUT_S = 5.0  # seconds in doubt, as while the database is down; then peers have to look for another one
TICK_INTERVAL_S = 0.5  # seconds
NOT_BELIEVED = (9751, 28035)  # why a connection ends whose certificates one side does not take
NOT_IN_SERVICE = RULES[28012].text.format("Its PostgreSQL server does not answer, or does not commit.")

_log = logging.getLogger("servicebroker.broker")


class Attempt(NamedTuple):
    """The last one to reach an address has failed: when the next one comes, after which pause, and why."""

    again_at: float
    pause: float
    status: str


class Backlog(NamedTuple):
    """Bytes and fragments: come and in no round yet, ready to be sent, given to sockets that have not taken them."""

    received_bytes: int
    received: int
    ready_bytes: int
    ready: int
    unsent_bytes: int
    unsent: int


_NONE = Attempt(0.0, 0.0, "")


class Network:
    """The connections of one instance: those it opens, and those it accepts where it listens, as its policy says.

    `seconds` never goes back.

    Attributes:
        is_mirror: the server is a standby, and no message is taken.
        unreachable: where the last attempts to connect have failed.
    """

    def __init__(
        self,
        seat: UUID,
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
        self.me = Myself(seat, incarnation, instance=instance)
        self.peers = Peers(instance)
        self.arbiter: Arbiter[Stream] = Arbiter(seat)
        self.streams: set[Stream] = set()
        self._twins = Twins()
        self._lock = threading.Lock()
        self._peers: dict[Address, Peer] = {}  # the peer that answered there, while its link is online
        self._attempts: dict[Address, Attempt] = {}
        self.unreachable: frozenset[Address] = frozenset()
        self._asked: dict[Address, float] = {}  # when the relay last wanted to reach what it could not
        self._last: dict[Address, Peer] = {}  # the peer that answered there last
        self._connecting: set[Address] = set()
        self._wanted: set[Address] = set()  # asked for while nothing could leave
        self._plain: set[Address] = set()  # addresses whose peer takes no TLS
        self._turns: dict[Address, int] = {}  # addresses whose peer did not believe our first certificate
        self._questions: dict[Address, Known] = {}  # halves of mirrored pairs: to be asked whenever they are reached
        self._standing, self._seen_at = IN_DOUBT, 0.0
        self.is_mirror = False
        self._away_at = NEVER  # from then on the daemon could serve nobody
        self._told = IN_DOUBT  # to those who have asked
        self._evident: tuple[Standing, Tls | None, Standing] = (IN_DOUBT, None, IN_DOUBT)
        self.was_asked = False  # a peer has asked whether we are the principal
        self._refused: dict[int, Counted] = {}
        self.refusals = Refusals()
        self._listening: tuple[str, int | None] = "", None
        inbox.relieved = self._resume_soon
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

    def obey(self, policy: Policy) -> int | None:
        """Do as the policy says; connections made under another one are closed. Returns the port it listens on.

        Raises:
            InstanceError: the address cannot be had; the rest of the policy holds, and `obey` may be tried again.
        """
        return asyncio.run_coroutine_threadsafe(self._obey(policy), self.loop).result()

    def observe(self) -> list[Observed]:
        """The connections, as sys.dm_broker_connections shows them."""
        return [stream.observed() for stream in list(self.streams)]

    def backlog(self) -> Backlog:
        """The frames that wait between sockets and rounds."""
        sums = [sum(column) for column in zip(*(stream.backlog() for stream in list(self.streams)), strict=True)]
        return Backlog(self.inbox.size, len(self.inbox), *(sums or [0, 0, 0, 0]))

    def take_refused(self) -> dict[int, Counted]:
        """Which peers were refused since the last time, by the number of the reason."""
        with self._lock:
            taken, self._refused = self._refused, {}
        return taken

    def reach(self, address: Address) -> Link | str:
        """The link to an address, or why there is none: then it is being opened."""
        with self._lock:
            if self.policy.silence:
                self._wanted.add(address)
                return _text(self.policy.silence, "Service Broker")
            peer = self._peers.get(address)
            link = None if peer is None else self.arbiter.find(peer)
            if link is not None:
                return link
            now = self.seconds()
            self._asked[address] = now
            attempt = self._attempts.get(address, _NONE)
            if now >= attempt.again_at:
                self._begin_connecting(address)
            return attempt.status

    def ask(self, address: Address, known: Known) -> None:
        """Ask the broker at that address whether it is the principal. An event `Answered` or `Unreached` follows."""
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

    def stand(self, standing: Standing) -> None:
        """State our role. It must be stated again within `RELAY_TIMEOUT_S` seconds, or it is not believed."""
        self._standing, self._seen_at = standing, self.seconds()
        self.is_mirror = standing.role is Role.MIRROR
        in_doubt = standing.role is Role.IN_DOUBT
        self._away_at = min(self._away_at, self._seen_at + DOUBT_TIMEOUT_S) if in_doubt else NEVER
        if standing != self._told:
            self.loop.call_soon_threadsafe(self._tell)

    @property
    def standing(self) -> Standing:
        """Our role now."""
        is_silent = self._standing.role is Role.PRINCIPAL and self.seconds() > self._seen_at + RELAY_TIMEOUT_S
        return IN_DOUBT if is_silent else self._standing

    @property
    def is_away(self) -> bool:
        """Return whether no round takes messages for now: there are no connections meanwhile.

        A peer that kept one would send on it, also when the name that it connects to leads elsewhere by now.
        """
        return self.seconds() > self._away_at

    def close(self) -> None:
        """Tell every peer, and stop."""
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    # ---------------------------------------------------------------- in the loop

    async def _obey(self, policy: Policy) -> int | None:
        before, self.policy = self.policy, policy
        self.peers.obey(policy)
        if policy._replace(forwards=before.forwards, forward_size=before.forward_size) != before:
            self._plain.clear()
            self._turns.clear()
            self._end_all(
                policy.silence, _text(policy.silence, "Service Broker") if policy.silence else "The transport restarts."
            )
        if self._listening != (policy.host, policy.port) and self._acceptor is not None:
            self._acceptor.close()
            self._acceptor, self._listening = None, ("", None)
        if not policy.silence and policy != before:
            with self._lock:
                self._attempted({})
                wanted, self._wanted = self._wanted, set()
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
        acceptor = Acceptor(lambda visitor: Stream(self, None, visitor), Terms(share(), STEP_TIME))
        acceptor.listen(sockets)
        return acceptor

    def _begin_connecting(self, address: Address) -> None:
        """Begin to connect to an address. The caller holds the lock."""
        if address not in self._connecting and not self.is_away:
            self._connecting.add(address)
            self._start(self._connect(address))

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        """Have the loop do something, and do not wait for it."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def _try_again(self) -> None:
        """Connect again to wanted addresses that were not reached, so that their conversations need not ask."""
        now = self.seconds()
        with self._lock:
            self._asked = {address: at for address, at in self._asked.items() if at + WANTED_S > now}
            self._attempted({address: one for address, one in self._attempts.items() if address in self._asked})
            for address in () if self.policy.silence else self._asked:
                if now >= self._attempts.get(address, _NONE).again_at:
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
        """Return whether a connection to that address begins with TLS."""
        policy = self.policy
        if policy.encryption == SUPPORTED:
            return policy.tls is not None and address not in self._plain
        return policy.encryption == REQUIRED

    def takes_no_tls(self, address: Address) -> None:
        """A peer has answered that it takes no TLS; where it is only supported, the next attempt does without."""
        if self.policy.encryption == SUPPORTED:
            self._plain.add(address)

    def turn(self, address: Address) -> int:
        """Which of our certificates is shown there, when there are two: the other one after each refusal."""
        return self._turns.get(address, 0)

    def refuse(self, number: int, peer: str) -> None:
        """Count a peer that was not let in."""
        with self._lock:
            before = self._refused.get(number)
            self._refused[number] = Counted((before.times if before else 0) + 1, peer)

    def failed(self, address: Address, status: str) -> None:
        """No link to this address: the next attempt comes later."""
        journal.connection("Connect Failed", str(address), status)
        with self._lock:
            self._connecting.discard(address)
            before = self._attempts.get(address, _NONE)
            pause = min(before.pause * 2, LAST_PAUSE) or FIRST_PAUSE
            self._attempted({**self._attempts, address: Attempt(self.seconds() + pause, pause, status)})
        self.inbox.put(Unreached(address, status))

    def _attempted(self, attempts: dict[Address, Attempt]) -> None:
        """These have failed and count. The caller has the lock."""
        self._attempts, self.unreachable = attempts, frozenset(attempts)

    def doubt(self, stream: Stream) -> str | None:
        """A peer has greeted: why it is not believed to be who it says. Who answers us is remembered."""
        why = self.peers.doubt(stream.address, stream.proved, stream.instance)
        if stream.address is None:
            return why or self._is_crowded(stream)
        for other in [one for one in self.streams if one.phase is Phase.ONLINE and one.instance == stream.instance]:
            claimed = self.peers.objection(other.owner, other.instance)  # another peer claims it as well now
            if claimed is not None and other is not stream:
                other.refuse(claimed)
        return why

    def _is_crowded(self, stream: Stream) -> str | None:
        """Why one more connection is too many: they would use up the sockets of this process."""
        many = sum(one.phase is Phase.ONLINE and one.known_as == stream.known_as for one in self.streams)
        if stream.owner:
            limit = self.peers.budgets.of(stream.owner).connections
            return f"its owner has {many} connections" if many >= limit else None
        return f"its host has {many} connections without a certificate" if many >= LINKS_OF_HOST else None

    def online(self, stream: Stream, event: Online) -> None:
        """A connection may carry messages, unless another one with the same peer does."""
        peer = Peer(stream.owner, event.seat)
        with self._lock:
            loser = self.arbiter.online(
                stream, event, is_opener=stream.address is not None, moment=stream.moment, owner=peer.owner
            )
            if stream.address is not None:
                self._connecting.discard(stream.address)
                self._attempted({address: one for address, one in self._attempts.items() if address != stream.address})
                self._asked.pop(stream.address, None)
                self._peers[stream.address] = peer
                self._last.pop(stream.address, None)
                self._last[stream.address] = peer
                if len(self._last) > MAX_ADDRESSES:
                    del self._last[next(iter(self._last))]
            else:
                self._peer_is_back(peer)
        if loser is not None:
            loser.shut(28033, RULES[28033].text)
        if stream.address is not None:
            self.inbox.put(Reached(stream.address))
        self.loop.call_soon(self._ask_again, peer)

    def _ask_again(self, peer: Peer) -> None:
        """A half of a mirrored pair is reached."""
        with self._lock:
            link = self.arbiter.find(peer)
            known = next((self._questions[address] for address in self._halves(peer)), None)
        if link is not None and known is not None:
            link.ask(known)

    def _halves(self, peer: Peer) -> list[Address]:
        """The addresses of mirrored pairs at which this peer answers. The caller has the lock."""
        return [address for address, one in self._peers.items() if one == peer and address in self._questions]

    def told(self, stream: Stream, standing: Standing) -> None:
        """Handle the answer of a peer whether it is the principal."""
        assert stream.peer is not None
        with self._lock:
            halves = self._halves(stream.peer)
        for address in halves:
            self.inbox.put(Answered(address, standing))
        if not halves and self.peers.proves:
            self.peers.mistrust(Mistrust(stream.owner, STANDING), f"{standing.role.name} of {standing.system}")

    def asked(self, stream: Stream, known: Known) -> None:
        """A peer wants to know whether we are the principal, and has seen this timeline of a cluster.

        Where peers can prove something, a higher timeline than ours is that only with the signature of our other half.
        """
        self.was_asked = True
        mine, tls = self._standing, self.policy.tls
        if mine.role is not Role.PRINCIPAL or known.system != mine.system or known.timeline <= mine.timeline:
            return
        if self.peers.proves and tls is not None and not tls.is_ours(known):
            self.peers.mistrust(Mistrust(stream.owner, STANDING), f"timeline {known.timeline} of {known.system}")
        else:
            self.inbox.put(Outdated(known))

    def evident(self, standing: Standing) -> Standing:
        """Return the standing with the evidence for it, to be sent to peers."""
        tls = self.policy.tls if self.peers.proves else None
        if self._evident[:2] != (standing, tls):
            self._evident = standing, tls, standing if tls is None else tls.signed(standing)
        return self._evident[2]

    def _tell(self) -> None:
        self._told = self.standing
        for stream in list(self.streams):
            stream.tell(self._told)

    def _peer_is_back(self, peer: Peer) -> None:
        """Try again the addresses of a peer that has just connected to us. The caller has the lock."""
        for address in self._asked:
            if self._last.get(address) == peer:
                self._begin_connecting(address)

    def over(self, stream: Stream, closed: Closed, *, was_online: bool) -> None:
        """Handle the end of a connection."""
        self.streams.discard(stream)
        with self._lock:
            self.arbiter.gone(stream)
            peer = stream.peer
            lost: list[Address] = []
            if peer is not None and self.arbiter.find(peer) is None:
                lost = self._halves(peer)
                self._peers = {address: one for address, one in self._peers.items() if one != peer}
        if was_online:
            if closed.number == 28012 and stream.address is not None:  # a mirror takes no messages
                lost.append(stream.address)
            for address in set(lost) if closed.number else ():
                self.failed(address, closed.text)
            self.inbox.put(Lost(stream, closed.text if closed.number else ""))
        elif stream.address is not None:
            if closed.number in NOT_BELIEVED and self.policy.tls is not None and self.policy.tls.ways > 1:
                self._turns[stream.address] = self.turn(stream.address) + 1
            self.failed(stream.address, closed.text)

    def _tick(self) -> None:
        self.loop.call_later(TICK_INTERVAL_S, self._tick)  # first: whatever a peer brings about, there is a next one
        if self.inbox.forgive():
            self._resume()
        if self.is_away:
            self._end_all(28012, NOT_IN_SERVICE)
        for stream in list(self.streams):
            stream.tick()
            self._look_for_twins(stream)
        self._try_again()
        if self.standing != self._told:
            self._tell()

    def _look_for_twins(self, stream: Stream) -> None:
        """Look whether another daemon with the peer's identity brings messages, too."""
        if not stream.has_brought_more():
            return
        identity, here = Identity(stream.owner, stream.instance), stream.where
        there = self._twins.heard(identity, stream.incarnation, here, self.seconds())
        if there is not None:
            self.peers.mistrust(Mistrust(stream.owner, TWINS, str(stream.instance)), f"one at {there}, one at {here}")

    def _resume_soon(self) -> None:
        """The inbox has room again: after what the loop is at, which may be to pause a stream."""
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
        await asyncio.sleep(0)  # the sockets are closed

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
