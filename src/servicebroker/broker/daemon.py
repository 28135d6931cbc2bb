"""`servicebroker serve`: the daemon that sends an instance's messages to others, and stores received ones in its
queues.

A round is one database transaction: it stores the received messages, and reads the messages to send. One thread runs
the rounds on one database connection. Under load, and with enough cores, the conversations are divided into shares
(partitions). Each share has a thread and a connection of its own (`broker/shares.py`). The network has a thread of its
own, and another thread LISTENs for notifications of PostgreSQL. While there is work, rounds follow each other with
short pauses, so that one round handles many small transactions. While the instance is idle, no round runs.
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
from servicebroker.broker.shares import DEADLINE_ERRORS, NAME, Serving, Shares, prepare_session
from servicebroker.broker.sharing.messages import Begin, MissedDeadline, ProcessExited
from servicebroker.broker.sharing.pace import ROUND_PAUSE_S, DaemonPace, Mode, Wait
from servicebroker.broker.sharing.share import ROUND_FRAMES, Share
from servicebroker.broker.sharing.takeover import (
    FIRST_ACTIONS,
    LEASE_INTERVAL_S,
    PROMOTION_INTERVAL_S,
    PROOF_INTERVAL_S,
    Event,
    Takeover,
    TakeoverAction,
)
from servicebroker.broker.transport import connections
from servicebroker.broker.transport.connections import Observed
from servicebroker.broker.transport.sockets import Network
from servicebroker.engine.built_in.echo_and_query import answer_built_in
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.network_endpoints import DISABLED, STARTED, NetworkEndpoint
from servicebroker.engine.delivery.transmission import deliver_conversation
from servicebroker.engine.diagnosis.history import SAMPLE_INTERVAL_S, record_history_sample
from servicebroker.engine.diagnosis.wrong_clocks import note_wrong_clock
from servicebroker.engine.remote.domain_state import ReportedMembership, find_membership, report_membership
from servicebroker.engine.remote.known_peers import save_answers, save_false_claims
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.remote.mirrored_pairs import read_role
from servicebroker.engine.remote.refusals import ROUND_FAILED, RefusalKey, save_refusals
from servicebroker.engine.remote.route_answers import take_route_answers
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

RECONNECT_INTERVAL_S = 1.0  # seconds between attempts to connect to the database again
POLICY_POLL_INTERVAL_S = 1.0  # seconds between checks of the stored endpoint and the certificates
ANSWER_INTERVAL_S = 30.0  # seconds between checks for messages to the built-in service whose NOTIFY was missed
STOP_TIMEOUT_S = 10.0  # seconds until `stop` cancels a commit that waits for a standby
TRANSMITTER_ID = 0  # the transmission queue's id in the table waiting_readers

_log = logging.getLogger("servicebroker.broker")


class Daemon:
    """Serves one instance until `stop`.

    `url` leads to its PostgreSQL database. `listener` replaces the stored endpoint. `keys` holds the private keys of
    the instance's certificates. `shares` fixes the number of shares; by default the load decides. With `in_processes`
    each share but the first runs in a child process. The instance must exist.

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
            self._network = Network(daemon_id(connection), uuid4(), self._inboxes, clock, instance_of(connection))
        self._shares = Shares(
            url,
            clock,
            self._inboxes,
            partial(self._make_relay, keys),
            self._run_share_round,
            shares,
            partial(self._start_process, keys) if in_processes else None,
        )
        relay = self._shares.all[0].relay
        assert isinstance(relay, Relay)
        self._relay = relay
        self._watch = PolicyWatch(keys, listener)
        self._policy = OFF
        self._addresses: frozenset[Address] = frozenset()  # the addresses that routes use for this instance
        self._listening_port: int | None = None
        self._next_poll = 0.0
        self._next_answer = 0.0
        self._next_sample = 0.0
        self._reports = SelfReport(clock)
        self._reports.tell(Subject.VERSION, this_version())
        self._next_fault_log = 0.0
        self._outage = Outage(_log, "The connection to the database was lost; reconnecting")
        self._missed_deadlines = Outage(_log, "A round missed its deadline, and is tried again")
        self._written_connections: list[Observed] = []
        self._written_processes: list[Serving] = []
        self._membership: ReportedMembership | None = None  # as last written into the database
        self._has_written_forwarding = False  # the last round wrote forwarded messages into the database
        self._principal_check = PrincipalCheck(self._network, self._reports)
        self._server_role = IN_DOUBT  # the last answer of the server
        self._connection: psycopg.Connection[Any] | None = None
        self._commit_canceller: threading.Timer | None = None

    def _make_relay(self, keys: KeyFolder | None) -> Relay:
        return Relay(
            self._network,
            self._clock,
            time.monotonic,
            Random(),
            self._local_instance,
            keys=keys,
            peers=self._network.peers,
        )

    def _start_process(self, keys: KeyFolder | None, division: Division, follows: bool) -> ShareProcess:
        begin = Begin(self._url, None if keys is None else keys.path, division, _log.getEffectiveLevel(), follows)
        return ShareProcess(
            begin, self._network, self._network.peers, self._local_instance, self._clock, time.monotonic
        )

    def listen(self, host: str, port: int, *names: str) -> Address:
        """Accept connections immediately, without TLS and without the stored endpoint, in programs that embed a daemon.

        `names` are further hosts by which routes may name this instance. Port 0 takes a free one.
        """
        endpoint = NetworkEndpoint(STARTED, host, port, DISABLED)
        bound_port = self._network.apply(Policy(host, port))
        assert bound_port is not None
        self._watch.listener = endpoint._replace(port=bound_port)
        self._names = frozenset(Address(name.lower(), bound_port) for name in (host, *names) if name)
        return Address(host or "0.0.0.0", bound_port)  # the meaning of an empty host

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, but not from a signal handler."""
        self._stopped.set()
        self._inbox.wake_event.set()
        self._commit_canceller = threading.Timer(STOP_TIMEOUT_S, self._interrupt)
        self._commit_canceller.daemon = True
        self._commit_canceller.start()

    def _interrupt(self) -> None:
        """Cancel commits that wait for a standby: without it they would wait for ever."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=STOP_TIMEOUT_S)
        self._shares.interrupt(STOP_TIMEOUT_S)

    def run(self) -> None:
        """Serve until `stop` is called. Reconnect after a restart of the database."""
        try:
            while not self._stopped.is_set():
                try:
                    self._connect_and_serve()
                except ProcessExited as problem:  # while the conversations were divided among other shares
                    _log.warning("%s All shares restart from the stored state.", problem)
                    self._reset()
                except (*DEADLINE_ERRORS, MissedDeadline) as problem:
                    self._missed_deadlines.report(problem)
                    self._reset()
                except (psycopg.Error, InstanceError) as problem:
                    self._outage.report(problem)
                    self._reset()
                except Exception as problem:  # a bug must not stop activated readers, nor the exchange with other peers
                    self._report_bug(problem)
                    self._reset()
        finally:
            if self._commit_canceller is not None:
                self._commit_canceller.cancel()
            self._network.close()
            _log.info("The broker is shut down.")

    def _reset(self) -> None:
        """Announce that the role is in doubt, end the shares, and wait before serving starts again."""
        self._network.announce_role(IN_DOUBT)
        self._shares.end()
        self._stopped.wait(RECONNECT_INTERVAL_S)

    def _report_bug(self, problem: Exception) -> None:
        """Report a bug: log the traceback at most once a minute, and show it in `doctor` while it occurs."""
        text = RULES[ROUND_FAILED].text.format(f"{type(problem).__name__}: {one_line(problem)}")
        self._network.refusals.note(RefusalKey(True, "servicebroker serve", ROUND_FAILED), text)
        now = time.monotonic()
        if now >= self._next_fault_log:
            self._next_fault_log = now + REPEAT_INTERVAL_S
            _log.error("%s The rounds restart from the stored state.", text, exc_info=problem)

    def _connect_and_serve(self) -> None:
        with connect(self._url, application_name=NAME) as connection:
            check_home(find_home(connection), connection.info.dbname)  # a copy may have this name now
            self._outage.end()
            try:
                self._connection = connection
                if self._run_takeover(connection, TakeoverAction.SERVE):
                    _log.info("This process serves the instance.")
                    self._serve(connection)
            finally:
                self._connection = None

    def wait_for_promotion(self) -> bool:
        """Serve as the mirror while the server is a standby: refuse messages. Return False if `stop` was called."""
        while not self._stopped.is_set():
            try:
                with connect(self._url, application_name=NAME) as connection:
                    return self._run_takeover(connection, TakeoverAction.TRY_LEASE)
            except (psycopg.Error, InstanceError) as problem:
                self._outage.report(problem)
                self._network.announce_role(IN_DOUBT)
                self._stopped.wait(RECONNECT_INTERVAL_S)
        return False

    def _run_takeover(self, connection: psycopg.Connection[Any], goal: TakeoverAction) -> bool:
        """Carry out the actions of `sharing/takeover.py` in order. Returns True when `goal` is the next one."""
        takeover, actions = Takeover(), list(FIRST_ACTIONS)
        while actions and not self._stopped.is_set():
            action = actions.pop(0)
            if action is goal:
                return True
            event = self._run_action(connection, action)
            if event is not None:
                actions = list(takeover.on_event(event))
        return False

    def _run_action(self, connection: psycopg.Connection[Any], action: TakeoverAction) -> Event | None:
        """Carry out one action. Returns the event that ends it, if any."""
        match action:
            case TakeoverAction.ASK_ROLE:
                self._server_role = run(connection, read_role())
                return Event.MIRROR if self._server_role.role is Role.MIRROR else Event.PRIMARY
            case TakeoverAction.ANNOUNCE_MIRROR:
                self._network.announce_role(self._server_role)
            case TakeoverAction.LOG_MIRROR:
                _log.info("The server is a standby: this process waits as the mirror until it is promoted.")
            case TakeoverAction.DROP_ARRIVALS:
                while self._inbox.take(ROUND_FRAMES):
                    pass
            case TakeoverAction.APPLY_POLICY:
                self._apply_policy(connection)
            case TakeoverAction.WAIT_FOR_PROMOTION:
                self._stopped.wait(PROMOTION_INTERVAL_S)
            case TakeoverAction.LOG_PROMOTED:
                _log.warning("The standby was promoted: this process takes over.")
            case TakeoverAction.ANNOUNCE_DOUBT:
                self._network.announce_role(IN_DOUBT)  # until this process has the lease, and a commit has succeeded
            case TakeoverAction.TRY_LEASE:
                return Event.WON if _has_lease(connection) else Event.HELD
            case TakeoverAction.LOG_STANDBY:
                _log.warning("Another process serves the instance; this one stands by until that process ends.")
            case TakeoverAction.STOP_LISTENING:
                self._policy, self._addresses, self._listening_port = OFF, frozenset(), None
                self._network.apply(OFF)
                self._watch.forget()
            case TakeoverAction.WAIT_FOR_LEASE:
                self._stopped.wait(LEASE_INTERVAL_S)
            case TakeoverAction.PROVE:
                return self._principal_check.attempt(connection)
            case TakeoverAction.REPORT:
                self._principal_check.report(connection)
            case TakeoverAction.WAIT_FOR_PROOF:
                self._stopped.wait(PROOF_INTERVAL_S)
        return None

    def _local_instance(self) -> LocalInstance:
        policy = self._policy
        return LocalInstance(
            self._addresses | self._names, policy.forwards, self._network.unreachable, policy.forward_size
        )

    def _serve(self, connection: DirectConnection) -> None:
        self._written_connections, self._written_processes, self._next_poll, self._next_answer, self._next_sample = (
            [],
            [],
            0.0,
            0.0,
            0.0,
        )
        self._membership = run(connection, find_membership())
        deliveries = KeptDeliveries(self._url, self._clock)
        store = PostgresStore(connection, self._clock, kept=deliveries)
        connection.add_notice_handler(store.notice)
        prepare_session(connection)
        connections.write(connection, [])
        forwarding.write(connection, [])
        self._reports.write(connection, anew=True)
        notifications = listening(self._url, ("servicebroker", DELIVERY_CHANNEL), self._on_notification, name=NAME)
        with contextlib.closing(deliveries), notifications as listener:
            deliveries.ask()  # for deliveries that another process has left unfinished
            self._poll(connection)  # write the current state now, in case no round succeeds
            try:
                self._shares.begin(store)
                self._run_rounds(connection, listener)
            finally:
                self._shares.end()
        self._relay.forwarding.drop_all(11293)
        connections.write(connection, [])
        forwarding.write(connection, [])

    def _poll(self, connection: psycopg.Connection[Any]) -> None:
        """Once a second: apply changes of endpoint and certificates, and write the daemon's state to the database."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLICY_POLL_INTERVAL_S
        follow(self._clock, connection)
        if ahead := take_clock_difference(self._clock):
            run_alone(connection, note_wrong_clock(ahead, self._clock()))
        self._principal_check.renew(connection)
        self._save_peer_facts(connection)
        self._apply_policy(connection)
        if self._watch.membership != self._membership:
            run_alone(connection, report_membership(self._watch.membership))
            self._membership = self._watch.membership
        metrics.show_backlog(*self._network.backlog())
        observed = self._network.observe()
        if observed != self._written_connections:
            connections.write(connection, observed)
            self._written_connections = observed
        serving = self._shares.serving()
        if serving != self._written_processes:
            connections.show(connection, "serving_processes", Serving._fields, serving)
            self._written_processes = serving
        self._shares.show()
        self._reports.write(connection)
        held = self._shares.forwarded()
        if held or self._has_written_forwarding:
            forwarding.write(connection, held)
            self._has_written_forwarding = bool(held)
        if refused := self._network.take_refused():
            connections.count(connection, refused, self._clock())
        if refusals := self._network.refusals.take():
            run_alone(connection, save_refusals(refusals, self._clock()))
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_INTERVAL_S
            run_alone(connection, record_history_sample())
        self._take_answers(connection)
        self._shares.adapt()

    def _save_peer_facts(self, connection: psycopg.Connection[Any]) -> None:
        """Save what peers have proved, and the claims that proved false."""
        peers = self._network.peers
        if answers := peers.take_answers():
            run_alone(connection, save_answers(answers, self._clock()))
        if mistrusted := peers.take_mistrusted():
            run_alone(connection, save_false_claims(mistrusted, self._clock()))
            for mistrust, (times, detail) in mistrusted.items():
                journal.log_false_claims(mistrust, times, detail)

    def _apply_policy(self, connection: psycopg.Connection[Any]) -> None:
        policy = self._watch.poll(connection, self._clock(), self._relay.snapshot)
        if self._network.peers.set_budgets(self._watch.budgets):
            _log.info("Budgets of peers, where they differ from the default: %s", self._watch.budgets or "none")
        if policy is not None or self._reports.has(Subject.ENDPOINT):
            self._apply_endpoint(policy or self._policy)

    def _take_answers(self, connection: psycopg.Connection[Any]) -> None:
        """Apply the answers of the dynamic routing service."""
        catalog = Catalog(keys=self._keys)
        answers = run_alone(connection, take_route_answers(catalog, self._clock()))
        for failure in answers.failures:
            _log.error("%s", failure)
        for handle in answers.left:
            run_alone(connection, deliver_conversation(catalog, handle, self._clock()))
            self._inboxes.wake()

    def _answer(self, connection: psycopg.Connection[Any]) -> None:
        """Answer messages to the built-in service: after a notification, and every `ANSWER_INTERVAL_S`."""
        now = time.monotonic()
        if now < self._next_answer:
            return
        self._next_answer = now + ANSWER_INTERVAL_S
        if run_alone(connection, answer_built_in(self._clock())):
            self._next_answer = now + ROUND_PAUSE_S

    def _apply_endpoint(self, policy: Policy) -> None:
        self._policy, self._addresses = policy, policy.addresses
        try:
            bound_port = self._network.apply(policy)
        except InstanceError as problem:
            self._listening_port = None
            text = f"{problem} The daemon retries every second; messages leave, but none come in."
            self._reports.tell(Subject.LISTENS, "")
            if self._reports.tell(Subject.ENDPOINT, text):
                _log.error("%s", text)
            return
        self._reports.tell(Subject.ENDPOINT, "")
        where = "" if bound_port is None else str(Address(policy.host or "0.0.0.0", bound_port))
        self._reports.tell(Subject.LISTENS, where)
        if bound_port == self._listening_port:
            return
        if bound_port is None:
            _log.info("The Service Broker protocol transport has stopped listening for connections.")
        else:
            _log.info("The Service Broker protocol transport is now listening for connections at %s.", where)
        self._listening_port = bound_port

    def _run_rounds(self, connection: DirectConnection, listener: Listener) -> None:
        """Run rounds until `stop`. Listen while the load is low, poll while it is high."""
        pace = DaemonPace()
        self._change_mode(connection, pace.mode)
        while not self._stopped.is_set():
            mode = pace.mode
            if mode is Mode.LISTEN:
                listener.check()
            handled = self._round(connection)
            was_woken = self._wait(pace.after_round(handled, self._wake_at, time.monotonic()))
            pace.waited(self._wake_at, time.monotonic(), was_woken=was_woken)
            if pace.mode is not mode:
                self._change_mode(connection, pace.mode)
        if pace.mode is Mode.LISTEN:
            _register(connection, waits=False)

    def _change_mode(self, connection: DirectConnection, mode: Mode) -> None:
        """Listen or poll from now on. Senders notify only while the daemon listens."""
        if mode is Mode.LISTEN:
            self._inbox.wake_event.clear()
            _register(connection, waits=True)
            self._set_polling(is_polling=False)
        else:
            self._set_polling(is_polling=True)
            _register(connection, waits=False)

    def _wait(self, wait: Wait) -> bool:
        """Wait. Returns whether a notification or a received message has ended the wait."""
        if not wait.is_interruptible:
            self._stopped.wait(wait.seconds)
            return False
        if self._inbox.wake_event.wait(wait.seconds):
            self._inbox.wake_event.clear()
            return True
        return False

    def _round(self, connection: DirectConnection) -> int:
        """Run one round. Returns the number of messages. `_poll` comes last, so that it delays no waiting message."""
        self._answer(connection)
        if self._shares.problem is not None:
            raise self._shares.problem
        self._run_share_round(self._shares.all[0])
        self._poll(connection)
        return max(share.handled for share in self._shares.all)

    def _run_share_round(self, share: Share) -> int:
        """Run one round of a share, on its thread. Returns the number of messages."""
        return share.run_round(time.monotonic, self._principal_check.challenge)

    @property
    def _wake_at(self) -> float:
        """The time when the first share has work, even if no message arrives."""
        return min(self._relay.wake_at, self._inbox.wake_at)

    def _set_polling(self, *, is_polling: bool) -> None:
        """Make the other shares poll while senders send no NOTIFY. Wake them at each change."""
        self._shares.is_polling = is_polling
        for share in self._shares.all[1:]:
            share.inbox.wake_event.set()

    def _on_notification(self, notice: psycopg.Notify) -> None:
        """Handle a NOTIFY of a committed SEND: to another instance, or to the built-in service."""
        if notice.channel == DELIVERY_CHANNEL:
            self._next_answer = 0.0
            self._inbox.wake_event.set()
        elif notice.payload == str(TRANSMITTER_ID):
            self._inboxes.wake()


def _register(connection: psycopg.Connection[Any], *, waits: bool) -> None:
    """Tell senders whether a SEND to another instance needs a NOTIFY: yes while the daemon listens."""
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
    """Try to get the lease, an advisory lock for the one daemon of an instance. Returns whether this session has it."""
    ((is_locked,),) = execute(connection, "daemon.has_lease", "select pg_try_advisory_lock($1, 0)", locks.BROKER_DAEMON)
    return bool(is_locked)


def instance_of(connection: psycopg.Connection[Any]) -> UUID:
    """Return the identifier of the instance. A primary and its standbys have the same one."""
    ((instance,),) = execute(connection, "daemon.instance_of", "select instance_id from servicebroker.instance")
    return UUID(str(instance))


def daemon_id(connection: psycopg.Connection[Any]) -> UUID:
    """Return the identifier that the daemon sends in its greeting.

    A primary and its standby may be connected to one peer at the same time, so each needs an identifier of its own. It
    is derived from the instance, the host of the daemon and the server's address.
    """
    location = f"{socket.gethostname()} {connection.info.host} {connection.info.port} {connection.info.dbname}"
    return uuid5(instance_of(connection), location)
