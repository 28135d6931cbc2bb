"""Who may see the dashboard and act with it: every request passes here first, whatever page it asks for.

A page that somebody has open elsewhere can make a browser ask us things. So the Host must be one of ours (a foreign
name that points to this machine is refused), what changes something is a POST from a page of ours (Origin) with a token
that only such a page has, and the cookie goes with no request that another site begins.
"""

from __future__ import annotations

import enum
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
FAILURES, MINUTE = 10, 60.0  # wrong tokens in so many seconds until nobody may try
SESSION = 12 * 3600.0  # seconds that a sign-in is good for
_MOST_SESSIONS = 1000

_OPEN = ("/login", "/static/")  # what is shown to who has not signed in
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # no-referrer would hide the Origin of our own forms from us
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Role(enum.IntEnum):
    """What everybody who is let in may do; each may what those before it may."""

    SEE = 1
    BODIES = 2
    ACT = 3


class Sessions:
    """Who has signed in: random identifiers that a cookie carries, each with the token of its forms."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._ends: OrderedDict[str, float] = OrderedDict()
        self._failures: deque[float] = deque(maxlen=FAILURES)
        self._lock = threading.Lock()
        self.cookie = f"servicebroker_{secrets.token_hex(4)}"  # two dashboards on one host have one jar

    @property
    def are_ours(self) -> bool:
        """Whether one signs in here; else the application that has mounted us lets in whom it wants."""
        return self._token is not None

    def of(self, headers: Headers) -> str | None:
        """The session of a request: None where it has none that is good."""
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if not re.fullmatch(r"[\w-]{43}", session, re.ASCII):
            return None
        return session if self.holds(session) else None

    def holds(self, session: str) -> bool:
        """Whether who has it is let in still."""
        with self._lock:
            return not self.are_ours or self._ends.get(session, 0.0) > time.monotonic()

    def begin(self) -> str:
        """A new session."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._ends[session] = time.monotonic() + SESSION
            if len(self._ends) > _MOST_SESSIONS:
                self._ends.popitem(last=False)
        return session

    def end(self, session: str) -> None:
        """Forget it."""
        with self._lock:
            self._ends.pop(session, None)

    def lets_in(self, given: str) -> bool | None:
        """Whether that is the token; None where too many were wrong lately."""
        now = time.monotonic()
        with self._lock:
            if len(self._failures) == FAILURES and now - self._failures[0] < MINUTE:
                return None
            if self._token is not None and hmac.compare_digest(given.encode(), self._token.encode()):
                return True
            self._failures.append(now)
            return False

    def form_token(self, session: str) -> str:
        """What a form of that session carries, and no other site can know."""
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()

    def is_of_form(self, session: str, fields: Mapping[str, str]) -> bool:
        """Whether a form that was sent is one of ours, for that session."""
        return hmac.compare_digest(fields.get("form_token", "").encode(), self.form_token(session).encode())


class Door:
    """An ASGI application in front of the pages. `hosts` are the names without port that it answers to."""

    def __init__(self, pages: ASGIApp, sessions: Sessions, hosts: Collection[str]) -> None:
        self._pages, self._sessions = pages, sessions
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, with the session in its state, or answer it."""
        if scope["type"] == "lifespan":
            await self._pages(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        headers = Headers(scope=scope)
        session = self._sessions.of(headers)
        answer = self._refused(scope, headers) or self._unknown(scope, session)
        given = None
        if session is None and not self._sessions.are_ours:
            given = session = self._sessions.begin()
        scope.setdefault("state", {})["session"] = session

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out.update(_HEADERS)
                if given is not None:
                    out.append("set-cookie", cookie_for(self._sessions, given, scope))
            await send(message)

        await (answer or self._pages)(scope, receive, dressed)

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        """What no browser of ours asks."""
        host = headers.get("host", "").lower()
        if len(headers.getlist("host")) != 1 or re.sub(r":\d+\Z", "", host) not in self._hosts:
            return PlainTextResponse("This dashboard is not reached by that name.", 421)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("Method not allowed.", 405)
        if headers.get("origin", "").lower() != f"{scope['scheme']}://{host}":
            return PlainTextResponse("That form is not of this dashboard.", 403)
        return None

    def _unknown(self, scope: Scope, session: str | None) -> Response | None:
        """Who has not signed in is sent to do so."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if session is not None or not self._sessions.are_ours or path.startswith(_OPEN):
            return None
        if scope["method"] == "GET" and "text/event-stream" not in Headers(scope=scope).get("accept", ""):
            return RedirectResponse(f"{scope.get('root_path', '')}/login", 303)
        return PlainTextResponse("Sign in first.", 401)


def cookie_for(sessions: Sessions, session: str, scope: Scope) -> str:
    """The header that gives a session to a browser: no script reads it, and no other site has it sent."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    path = scope.get("root_path") or "/"
    return f"{sessions.cookie}={session}; Path={path}; HttpOnly; SameSite=Strict{secure}"
