"""`servicebroker serve`: the daemon of an instance as a process."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from servicebroker.activation.activate import activate
from servicebroker.activation.alerts import Alert, alerts
from servicebroker.activation.output import captured
from servicebroker.api.instance import Instance
from servicebroker.api.open import open_instance
from servicebroker.broker.daemon import Daemon
from servicebroker.broker.metrics import count_event, served
from servicebroker.cli.existing import must_exist
from servicebroker.cli.log import log_to_standard_error
from servicebroker.engine.catalog.network_endpoints import (
    DISABLED,
    HIGHEST_PORT,
    LOWEST_PORT,
    REQUIRED,
    STARTED,
    SUPPORTED,
    NetworkEndpoint,
)
from servicebroker.model.authentication import parse_authentication
from servicebroker.model.errors import BrokerError, Unreachable
from servicebroker.protocol.queue_monitor import INTERVAL
from servicebroker.store.connection import is_url

RETRY = 2.0  # seconds between attempts to reach a database that is down when we begin
_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>[0-9]{1,5})")

_log = logging.getLogger("servicebroker.broker")


def serve(
    target: str,
    listen: str | None,
    encryption: str,
    authentication: str,
    keys: str | None,
    *,
    procedures: Sequence[str] = (),
    interval: float = INTERVAL,
    alert: Alert | None = None,
    metrics: str | None = None,
    as_json: bool,
) -> None:
    """Serve the instance until SIGTERM or SIGINT, through restarts of its database; then let procedures finish.

    Raises:
        InstanceError: there is none, or it cannot be used; procedures cannot be imported.
        BrokerError: 5837 port, 5838 authentication, 402 what the arguments may not say.
    """
    listener = None if listen is None else parse_listener(listen, encryption, authentication)
    log_to_standard_error(as_json=as_json)
    stopping = _Stopping()
    while not stopping.asked:
        try:
            must_exist(target)
            with open_instance(target, keys=keys) as instance:
                daemon = Daemon(instance.url, instance.clock, listener=listener, keys=instance.key_folder())
                stopping.stops(daemon)
                with contextlib.ExitStack() as running:
                    running.enter_context(_measured(instance, metrics))
                    running.enter_context(captured())
                    if daemon.wait_for_promotion():
                        running.enter_context(alerts(instance, alert))
                        running.enter_context(activate(instance, procedures=procedures, interval=interval))
                    daemon.run()
                return
        except Unreachable as problem:
            if not is_url(target):
                raise
            _log.warning("%s It is tried again every %g seconds.", problem, RETRY)
            stopping.wait(RETRY)


@contextlib.contextmanager
def _measured(instance: Instance, metrics: str | None) -> Iterator[None]:
    """Answer /metrics at HOST:PORT, when it is given."""
    if metrics is None:
        yield
        return
    host, port = parse_address("--metrics", metrics)
    instance.events.subscribe(count_event)
    with served(instance.url, host, port) as found:
        _log.info("Metrics are served at http://%s:%s/metrics.", host or "0.0.0.0", found)
        yield


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an empty host is every address of the machine.

    Raises:
        BrokerError: 402 no HOST:PORT.
    """
    found = _LISTEN.fullmatch(text)
    if found is None or int(found["port"]) > HIGHEST_PORT:
        raise BrokerError(402, option, repr(text), "HOST:PORT")
    return found["v6"] or found["host"], int(found["port"])


def parse_listener(text: str, encryption: str, authentication: str = "CERTIFICATE") -> NetworkEndpoint:
    """The endpoint that HOST:PORT stands for; an empty host is every address of the machine.

    Raises:
        BrokerError: 5837 port, 5838 authentication, 402 no HOST:PORT.
    """
    found = _LISTEN.fullmatch(text)
    if found is None:
        raise BrokerError(402, "--listen", repr(text), "HOST:PORT")
    if not LOWEST_PORT <= int(found["port"]) <= HIGHEST_PORT:
        raise BrokerError(5837)
    if encryption.upper() not in (DISABLED, SUPPORTED, REQUIRED):
        raise BrokerError(402, "--encryption", repr(encryption), "DISABLED, SUPPORTED or REQUIRED")
    methods, certificate = parse_authentication(authentication)
    if certificate is not None:
        raise BrokerError(5838, hint="A certificate is named by ALTER ENDPOINT; --listen takes the oldest valid one.")
    host = found["v6"] or found["host"]
    return NetworkEndpoint(STARTED, host, int(found["port"]), encryption.upper(), authentication=methods)


class _Stopping:
    """SIGTERM and SIGINT: the round that runs is finished, the peers are told, and the process ends with code 0."""

    def __init__(self) -> None:
        self.asked = False
        self._daemon: Daemon | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def stops(self, daemon: Daemon) -> None:
        self._daemon = daemon
        if self.asked:
            daemon.stop()

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.asked and time.monotonic() < end:
            time.sleep(0.05)

    def _handle(self, number: int, frame: object) -> None:
        self.asked = True
        if self._daemon is not None:  # not here: the thread that was interrupted may hold a lock that this takes
            threading.Thread(target=self._daemon.stop).start()
