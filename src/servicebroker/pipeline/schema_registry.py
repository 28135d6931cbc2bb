"""What a schema registry has under a number: Confluent's API, of which three GETs are needed.

The rules: "Schemas of a registry" in docs/reference/pipeline-file.md; why no client of others: decision 232.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from contextlib import suppress
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding.registered import Registered

URL = "SCHEMA_REGISTRY_URL"
USER_INFO = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
TOKEN = "SCHEMA_REGISTRY_BEARER_AUTH_TOKEN"
TIMEOUT_S = 10.0  # for a schema with all that it refers to, however slowly the registry sends
MAX_REFERENCES = 100  # schemas that one schema needs
MAX_REFERENCE_DEPTH = 20  # schemas that need each other in a row
_LARGEST = 16 * 1024 * 1024  # bytes of an answer
_UNKNOWN = (40401, 40402, 40403)  # a registry's codes for a subject, version or schema that it does not have


def checked_url(given: str) -> str:
    """A registry's URL, "" for the one that the environment names.

    Raises:
        ValueError: it is none, or holds credentials, which are none of a file's business.
    """
    url = (given or os.environ.get(URL, "")).rstrip("/")
    if not url:
        raise ValueError(f"no registry is named: give its URL, or set {URL} in the environment")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"credentials belong into the environment, as {USER_INFO} or {TOKEN}, not into the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is no URL of a registry: it begins with http:// or https://")
    return url


def check_registry(url: str) -> None:
    """Refuse a registry that does not answer.

    Raises:
        InstanceError: as `find`.
    """
    try:
        with _Session(url) as session:
            session.get("schemas/types")
    except LookupError as problem:
        raise InstanceError(f"There is no schema registry at '{url}': {problem}.") from None


@lru_cache(maxsize=1000)
def find(url: str, number: int) -> Registered:
    """Return the schema of a number. It never changes, so it is kept as long as the process lives.

    Raises:
        LookupError: the registry has none.
        ValueError: the schema refers to itself, to too many others, or to too many in a row.
        InstanceError: the registry cannot be asked, or does not answer as a registry does.
    """
    with _Session(url) as session:
        told = session.schema(f"schemas/ids/{number}")
        kind = told.get("schemaType") or "AVRO"
        form = "?format=serialized" if kind == "PROTOBUF" else ""
        if form:
            told = session.schema(f"schemas/ids/{number}{form}")
        references: dict[str, bytes] = {}
        _add_references(session, told, form, references, ())
        return Registered(kind, _content(url, told, form), tuple(references.items()))


def _add_references(
    session: _Session, told: dict[str, Any], form: str, found: dict[str, bytes], within: tuple[str, ...]
) -> None:
    """Add the schemas that a schema needs, each behind those that it needs itself."""
    if len(within) >= MAX_REFERENCE_DEPTH:
        raise ValueError(f"more than {MAX_REFERENCE_DEPTH} schemas refer to each other in a row")
    for one in told.get("references") or ():
        name = one["name"]
        if name in within:
            raise ValueError(f"it refers to '{name}', which refers to itself")
        if name in found:
            continue
        if len(found) + len(within) >= MAX_REFERENCES:
            raise ValueError(f"it refers to more than {MAX_REFERENCES} others")
        subject, version = quote(str(one["subject"]), safe=""), quote(str(one["version"]), safe="")
        inner = session.schema(f"subjects/{subject}/versions/{version}{form}")
        _add_references(session, inner, form, found, (*within, name))
        found[name] = _content(session.url, inner, form)


def _content(url: str, told: dict[str, Any], form: str) -> bytes:
    """The schema of an answer: its text, or in the form of bytes that was asked for.

    Raises:
        InstanceError: the registry does not know that form.
    """
    text: str = told["schema"]
    try:
        return base64.b64decode(text, validate=True) if form else text.encode()
    except ValueError:  # no base64, or a lone surrogate
        raise InstanceError(
            f"The schema registry at '{url}' gives the text of a Protobuf schema instead of its descriptor: it "
            "does not know format=serialized, and no body of this rule can be read."
            if form
            else f"What answers at '{url}' is no schema registry: a schema is no text."
        ) from None


class _Session:
    """A conversation with a registry of some GETs, which ends after `TIMEOUT_S` even if the registry sends on.

    A timer shuts the sockets down: a timeout of a socket begins anew with each byte that comes.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(TIMEOUT_S, self._end)
        self._timer.daemon = True
        self._opener = _opener(self._sockets)

    def __enter__(self) -> _Session:
        self._timer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self._is_over = True
        for one in self._sockets:
            with suppress(OSError):  # not connected any more
                one.shutdown(socket.SHUT_RDWR)

    def schema(self, path: str) -> dict[str, Any]:
        """Return an answer that is a schema; raises as `find`."""
        told = self.get(path)
        if not isinstance(told, dict) or not isinstance(told.get("schema"), str):
            self._refuse("there is no schema in what it says")
        if not isinstance(told.get("schemaType") or "", str):
            self._refuse(f"a schema is of the type {_shown(told['schemaType'])}")
        references = told.get("references") or []
        if not isinstance(references, list):
            self._refuse(f"it refers to {_shown(references)}")
        for one in references:
            if not isinstance(one, dict) or not all(isinstance(one.get(key), str | int) for key in _REFERENCE):
                self._refuse(f"it refers to {_shown(one)}")
        return told

    def _refuse(self, why: str) -> NoReturn:
        raise InstanceError(f"What answers at '{self.url}' is no schema registry: {why}.")

    def get(self, path: str) -> Any:
        """Return the answer to one GET.

        Raises:
            LookupError: the registry says that it has no such thing.
            InstanceError: anything else than an answer.
        """
        accepted = "application/vnd.schemaregistry.v1+json, application/json"
        request = Request(f"{self.url}/{path}", headers={"Accept": accepted})
        if not _is_trusted(self.url):
            pass
        elif user_info := os.environ.get(USER_INFO):
            request.add_header("Authorization", f"Basic {base64.b64encode(user_info.encode()).decode()}")
        elif token := os.environ.get(TOKEN):
            request.add_header("Authorization", f"Bearer {token}")
        try:
            if self._is_over:
                raise TimeoutError
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(_LARGEST))
        except HTTPError as refused:
            with refused:
                raise _refusal(self.url, path, refused) from None
        except (OSError, HTTPException, ValueError, RecursionError) as problem:
            why = getattr(problem, "reason", None) or problem
            if self._is_over or isinstance(why, TimeoutError):
                why = f"it has not answered within {TIMEOUT_S:g} s"
            raise InstanceError(
                f"The schema registry at '{self.url}' cannot be asked ({why}): what needs it is read later."
            ) from None


_REFERENCE = ("name", "subject", "version")
_LONGEST_SHOWN = 100  # characters of what a registry says where it makes no sense


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _opener(sockets: list[socket.socket]) -> OpenerDirector:
    """Return what sends requests, by the proxy of the environment. The sockets that it opens are added to the list."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class PlainHandler(HTTPHandler):
        def http_open(self, req: Request) -> Any:
            return self.do_open(Plain, req)

    class SecureHandler(HTTPSHandler):
        def https_open(self, req: Request) -> Any:
            return self.do_open(Secure, req)

    return build_opener(PlainHandler, SecureHandler, _SameOrigin)


class _SameOrigin(HTTPRedirectHandler):
    """Redirects within the registry; another server might tell anything of a schema."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """See the library's; refuse what leads elsewhere."""
        if _origin(newurl) != _origin(req.full_url):
            raise InstanceError(
                f"The schema registry at '{req.full_url}' redirects to '{newurl}', another server, which is not "
                "followed: if that is the registry, name it in the pipeline file."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_trusted(url: str) -> bool:
    """Whether the credentials of the environment are for that registry: a pipeline file may name any."""
    named = os.environ.get(URL, "")
    return bool(named) and _origin(named) == _origin(url)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _refusal(url: str, path: str, refused: HTTPError) -> Exception:
    """Why a registry did not give what it was asked for."""
    try:
        told = json.loads(refused.read(_LARGEST))
        code, message = told["error_code"], str(told["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        code, message = None, refused.reason
    if refused.code == 404 and code in _UNKNOWN:
        return LookupError(message)
    if refused.code in (401, 403):
        message += (
            f"; credentials come from {USER_INFO} or {TOKEN} in the environment, and go only to the registry that "
        )
        message += f"{URL} names there"
    return InstanceError(
        f"The schema registry at '{url}' answers {refused.code} to {path} ({message}): what needs it is read later."
    )
