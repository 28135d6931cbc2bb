"""The dashboard as an ASGI application: pages, acts, and the stream of a page's changes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import psycopg
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from servicebroker.cli.commands.audit import changed
from servicebroker.cli.commands.trail import told
from servicebroker.cli.people_file import People, Role
from servicebroker.cli.texts import printable
from servicebroker.dashboard import pages
from servicebroker.dashboard.acts import ACTS
from servicebroker.dashboard.bodies import editable, shown
from servicebroker.dashboard.door import LOOPBACK, Door, Proxy, Sessions, cookie_for
from servicebroker.dashboard.guesses import TooManyGuesses
from servicebroker.dashboard.observed import Observed, sentence
from servicebroker.dashboard.pipelines import WatchedPipeline
from servicebroker.dashboard.sparklines import line
from servicebroker.dashboard.viewers import Stream, TooMany, Viewers
from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.model.faces import working_by
from servicebroker.model.wording import counted

PACE = 1.0  # seconds between two looks for the viewers of a page
_FORM = 65536  # bytes
_NOTICES = 1000

# page: what it shows, and its title
_PAGES: dict[str, tuple[Callable[[Observed, pages.Asked], Callable[[Any], Any]], str]] = {
    "queues": (pages.queues, "Queues"),
    "queue": (pages.queue, "Queue"),
    "conversations": (pages.conversations, "Conversations"),
    "conversation": (pages.conversation, "Conversation"),
    "way": (pages.way, "On the way"),
    "poison": (pages.poison, "Poison"),
    "statements": (pages.statements, "Statements"),
    "audit": (pages.audit, "Audit"),
}
_NEEDED = {"queue": ("database", "queue"), "conversation": ("handle",)}


class _PlaceConvertor(IntegerConvertor):
    """A place in a list, in a path: a path with more digits than Python reads is none of ours."""

    regex = "[0-9]{1,6}"


register_url_convertor("place", _PlaceConvertor())


class Notice(NamedTuple):
    """What came of an act, shown once."""

    text: str
    is_refusal: bool


class Dashboard:
    """Pages that show instances, and act on them, as an ASGI application to be served or mounted.

    Args:
        instances: data folders or PostgreSQL URLs; each is opened when it is first looked at.
        token: what one signs in with.
        role: what everybody who is let in may do, where there are no `people`.
        people: who signs in with a name and a password instead, and what each may do.
        proxy: who is believed to say who it is. With neither token nor people nor proxy the application that mounts it
            lets in whom it wants, and guards the path.
        hosts: the names, without port, that it is reached by; a request with any other Host is refused.
        pipelines: files of pipelines, which have a page of their own.
    """

    def __init__(
        self,
        instances: Sequence[str],
        *,
        token: str | None,
        role: Role = Role.SEE,
        people: People | None = None,
        proxy: Proxy | None = None,
        hosts: Collection[str] = LOOPBACK,
        pipelines: Sequence[Path] = (),
    ) -> None:
        self._instances = [Observed(target) for target in instances]
        self._watched = [WatchedPipeline(path) for path in pipelines]
        self._sessions = Sessions(token, role, people, proxy)
        self._notices: OrderedDict[str, Notice] = OrderedDict()
        self._viewers = Viewers()
        self._closing = False
        self._templates = _environment()
        routes = [
            Route("/", self._overview),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/pipelines", self._pipelines),
            Route("/pipelines/{pipeline:place}/replay", self._replay, methods=["POST"]),
            Route("/i/{instance:place}/act/{act}", self._act, methods=["POST"]),
            Route("/i/{instance:place}/{page}", self._page),
            Mount("/static", StaticFiles(packages=[("servicebroker.dashboard", "static")])),
        ]
        self._door = Door(Starlette(routes=routes, lifespan=self._lifespan), self._sessions, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._door(scope, receive, send)

    def close(self) -> None:
        """End the streams, and leave the instances. Served alone, the end of the server does it."""
        self._closing = True
        for one in self._instances:
            one.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(self.close)

    async def _overview(self, request: Request) -> Response:
        asked = dict(request.query_params)

        def seen() -> dict[str, Any]:
            page = ("overview", asked.get("span"))
            with ThreadPoolExecutor(len(self._instances)) as threads:  # one that is down lets the others not wait
                found = threads.map(lambda one: one.see(page, pages.overview(one, asked)), self._instances)
            return {"summaries": list(zip(self._instances, found, strict=True))}

        return await self._answer(request, "overview", "Overview", seen, asked)

    async def _page(self, request: Request) -> Response:
        name = request.path_params["page"]
        observed = self._observed(request)
        asked = dict(request.query_params)
        if _role(request) < Role.BODIES:
            asked.pop("text", None)  # who may not see bodies does not find out by searching them either
        if observed is None or name not in _PAGES or any(not asked.get(field) for field in _NEEDED.get(name, ())):
            return self._missing(request, "There is no such page.")
        look, title = _PAGES[name]

        def seen() -> dict[str, Any]:
            page = (name, *sorted(asked.items()))
            try:
                found = observed.see(page, look(observed, asked))
            except (ServiceBrokerError, psycopg.Error) as problem:
                return {"refused": sentence(problem)}
            return {"seen": found, **(found.facts or {})}

        return await self._answer(request, name, title, seen, asked)

    async def _answer(
        self,
        request: Request,
        name: str,
        title: str,
        seen: Callable[[], dict[str, Any]],
        asked: pages.Asked | None = None,
    ) -> Response:
        """A page, or the stream of what changes on it."""
        context = self._context(request, name, title, asked or {})
        if "text/event-stream" in request.headers.get("accept", ""):
            return _Live(self._viewers, _viewer(request), partial(self._changes, request, context, seen))
        try:
            with self._viewers.look(_viewer(request)):
                found = await run_in_threadpool(seen)
        except TooMany as refusal:
            return PlainTextResponse(str(refusal), refusal.status)
        notice = self._notices.pop(request.state.session, None)
        page = self._render("page", {**context, **found, "notice": notice})
        return HTMLResponse(page, 404 if "refused" in found else 200)

    async def _changes(
        self, request: Request, context: dict[str, Any], seen: Callable[[], dict[str, Any]], stream: Stream
    ) -> AsyncIterator[str]:
        """The inner part of the page whenever it is another one, as server-sent events.

        It ends when one is signed out, or may do something else than before, and when another viewer needs the stream.
        """
        session, person, last = request.state.session, request.state.person, None
        while not (self._closing or stream.is_displaced) and self._sessions.person(session) == person:
            part = self._render("part", {**context, **await run_in_threadpool(seen), "live": True})
            if part != last:
                last = part
                yield "".join(f"data: {line}\n" for line in part.splitlines()) + "\n"
            else:
                yield ":\n\n"  # finds out who has gone
            await asyncio.sleep(PACE)

    async def _pipelines(self, request: Request) -> Response:
        if not self._watched:
            return self._missing(request, "Name the files of pipelines by --pipeline, and they are here.")

        def seen() -> dict[str, Any]:
            return {"pipelines": [(one, one.see()) for one in self._watched]}

        return await self._answer(request, "pipelines", "Pipelines", seen)

    async def _replay(self, request: Request) -> Response:
        number, fields = request.path_params["pipeline"], await _fields(request)
        if number >= len(self._watched) or not fields or "type" not in fields:
            return self._missing(request, "There is no such act.")

        if (refused := self._refused(request, fields)) is not None:
            return refused
        watched, message_type = self._watched[number], fields["type"]
        return await self._done(request, lambda: watched.replay(message_type), "/pipelines")

    async def _act(self, request: Request) -> Response:
        observed, act = self._observed(request), ACTS.get(request.path_params["act"])
        fields = await _fields(request)
        if observed is None or act is None or fields is None:
            return self._missing(request, "There is no such act.")
        if (refused := self._refused(request, fields)) is not None:
            return refused

        def do() -> str:
            return act.do(observed.instance().database(fields["database"]), fields)

        try:
            where = act.shown_after(fields)
            answer = await self._done(request, do, f"/i/{request.path_params['instance']}/{where}")
        except KeyError as missing:
            return PlainTextResponse(f"The form has no field {missing}.", 400)
        observed.forget()
        return answer

    def _refused(self, request: Request, fields: Mapping[str, str]) -> Response | None:
        """Why a form changes nothing: it is not ours, or who sends it may not act."""
        if not self._sessions.is_of_form(request.state.session, fields):
            return PlainTextResponse("That form is not of this dashboard, or too old: load the page again.", 403)
        if _role(request) < Role.ACT:
            return PlainTextResponse("Who may act says the option --role, or the file of --people.", 403)
        return None

    async def _done(self, request: Request, do: Callable[[], str], where: str) -> Response:
        """Do it, and show that page then, with what came of it."""
        person = request.state.person.name

        def noticed() -> Notice:
            try:
                with working_by(f"dashboard: {person}" if person else "dashboard"):
                    return Notice(do(), is_refusal=False)
            except (ServiceBrokerError, psycopg.Error) as problem:
                return Notice(sentence(problem), is_refusal=True)

        try:
            with self._viewers.look(_viewer(request)):
                self._notices[request.state.session] = await run_in_threadpool(noticed)
        except TooMany as refusal:
            return PlainTextResponse(str(refusal), refusal.status)
        if len(self._notices) > _NOTICES:
            self._notices.popitem(last=False)
        return RedirectResponse(f"{_base(request)}{where}", 303)

    async def _login(self, request: Request) -> Response:
        if not self._sessions.are_ours:
            return RedirectResponse(f"{_base(request)}/", 303)
        refusal, status = "", 200
        if request.method == "POST":
            fields = await _fields(request) or {}
            try:
                session = await self._sessions.lets_in(fields)
            except TooManyGuesses:
                refusal, status = "Too many were wrong: wait a minute.", 429
            except InstanceError as problem:
                refusal, status = str(problem), 503
            else:
                if session is not None:
                    answer = RedirectResponse(f"{_base(request)}/", 303)
                    answer.headers.append("set-cookie", cookie_for(self._sessions, session, request.scope))
                    return answer
                what = (
                    "That is not the token." if self._sessions.people is None else "The name or the password is wrong."
                )
                refusal, status = what, 403
        context = self._context(request, "login", "Sign in", {})
        return HTMLResponse(self._render("login", {**context, "refusal": refusal}), status)

    async def _logout(self, request: Request) -> Response:
        if not self._sessions.is_of_form(request.state.session, await _fields(request) or {}):
            return PlainTextResponse("That form is not of this dashboard.", 403)
        self._sessions.end(request.state.session)
        return RedirectResponse(f"{_base(request)}/login", 303)

    def _observed(self, request: Request) -> Observed | None:
        number = request.path_params["instance"]
        return self._instances[number] if number < len(self._instances) else None

    def _missing(self, request: Request, said: str) -> Response:
        context = self._context(request, "missing", "Not found", {})
        return HTMLResponse(self._render("page", {**context, "refused": said, "notice": None}), 404)

    def _context(self, request: Request, name: str, title: str, asked: pages.Asked) -> dict[str, Any]:
        """What every page knows of itself and of who looks."""
        session, role = request.state.session, _role(request)
        return {
            "base": _base(request),
            "page": name,
            "title": title,
            "asked": asked,
            "instances": self._instances,
            "has_pipelines": bool(self._watched),
            "instance": request.path_params.get("instance", 0),
            "may_see_bodies": role >= Role.BODIES,
            "may_act": role >= Role.ACT,
            "person": request.state.person.name if request.state.person else "",
            "by_name": self._sessions.people is not None,
            "form_token": self._sessions.form_token(session) if session else "",
            "signs_in": self._sessions.signs_out(session),
            "refused": "",
            "live": False,
            "seen": None,
        }

    def _render(self, template: str, context: dict[str, Any]) -> str:
        return self._templates.get_template(f"{template}.html").render(context)


class _Live(Response):
    """The stream of what changes on a page, counted for its viewer as long as it is sent."""

    def __init__(self, viewers: Viewers, viewer: str, changes: Callable[[Stream], AsyncIterator[str]]) -> None:
        super().__init__()
        self._viewers, self._viewer, self._changes = viewers, viewer, changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._viewers.stream(self._viewer) as stream:
                answer = StreamingResponse(self._changes(stream), media_type="text/event-stream")
                await answer(scope, receive, send)
        except TooMany as refusal:
            await PlainTextResponse(str(refusal), refusal.status)(scope, receive, send)


def new_token() -> str:
    """Something to sign in with that nobody guesses."""
    return secrets.token_urlsafe(32)


def _role(request: Request) -> Role:
    """What who asks may do; of who has not signed in, the least."""
    return request.state.person.role if request.state.person else Role.SEE


def _viewer(request: Request) -> str:
    """Who looks: a name, or the session of who has none."""
    person = request.state.person
    return (person.name if person else "") or request.state.session or ""


def _base(request: Request) -> str:
    """Where we are mounted."""
    return str(request.scope.get("root_path", ""))


async def _fields(request: Request) -> dict[str, str] | None:
    """The fields of a form; None of what is none."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM:
            raise HTTPException(413, f"The form is too large: it may have {_FORM:,} bytes, and nothing was done.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        return None


def _environment() -> Environment:
    """The templates: everything that they show is escaped."""
    made = Environment(
        loader=PackageLoader("servicebroker.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": _age,
        "when": lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "never",
        "rate": lambda rate: f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}",
        "number": lambda number: f"{number:,}",
        "clean": lambda text: printable(str(text)),
        "size": _size,
        "query": urlencode,
        "line": line,
        "changed": changed,
        "happened": told,
        "body": lambda message: shown(message.validation, message.head, message.size),
        "editable": lambda message: editable(message.head, message.size),
    }
    made.globals["ago"] = lambda seen: _age(seen.at, datetime.now(UTC))
    made.globals["clock"] = lambda: datetime.now(UTC).isoformat()
    return made


def _age(since: datetime | None, now: datetime) -> str:
    """How long ago, in the two largest units that fit."""
    if since is None:
        return ""
    left = max(0, int((now - since).total_seconds()))
    told: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length or (unit == "s" and not told):
            told.append(f"{left // length} {unit}")
            left %= length
        if len(told) == 2:
            break
    return " ".join(told)


def _size(count: int) -> str:
    """So many bytes, for a person."""
    if count < 10_000:
        return counted(count, "byte")
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
