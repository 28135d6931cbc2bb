"""`servicebroker dashboard`: serves the dashboard, which shows and operates instances in a browser."""

from __future__ import annotations

import enum
import errno
import os
import socket
import threading
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servicebroker.cli import shutdown
from servicebroker.cli.descriptor_limit import raise_descriptor_limit
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import DEFAULT_INSTANCE
from servicebroker.cli.output import say
from servicebroker.cli.people_file import People, Role
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import BYTES_PER_MIB, read_file

if TYPE_CHECKING:
    import uvicorn

DEFAULT_PORT = 9401
_KEY_PASSWORD = "none"  # makes an encrypted key an error: with no password OpenSSL would prompt at the terminal
SIGNAL_POLL_S = 0.2  # the longest time before the main thread handles a signal


class RoleName(enum.StrEnum):
    """The name of a role on the command line. Each role includes the ones before it."""

    SEE = "see"
    BODIES = "bodies"
    ACT = "act"


def dashboard(
    instance: Annotated[
        list[str] | None,
        typer.Option(
            "--instance",
            metavar="PATH_OR_URL",
            help="A data folder or a postgresql:// URL; may be repeated. Default: $SERVICEBROKER_INSTANCE.",
        ),
    ] = None,
    role: Annotated[
        RoleName,
        typer.Option(help="What users may do: see (no bodies), bodies (read bodies) or act (read and change)."),
    ] = RoleName.SEE,
    host: Annotated[
        str, typer.Option(help="The address to listen at; TLS is required unless it is a loopback address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free port.")] = DEFAULT_PORT,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A host name by which browsers reach the dashboard; may be repeated. Other Host headers are refused.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="The certificate chain for TLS, in PEM.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="The private key of the certificate.")
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file of people who sign in with a password instead of a token (see servicebroker people).",
        ),
    ] = None,
    pipeline: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", exists=True, help="A pipeline to show as well; may be repeated."),
    ] = None,
    proxy_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The header with the user's name, set by a proxy."),
    ] = None,
    proxy_address: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="The address or network of that proxy; may be repeated."),
    ] = None,
) -> None:
    """Serve the dashboard, pages that show and operate instances, until SIGTERM or Ctrl-C."""
    from servicebroker.dashboard.access import LOOPBACK, Proxy
    from servicebroker.dashboard.application import Dashboard, new_token
    from servicebroker.dashboard.server import Server, make_config

    shown = f"[{host}]" if ":" in host else host
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--certificate and --key go together")
    if shown not in LOOPBACK and certificate is None:
        raise typer.BadParameter(f"other machines can connect to --host {host}: give --certificate and --key for TLS")
    if (proxy_header is None) != (not proxy_address):
        raise typer.BadParameter("--proxy-header and --proxy-address go together")
    networks = tuple(map(_network, proxy_address or ()))
    log_to_standard_error(as_json=False)
    raise_descriptor_limit()
    token = new_token() if people is None and proxy_header is None else None
    hosts = {*(name or ()), *(LOOPBACK if shown in LOOPBACK else ()), shown}
    # not `envvar`: Typer splits the value of a repeatable option at blanks
    instances = instance or [os.environ.get("SERVICEBROKER_INSTANCE", DEFAULT_INSTANCE)]
    app = Dashboard(
        instances,
        token=token,
        role=Role[role.name],
        people=None if people is None else People(people),
        proxy=None if proxy_header is None else Proxy(proxy_header, networks),
        hosts=hosts,
        pipelines=pipeline or (),
    )
    config = make_config(
        app,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_keyfile_password=_KEY_PASSWORD,
        ssl_ciphers=None,  # Python's defaults; older versions of uvicorn allow weak ciphers
        timeout_graceful_shutdown=2,
    )
    _load(config, certificate, key)
    with _listening_socket(host, port) as listening:
        scheme = "http" if certificate is None else "https"
        address = f"{scheme}://{name[0] if name else shown}:{listening.getsockname()[1]}"
        say(f"{address}/login#{token}" if token else address)
        if people is None:
            users = "Anybody with that address" if token else f"Users whom the proxy names in {proxy_header}"
            say(f"{users} may {_RIGHTS[role]}. Ctrl-C ends it.", error=True)
        else:
            say(f"The people in {people} may sign in, each with a role. Ctrl-C ends it.", error=True)
        server = Server(config)
        # in a thread, uvicorn installs no signal handlers: this command handles signals as every other one
        thread = threading.Thread(target=server.run, args=([listening],))
        shutdown.at_signal(partial(setattr, server, "should_exit", True), partial(setattr, server, "force_exit", True))
        thread.start()
        while thread.is_alive():  # a join without a timeout would delay the handler of a signal
            thread.join(SIGNAL_POLL_S)


def _load(config: uvicorn.Config, certificate: Path | None, key: Path | None) -> None:
    """Load the configuration with the files for TLS.

    Raises:
        InstanceError: the files cannot be read, or are not a certificate with its key.
    """
    try:
        for file in filter(None, (certificate, key)):  # refuses pipes and devices, at which OpenSSL would hang
            read_file(file, BYTES_PER_MIB)
        config.load()
    except OSError as problem:  # OpenSSL's errors, too
        reason = getattr(problem, "reason", None) or problem.strerror or problem
        raise InstanceError(
            f"The certificate {certificate} with the key {key} cannot be used: {reason}. Both are files in PEM, and "
            "the key has no password."
        ) from None


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at host and port.

    Raises:
        InstanceError: the address cannot be bound.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as problem:
        # the text without the address, which create_server appends to it
        reason = os.strerror(problem.errno) if problem.errno and problem.errno in errno.errorcode else problem.strerror
        raise InstanceError(
            f"The dashboard cannot be served at {host}, port {port}: {reason}. Name another --port, or another --host."
        ) from None


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise typer.BadParameter(f"--proxy-address {text} is neither an address nor a network") from None


_RIGHTS = {
    RoleName.SEE: "see everything but bodies",
    RoleName.BODIES: "see everything",
    RoleName.ACT: "see everything, and act",
}
