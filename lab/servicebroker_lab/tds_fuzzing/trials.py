"""Cases, one after the other: connections with their messages, the responses, and what must not have happened."""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from servicebroker.tds.byte_reader import ProtocolError
from servicebroker.tds.packets import PacketType
from servicebroker_lab.tds_client import RawClient, packet, parse_response
from servicebroker_lab.tds_fuzzing.messages import MessageMaker
from servicebroker_lab.tds_fuzzing.site import DATABASE, MAX_GROWTH_BYTES, PASSWORD, Site

ANSWER_LIMIT_S = 20.0  # the time for the response to a valid message
REST_S = 0.03  # the time to read responses to messages that may have none
PIECE_PAUSE_S = 0.002
MAX_CONNECTIONS, MAX_REQUESTS = 3, 8  # the most connections of a case, and requests of a connection

# probabilities: of TLS, of pieces, of an attention after a request, of a request behind another one, of leaving
TLS_RATE, SPLIT_RATE, ATTENTION_RATE, EARLY_RATE, LEAVING_RATE = 0.15, 0.2, 0.1, 0.05, 0.05
_ATTENTION = packet(PacketType.ATTENTION, b"")


class Failure(NamedTuple):
    """A case that broke something: how, and what was sent."""

    number: int
    problem: str
    sent: str


class RuleError(AssertionError):
    """A response, or its absence, that breaks a rule."""


def judge(site: Site, number: int) -> Counter[str] | Failure:
    """Run a case. Returns the messages by outcome, or the failure."""
    draw = Random(f"tds {number}")
    trial = _Trial(site, draw)
    try:
        for _ in range(draw.randint(1, MAX_CONNECTIONS)):
            trial.connect()
        if not site.ask_honestly(number):
            raise RuleError("the honest client got another answer")
        if left := site.settle():
            raise RuleError(left)
        if errors := site.log.take():
            raise RuleError(f"the log has an error: {errors[0][-1_500:]}")
        if (growth := site.growth_bytes()) > MAX_GROWTH_BYTES:
            raise RuleError(f"the process has grown by {growth // 2**20} MB")
    except (RuleError, ProtocolError, ValueError, OSError) as problem:
        site.settle()
        log_note = "".join(f"; the log has an error: {error[-1_500:]}" for error in site.log.take()[:1])
        sent = b"\n----\n".join(trial.sent).decode("latin-1")
        return Failure(number, f"{type(problem).__name__}: {problem}{log_note}"[:4_000], sent)
    return trial.outcomes


class _Trial:
    """The connections of one case."""

    def __init__(self, site: Site, draw: Random) -> None:
        self._site, self._draw = site, draw
        self._maker = MessageMaker(draw)
        self.outcomes: Counter[str] = Counter()
        self.sent: list[bytes] = []

    def connect(self) -> None:
        """Be one client.

        Raises:
            RuleError: the server has broken a rule.
        """
        act = self._draw.choices((self._begin_badly, self._shake_hands, self._work), (1, 3, 8))[0]
        with RawClient(self._site.port, timeout_s=ANSWER_LIMIT_S) as client:
            try:
                act(client)
            except (ConnectionError, ssl.SSLError):
                self.outcomes["connections closed by the server"] += 1

    def _begin_badly(self, client: RawClient) -> None:
        self._write(client, self._maker.first_bytes())
        self._rest(client)

    def _shake_hands(self, client: RawClient) -> None:
        draw = self._draw
        encrypts = draw.random() < TLS_RATE
        if encrypts and draw.random() < 0.3:
            client.start_tls(is_strict=True)
        prelogin = self._maker.prelogin(encrypts=encrypts)
        self._write(client, prelogin.content)
        if not prelogin.is_valid:
            self._rest(client)
            return
        client.read()
        if encrypts and draw.random() < 0.8 and client._tls is None:
            client.start_tls()
        login = self._maker.login()
        self._write(client, login.content)
        self._rest(client)
        self.outcomes["logins"] += 1

    def _work(self, client: RawClient) -> None:
        draw = self._draw
        if not client.sign_in("sa", PASSWORD, DATABASE, encrypts=draw.random() < TLS_RATE):
            raise RuleError("a valid login was refused")
        is_sound = True  # the server can tell where a message begins
        for _ in range(draw.randint(1, MAX_REQUESTS)):
            request = self._maker.request()
            self._write(client, request.content)
            self.outcomes["requests"] += 1
            if draw.random() < LEAVING_RATE:
                return
            is_early = draw.random() < EARLY_RATE
            if is_early:
                self._write(client, self._maker.request().content)
            has_attention = draw.random() < ATTENTION_RATE
            if has_attention:
                time.sleep(draw.choice((0.0, 0.001, 0.02)))
                attentions = draw.choice((1, 1, 1, 3))
                self._write(client, _ATTENTION * attentions)
                is_sound = is_sound and attentions == 1  # else the number of answers is not known
            is_sound = is_sound and request.is_valid and not is_early
            if is_sound:
                self._await(client, has_attention=has_attention)
            elif not self._rest(client):
                return

    def _await(self, client: RawClient, *, has_attention: bool) -> None:
        """Read the response to a valid request, and the acknowledgement of an attention.

        Raises:
            RuleError: it does not come.
        """
        is_done, told = False, list[str]()
        while not is_done:
            try:
                data = client.read()
            except TimeoutError:
                raise RuleError(f"no response to a valid request in {ANSWER_LIMIT_S} s") from None
            if not data:
                raise RuleError(f"the connection was closed after a valid request: {told}")
            response = parse_response(data)
            told = response.messages
            is_done = response.is_attention or not has_attention
            self.outcomes["responses with errors" if response.errors else "responses without error"] += 1

    def _rest(self, client: RawClient) -> bool:
        """Read what comes within a short time. Return False if the server has closed the connection."""
        client.socket.settimeout(REST_S)
        try:
            while data := client.read():
                if data[0]:  # the answer to PRELOGIN begins with 0, and has no tokens
                    parse_response(data)
                self.outcomes["responses to changed messages"] += 1
            self.outcomes["connections closed by the server"] += 1
            return False
        except TimeoutError:
            return True
        finally:
            client.socket.settimeout(ANSWER_LIMIT_S)

    def _write(self, client: RawClient, content: bytes) -> None:
        self.sent.append(content)
        for piece in self._pieces(content):
            client.write(piece)

    def _pieces(self, content: bytes) -> Iterator[bytes]:
        """Yield the content whole, or in pieces with pauses."""
        draw = self._draw
        if draw.random() > SPLIT_RATE:
            yield content
            return
        while content:
            size = draw.choice((1, 2, 7, 64, 4_096, len(content)))
            yield content[:size]
            content = content[size:]
            if size <= 64 and draw.random() < 0.2:
                time.sleep(PIECE_PAUSE_S)
