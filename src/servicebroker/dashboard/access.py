"""Access control of the dashboard: every request passes `AccessControl` first.

A page of another site can make a browser send requests to the dashboard. Four rules prevent harm:

* The Host header must be a name of the dashboard, since a foreign name may resolve to this machine (DNS rebinding).
* Every change is a POST, and its Origin header is this dashboard.
* A form has a token that other sites cannot know.
* The cookie is SameSite=Strict: browsers send it with no request that another site starts.
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
from servicebroker.dashboard.sign_in_limits import SignInLimits
from servicebroker.model.errors import InstanceError

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
SESSION_LIFETIME_S = 12 * 3600.0
_MAX_SESSIONS = 1000  # a new one then ends the oldest
_MAX_SESSIONS_OF_PERSON = 50  # a program behind the proxy that keeps no cookie begins one with each request

_PATHS_WITHOUT_SIGN_IN = ("/login", "/static/")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers omit the Origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Proxy(NamedTuple):
    """A proxy in front of the dashboard, which names the user in a header.

    The header counts only in requests from its addresses.
    """

    header: str
    addresses: tuple[IPv4Network | IPv6Network, ...]

    def is_sender_of(self, scope: Scope) -> bool:
        """True if a request comes from the proxy."""
        try:
            address = ip_address((scope.get("client") or ("",))[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.addresses)


class SignIn(NamedTuple):
    """A session's person, and the monotonic time when the session ends. `is_from_proxy`: the proxy named the person."""

    name: str
    ends: float
    is_from_proxy: bool = False


class Sessions:
    """The sessions. A cookie has the random identifier of a session, and each session has a token for its forms.

    People sign in with the `token`, or with name and password from the file `people`, or a `proxy` names them. Without
    these, everybody has access, and the application that mounts the dashboard has to protect its path. `role` is the
    role of everybody if there is no file.
    """

    def __init__(
        self, token: str | None, role: Role = Role.SEE, people: People | None = None, proxy: Proxy | None = None
    ) -> None:
        self._token, self._role, self.people, self.proxy = token, role, people, proxy
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, SignIn] = OrderedDict()
        self._limits = SignInLimits()
        self._lock = threading.Lock()
        self.cookie = f"servicebroker_{secrets.token_hex(4)}"  # dashboards on one host share the browser's cookies

    @property
    def has_sign_in(self) -> bool:
        """True if there is a sign-in page."""
        return self._token is not None or self.people is not None

    @property
    def is_open_to_all(self) -> bool:
        """True if everybody has access, since the mounting application controls it."""
        return not self.has_sign_in and self.proxy is None

    def find(self, headers: Headers, proxied_name: str | None = None) -> str | None:
        """Return the session of a request; None if it has no valid one.

        `proxied_name` is the user whom the proxy names; the session must then be of this user.
        """
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if not re.fullmatch(r"[\w-]{43}", session, re.ASCII):
            return None
        sign_in = self._sessions.get(session)
        if self.proxy is not None and (sign_in is None or sign_in.is_from_proxy != (proxied_name is not None)):
            return None
        if proxied_name is not None and sign_in is not None and sign_in.name != proxied_name:
            return None
        return session if self.person(session) is not None else None

    def person(self, session: str | None) -> Person | None:
        """Return the person of a session with the current role; None if the session or the access has ended."""
        if self.is_open_to_all:
            return Person("", self._role)
        with self._lock:
            sign_in = self._sessions.get(session or "")
        if sign_in is None or sign_in.ends <= time.monotonic():
            return None
        return self.person_named(sign_in.name)

    def person_named(self, name: str) -> Person | None:
        """Return the person with this name in the file of people, or None. An unreadable file has no names.

        Without a file, every name is a person with the role of everybody.
        """
        if self.people is None:
            return Person(name, self._role)
        try:
            return self.people.find(name)
        except InstanceError:
            return None

    def begin(self, name: str = "", *, is_from_proxy: bool = False) -> str:
        """Begin a session, and return its identifier."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            own = [other for other, sign_in in self._sessions.items() if name and sign_in.name == name]
            if len(own) >= _MAX_SESSIONS_OF_PERSON:
                del self._sessions[own[0]]
            self._sessions[session] = SignIn(name, time.monotonic() + SESSION_LIFETIME_S, is_from_proxy)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def end(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(session, None)

    async def sign_in(self, fields: Mapping[str, str], host: str) -> str | None:
        """Return a new session for the fields of the sign-in form; None if the token or the password is wrong.

        `host`: the address of the browser.

        Checking a password takes 0.1 s, in a thread.

        Raises:
            TooManyFailures: too many attempts have failed in the last minute.
            InstanceError: the file of people cannot be read.
        """
        people = self.people
        if people is None:
            name, is_right = "", partial(self._is_token, fields.get("token", "").strip())
        else:
            name = fields.get("name", "").strip()
            is_right = partial(_is_password, people, name, fields.get("password", ""))
        return self.begin(name) if await self._limits.check(name, host, is_right) else None

    def _is_token(self, token: str) -> bool:
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def can_sign_out(self, session: str | None) -> bool:
        """True if the session began on the sign-in page, so that its person can sign out."""
        sign_in = self._sessions.get(session or "")
        return self.has_sign_in and sign_in is not None and not sign_in.is_from_proxy

    def form_token(self, session: str) -> str:
        """Return the token for the forms of a session, which no other site can know."""
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()

    def is_own_form(self, session: str, fields: Mapping[str, str]) -> bool:
        """True if the form token in the fields is that of the session."""
        return hmac.compare_digest(fields.get("form_token", "").encode(), self.form_token(session).encode())


class AccessControl:
    """An ASGI application in front of the pages. `hosts` are the accepted host names, without port."""

    def __init__(self, pages: ASGIApp, sessions: Sessions, hosts: Collection[str]) -> None:
        self._pages, self._sessions = pages, sessions
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, redirect it to the sign-in page, or pass it on with session and person in its state."""
        if scope["type"] == "lifespan":
            await self._pages(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        headers, proxy = Headers(scope=scope), self._sessions.proxy
        proxied_name = None
        if proxy is not None and proxy.is_sender_of(scope):
            proxied_name = headers.get(proxy.header, "")
            if headers.get("x-forwarded-proto") == "https":
                scope["scheme"] = "https"
        session = self._sessions.find(headers, proxied_name)
        answer = self._check_request(scope, headers) or self._check_proxied_name(headers, proxied_name)
        answer = answer or self._require_sign_in(scope, session, proxied_name)
        new_session = None
        if session is None and answer is None and (self._sessions.is_open_to_all or proxied_name is not None):
            new_session = session = self._sessions.begin(proxied_name or "", is_from_proxy=proxied_name is not None)
        state = scope.setdefault("state", {})
        state["session"], state["person"] = session, self._sessions.person(session)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                response_headers.update(_HEADERS)
                if new_session is not None:
                    response_headers.append("set-cookie", cookie_for(self._sessions, new_session, scope))
            await send(message)

        await (answer or self._pages)(scope, receive, send_with_headers)

    def _check_request(self, scope: Scope, headers: Headers) -> Response | None:
        """Return a refusal of a wrong host, method or origin; else None."""
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
            return PlainTextResponse("This form does not belong to this dashboard.", 403)
        return None

    def _check_proxied_name(self, headers: Headers, proxied_name: str | None) -> Response | None:
        """Return a refusal if the proxy is required and names no known person; else None."""
        sessions = self._sessions
        if proxied_name is None:
            if sessions.has_sign_in or sessions.is_open_to_all:
                return None
            return PlainTextResponse("This dashboard is reached through its proxy.", 403)
        assert sessions.proxy is not None
        if not proxied_name or len(headers.getlist(sessions.proxy.header)) != 1:
            return PlainTextResponse(f"The proxy does not name its user in {sessions.proxy.header}.", 403)
        if sessions.person_named(proxied_name) is None:
            return PlainTextResponse("You are not one of the people of this dashboard.", 403)
        return None

    def _require_sign_in(self, scope: Scope, session: str | None, proxied_name: str | None) -> Response | None:
        """Return a redirect to the sign-in page, or a refusal, if the request needs a sign-in; else None."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_open = not self._sessions.has_sign_in or path.startswith(_PATHS_WITHOUT_SIGN_IN)
        if session is not None or proxied_name is not None or is_open:
            return None
        if scope["method"] == "GET" and "text/event-stream" not in Headers(scope=scope).get("accept", ""):
            return RedirectResponse(f"{scope.get('root_path', '')}/login", 303)
        return PlainTextResponse("Sign in first.", 401)


def _is_password(people: People, name: str, password: str) -> bool:
    return people.authenticate(name, password) is not None


def cookie_for(sessions: Sessions, session: str, scope: Scope) -> str:
    """Return the Set-Cookie value for a session. Scripts cannot read the cookie, and other sites cannot use it."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    path = scope.get("root_path") or "/"
    return f"{sessions.cookie}={session}; Path={path}; HttpOnly; SameSite=Strict{secure}"
