"""Self-reports of the daemon: doctor reports present failures, and no past ones."""

from __future__ import annotations

import json
import socket

from typer.testing import CliRunner

from daemons import Site, Two
from servicebroker.cli.main import app as command
from support import eventually


def problems(site: Site, subject: str) -> list[str]:
    """Return doctor's problems with a subject."""
    result = CliRunner().invoke(command, ["doctor", "--json", "--instance", site.url])
    return [finding["problem"] for finding in json.loads(result.output)["findings"] if finding["subject"] == subject]


def test_a_port_in_use_is_reported_until_it_is_free(two: Two) -> None:
    site = two.west
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", site.port))
        listener.listen()
        site.endpoint(encryption="DISABLED")
        site.serve()
        eventually(lambda: problems(site, "servicebroker serve"))
        (problem,) = problems(site, "servicebroker serve")
        assert f"cannot listen on port {site.port} because it is in use" in problem
        assert "messages leave, but none come in. So it is since 2" in problem
    eventually(lambda: not problems(site, "servicebroker serve"))


def test_a_daemon_that_listens_needs_no_endpoint(two: Two) -> None:
    site = two.west
    site.database.create_route("far", service_name="//far", address=two.east.address)
    assert any("no endpoint" in problem for problem in problems(site, "network"))
    site.serve("--listen", site.address.removeprefix("TCP://"))
    eventually(lambda: not problems(site, "network"))
