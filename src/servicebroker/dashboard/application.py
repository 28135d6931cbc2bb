"""The dashboard as an ASGI application: pages, actions, and the stream of a page's changes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

import psycopg
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from servicebroker.cli.commands.audit import list_changes
from servicebroker.cli.people_file import People, Role
from servicebroker.cli.printable_text import printable
from servicebroker.dashboard import pages
from servicebroker.dashboard.access import LOOPBACK, AccessControl, Proxy, Sessions, cookie_for
from servicebroker.dashboard.actions import ACTIONS, InstanceAction
from servicebroker.dashboard.bodies import editable, preview, render_body
from servicebroker.dashboard.charts import VIEW_HEIGHT, VIEW_WIDTH, depth_chart, flow_chart, spark
from servicebroker.dashboard.export import EXPORTS, MAX_EXPORT, MEDIA_TYPE
from servicebroker.dashboard.pipeline_page import CachedPipeline
from servicebroker.dashboard.sign_in_limits import TooManyFailures
from servicebroker.dashboard.snapshot_cache import ObservedInstance, sentence
from servicebroker.dashboard.statement_names import readable
from servicebroker.dashboard.viewer_limits import Stream, TooManyRequests, ViewerLimits
from servicebroker.engine.diagnosis.findings import Severity
from servicebroker.model.client_kind import entered_by
from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.model.names import short
from servicebroker.model.states import STATE_MEANINGS, STATE_WORDS
from servicebroker.model.wording import about_instance, counted
from servicebroker.overriding import override
from servicebroker.pipeline.variables import mask_values

UPDATE_INTERVAL_S = 1.0  # the time between two queries for a page's stream
_MAX_FORM_BYTES = 65536
_MAX_NOTICES = 1000  # results of actions that are not shown yet

# by the page's name in the address: the function that returns its query, and its title
_PAGES: dict[str, tuple[Callable[[ObservedInstance, pages.PageQuery], Callable[[Any], Any]], str]] = {
    "queues": (pages.queues, "Queues"),
    "queue": (pages.queue, "Queue"),
    "workers": (pages.workers, "Workers"),
    "conversations": (pages.conversations, "Conversations"),
    "conversation": (pages.conversation, "Conversation"),
    "way": (pages.way, "In transit"),
    "dead-letters": (pages.dead_letters, "Dead letters"),
    "statements": (pages.statements, "Statements"),
    "audit": (pages.audit, "Audit"),
    "search": (pages.search, "Search"),
}
_REQUIRED_FIELDS = {"queue": ("database", "queue"), "conversation": ("handle",)}


class _IndexConvertor(IntegerConvertor):
    """A list index in a path, with at most six digits: a longer number is not found instead of an error in int()."""

    regex = "[0-9]{1,6}"


register_url_convertor("index", _IndexConvertor())


class Notice(NamedTuple):
    """The result of an action, shown once."""

    text: str
    is_refusal: bool


class Dashboard:
    """Web pages that show and operate instances: an ASGI application to serve or to mount.

    Args:
        instances: data folders or PostgreSQL URLs; each is opened when it is first queried.
        token: the token to sign in with.
        role: the role of everybody who signs in, if there are no `people`.
        people: the people who sign in with name and password instead of the token, each with a role.
        proxy: a proxy that is trusted to name its users. Without token, people and proxy everybody has access, and the
            application that mounts this one has to protect its path.
        hosts: the host names of the dashboard, without port; a request with another Host header is refused.
        pipelines: pipeline files, shown on a page of their own.
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
        self._instances = [ObservedInstance(target) for target in instances]
        self._cached_pipelines = [CachedPipeline(path) for path in pipelines]
        self._sessions = Sessions(token, role, people, proxy)
        self._notices: OrderedDict[str, Notice] = OrderedDict()
        self._viewer_limits = ViewerLimits()
        self._export_lock = threading.Lock()
        self._closing = False
        self._templates = _environment()
        routes = [
            Route("/", self._overview),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/pipelines", self._pipelines),
            Route("/pipelines/{pipeline:index}/replay", self._replay, methods=["POST"]),
            Route("/i/{instance:index}/act/{act}", self._act, methods=["POST"]),
            Route("/i/{instance:index}/export/{page}", self._export),
            Route("/i/{instance:index}/{page}", self._page),
            Mount("/static", StaticFiles(packages=[("servicebroker.dashboard", "static")])),
        ]
        application = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: self._not_found})
        self._access_control = AccessControl(application, self._sessions, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._access_control(scope, receive, send)

    def close(self) -> None:
        """End the streams, and close the instances.

        If the dashboard is served alone, its server calls this method. An application that mounts it has to.
        """
        self._closing = True
        for instance in self._instances:
            instance.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(self.close)

    async def _overview(self, request: Request) -> Response:
        fields = dict(request.query_params)

        def query() -> dict[str, Any]:
            page = ("overview", fields.get("span"))
            # in threads, since an instance that is down must not delay the others
            with ThreadPoolExecutor(len(self._instances)) as threads:
                snapshots = threads.map(
                    lambda instance: instance.read(page, pages.overview(instance, fields)), self._instances
                )
            return {"summaries": list(zip(self._instances, snapshots, strict=True))}

        return await self._answer(request, "overview", "Overview", query, fields)

    async def _page(self, request: Request) -> Response:
        name = request.path_params["page"]
        observed = self._observed(request)
        fields = dict(request.query_params)
        if _role(request) < Role.BODIES:
            fields.pop("text", None)  # a search must not reveal bodies to a role that may not see them
        is_incomplete = any(not fields.get(field) for field in _REQUIRED_FIELDS.get(name, ()))
        if observed is None or name not in _PAGES or is_incomplete:
            return self._missing(request, "There is no such page.")
        if name == "search" and (handle := _handle(fields.get("q", ""))):
            return RedirectResponse(
                f"{_base(request)}/i/{request.path_params['instance']}/conversation?handle={handle}"
            )
        make_query, title = _PAGES[name]

        def query() -> dict[str, Any]:
            page = (name, *sorted(fields.items()))
            try:
                snapshot = observed.read(page, make_query(observed, fields))
            except (ServiceBrokerError, psycopg.Error) as problem:
                return {"refused": sentence(problem)}
            return {"snapshot": snapshot, **(snapshot.facts or {})}

        return await self._answer(request, name, title, query, fields)

    async def _export(self, request: Request) -> Response:
        """Return messages as JSON lines, to be saved as a file. One export runs at a time, because it is in memory."""
        name, observed = request.path_params["page"], self._observed(request)
        fields, may_see_bodies = dict(request.query_params), _role(request) >= Role.BODIES
        if not may_see_bodies:
            fields.pop("text", None)
        is_incomplete = any(not fields.get(field) for field in _REQUIRED_FIELDS.get(name, ()))
        if observed is None or name not in EXPORTS or is_incomplete:
            return self._missing(request, "There is no such export.")
        query = EXPORTS[name](fields, with_bodies=may_see_bodies)

        def read() -> Response:
            if not self._export_lock.acquire(blocking=False):
                return PlainTextResponse("Another export is in progress: try again in a moment.", 503)
            try:
                content = "".join(observed.read_anew(query))
            except (ServiceBrokerError, psycopg.Error, OSError) as problem:
                return PlainTextResponse(sentence(problem), 503)
            finally:
                self._export_lock.release()
            answer = Response(content, media_type=MEDIA_TYPE)
            answer.headers["content-disposition"] = f'attachment; filename="{name}.jsonl"'
            return answer

        try:
            with self._viewer_limits.request(_viewer(request)):
                return await run_in_threadpool(read)
        except TooManyRequests as refusal:
            return PlainTextResponse(str(refusal), refusal.status)

    async def _answer(
        self,
        request: Request,
        name: str,
        title: str,
        query: Callable[[], dict[str, Any]],
        fields: pages.PageQuery | None = None,
    ) -> Response:
        """Return a page, or the stream of its changes."""
        context = self._context(request, name, title, fields or {})
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return _ChangeStream(self._viewer_limits, _viewer(request), partial(self._changes, request, context, query))
        try:
            with self._viewer_limits.request(_viewer(request)):
                content = await run_in_threadpool(query)
        except TooManyRequests as refusal:
            return PlainTextResponse(str(refusal), refusal.status)
        notice = self._notices.pop(request.state.session, None)
        page = self._render("page", {**context, **content, "notice": notice})
        return HTMLResponse(page, 404 if "refused" in content else 200)

    async def _changes(
        self, request: Request, context: dict[str, Any], query: Callable[[], dict[str, Any]], stream: Stream
    ) -> AsyncIterator[str]:
        """Yield the content of the page as a server-sent event whenever it has changed.

        The stream ends if the person has signed out or has another role, or if another viewer displaces it.
        """
        session, person, last = request.state.session, request.state.person, None
        while not (self._closing or stream.is_displaced) and self._sessions.person(session) == person:
            part = self._render("part", {**context, **await run_in_threadpool(query), "live": True})
            if part != last:
                last = part
                yield "".join(f"data: {line}\n" for line in part.splitlines()) + "\n"
            else:
                yield ":\n\n"  # a comment: a closed connection is noticed only by sending
            await asyncio.sleep(UPDATE_INTERVAL_S)

    async def _pipelines(self, request: Request) -> Response:
        if not self._cached_pipelines:
            return self._missing(request, "No pipelines: name their files with --pipeline.")

        def query() -> dict[str, Any]:
            return {"pipelines": [(pipeline, pipeline.read()) for pipeline in self._cached_pipelines]}

        return await self._answer(request, "pipelines", "Pipelines", query)

    async def _replay(self, request: Request) -> Response:
        number, fields = request.path_params["pipeline"], await _fields(request)
        if number >= len(self._cached_pipelines) or not fields or "type" not in fields:
            return self._missing(request, "There is no such action.")

        if (refusal := self._refusal(request, fields)) is not None:
            return refusal
        pipeline, message_type = self._cached_pipelines[number], fields["type"]
        return await self._run_action(request, lambda: pipeline.replay(message_type), "/pipelines")

    async def _act(self, request: Request) -> Response:
        observed, action = self._observed(request), ACTIONS.get(request.path_params["act"])
        fields = await _fields(request)
        if observed is None or action is None or fields is None:
            return self._missing(request, "There is no such action.")
        if (refusal := self._refusal(request, fields)) is not None:
            return refusal

        def run() -> str:
            instance = observed.instance()
            if isinstance(action, InstanceAction):
                return action.run(instance, fields)
            return action.run(instance.database(fields["database"]), fields)

        try:
            next_page = action.page_after(fields)
            answer = await self._run_action(request, run, f"/i/{request.path_params['instance']}/{next_page}")
        except KeyError as missing:
            return PlainTextResponse(f"The form has no field {missing}.", 400)
        observed.invalidate()
        return answer

    def _refusal(self, request: Request, fields: Mapping[str, str]) -> Response | None:
        """Return a refusal if the form token is wrong, or the person may not act; else None."""
        if not self._sessions.is_own_form(request.state.session, fields):
            return PlainTextResponse("This form is not of this dashboard, or is too old: load the page again.", 403)
        if _role(request) < Role.ACT:
            return PlainTextResponse("Your role may not act: see the option --role, or the file of --people.", 403)
        return None

    async def _run_action(self, request: Request, action: Callable[[], str], next_page: str) -> Response:
        """Run an action, and redirect to a page that shows its result."""
        person = request.state.person.name

        def run() -> Notice:
            try:
                with entered_by(f"dashboard: {person}" if person else "dashboard"):
                    return Notice(action(), is_refusal=False)
            except (ServiceBrokerError, psycopg.Error) as problem:
                return Notice(sentence(problem), is_refusal=True)

        try:
            with self._viewer_limits.request(_viewer(request)):
                self._notices[request.state.session] = await run_in_threadpool(run)
        except TooManyRequests as refusal:
            return PlainTextResponse(str(refusal), refusal.status)
        if len(self._notices) > _MAX_NOTICES:
            self._notices.popitem(last=False)
        return RedirectResponse(f"{_base(request)}{next_page}", 303)

    async def _login(self, request: Request) -> Response:
        if not self._sessions.has_sign_in:
            return RedirectResponse(f"{_base(request)}/", 303)
        refusal, status = "", 200
        if request.method == "POST":
            fields = await _fields(request) or {}
            try:
                session = await self._sessions.sign_in(fields, request.client.host if request.client else "")
            except TooManyFailures:
                refusal, status = "Too many wrong attempts: wait a minute.", 429
            except InstanceError as problem:
                refusal, status = str(problem), 503
            else:
                if session is not None:
                    answer = RedirectResponse(f"{_base(request)}/", 303)
                    answer.headers.append("set-cookie", cookie_for(self._sessions, session, request.scope))
                    return answer
                text = (
                    "That is not the token." if self._sessions.people is None else "The name or the password is wrong."
                )
                refusal, status = text, 403
        context = self._context(request, "login", "Sign in", {})
        return HTMLResponse(self._render("login", {**context, "refusal": refusal}), status)

    async def _logout(self, request: Request) -> Response:
        if not self._sessions.is_own_form(request.state.session, await _fields(request) or {}):
            return PlainTextResponse("This form does not belong to this dashboard.", 403)
        self._sessions.end(request.state.session)
        return RedirectResponse(f"{_base(request)}/login", 303)

    def _observed(self, request: Request) -> ObservedInstance | None:
        number = request.path_params["instance"]
        return self._instances[number] if number < len(self._instances) else None

    async def _not_found(self, request: Request, problem: Exception) -> Response:
        """Return the page for an unknown address; without a session a plain sentence, since pages name instances."""
        if getattr(request.state, "session", None) is None:
            return PlainTextResponse("Not found.", 404)
        return self._missing(request, "There is no such page.")

    def _missing(self, request: Request, text: str) -> Response:
        context = self._context(request, "missing", "Not found", {})
        return HTMLResponse(self._render("page", {**context, "refused": text, "notice": None}), 404)

    def _context(self, request: Request, name: str, title: str, fields: pages.PageQuery) -> dict[str, Any]:
        """Return the values that every template needs."""
        session, role = request.state.session, _role(request)
        return {
            "base": _base(request),
            "page": name,
            "title": title,
            "fields": fields,
            "Severity": Severity,
            "instances": self._instances,
            "has_pipelines": bool(self._cached_pipelines),
            "instance": request.path_params.get("instance", 0),
            "may_see_bodies": role >= Role.BODIES,
            "may_act": role >= Role.ACT,
            "person": request.state.person.name if request.state.person else "",
            "by_name": self._sessions.people is not None,
            "form_token": self._sessions.form_token(session) if session else "",
            "can_sign_out": self._sessions.can_sign_out(session),
            "refused": "",
            "live": False,
            "snapshot": None,
        }

    def _render(self, template: str, context: dict[str, Any]) -> str:
        return self._templates.get_template(f"{template}.html").render(context)


class _ChangeStream(Response):
    """The response that streams a page's changes. While it lasts it counts as a stream of its viewer."""

    def __init__(self, limits: ViewerLimits, viewer: str, changes: Callable[[Stream], AsyncIterator[str]]) -> None:
        super().__init__()
        self._viewer_limits, self._viewer, self._changes = limits, viewer, changes

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._viewer_limits.stream(self._viewer) as stream:
                answer = StreamingResponse(self._changes(stream), media_type="text/event-stream")
                await answer(scope, receive, send)
        except TooManyRequests as refusal:
            await PlainTextResponse(str(refusal), refusal.status)(scope, receive, send)


def new_token() -> str:
    """Return a random token to sign in with."""
    return secrets.token_urlsafe(32)


def _role(request: Request) -> Role:
    """Return the role of the request's person; the lowest role without a person."""
    return request.state.person.role if request.state.person else Role.SEE


def _viewer(request: Request) -> str:
    """Return the viewer of a request: the name of its person, or its session if there is no name."""
    person = request.state.person
    return (person.name if person else "") or request.state.session or ""


def _handle(text: str) -> str:
    """Return the text in canonical form if it is a conversation handle; '' for any other text."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return ""


def _base(request: Request) -> str:
    """Return the path at which the application is mounted."""
    return str(request.scope.get("root_path", ""))


async def _fields(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None if the body of the request is not a form, or is incomplete."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM_BYTES:
                text = f"The form is too large: it may have {_MAX_FORM_BYTES:,} bytes, and nothing was done."
                raise HTTPException(413, text)
    except ClientDisconnect:
        return None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        return None


def _environment() -> Environment:
    """Return the environment of the templates. It escapes every value."""
    environment = Environment(
        loader=PackageLoader("servicebroker.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": _age,
        "when": lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "never",
        "rate": lambda rate: f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}",
        "amount": _amount,
        "readers": _readers,
        "number": lambda number: f"{number:,}",
        "about_instance": about_instance,
        "clean": lambda text: printable(str(text)),
        "masked": mask_values,
        "size": _size,
        "query": urlencode,
        "flow_chart": flow_chart,
        "depth_chart": depth_chart,
        "spark": spark,
        "changes": list_changes,
        "short": lambda name: printable(short(name)),
        "is_system": lambda name: short(name) != name,
        "state": lambda state: STATE_WORDS.get(state, state),
        "state_meaning": lambda state: STATE_MEANINGS.get(state, ""),
        "short_handle": lambda handle: f"{str(handle)[:8]}…",
        "statement": readable,
        "pause": _pause,
        "tick": _tick,
        "clock_time": lambda at: f"{at:%H:%M:%S}.{at.microsecond // 1000:03}",
        "body": lambda message: render_body(message.validation, message.head, message.size),
        "preview": lambda message: preview(message.validation, message.head, message.size),
        "editable": lambda message: editable(message.head, message.size),
    }
    environment.globals |= {
        "most_exported": MAX_EXPORT,
        "states": STATE_WORDS,
        "view_box": f"0 0 {VIEW_WIDTH} {VIEW_HEIGHT}",
    }
    environment.globals["ago"] = lambda snapshot: _age(snapshot.at, datetime.now(UTC))
    environment.globals["clock"] = lambda: datetime.now(UTC).isoformat()
    return environment


def _age(since: datetime | None, now: datetime) -> str:
    """Return an age in the two largest units that fit."""
    if since is None:
        return ""
    remaining_s = max(0, int((now - since).total_seconds()))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if remaining_s >= length or (unit == "s" and not parts):
            parts.append(f"{remaining_s // length} {unit}")
            remaining_s %= length
        if len(parts) == 2:
            break
    return " ".join(parts)


def _amount(value: float) -> str:
    """Return a value of a chart, with at most one decimal."""
    return f"{value:,.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def _readers(line: pages.QueueLine) -> str:
    """Return in words what reads a queue: sessions that wait or work, activation, a pipeline."""
    facts = line.facts
    words = [f"{number} {word}" for number, word in ((facts.readers, "waiting"), (facts.holders, "working")) if number]
    words += ["activation"] * facts.is_activated + ["a pipeline"] * facts.is_piped
    return ", ".join(words) or "none"


def _tick(at: datetime, times: Sequence[datetime]) -> str:
    """Return a label of a time axis: the time of day, or the date if the axis is longer than a day."""
    return f"{at:%H:%M}" if times[-1] - times[0] <= timedelta(days=1) else f"{at:%b %d}"


def _pause(seconds: float) -> str:
    """Return the time between two events: below 1 s in milliseconds, below 60 s with one decimal."""
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    return (
        f"{seconds:,.1f} s" if seconds < 60 else _age(datetime.now(UTC) - timedelta(seconds=seconds), datetime.now(UTC))
    )


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    if count < 10_000:
        return counted(count, "byte")
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
