"""The dashboard behind nginx, with the configuration of docs/how-to/dashboard.md."""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daemons import free_port
from forked import Command
from servicebroker.cli.main import app as command
from servicebroker.store.keys import x509_certificates
from support import eventually

NGINX = shutil.which("nginx", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")
NAME = "broker.example.com"
PAGE = Path(__file__).parents[3] / "docs/how-to/dashboard.md"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


class Front:
    """The port of nginx."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, request: str, person: str = "bob", *headers: str) -> ssl.SSLSocket:
        """Send a request with the password of a person."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connected = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), 10))
        credentials = base64.b64encode(f"{person}:{person}".encode()).decode()
        lines = [request, f"host: {NAME}:{self.port}", f"authorization: Basic {credentials}", *headers]
        connected.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
        return connected

    def ask(self, request: str, person: str = "bob", *headers: str) -> str:
        """Send a request, and return the whole answer."""
        with closing(self.send(request, person, "connection: close", *headers)) as connected:
            return b"".join(iter(lambda: connected.recv(65_536), b"")).decode()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("nginx")
    people, users = folder / "people", folder / "users"
    for person, role in (("ann", "act"), ("bob", "see")):
        added = CliRunner().invoke(
            command, ["people", "add", person, "--proxied", "--role", role, "--people", str(people)]
        )
        assert added.exit_code == 0
    users.write_text("".join(f"{person}:{{PLAIN}}{person}\n" for person in ("ann", "bob", "eve")))
    facts, key = x509_certificates.make("nginx", datetime.now(UTC))
    (folder / "broker.pem").write_bytes(x509_certificates.as_pem(facts.der))
    (folder / "broker.key").write_bytes(x509_certificates.key_pem(key))
    proxied = ("--proxy-header", "x-forwarded-user", "--proxy-address", "127.0.0.1", "--name", NAME)
    options = ("--instance", folder / "nowhere", "--port", "0", "--people", people, *proxied)
    with Command("dashboard", *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dashboard:
        (port,) = re.findall(rf"{NAME}:(\d+)", dashboard.stdout.readline())
        front = Front(free_port())
        with subprocess.Popen(
            [str(NGINX), "-c", configured(folder, f"127.0.0.1:{port}", front.port), "-p", folder]
        ) as nginx:
            eventually(lambda: is_open(front.port))
            yield front
            nginx.terminate()
        dashboard.terminate()
        dashboard.wait(20)


def configured(folder: Path, address: str, port: int) -> str:
    """Write the configuration of the page, with other places, and return its file."""
    (server,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for named, here in (
        ("443 ssl", f"127.0.0.1:{port} ssl"),
        ("/etc/ssl/", f"{folder}/"),
        ("/etc/nginx/broker.users", f"{folder}/users"),
        ("127.0.0.1:9401", address),
    ):
        assert named in server
        server = server.replace(named, here)
    file = folder / "nginx.conf"
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi"))
    places += f"uwsgi_temp_path {folder}/uwsgi;\nscgi_temp_path {folder}/scgi;\naccess_log off;\n"
    file.write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\nhttp {{\n{places}{server}}}\n"
    )
    if os.getuid() == 0:
        file.write_text("user root;\n" + file.read_text())
    return str(file)


def is_open(port: int) -> bool:
    with closing(socket.socket()) as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_the_proxy_alone_names_the_person(front: Front) -> None:
    first_page = front.ask("GET / HTTP/1.1", "ann")
    assert first_page.startswith("HTTP/1.1 200")
    assert '<span class="quiet">ann</span>' in first_page
    assert "; Secure" in first_page
    assert front.ask("GET / HTTP/1.1", "mallory").startswith("HTTP/1.1 401")
    assert "You are not one of the people" in front.ask("GET / HTTP/1.1", "eve")
    for forged in (
        ["x-forwarded-user: ann"],
        ["X_Forwarded_User: ann"],
        ["x-forwarded-user: ann", "x-forwarded-user: ann"],
        ["connection: x-forwarded-user", "x-forwarded-user: ann"],
        ["x-forwarded-user : ann"],
    ):
        answer = front.ask("GET / HTTP/1.1", "bob", *forged)
        assert '<span class="quiet">bob</span>' in answer or answer.startswith("HTTP/1.1 400"), forged


def test_a_form_passes_from_its_own_site_only(front: Front) -> None:
    form = ["content-type: application/x-www-form-urlencoded", "content-length: 0"]
    own = front.ask("POST /i/0/queue/switch HTTP/1.1", "ann", f"origin: https://{NAME}:{front.port}", *form)
    assert "does not belong to this dashboard" not in own
    for origin in (f"http://{NAME}:{front.port}", f"https://{NAME}", "https://evil.example.com", "null"):
        answer = front.ask("POST /i/0/queue/switch HTTP/1.1", "ann", f"origin: {origin}", *form)
        assert "does not belong to this dashboard" in answer, origin


def test_a_request_within_a_request_is_not_passed_on(front: Front) -> None:
    inner = "GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-user: ann\r\n\r\n"
    two_lengths = [f"content-length: {len(inner)}", "transfer-encoding: chunked"]
    answer = front.ask("POST /login HTTP/1.1", "bob", *two_lengths, "", f"0\r\n\r\n{inner}")
    assert "ann" not in answer
    answer = front.ask("GET / HTTP/1.1", "bob", f"content-length: {len(inner)}", "", inner)
    assert "ann" not in answer
    assert answer.count("HTTP/1.1 ") == 1


def test_pages_change_by_themselves_through_the_proxy(front: Front) -> None:
    with closing(front.send("GET / HTTP/1.1", "ann", "accept: text/event-stream")) as stream:
        said = b""
        while b"data:" not in said:
            part = stream.recv(65_536)
            assert part, said
            said += part
