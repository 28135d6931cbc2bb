"""The dashboard as a process, under connections held by strangers and many open pages of one viewer."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from typer.testing import CliRunner

from attacks import MIN_JUDGED_S, SLICE_S, AttackProcess, Costs, Times
from forked import Command
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard, server
from servicebroker.store.keys import x509_certificates
from support import eventually

ANSWER_TIMEOUT_S = 5.0  # seconds until an answer must have arrived
FORM = "application/x-www-form-urlencoded"


class Site:
    """A listening dashboard, with requests as browsers and strangers send them."""

    def __init__(
        self, port: int, token: str, *, is_secured: bool = False, pid: int = 0, errors: Iterable[str] = ()
    ) -> None:
        self.port, self.token, self.is_secured, self.pid, self.errors = port, token, is_secured, pid, errors
        self.origin = f"{'https' if is_secured else 'http'}://127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        """Open a connection of a stranger, without even a TLS handshake."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_TIMEOUT_S)

    def send(self, request: str) -> socket.socket:
        """Open a connection of a browser, and send a request."""
        connected = self.connect()
        if self.is_secured:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connected = context.wrap_socket(connected)
        connected.sendall(request.replace("\n", "\r\n").encode())
        return connected

    def ask(self, request: str) -> str:
        """Send a request, and return the head of the answer."""
        with closing(self.send(request)) as connected:
            return head(connected)

    def get(self, path: str, **headers: str) -> str:
        return f"GET {path} HTTP/1.1\nhost: 127.0.0.1:{self.port}\n{header_lines(headers)}\n"

    def post(self, path: str, fields: dict[str, str]) -> str:
        form = urlencode(fields)
        headers = header_lines({"origin": self.origin, "content-type": FORM, "content-length": str(len(form))})
        return f"POST {path} HTTP/1.1\nhost: 127.0.0.1:{self.port}\n{headers}\n{form}"

    def sign_in(self) -> str:
        """Sign in, and return the cookie of the new session."""
        (cookie,) = re.findall(r"set-cookie: ([^;]+)", self.ask(self.post("/login", {"token": self.token})))
        return str(cookie)

    def stream(self, cookie: str) -> socket.socket:
        """Open the event stream of a page that updates itself."""
        return self.send(self.get("/", accept="text/event-stream", cookie=cookie))


def header_lines(headers: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in headers.items())


def head(connected: socket.socket) -> str:
    """Return the head of an answer, or '' if the connection was closed instead."""
    said = b""
    while b"\r\n\r\n" not in said:
        try:
            part = connected.recv(4096)
        except ConnectionResetError:
            return ""
        if not part:
            return ""
        said += part
    return said.decode(errors="replace")


def status(answer: str) -> int:
    return int(answer.split()[1]) if answer else 0


@contextmanager
def run_dashboard(folder: Path, *options: str) -> Iterator[Site]:
    running = Command(
        "dashboard",
        "--instance",
        folder / "nowhere",
        "--port",
        "0",
        *options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with running as dashboard:
        try:
            address = dashboard.stdout.readline()
            ((scheme, port, token),) = re.findall(r"(\w+)://127.0.0.1:(\d+)/login#(\S+)", address)
            yield Site(int(port), token, is_secured=scheme == "https", pid=dashboard.pid, errors=dashboard.stderr)
        finally:
            dashboard.terminate()
            dashboard.wait(20)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with run_dashboard(tmp_path) as address:
        yield address


@pytest.fixture(scope="module")
def tls_options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the options of a dashboard with TLS."""
    folder = tmp_path_factory.mktemp("certificate")
    facts, key = x509_certificates.make("dashboard", datetime.now(UTC))
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(x509_certificates.as_pem(facts.der))
    private.write_bytes(x509_certificates.key_pem(key))
    return "--certificate", str(certificate), "--key", str(private)


@pytest.mark.parametrize("is_secured", [False, True])
def test_silent_connections_do_not_block_the_dashboard(
    tmp_path: Path, tls_options: tuple[str, ...], is_secured: bool
) -> None:
    with run_dashboard(tmp_path, *(tls_options if is_secured else ())) as site, ExitStack() as held:
        for _ in range(500):
            held.enter_context(closing(site.connect()))
        started_at = time.monotonic()
        assert status(site.ask(site.get("/login"))) == 200
        assert time.monotonic() - started_at < ANSWER_TIMEOUT_S


def test_unfinished_requests_do_not_block_the_dashboard(site: Site) -> None:
    with ExitStack() as held:
        for number in range(400):
            unfinished = site.post("/login", {"token": "x"})[:-1] if number % 2 else site.get("/login")[:-1]
            held.enter_context(closing(site.send(unfinished)))
        assert status(site.ask(site.get("/login"))) == 200


@pytest.mark.slow
def test_strangers_cost_the_dashboard_little(
    site: Site, request: pytest.FixtureRequest, record_property: Callable[..., None]
) -> None:
    """Random requests and held connections of strangers, beside a person who loads a page."""
    cookie, times, said = site.sign_in(), Times(), list[str]()
    threading.Thread(target=lambda: said.extend(site.errors), daemon=True).start()

    def measure(seconds: float) -> list[float]:
        taken, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            assert status(site.ask(site.get("/i/0/audit", cookie=cookie))) == 200
            taken.append(time.monotonic() - began)
            time.sleep(0.005)
        return taken

    measure(SLICE_S)
    costs = Costs(site.pid, lambda: sum(map(len, list(said))))
    duration_s = request.config.getoption("--hostile-seconds")
    with AttackProcess("http_strangers.py", site.port, 1) as strangers:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            times.quiet += measure(SLICE_S)
            strangers.go()
            times.harmed += measure(2 * SLICE_S)
            strangers.pause()
            time.sleep(SLICE_S / 2)
        count = strangers.end()
    summary = [times.wait_until_restored(measure), times.check(are_judged=duration_s >= MIN_JUDGED_S), costs.check()]
    record_property("strangers", f"{summary}, {count} connections of strangers")
    assert count > 0
    assert "Traceback" not in "".join(said)


def test_a_dashboard_that_runs_out_of_descriptors_answers(tmp_path: Path, tls_options: tuple[str, ...]) -> None:
    with run_dashboard(tmp_path, *tls_options) as site, ExitStack() as held:
        resource.prlimit(site.pid, resource.RLIMIT_NOFILE, (100, 100))
        for _ in range(300):
            held.enter_context(closing(site.connect()))
        assert status(site.ask(site.get("/login"))) == 200


def test_a_second_signal_ends_the_dashboard_without_a_traceback(tmp_path: Path) -> None:
    options = ("dashboard", "--instance", tmp_path / "nowhere", "--port", "0")
    with Command(*options, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dashboard:
        assert "/login#" in dashboard.stdout.readline()
        eventually(lambda: "Ctrl-C ends it" in dashboard.stderr.readline())
        time.sleep(0.5)  # waits until it serves
        dashboard.send_signal(signal.SIGINT)
        dashboard.send_signal(signal.SIGTERM)
        dashboard.wait(20)
        assert dashboard.stderr.read() == ""


def test_a_used_port_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(command, ["dashboard", "--instance", str(tmp_path), "--port", str(port)])
    assert str(result.exception) == (
        f"The dashboard cannot be served at 127.0.0.1, port {port}: Address already in use. Name another --port, or "
        "another --host."
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("given", ["certificate", "key", "no PEM", "/dev/zero", "folder", "pipe", "locked"])
def test_files_that_are_no_certificate_are_refused_in_a_sentence(
    tmp_path: Path, tls_options: tuple[str, ...], given: str
) -> None:
    _, certificate, _, key = tls_options
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("no PEM")
    pipe, locked = tmp_path / "pipe", tmp_path / "locked.pem"
    os.mkfifo(pipe)
    secret = load_pem_private_key(Path(key).read_bytes(), None)
    locked.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    files = {
        "certificate": (certificate, certificate),
        "key": (key, key),
        "no PEM": (no_pem, no_pem),
        "/dev/zero": ("/dev/zero", "/dev/zero"),
        "folder": (tmp_path, tmp_path),
        "pipe": (pipe, pipe),
        "locked": (certificate, locked),
    }
    options = ("--certificate", *files[given][:1], "--key", *files[given][1:])
    result = CliRunner().invoke(command, ["dashboard", "--instance", str(tmp_path), "--port", "0", *map(str, options)])
    assert str(result.exception).startswith(f"The certificate {options[1]} with the key {options[3]} cannot be used: ")


@pytest.fixture
def impatient_dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """Start a dashboard with deadlines of half a second."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server, "READ_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server, "TERMS", server.TERMS._replace(first_step=0.5))
    app = Dashboard([str(tmp_path / "nowhere")], token="the token")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dashboard = server.Server(server.make_config(app, timeout_graceful_shutdown=1))
        running = threading.Thread(target=dashboard.run, args=([listening],))
        running.start()
        yield Site(listening.getsockname()[1], "the token")
        dashboard.should_exit = True
        running.join()


@pytest.mark.parametrize(
    "expected_text",
    [
        pytest.param("", id="nothing"),
        pytest.param("GET /login HTTP/1.1\nx: ", id="head"),
        pytest.param("POST /login HTTP/1.1\nhost: 127.0.0.1:{port}\ncontent-length: 10000\n\ntoken=", id="body"),
        pytest.param("GET /login HTTP/1.1\nhost: 127.0.0.1:{port}\n\nGET /login HTTP/1.1\nx: ", id="second"),
    ],
)
def test_a_request_that_comes_slowly_is_ended(impatient_dashboard: Site, expected_text: str) -> None:
    with closing(impatient_dashboard.send(expected_text.replace("{port}", str(impatient_dashboard.port)))) as connected:
        started_at = time.monotonic()
        while not is_ended(connected) and time.monotonic() < started_at + ANSWER_TIMEOUT_S:
            with suppress(OSError):
                connected.send(b"x")
            time.sleep(0.1)
        assert 0.3 < time.monotonic() - started_at < ANSWER_TIMEOUT_S


@pytest.mark.parametrize("is_secured", [False, True])
def test_the_rest_of_a_request_that_was_answered_is_not_read(
    tmp_path: Path, tls_options: tuple[str, ...], is_secured: bool
) -> None:
    """A form that is too large is refused at once, and the rest of it is not parsed."""
    with run_dashboard(tmp_path, *(tls_options if is_secured else ())) as site:
        headers = header_lines({"origin": site.origin, "content-type": FORM, "transfer-encoding": "chunked"})
        with closing(site.send(f"POST /login HTTP/1.1\nhost: 127.0.0.1:{site.port}\n{headers}\n")) as connected:
            connected.sendall(b"1\r\nx\r\n" * 100_000)
            assert status(head(connected)) == 413
            answered = time.monotonic()
            before = processor_seconds(site.pid)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                while time.monotonic() < answered + 20:
                    connected.sendall(b"1\r\nx\r\n" * 1_000)
            assert time.monotonic() - answered < ANSWER_TIMEOUT_S
            assert processor_seconds(site.pid) - before < 1


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_client_that_reads_no_responses_is_disconnected(impatient_dashboard: Site) -> None:
    with closing(impatient_dashboard.send("")) as connected:
        connected.setblocking(False)
        asked = impatient_dashboard.get("/static/dashboard.css").replace("\n", "\r\n").encode() * 100
        started_at = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() < started_at + 2 * ANSWER_TIMEOUT_S:
                with suppress(BlockingIOError):
                    connected.send(asked)
                time.sleep(0.01)


def test_a_head_request_for_an_event_stream_is_answered(site: Site) -> None:
    """A stream without a body sends nothing, so the server would not notice that its client has left."""
    asked = site.get("/", accept="text/event-stream", cookie=site.sign_in()).replace("GET", "HEAD", 1)
    with closing(site.send(asked + site.get("/login"))) as connected:
        assert status(head(connected)) == 200
        assert status(head(connected)) == 200  # of the request behind it


def test_an_event_stream_has_no_deadline(impatient_dashboard: Site) -> None:
    with closing(impatient_dashboard.stream(impatient_dashboard.sign_in())) as opened:
        assert status(head(opened)) == 200
        time.sleep(1.5)
        assert not is_ended(opened)


def test_one_viewer_does_not_take_all_streams(site: Site) -> None:
    mine, other = site.sign_in(), site.sign_in()
    with ExitStack() as held:
        opened = [held.enter_context(closing(site.stream(mine))) for _ in range(55)]
        assert Counter(status(head(connection)) for connection in opened) == {200: 10, 429: 45}
        assert status(head(held.enter_context(closing(site.stream(other))))) == 200


def test_the_oldest_stream_of_the_busiest_viewer_is_closed(site: Site) -> None:
    with ExitStack() as held:
        many = [site.sign_in() for _ in range(5)]
        opened = [held.enter_context(closing(site.stream(cookie))) for cookie in many for _ in range(10)]
        assert {status(head(connection)) for connection in opened} == {200}
        assert status(head(held.enter_context(closing(site.stream(site.sign_in()))))) == 200
        eventually(lambda: is_ended(opened[0]))
        assert not any(map(is_ended, opened[1:]))


def is_ended(connected: socket.socket) -> bool:
    """Return whether the server has ended a connection or its answer."""
    connected.setblocking(False)
    try:
        while part := connected.recv(65536):
            if part.endswith(b"\r\n0\r\n\r\n"):
                return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
