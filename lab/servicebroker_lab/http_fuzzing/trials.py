"""Cases, one after the other: connections with requests in pieces, the answers, and what must not have happened."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import NamedTuple

from servicebroker_lab.http_fuzzing.requests import MARKER, Draft, RequestMaker
from servicebroker_lab.http_fuzzing.site import ACTOR, READER, Site

ANSWER_LIMIT_S = 20.0  # the time for the answers to all complete requests of a connection
CLOSING_LIMIT_S = 30.0  # the time for the server to close a connection with an incomplete request
REST_S = 0.03  # the time to read answers to requests that may have none
PIECE_PAUSE_S = 0.002
MAX_CONNECTIONS, MAX_REQUESTS = 3, 4  # the most connections of a case, and requests of a connection
# probabilities: of valid tokens, of pieces, of waiting for the end
ACTING_RATE, SPLIT_RATE, WAIT_RATE = (
    0.2,
    0.3,
    0.001,
)

_UNESCAPED = re.compile(rf"<{MARKER}|[\"']{MARKER}=".encode(), re.IGNORECASE)
_OWN_FIELD = re.compile(rf"^x-{MARKER}:".encode(), re.IGNORECASE | re.MULTILINE)  # harmless in a body
_LIMITED = b"Too many "  # the text with which a limit of viewers is answered, by 503


class Failure(NamedTuple):
    """A case that broke something: how, and what was sent."""

    number: int
    problem: str
    sent: str


class RuleError(AssertionError):
    """An answer, or its absence, that breaks a rule."""


class Answer(NamedTuple):
    """A complete answer, or the part of a stream that has arrived."""

    status: int
    head: bytes
    body: bytes


def run_case(site: Site, number: int) -> Counter[str] | Failure:
    """Run a case. Returns the answers by status, or the failure."""
    draw = Random(f"http {number}")
    viewers = [site.sign_in(name) for name in (ACTOR, READER)]
    may_act = draw.random() < ACTING_RATE
    maker = RequestMaker(draw, site.port, viewers, site.handles(), may_act=may_act)
    before = site.state()
    outcomes: Counter[str] = Counter()
    sent: list[bytes] = []
    try:
        for _ in range(draw.randint(1, MAX_CONNECTIONS)):
            drafts = [maker.request() for _ in range(draw.randint(1, MAX_REQUESTS))]
            assert may_act or not any(draft.may_act for draft in drafts)
            sent += [draft.content for draft in drafts]
            for answer in _exchange(site, drafts, draw):
                _check(answer)
                outcomes[f"answers {answer.status}"] += 1
            outcomes["requests"] += len(drafts)
        site.settle()
        if errors := site.log.take():
            raise RuleError(f"the log has an error: {errors[0][-1_500:]}")
        if not may_act and (changed := site.state() ^ before):
            raise RuleError(f"the instance has changed, and no request had a valid form token: {sorted(changed)}")
    except (RuleError, OSError) as problem:
        site.settle()
        site.log.take()
        text = b"\n----\n".join(sent).decode("latin-1")
        return Failure(number, f"{type(problem).__name__}: {problem}"[:2_000], text)
    return outcomes


def _check(answer: Answer) -> None:
    """Compare an answer with the rules.

    Raises:
        RuleError: it is a server error, or has a value of the request unescaped.
    """
    is_limited = answer.status == 503 and answer.body.startswith(_LIMITED)
    if answer.status >= 500 and not is_limited:
        raise RuleError(f"an answer with status {answer.status}: {answer.body[:500]!r}")
    is_page = b"content-type: text/html" in answer.head.lower() or b"text/event-stream" in answer.head.lower()
    match = _OWN_FIELD.search(answer.head) or _UNESCAPED.search(answer.head)
    if match := match or (_UNESCAPED.search(answer.body) if is_page else None):
        raise RuleError(f"an answer contains {match[0]!r}, which the request had")


def _exchange(site: Site, drafts: list[Draft], draw: Random) -> list[Answer]:
    """Send requests on one connection, and return the answers.

    Raises:
        RuleError: a complete request was not answered in time, or an incomplete one kept the connection open.
    """
    expected = 0  # requests before the first that may be incomplete, or that follows a stream
    for draft in drafts:
        expected += draft.is_whole
        if draft.is_stream or not draft.is_whole:
            break
    waits = draw.random() < WAIT_RATE
    methods = [draft.method for draft in drafts]
    with socket.create_connection(("127.0.0.1", site.port), timeout=ANSWER_LIMIT_S) as connection:
        with suppress(ConnectionError):  # the server may close the connection before it has read all
            for piece in _pieces(b"".join(draft.content for draft in drafts), draw):
                connection.sendall(piece)
        received, is_closed = b"", False
        end = time.monotonic() + ANSWER_LIMIT_S
        while not is_closed and len(answers := _answers(received, methods)) < expected:
            connection.settimeout(max(0.01, end - time.monotonic()))
            received, is_closed = _receive_more(connection, received)
            if time.monotonic() > end:
                raise RuleError(f"{len(answers)} of {expected} requests were answered in {ANSWER_LIMIT_S} s")
        end = time.monotonic() + (CLOSING_LIMIT_S if waits else REST_S)
        while not is_closed and time.monotonic() < end:
            connection.settimeout(max(0.01, end - time.monotonic()))
            received, is_closed = _receive_more(connection, received)
        if waits and not is_closed and not _is_stream(received):
            raise RuleError(f"the connection is open after {CLOSING_LIMIT_S} s")
    return _answers(received, methods)


def _pieces(content: bytes, draw: Random) -> Iterator[bytes]:
    """Yield the content whole, or in pieces with pauses."""
    if draw.random() > SPLIT_RATE:
        yield content
        return
    while content:
        size = draw.choice((1, 2, 7, 64, 4_096, len(content)))
        yield content[:size]
        content = content[size:]
        if size <= 64 and draw.random() < 0.2:
            time.sleep(PIECE_PAUSE_S)


def _receive_more(connection: socket.socket, received: bytes) -> tuple[bytes, bool]:
    """Return the bytes with those that arrive next, and whether the connection is closed."""
    try:
        part = connection.recv(65_536)
    except TimeoutError:
        return received, False
    except ConnectionError:
        return received, True
    return received + part, not part


def _is_stream(received: bytes) -> bool:
    return b"text/event-stream" in received


def _answers(received: bytes, methods: list[str]) -> list[Answer]:
    """Return the answers in the bytes of a connection, the last one also if it is a stream."""
    answers: list[Answer] = []
    while received:
        head, separator, rest = received.partition(b"\r\n\r\n")
        if not separator or not head.startswith(b"HTTP/1.1 "):  # or of a request whose method was changed
            break
        status = int(head[9:12])
        if status == 100:
            received = rest
            continue
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        method = methods[len(answers)] if len(answers) < len(methods) else ""
        if _is_stream(head):
            return [*answers, Answer(status, head, rest)]
        if method == "HEAD" or status in (204, 304):
            body, received = b"", rest
        elif fields.get(b"transfer-encoding") == b"chunked":
            body, is_complete, received = _join_chunks(rest)
            if not is_complete:
                break
        else:
            size = int(fields.get(b"content-length", b"0"))
            if len(rest) < size:
                break
            body, received = rest[:size], rest[size:]
        answers.append(Answer(status, head, body))
    return answers


def _join_chunks(rest: bytes) -> tuple[bytes, bool, bytes]:
    """Return the body that comes in chunks, whether it is complete, and what follows it."""
    body = b""
    while True:
        line, separator, rest = rest.partition(b"\r\n")
        size = int(line, 16) if separator else 0
        if not separator or len(rest) < size + 2:
            return body, False, b""
        body, rest = body + rest[:size], rest[size + 2 :]
        if size == 0:
            return body, True, rest
