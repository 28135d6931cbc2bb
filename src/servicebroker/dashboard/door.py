"""Who may see the dashboard and act with it: every request passes here first, whatever page it asks for.

A page that somebody has open elsewhere can make a browser ask us things. So the Host must be one of ours (a foreign
name that points to this machine is refused), what changes something is a POST from a page of ours (Origin) with a token
that only such a page has, and the cookie goes with no request that another site begins.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servicebroker.cli.people_file import People, Person, Role
from servicebroker.dashboard.guesses import Guesses
from servicebroker.model.errors import InstanceError

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
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


class Proxy(NamedTuple):
    """A server in front of us that knows who asks: believed when a request comes from its addresses, else nobody is."""

    header: str
    addresses: tuple[IPv4Network | IPv6Network, ...]

    def brings(self, scope: Scope) -> bool:
        """Whether a request comes from it."""
        try:
            address = ip_address((scope.get("client") or ("",))[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.addresses)


class Session(NamedTuple):
    """Who has signed in, until when; or who was let in by the proxy that is in front of us."""

    name: str
    ends: float
    is_brought: bool = False


class Sessions:
    """Who has signed in: random identifiers that a cookie carries, each with the token of its forms.

    One signs in with the `token`, or with the name and password of one of the `people`; or a `proxy` says who it is.
    Without any of these somebody else guards the path, and everybody is let in. `role` is of those who are no `people`.
    """

    def __init__(
        self, token: str | None, role: Role = Role.SEE, people: People | None = None, proxy: Proxy | None = None
    ) -> None:
        self._token, self._role, self.people, self.proxy = token, role, people, proxy
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._guesses = Guesses()
        self._lock = threading.Lock()
        self.cookie = f"servicebroker_{secrets.token_hex(4)}"  # two dashboards on one host have one jar

    @property
    def are_ours(self) -> bool:
        """Whether one signs in here."""
        return self._token is not None or self.people is not None

    @property
    def are_everybodys(self) -> bool:
        """Whether the application that has mounted us lets in whom it wants."""
        return not self.are_ours and self.proxy is None

    def of(self, headers: Headers, brought: str | None = None) -> str | None:
        """The session of a request, of whom the proxy has brought: None where it has none that is good."""
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if not re.fullmatch(r"[\w-]{43}", session, re.ASCII):
            return None
        found = self._sessions.get(session)
        if self.proxy is not None and (found is None or found.is_brought != (brought is not None)):
            return None
        if brought is not None and found is not None and found.name != brought:
            return None
        return session if self.person(session) is not None else None

    def person(self, session: str | None) -> Person | None:
        """Who has that session, and what they may do now; None when they are not let in any more."""
        if self.are_everybodys:
            return Person("", self._role)
        with self._lock:
            found = self._sessions.get(session or "")
        if found is None or found.ends <= time.monotonic():
            return None
        return self.known(found.name)

    def known(self, name: str) -> Person | None:
        """Who has that name, by the file; without one everybody may the same."""
        if self.people is None:
            return Person(name, self._role)
        try:
            return self.people.find(name)
        except InstanceError:  # nobody is let in while it cannot be read
            return None

    def begin(self, name: str = "", *, is_brought: bool = False) -> str:
        """A new session."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[session] = Session(name, time.monotonic() + SESSION, is_brought)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def end(self, session: str) -> None:
        """Forget it."""
        with self._lock:
            self._sessions.pop(session, None)

    async def lets_in(self, fields: Mapping[str, str]) -> str | None:
        """The session of who fills in the form so. It takes the time of a seal where there are people.

        Raises:
            TooManyGuesses: too many were wrong lately.
            InstanceError: the file of the people cannot be read.
        """
        people = self.people
        if people is None:
            name, is_right = "", partial(self._is_token, fields.get("token", "").strip())
        else:
            name = fields.get("name", "").strip()
            is_right = partial(_is_password, people, name, fields.get("password", ""))
        return self.begin(name) if await self._guesses.judge(name, is_right) else None

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def signs_out(self, session: str | None) -> bool:
        """Whether whose session it is has signed in here, and may sign out."""
        found = self._sessions.get(session or "")
        return self.are_ours and found is not None and not found.is_brought

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
        headers, proxy = Headers(scope=scope), self._sessions.proxy
        brought = None
        if proxy is not None and proxy.brings(scope):
            brought = headers.get(proxy.header, "")
            if headers.get("x-forwarded-proto") == "https":
                scope["scheme"] = "https"
        session = self._sessions.of(headers, brought)
        answer = self._refused(scope, headers) or self._not_brought(headers, brought)
        answer = answer or self._unknown(scope, session, brought)
        given = None
        if session is None and answer is None and (self._sessions.are_everybodys or brought is not None):
            given = session = self._sessions.begin(brought or "", is_brought=brought is not None)
        state = scope.setdefault("state", {})
        state["session"], state["person"] = session, self._sessions.person(session)

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
            return PlainTextResponse(
                "This dashboard does not answer to that name. Start it with --name for each name that browsers use.",
                421,
            )
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("Method not allowed.", 405)
        if headers.get("origin", "").lower() != f"{scope['scheme']}://{host}":
            return PlainTextResponse("That form is not of this dashboard.", 403)
        return None

    def _not_brought(self, headers: Headers, brought: str | None) -> Response | None:
        """The proxy says who it is, or nobody comes in."""
        sessions = self._sessions
        if brought is None:
            if sessions.are_ours or sessions.are_everybodys:
                return None
            return PlainTextResponse("This dashboard is reached through its proxy.", 403)
        assert sessions.proxy is not None
        if not brought or len(headers.getlist(sessions.proxy.header)) != 1:
            return PlainTextResponse(f"The proxy does not say who it is, in {sessions.proxy.header}.", 403)
        if sessions.known(brought) is None:
            return PlainTextResponse("You are not one of the people of this dashboard.", 403)
        return None

    def _unknown(self, scope: Scope, session: str | None, brought: str | None) -> Response | None:
        """Who has not signed in is sent to do so."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if session is not None or brought is not None or not self._sessions.are_ours or path.startswith(_OPEN):
            return None
        if scope["method"] == "GET" and "text/event-stream" not in Headers(scope=scope).get("accept", ""):
            return RedirectResponse(f"{scope.get('root_path', '')}/login", 303)
        return PlainTextResponse("Sign in first.", 401)


def _is_password(people: People, name: str, password: str) -> bool:
    return people.checked(name, password) is not None


def cookie_for(sessions: Sessions, session: str, scope: Scope) -> str:
    """The header that gives a session to a browser: no script reads it, and no other site has it sent."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    path = scope.get("root_path") or "/"
    return f"{sessions.cookie}={session}; Path={path}; HttpOnly; SameSite=Strict{secure}"
