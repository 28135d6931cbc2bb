"""`servicebroker serve`: runs the daemon, which exchanges messages with other instances and starts readers."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.activation.activate import activate
from servicebroker.activation.alerts import Alert, alerts
from servicebroker.activation.host import Host
from servicebroker.activation.output import capture_stdout
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.broker.daemon import Daemon
from servicebroker.broker.metrics import count_event, registry
from servicebroker.broker.shares import has_many_cores
from servicebroker.cli import shutdown
from servicebroker.cli.descriptor_limit import raise_descriptor_limit
from servicebroker.cli.existing_instance import check_exists
from servicebroker.cli.health import serve_health
from servicebroker.cli.http_server import HOST_AND_PORT, parse_address, serve_wsgi
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import (
    DEFAULT_INSTANCE,
    HealthOption,
    InstanceOption,
    KeysOption,
    PatienceOption,
    require_finite,
)
from servicebroker.cli.tds_listener import parse_tds_listener, serve_tds_clients
from servicebroker.engine.catalog.network_endpoints import (
    DISABLED,
    HIGHEST_PORT,
    LOWEST_PORT,
    REQUIRED,
    STARTED,
    SUPPORTED,
    NetworkEndpoint,
)
from servicebroker.model.errors import BrokerError, Unreachable
from servicebroker.model.security.authentication import parse_authentication
from servicebroker.model.wording import short_repr
from servicebroker.protocol.queue_monitor import READER_INTERVAL_S
from servicebroker.store.connection import is_url, urls_of_hosts
from servicebroker.store.outage import Outage

MAX_PROCESSES = 32
CONNECT_RETRY_S = 2.0  # the pause between attempts to reach a database that is down at the start
_SEVERAL_HOSTS = (
    "The URL names several hosts: this process connects to any host that accepts writes, even to a former primary. "
    "Give each daemon the URL of its own server."
)

_log = logging.getLogger("servicebroker.broker")


def serve(
    instance: InstanceOption = DEFAULT_INSTANCE,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen at this address instead of the stored endpoint's; :4022 means all interfaces.",
        ),
    ] = None,
    encryption: Annotated[
        str, typer.Option(metavar="MODE", help="With --listen: REQUIRED, SUPPORTED or DISABLED.")
    ] = "REQUIRED",
    authentication: Annotated[
        str,
        typer.Option(metavar="METHODS", help="With --listen: CERTIFICATE, WINDOWS, or both in the order to try them."),
    ] = "CERTIFICATE",
    keys: KeysOption = None,
    procedures: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="A module or .py file with activation procedures; may be repeated."),
    ] = None,
    activation_interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            callback=require_finite,
            help="Seconds between two starts of readers for a queue under load.",
        ),
    ] = READER_INTERVAL_S,
    alert_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="The command to run when poison detection disables a queue; it gets the event as JSON on its input.",
        ),
    ] = None,
    alert_webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="When poison detection disables a queue, POST the event as JSON to this URL."),
    ] = None,
    patience: PatienceOption = shutdown.SHUTDOWN_TIMEOUT_S,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer http://HOST:PORT/metrics, for Prometheus.")
    ] = None,
    health: HealthOption = None,
    tds: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Let SQL Server's clients connect here; 1433 is their usual port."),
    ] = None,
    tds_only: Annotated[
        bool, typer.Option("--tds-only", help="With --tds: exchange no messages with other instances.")
    ] = False,
    tds_certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --tds: the certificate in PEM. Default: a new self-signed one."),
    ] = None,
    tds_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --tds-certificate: its key, if it is in another file.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_PROCESSES,
            help="Processes that divide the conversations. Default: 1 on up to four cores, else by the load.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Run the daemon: start readers of queues, and exchange messages with other instances, until SIGTERM or Ctrl-C."""
    clients = parse_tds_listener(tds, tds_certificate, tds_key)
    if tds_only and clients is None:
        raise typer.BadParameter("--tds-only needs --tds HOST:PORT.")
    listener = None if listen is None else parse_listener(listen, encryption, authentication)
    alert = Alert(alert_command, alert_webhook)
    log_to_standard_error(as_json=as_json)
    raise_descriptor_limit()
    shutdown_request = _Shutdown(patience)
    outage = Outage(_log, f"The database is tried again every {CONNECT_RETRY_S:g} seconds")
    with serve_health(health, lambda: shutdown_request.is_requested) as probes:
        while not shutdown_request.is_requested:
            try:
                check_exists(instance)
                with open_instance(instance, keys=keys) as opened_instance:
                    outage.end()
                    if urls_of_hosts(opened_instance.url):
                        _log.warning("%s", _SEVERAL_HOSTS)
                    daemon = Daemon(
                        opened_instance.url,
                        opened_instance.clock,
                        listener=listener,
                        keys=opened_instance.key_folder(),
                        # None: the load decides the number of shares (partitions), as without --processes
                        shares=processes if processes != 1 else None,
                        # True: each share but the first has a process of its own
                        in_processes=has_many_cores() if processes is None else processes > 1,
                    )
                    shutdown_request.daemon = daemon
                    probes.begin(opened_instance.url)
                    with contextlib.ExitStack() as services:
                        services.enter_context(_serve_metrics(opened_instance, metrics))
                        services.enter_context(capture_stdout())
                        if not shutdown_request.is_requested and daemon.wait_for_promotion():
                            services.enter_context(alerts(opened_instance, alert))
                            readers = activate(
                                opened_instance,
                                procedures=procedures or (),
                                interval=activation_interval,
                                patience=patience,
                            )
                            shutdown_request.host = services.enter_context(readers)
                            services.enter_context(serve_tds_clients(opened_instance, clients))
                        shutdown_request.repeat_request()  # for a signal that came before daemon and host existed
                        gc.freeze()  # keeps imported modules out of garbage collections
                        if tds_only:
                            shutdown_request.wait()
                        else:
                            daemon.run()
                    return
            except Unreachable as problem:
                if not is_url(instance):
                    raise
                outage.report(problem)
                shutdown_request.wait(CONNECT_RETRY_S)


@contextlib.contextmanager
def _serve_metrics(instance: Instance, address: str | None) -> Iterator[None]:
    """Serve /metrics at HOST:PORT during the block; None: do nothing."""
    if address is None:
        yield
        return
    from prometheus_client import make_wsgi_app  # imported here: most daemons serve no metrics

    host, port = parse_address("--metrics", address)
    instance.events.subscribe(count_event)
    with serve_wsgi(make_wsgi_app(registry(instance.url)), host, port) as bound_port:
        _log.info("Metrics are served at http://%s:%s/metrics.", host or "0.0.0.0", bound_port)
        yield


def parse_listener(text: str, encryption: str, authentication: str = "CERTIFICATE") -> NetworkEndpoint:
    """Return the endpoint at HOST:PORT; an empty host means all interfaces.

    Raises:
        BrokerError: 5837 wrong port, 5838 wrong authentication, 402 `text` is not HOST:PORT.
    """
    match = HOST_AND_PORT.fullmatch(text)
    if match is None:
        raise BrokerError(402, "--listen", short_repr(text), "HOST:PORT")
    if not LOWEST_PORT <= int(match["port"]) <= HIGHEST_PORT:
        raise BrokerError(5837)
    if encryption.upper() not in (DISABLED, SUPPORTED, REQUIRED):
        raise BrokerError(402, "--encryption", short_repr(encryption), "DISABLED, SUPPORTED or REQUIRED")
    methods, certificate = parse_authentication(authentication)
    if certificate is not None:
        hint = (
            "--authentication cannot name a certificate: serve uses the oldest valid one, or the one of ALTER ENDPOINT."
        )
        raise BrokerError(5838, hint=hint)
    host = match["v6"] or match["host"]
    return NetworkEndpoint(STARTED, host, int(match["port"]), encryption.upper(), authentication=methods)


class _Shutdown:
    """Shutdown at SIGTERM and SIGINT, with exit code 0.

    The first signal stops the daemon, which finishes the transaction in progress and closes its connections to peers.
    It also stops the host of activation procedures, whose calls in progress get `timeout_s`. The second signal
    terminates these calls.
    """

    def __init__(self, timeout_s: float) -> None:
        self.is_requested = False
        self.daemon: Daemon | None = None
        self.host: Host | None = None
        shutdown.at_signal(self._request, self._terminate_now, timeout_s=timeout_s)

    def repeat_request(self) -> None:
        """Stop daemon and host if a signal came before they existed."""
        if self.is_requested:
            self._request()

    def wait(self, seconds: float = math.inf) -> None:
        """Wait for some seconds, or until a signal comes."""
        end = time.monotonic() + seconds
        while not self.is_requested and time.monotonic() < end:
            time.sleep(0.05)

    def _request(self) -> None:
        self.is_requested = True
        for part in (self.daemon, self.host):
            if part is not None:  # in a thread: `stop` takes a lock that the interrupted main thread may hold
                stop = part.stop if isinstance(part, Daemon) else part.request_stop
                threading.Thread(target=stop, daemon=True).start()

    def _terminate_now(self) -> None:
        if self.host is not None:
            self.host.end_calls_now()
