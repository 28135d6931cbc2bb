"""Self-reports of the daemon: doctor names present failures, and none that are over."""

from __future__ import annotations

import json
import socket

from typer.testing import CliRunner

from daemons import Site, Two
from servicebroker.cli.main import app as command
from support import eventually


def problems(site: Site, subject: str) -> list[str]:
    """The problems that doctor finds with a subject."""
    done = CliRunner().invoke(command, ["doctor", "--json", "--instance", site.url])
    return [one["problem"] for one in json.loads(done.output)["findings"] if one["subject"] == subject]


def test_a_port_that_is_taken_is_named_until_it_is_free(two: Two) -> None:
    site = two.west
    with socket.socket() as other:
        other.bind(("127.0.0.1", site.port))
        other.listen()
        site.endpoint(encryption="DISABLED")
        site.serve()
        eventually(lambda: problems(site, "servicebroker serve"))
        (said,) = problems(site, "servicebroker serve")
        assert f"cannot listen on port {site.port} because it is in use" in said
        assert "messages leave, but none come in. So it is since 2" in said
    eventually(lambda: not problems(site, "servicebroker serve"))


def test_a_daemon_that_listens_needs_no_endpoint(two: Two) -> None:
    site = two.west
    site.database.create_route("far", service_name="//far", address=two.east.address)
    assert any("no endpoint" in one for one in problems(site, "network"))
    site.serve("--listen", site.address.removeprefix("TCP://"))
    eventually(lambda: not problems(site, "network"))
