"""`servicebroker serve`: the daemon that sends an instance's messages to others, and stores received ones in its
queues.

One thread runs the rounds on one database connection. Under load, and with enough cores, several threads do, each on
its own connection (`broker/shares.py`). The network has a thread of its own, and another thread LISTENs for
notifications of PostgreSQL. While work is left, rounds follow each other with short pauses, so that small transactions
share a round. While nothing happens, no round runs.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from random import Random
from typing import Any
from uuid import UUID, uuid4, uuid5

import psycopg

from servicebroker.broker import forwarding, journal, metrics
from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.policy import OFF, Policy, PolicyWatch
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.principal_check import PrincipalCheck
from servicebroker.broker.processes import ShareProcess
from servicebroker.broker.relay import Relay
from servicebroker.broker.self_report import SelfReport
from servicebroker.broker.shares import NAME, Serving, Shares, pin_plans
from servicebroker.broker.sharing.messages import Begin, ProcessExited
from servicebroker.broker.sharing.pace import ROUND_PAUSE_S, DaemonPace, Mode, Wait
from servicebroker.broker.sharing.share import ROUND_FRAMES, Share
from servicebroker.broker.sharing.takeover import (
    FIRST_ACTS,
    LEASE_INTERVAL_S,
    PROMOTION_INTERVAL_S,
    PROOF_INTERVAL_S,
    Act,
    Event,
    Takeover,
)
from servicebroker.broker.transport import connections
from servicebroker.broker.transport.connections import Observed
from servicebroker.broker.transport.sockets import Network
from servicebroker.engine.built_in.echo_and_query import answer_built_in
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.network_endpoints import DISABLED, STARTED, NetworkEndpoint
from servicebroker.engine.delivery.transmission import deliver_conversation
from servicebroker.engine.diagnosis.history import SAMPLE_INTERVAL_S, sample
from servicebroker.engine.diagnosis.wrong_clocks import note_wrong_clock
from servicebroker.engine.remote.domain_state import ToldMembership, find_membership, tell_membership
from servicebroker.engine.remote.known_peers import save_answers, save_mistrusted
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.remote.mirrored_pairs import find_standing
from servicebroker.engine.remote.refusals import ROUND_FAILED, RefusalKey, save_refusals
from servicebroker.engine.remote.route_answers import take_answers
from servicebroker.model.daemon_reports import Subject
from servicebroker.model.errors import RULES, InstanceError
from servicebroker.protocol.division import Division
from servicebroker.protocol.mirroring import IN_DOUBT, Role
from servicebroker.protocol.routing import Address
from servicebroker.store import locks
from servicebroker.store.connection import connect, one_line
from servicebroker.store.direct import DirectConnection
from servicebroker.store.home import check_home, find_home
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.opened_keys import OpenedKeys
from servicebroker.store.listener import Listener, listening
from servicebroker.store.migrations import this_version
from servicebroker.store.outage import REPEAT_INTERVAL_S, Outage
from servicebroker.store.running import execute, run, run_alone
from servicebroker.store.server_clock import take_clock_difference
from servicebroker.store.server_time import follow
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL

RECONNECT_INTERVAL_S = 1.0  # seconds between attempts to reach the database again
POLICY_INTERVAL_S = 1.0  # seconds between looks at the endpoint and the certificates
ANSWER_INTERVAL_S = 30.0  # seconds between looks for what the built-in service was sent and nothing has told it of
STOP_TIMEOUT_S = 10.0  # seconds that `stop` gives to a commit that waits for a standby
TRANSMITTER_ID = 0  # stands for the transmission queue among the queues that readers wait for

_log = logging.getLogger("servicebroker.broker")


class Daemon:
    """Serves one instance until `stop`.

    `url` leads to its PostgreSQL database. `listener` stands for the stored endpoint, when it is given; `keys` holds
    the private keys of its certificates; conversations are divided among so many `shares`, not as load asks for, which
    have processes of their own where that is said. The instance must exist.

    Raises:
        InstanceError: the database cannot be reached.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime],
        *,
        listener: NetworkEndpoint | None = None,
        keys: KeyFolder | None = None,
        shares: int | None = None,
        in_processes: bool = False,
    ) -> None:
        self._url = url
        self._clock = clock
        self._keys = OpenedKeys(keys)
        self._stopped = threading.Event()
        self._inboxes = Inboxes()
        self._inbox = self._inboxes.shares[0]
        self._names: frozenset[Address] = frozenset()
        with connect(url) as connection:
            self._network = Network(seat(connection), uuid4(), self._inboxes, clock, instance_of(connection))
        self._shares = Shares(
            url,
            clock,
            self._inboxes,
            partial(self._make_relay, keys),
            self._carry,
            shares,
            partial(self._start_process, keys) if in_processes else None,
        )
        relay = self._shares.all[0].relay
        assert isinstance(relay, Relay)
        self._relay = relay
        self._watch = PolicyWatch(keys, listener)
        self._policy = OFF
        self._addresses: frozenset[Address] = frozenset()  # the addresses that routes use for this instance
        self._listens_at: int | None = None
        self._look_at = 0.0
        self._answer_at = 0.0
        self._sample_at = 0.0
        self._reports = SelfReport(clock)
        self._reports.tell(Subject.VERSION, this_version())
        self._tell_fault_at = 0.0
        self._outage = Outage(_log, "The connection to the database was lost; reconnecting")
        self._shown: list[Observed] = []
        self._serving: list[Serving] = []
        self._membership: ToldMembership | None = None  # as the database has it
        self._holds = False  # messages to pass on are shown
        self._principal_check = PrincipalCheck(self._network, self._reports)
        self._standing = IN_DOUBT  # of the server, when it was asked last on the way to serving
        self._connection: psycopg.Connection[Any] | None = None
        self._impatient: threading.Timer | None = None

    def _make_relay(self, keys: KeyFolder | None) -> Relay:
        return Relay(
            self._network, self._clock, time.monotonic, Random(), self._here, keys=keys, peers=self._network.peers
        )

    def _start_process(self, keys: KeyFolder | None, division: Division, follows: bool) -> ShareProcess:
        begin = Begin(self._url, None if keys is None else keys.path, division, _log.getEffectiveLevel(), follows)
        return ShareProcess(begin, self._network, self._network.peers, self._here, self._clock, time.monotonic)

    def listen(self, host: str, port: int, *names: str) -> Address:
        """Accept connections at once, without TLS, and ignore the stored endpoint; for embedding programs.

        `names` are hosts under which routes may mean this instance. Port 0 takes a free one.
        """
        endpoint = NetworkEndpoint(STARTED, host, port, DISABLED)
        found = self._network.obey(Policy(host, port))
        assert found is not None
        self._watch.listener = endpoint._replace(port=found)
        self._names = frozenset(Address(name.lower(), found) for name in (host, *names) if name)
        return Address(host or "0.0.0.0", found)  # the meaning of an empty host

    def stop(self) -> None:
        """End `run` soon; from any thread, but not inside of a signal's handler."""
        self._stopped.set()
        self._inbox.bell.set()
        self._impatient = threading.Timer(STOP_TIMEOUT_S, self._interrupt)
        self._impatient.daemon = True
        self._impatient.start()

    def _interrupt(self) -> None:
        """A commit that waits for its standby would wait for ever."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=STOP_TIMEOUT_S)
        self._shares.interrupt(STOP_TIMEOUT_S)

    def run(self) -> None:
        """Serve, also through restarts of the database, until `stop` is called."""
        try:
            while not self._stopped.is_set():
                try:
                    self._connect_and_serve()
                except ProcessExited as problem:  # while conversations were divided again
                    _log.warning("%s All shares restart from the stored state.", problem)
                    self._begin_anew()
                except (psycopg.Error, InstanceError) as problem:
                    self._outage.report(problem)
                    self._begin_anew()
                except Exception as problem:  # a bug here must not end the readers, nor all other peers
                    self._failed(problem)
                    self._begin_anew()
        finally:
            if self._impatient is not None:
                self._impatient.cancel()
            self._network.close()
            _log.info("The broker is shut down.")

    def _begin_anew(self) -> None:
        """Put our role in doubt, end the shares, and wait before everything is started again from the database."""
        self._network.stand(IN_DOUBT)
        self._shares.end()
        self._stopped.wait(RECONNECT_INTERVAL_S)

    def _failed(self, problem: Exception) -> None:
        """A fault of this program: the log has where, once a minute; doctor tells of it as long as it happens."""
        text = RULES[ROUND_FAILED].text.format(f"{type(problem).__name__}: {one_line(problem)}")
        self._network.refusals.note(RefusalKey(True, "servicebroker serve", ROUND_FAILED), text)
        now = time.monotonic()
        if now >= self._tell_fault_at:
            self._tell_fault_at = now + REPEAT_INTERVAL_S
            _log.error("%s The rounds restart from the stored state.", text, exc_info=problem)

    def _connect_and_serve(self) -> None:
        with connect(self._url, application_name=NAME) as connection:
            check_home(find_home(connection), connection.info.dbname)  # a copy may have taken its name meanwhile
            self._outage.end()
            try:
                self._connection = connection
                if self._take_over(connection, Act.SERVE):
                    _log.info("This process serves the instance.")
                    self._serve(connection)
            finally:
                self._connection = None

    def wait_for_promotion(self) -> bool:
        """Serve as the mirror while the server is a standby: refuse messages. Return False if `stop` was called."""
        while not self._stopped.is_set():
            try:
                with connect(self._url, application_name=NAME) as connection:
                    return self._take_over(connection, Act.TRY_LEASE)
            except (psycopg.Error, InstanceError) as problem:
                self._outage.report(problem)
                self._network.stand(IN_DOUBT)
                self._stopped.wait(RECONNECT_INTERVAL_S)
        return False

    def _take_over(self, connection: psycopg.Connection[Any], goal: Act) -> bool:
        """Carry out one act of `sharing/takeover.py` after the other. Returns whether the goal is the next one."""
        takeover, acts = Takeover(), list(FIRST_ACTS)
        while acts and not self._stopped.is_set():
            act = acts.pop(0)
            if act is goal:
                return True
            event = self._approach(connection, act)
            if event is not None:
                acts = list(takeover.happens(event))
        return False

    def _approach(self, connection: psycopg.Connection[Any], act: Act) -> Event | None:
        """Carry out an act on the way to serving. Returns the event that it ends with, if any."""
        match act:
            case Act.ASK_ROLE:
                self._standing = run(connection, find_standing())
                return Event.MIRROR if self._standing.role is Role.MIRROR else Event.PRIMARY
            case Act.SAY_MIRROR:
                self._network.stand(self._standing)
            case Act.NOTE_MIRROR:
                _log.info("The server is a standby: this process waits as the mirror until it is promoted.")
            case Act.DROP_ARRIVALS:
                while self._inbox.take(ROUND_FRAMES):
                    pass
            case Act.FOLLOW_POLICY:
                self._follow(connection)
            case Act.WAIT_FOR_PROMOTION:
                self._stopped.wait(PROMOTION_INTERVAL_S)
            case Act.NOTE_PROMOTED:
                _log.warning("The standby was promoted: this process takes over.")
            case Act.SAY_DOUBT:
                self._network.stand(IN_DOUBT)  # until it has the lease, and has committed
            case Act.TRY_LEASE:
                return Event.WON if _has_lease(connection) else Event.HELD
            case Act.NOTE_STANDBY:
                _log.warning("Another process serves the instance; this one stands by until that process ends.")
            case Act.STOP_LISTENING:
                self._policy, self._addresses, self._listens_at = OFF, frozenset(), None
                self._network.obey(OFF)
                self._watch.forget()
            case Act.WAIT_FOR_LEASE:
                self._stopped.wait(LEASE_INTERVAL_S)
            case Act.PROVE:
                return self._principal_check.attempt(connection)
            case Act.REPORT:
                self._principal_check.report(connection)
            case Act.WAIT_FOR_PROOF:
                self._stopped.wait(PROOF_INTERVAL_S)
        return None

    def _here(self) -> LocalInstance:
        policy = self._policy
        return LocalInstance(
            self._addresses | self._names, policy.forwards, self._network.unreachable, policy.forward_size
        )

    def _serve(self, connection: DirectConnection) -> None:
        self._shown, self._serving, self._look_at, self._answer_at, self._sample_at = [], [], 0.0, 0.0, 0.0
        self._membership = run(connection, find_membership())
        kept = KeptDeliveries(self._url, self._clock)
        store = PostgresStore(connection, self._clock, kept=kept)
        connection.add_notice_handler(store.notice)
        pin_plans(connection)
        connections.write(connection, [])
        forwarding.write(connection, [])
        self._reports.write(connection, anew=True)
        heard = listening(self._url, ("servicebroker", DELIVERY_CHANNEL), self._heard, name=NAME)
        with contextlib.closing(kept), heard as ear:
            kept.ask()  # left there by another process
            self._look(connection)  # the report of the last round, should no round succeed
            try:
                self._shares.begin(store)
                self._run_rounds(connection, ear)
            finally:
                self._shares.end()
        self._relay.forwarding.drop_all(11293)
        connections.write(connection, [])
        forwarding.write(connection, [])

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        """Once a second: do as the endpoint and the certificates say, and tell how the connections stand."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + POLICY_INTERVAL_S
        follow(self._clock, connection)
        if ahead := take_clock_difference(self._clock):
            run_alone(connection, note_wrong_clock(ahead, self._clock()))
        self._principal_check.renew(connection)
        self._keep(connection)
        self._follow(connection)
        if self._watch.membership != self._membership:
            run_alone(connection, tell_membership(self._watch.membership))
            self._membership = self._watch.membership
        metrics.show_backlog(*self._network.backlog())
        shown = self._network.observe()
        if shown != self._shown:
            connections.write(connection, shown)
            self._shown = shown
        serving = self._shares.serving()
        if serving != self._serving:
            connections.show(connection, "serving_processes", Serving._fields, serving)
            self._serving = serving
        self._shares.show()
        self._reports.write(connection)
        held = self._shares.forwarded()
        if held or self._holds:
            forwarding.write(connection, held)
            self._holds = bool(held)
        if refused := self._network.take_refused():
            connections.count(connection, refused, self._clock())
        if refusals := self._network.refusals.take():
            run_alone(connection, save_refusals(refusals, self._clock()))
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_INTERVAL_S
            run_alone(connection, sample())
        self._take_answers(connection)
        self._shares.adapt()

    def _keep(self, connection: psycopg.Connection[Any]) -> None:
        """Save new facts about peers, and false claims."""
        peers = self._network.peers
        if answers := peers.take_answers():
            run_alone(connection, save_answers(answers, self._clock()))
        if mistrusted := peers.take_mistrusted():
            run_alone(connection, save_mistrusted(mistrusted, self._clock()))
            for what, (times, detail) in mistrusted.items():
                journal.mistrusted(what, times, detail)

    def _follow(self, connection: psycopg.Connection[Any]) -> None:
        policy = self._watch.look(connection, self._clock(), self._relay.snapshot)
        if self._network.peers.set_budgets(self._watch.budgets):
            _log.info("Budgets of peers, where they differ from the default: %s", self._watch.budgets or "none")
        if policy is not None or self._reports.has(Subject.ENDPOINT):
            self._obey(policy or self._policy)

    def _take_answers(self, connection: psycopg.Connection[Any]) -> None:
        """Apply the answers of the dynamic routing service."""
        catalog = Catalog(keys=self._keys)
        answers = run_alone(connection, take_answers(catalog, self._clock()))
        for failure in answers.failures:
            _log.error("%s", failure)
        for handle in answers.left:
            run_alone(connection, deliver_conversation(catalog, handle, self._clock()))
            self._inboxes.ring()

    def _answer(self, connection: psycopg.Connection[Any]) -> None:
        """Let the built-in service answer, when it is notified of a message and at intervals."""
        now = time.monotonic()
        if now < self._answer_at:
            return
        self._answer_at = now + ANSWER_INTERVAL_S
        if run_alone(connection, answer_built_in(self._clock())):
            self._answer_at = now + ROUND_PAUSE_S

    def _obey(self, policy: Policy) -> None:
        self._policy, self._addresses = policy, policy.addresses
        try:
            found = self._network.obey(policy)
        except InstanceError as problem:
            self._listens_at = None
            text = f"{problem} It is tried again every second; messages leave, but none come in."
            self._reports.tell(Subject.LISTENS, "")
            if self._reports.tell(Subject.ENDPOINT, text):
                _log.error("%s", text)
            return
        self._reports.tell(Subject.ENDPOINT, "")
        where = "" if found is None else str(Address(policy.host or "0.0.0.0", found))
        self._reports.tell(Subject.LISTENS, where)
        if found == self._listens_at:
            return
        if found is None:
            _log.info("The Service Broker protocol transport has stopped listening for connections.")
        else:
            _log.info("The Service Broker protocol transport is now listening for connections at %s.", where)
        self._listens_at = found

    def _run_rounds(self, connection: DirectConnection, ear: Listener) -> None:
        """Run rounds until `stop`: listen until there is much to do, then poll until there is little."""
        pace = DaemonPace()
        self._go_over(connection, pace.mode)
        while not self._stopped.is_set():
            mode = pace.mode
            if mode is Mode.LISTEN:
                ear.check()
            carried = self._round(connection)
            rang = self._wait(pace.after_round(carried, self._wake_at, time.monotonic()))
            pace.waited(self._wake_at, time.monotonic(), rang=rang)
            if pace.mode is not mode:
                self._go_over(connection, pace.mode)
        if pace.mode is Mode.LISTEN:
            _register(connection, waits=False)

    def _go_over(self, connection: DirectConnection, mode: Mode) -> None:
        """Listen or poll from now on: senders notify while the daemon listens."""
        if mode is Mode.LISTEN:
            self._inbox.bell.clear()
            _register(connection, waits=True)
            self._tell_others(is_polling=False)
        else:
            self._tell_others(is_polling=True)
            _register(connection, waits=False)

    def _wait(self, wait: Wait) -> bool:
        """Wait. Returns whether the bell has ended the wait."""
        if not wait.hears_bell:
            self._stopped.wait(wait.seconds)
            return False
        if self._inbox.bell.wait(wait.seconds):
            self._inbox.bell.clear()
            return True
        return False

    def _round(self, connection: DirectConnection) -> int:
        """One round; how much there was to do, in messages. The look of each second delays none that waits now."""
        self._answer(connection)
        if self._shares.problem is not None:
            raise self._shares.problem
        self._carry(self._shares.all[0])
        self._look(connection)
        return max(share.carried for share in self._shares.all)

    def _carry(self, share: Share) -> int:
        """One round of a share, on its thread; how much there was to do, in messages."""
        return share.carry(time.monotonic, self._principal_check.challenge)

    @property
    def _wake_at(self) -> float:
        """When there is something to do for the first share, if nothing happens."""
        return min(self._relay.wake_at, self._inbox.wake_at)

    def _tell_others(self, *, is_polling: bool) -> None:
        """Let the other shares poll while senders do not notify us, and once more when they do again."""
        self._shares.is_polling = is_polling
        for share in self._shares.all[1:]:
            share.inbox.bell.set()

    def _heard(self, notice: psycopg.Notify) -> None:
        """A SEND to another instance was committed, or one to the built-in service."""
        if notice.channel == DELIVERY_CHANNEL:
            self._answer_at = 0.0
            self._inbox.bell.set()
        elif notice.payload == str(TRANSMITTER_ID):
            self._inboxes.ring()


def _register(connection: psycopg.Connection[Any], *, waits: bool) -> None:
    """While the daemon sleeps, a SEND to another instance notifies; while it works, it saves itself that."""
    if waits:
        execute(
            connection,
            "daemon.register.enter",
            "insert into servicebroker.waiting_readers values ($1, pg_backend_pid()) on conflict do nothing",
            TRANSMITTER_ID,
        )
    else:
        execute(
            connection,
            "daemon.register.leave",
            "delete from servicebroker.waiting_readers where queue_id = $1 and pid = pg_backend_pid()",
            TRANSMITTER_ID,
        )


def _has_lease(connection: psycopg.Connection[Any]) -> bool:
    """Try to get the lease. Returns whether this session has it: one daemon serves an instance."""
    ((ours,),) = execute(connection, "daemon.has_lease", "select pg_try_advisory_lock($1, 0)", locks.BROKER_DAEMON)
    return bool(ours)


def instance_of(connection: psycopg.Connection[Any]) -> UUID:
    """The identifier of the instance: the same in a primary and its standbys."""
    ((instance,),) = execute(connection, "daemon.instance_of", "select instance_id from servicebroker.instance")
    return UUID(str(instance))


def seat(connection: psycopg.Connection[Any]) -> UUID:
    """The identifier under which the daemon of an instance greets others.

    Two servers of one instance may be connected to one peer at a time; so it is derived from the instance's and from
    where the daemon and its server are.
    """
    place = f"{socket.gethostname()} {connection.info.host} {connection.info.port} {connection.info.dbname}"
    return uuid5(instance_of(connection), place)
