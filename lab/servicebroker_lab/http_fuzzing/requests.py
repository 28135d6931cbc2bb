"""Requests that make sense, and their changes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple
from urllib.parse import quote, quote_plus
from uuid import UUID

from servicebroker_lab.fuzzing.mutations import mutate
from servicebroker_lab.http_fuzzing.site import DATABASE, QUEUE, SERVICE, Viewer

MARKER = "zz9"  # a part of each text that an answer must escape
MAX_BYTES = 300_000  # the largest request

# probabilities for each request
VALUE_CHANGE_RATE, HEADER_CHANGE_RATE, BYTE_CHANGE_RATE, CHUNK_RATE, STREAM_RATE = 0.3, 0.1, 0.1, 0.15, 0.05

_PAGES = (
    "queues", "queue", "workers", "conversations", "conversation", "way", "dead-letters", "statements", "audit",
    "search", "nothing",
)  # fmt: skip
_ACTIONS = (
    "switch", "retry", "end", "end-with-error", "clean-up", "cancel-delayed", "move", "timer", "activation",
    "restart-activation", "enable-broker", "record-trail", "replay", "replay-edited", "replay-chosen",
    "discard-chosen", "discard", "end-session", "nothing",
)  # fmt: skip
_FIELDS = (
    "database", "queue", "handle", "service", "state", "order", "q", "text", "before", "span", "broker", "all", "who",
    "what", "status", "code", "seconds", "group", "procedure", "readers", "execute_as", "number", "newest", "body",
    "message_type", "error", "reason", "pid", "type", "name", "password", "token",
)  # fmt: skip
_METHODS = ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "POST POST", "G\0T", "X" * 300, "")
_PATHS = (
    "/", "/login", "/login", "/logout", "/pipelines", "/pipelines/0/replay", "/static/dashboard.css", "/static/",
    "/static/../access.py", "/static/%2e%2e/access.py", "/static//etc/passwd", "/static/%00", "*", "//", "/i/0/", "/i",
    "http://127.0.0.1/", "/i/999999999/queues", "/i/-1/queues", "/i/\u0661/queues", "/%ff%fe", "/" + "a/" * 2_000,
)  # fmt: skip
_ODD_VALUES = (
    "", " ", "0", "-1", "1e9", "9" * 18, "9" * 400, "on", "off", "newest", "day", "null", "%00", "a%00b", "%ed%a0%80",
    "\u0130\u00df\ufdfa", "\U0001f600", "' or 1=1 --", "$1", "{0}", "%s", "\\", "..", "dbo.", ".", "a.b.c.d", "[x]]",
    "x" * 5_000, f"%0d%0ax-{MARKER}:%201", f'"{MARKER}="', f"'{MARKER}='", f"<{MARKER}>", f"</script><{MARKER}>",
    f"javascript:{MARKER}", f"{{{{{MARKER}}}}}",
)  # fmt: skip
_ODD_HEADERS = (
    "content-length: 5", "content-length: -1", "content-length: 99999999999999999999", "content-length: 1, 2",
    "transfer-encoding: chunked", "transfer-encoding: gzip, chunked", "transfer-encoding: \x0bchunked",
    "expect: 100-continue", "connection: upgrade", "upgrade: websocket", "upgrade: h2c", "connection: close",
    "range: bytes=0-5", "range: bytes=9-1", "range: bytes=" + "0-0," * 500, "if-none-match: *", "if-range: x",
    "if-modified-since: Thu, 01 Jan 1970 00:00:00 GMT", "accept: text/event-stream", "accept-encoding: gzip",
    "host: evil.example", "host:", "origin: null", "origin: http://evil.example", "content-type: text/xml",
    "content-type: multipart/form-data; boundary=x", "cookie: a=b; =; ;;; c", "cookie: " + "x=y; " * 3_000,
    "x-forwarded-proto: https", "x-forwarded-host: evil", "forwarded: for=x", "authorization: Basic eDp5",
    " folded: x", "no colon", ": empty", "\x00: x", "x: \x00", "x: \xff\xfe", "big: " + "x" * 100_000,
    f"referer: <{MARKER}>", f"user-agent: <{MARKER}>", "content-type: application/x-www-form-urlencoded; charset=utf-7",
)  # fmt: skip


class Draft(NamedTuple):
    """A request as bytes.

    Attributes:
        is_whole: it is complete and well-formed, so that the server has to answer it.
        is_stream: the answer may be a stream, which does not end.
        may_act: it has a valid form token and the cookie of its session, of a person who may act.
    """

    content: bytes
    method: str
    is_whole: bool
    is_stream: bool
    may_act: bool


class RequestMaker:
    """Makes the requests of one case.

    Args:
        viewers: the people who are signed in.
        handles: conversations of the instance.
        may_act: requests may contain the form token of a person who may act, together with its cookie.
    """

    def __init__(
        self, draw: Random, port: int, viewers: Sequence[Viewer], handles: Sequence[UUID], *, may_act: bool
    ) -> None:
        self._draw = draw
        self._host = f"127.0.0.1:{port}"
        self._viewers = viewers
        self._handles = handles
        self._may_act = may_act

    def request(self) -> Draft:
        """Return the next request."""
        draw = self._draw
        viewer = draw.choice((None, *self._viewers, *self._viewers))
        method = draw.choice(("GET",) * 5 + ("POST",) * 6 + ("HEAD",) * 2 + (draw.choice(_METHODS),))
        is_whole = method in ("GET", "HEAD", "POST")
        token, may_act = self._form_token(viewer)
        headers = [f"host: {self._host}"]
        if viewer is not None and draw.random() > 0.05:
            headers.append(f"cookie: {viewer.cookie}")
        if draw.random() < STREAM_RATE:
            headers.append("accept: text/event-stream")
        target, body = self._target(method), b""
        if method == "POST":
            headers += [f"origin: http://{self._host}", "content-type: application/x-www-form-urlencoded"]
            body = self._form(token).encode("utf-8", "surrogatepass")
            if draw.random() < CHUNK_RATE:
                headers.append("transfer-encoding: chunked")
                body = self._in_chunks(body)
            else:
                headers.append(f"content-length: {len(body)}")
        if draw.random() < HEADER_CHANGE_RATE:
            is_whole = False
            for _ in range(draw.choice((1, 1, 2, 200))):
                headers.insert(draw.randint(0, len(headers)), draw.choice(_ODD_HEADERS))
            if draw.random() < 0.3:
                del headers[draw.randrange(len(headers))]
        if any(ord(character) > 126 or character <= " " for character in target):
            is_whole = False
        version = draw.choice(("HTTP/1.1",) * 20 + ("HTTP/1.0", "HTTP/2.0", "HTTP/1.9", "", "X"))
        is_whole = is_whole and version == "HTTP/1.1"
        head = "\r\n".join((f"{method} {target} {version}", *headers, "", ""))
        content = head.encode("utf-8", "surrogatepass") + body
        if draw.random() < BYTE_CHANGE_RATE:
            content, is_whole = mutate(content, draw), False
        is_stream = "accept: text/event-stream" in headers
        return Draft(content[:MAX_BYTES], method, is_whole and len(content) <= MAX_BYTES, is_stream, may_act)

    def _form_token(self, viewer: Viewer | None) -> tuple[str, bool]:
        """Return a form token, valid or not, and whether the viewer may act with it."""
        draw = self._draw
        tokens = [one.form_token for one in self._viewers if not one.may_act or self._may_act]
        if viewer is None or draw.random() < 0.3:
            tokens += ["", "0" * 64, "f" * 63, "\u00e9" * 64, *(one.form_token[:-1] for one in self._viewers)]
            token = draw.choice(tokens)
        else:
            token = viewer.form_token if self._may_act or not viewer.may_act else "0" * 64
        return token, any(one.may_act and one.form_token == token for one in self._viewers)

    def _target(self, method: str) -> str:
        draw = self._draw
        kind = draw.random()
        if kind < 0.15:
            path = draw.choice(_PATHS)
        elif kind < 0.2:
            path = f"/i/0/{quote(self._value(), safe='%')}"
        elif method == "POST":
            path = f"/i/{draw.choice((0, 0, 0, 0, 1, 2))}/act/{draw.choice(_ACTIONS)}"
        else:
            path = f"/i/{draw.choice((0, 0, 0, 0, 1, 2))}/{draw.choice(_PAGES)}"
        if draw.random() < 0.6:
            fields = [self._field() for _ in range(draw.choice((1, 2, 2, 3, 60)))]
            path += "?" + draw.choice("&&&;").join(fields)
        return path if draw.random() < 0.97 else path + draw.choice((" ", "#x", "\u00ff", "?" * 50, "%", "%zz"))

    def _form(self, token: str) -> str:
        """Return the body of a form, with all fields that actions want in most cases."""
        draw = self._draw
        fields = [self._field(name) for name in _FIELDS if draw.random() < 0.9]
        fields.insert(draw.randint(0, len(fields)), f"form_token={quote_plus(token, errors='replace')}")
        if draw.random() < 0.1:
            fields.append("form_token=")
        if draw.random() < 0.05:
            fields.append("x=" + "y" * draw.choice((1_000, 65_000, 70_000)))
        return "&".join(fields)

    def _field(self, name: str = "") -> str:
        draw = self._draw
        name = name or draw.choice((*_FIELDS, *_FIELDS, self._value()))
        values = {
            "database": DATABASE,
            "queue": f"dbo.{QUEUE}",
            "service": SERVICE,
            "handle": str(draw.choice(self._handles)),
            "group": str(UUID(int=draw.getrandbits(128))),
            "status": draw.choice(("on", "on", "off")),
            "pid": draw.choice(("0", "-1", "x")),  # a real one may be a session of somebody else
        }
        is_odd = name != "pid" and draw.random() < VALUE_CHANGE_RATE
        text = self._value() if is_odd else values.get(name, str(draw.randint(0, 100)))
        return f"{name}={text if draw.random() < 0.2 else quote(text, safe='%', errors='replace')}"

    def _value(self) -> str:
        """Return an odd value: in most cases one that is escaped where it is sent."""
        return self._draw.choice(_ODD_VALUES)

    def _in_chunks(self, body: bytes) -> bytes:
        """Return the body in chunks, some of them with extensions, and with a trailer."""
        draw, parts = self._draw, []
        while body:
            size = draw.randint(1, max(1, len(body)))
            extension = b";a=" + b"b" * 50 if draw.random() < 0.1 else b""
            parts.append(b"%x%s\r\n%s\r\n" % (size, extension, body[:size]))
            body = body[size:]
        return b"".join(parts) + b"0\r\n" + (b"x-trailer: y\r\n" if draw.random() < 0.1 else b"") + b"\r\n"
