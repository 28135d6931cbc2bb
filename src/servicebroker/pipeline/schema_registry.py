"""Client of a schema registry with Confluent's API. It needs three GET requests only.

The rules: "Schemas of a registry" in docs/reference/pipeline-file.md. Why not an existing client: decision 213.
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
from servicebroker.overriding import override
from servicebroker.pipeline.decoding.registry_decoder import RegisteredSchema

URL = "SCHEMA_REGISTRY_URL"
USER_INFO = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
TOKEN = "SCHEMA_REGISTRY_BEARER_AUTH_TOKEN"
TIMEOUT_S = 10.0  # the time for a schema with all its references
MAX_REFERENCES = 100  # the most references of a schema, including indirect ones
MAX_REFERENCE_DEPTH = 20  # length of a chain of references
_MAX_RESPONSE_BYTES = 16 * 1024 * 1024  # a larger response is cut off
_NOT_FOUND_CODES = (40401, 40402, 40403)  # error codes: subject, version, schema not found


def checked_url(registry: str) -> str:
    """Return the checked URL of a registry. For "", use the URL in the environment.

    Raises:
        ValueError: the URL is invalid, or holds credentials, which must not be in a file.
    """
    url = (registry or os.environ.get(URL, "")).rstrip("/")
    if not url:
        raise ValueError(f"no registry is named: give its URL, or set {URL} in the environment")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"credentials belong in the environment, as {USER_INFO} or {TOKEN}, not in the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is not a URL of a registry: it begins with http:// or https://")
    return url


def check_registry(url: str) -> None:
    """Check that a registry answers.

    Raises:
        InstanceError: as `fetch_schema`.
    """
    try:
        with _Session(url) as session:
            session.get("schemas/types")
    except LookupError as problem:
        raise InstanceError(f"There is no schema registry at '{url}': {problem}.") from None


@lru_cache(maxsize=1000)
def fetch_schema(url: str, number: int, wanted_kind: str = "") -> RegisteredSchema:
    """Return the schema with the id `number`. A registered schema never changes, so it is cached in the process.

    A schema of another kind than the wanted one has no content: the registry may be unable to return that.

    Raises:
        LookupError: the registry has no such schema.
        ValueError: the schema refers to itself, has too many references, or too long a chain of references.
        InstanceError: the registry cannot be reached, or its response is not that of a registry.
    """
    with _Session(url) as session:
        response = session.schema(f"schemas/ids/{number}")
        kind = response.get("schemaType") or "AVRO"
        if wanted_kind not in ("", kind):
            return RegisteredSchema(kind, b"")
        query = "?format=serialized" if kind == "PROTOBUF" else ""
        if query:
            response = session.schema(f"schemas/ids/{number}{query}")
        references: dict[str, bytes] = {}
        _add_references(session, response, query, references, ())
        return RegisteredSchema(kind, _content(url, response, query), tuple(references.items()))


def _add_references(
    session: _Session, response: dict[str, Any], query: str, contents: dict[str, bytes], path: tuple[str, ...]
) -> None:
    """Add the schemas to which a schema refers to `contents`, each after the schemas to which it refers itself.

    `path`: the names on the way to the schema, for detecting cycles.
    """
    if len(path) >= MAX_REFERENCE_DEPTH:
        raise ValueError(f"more than {MAX_REFERENCE_DEPTH} schemas refer to each other in a row")
    for reference in response.get("references") or ():
        name = reference["name"]
        if name in path:
            raise ValueError(f"it refers to '{name}', which refers to itself")
        if name in contents:
            continue
        if len(contents) + len(path) >= MAX_REFERENCES:
            raise ValueError(f"it refers to more than {MAX_REFERENCES} others")
        subject, version = quote(str(reference["subject"]), safe=""), quote(str(reference["version"]), safe="")
        inner = session.schema(f"subjects/{subject}/versions/{version}{query}")
        _add_references(session, inner, query, contents, (*path, name))
        contents[name] = _content(session.url, inner, query)


def _content(url: str, response: dict[str, Any], query: str) -> bytes:
    """Return the schema in a response: its text, or its serialized form if `query` requested that.

    Raises:
        InstanceError: the registry does not know the serialized form.
    """
    text: str = response["schema"]
    try:
        return base64.b64decode(text, validate=True) if query else text.encode()
    except ValueError:  # not base64, or a lone surrogate
        raise InstanceError(
            f"The schema registry at '{url}' returns the text of a Protobuf schema instead of its descriptor: it "
            "does not support format=serialized, so bodies of this rule cannot be read."
            if query
            else f"The server at '{url}' is not a schema registry: a schema in its response is not a text."
        ) from None


class _Session:
    """GET requests to a registry that together take at most `TIMEOUT_S`, even if the registry sends slowly.

    A timer shuts the sockets down, since a socket's own timeout starts again with each byte that arrives.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_timed_out = False
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
        self._is_timed_out = True
        for connected_socket in self._sockets:
            with suppress(OSError):  # already disconnected
                connected_socket.shutdown(socket.SHUT_RDWR)

    def schema(self, path: str) -> dict[str, Any]:
        """Return the response to a GET of a schema, checked. Raises the errors of `get`."""
        response = self.get(path)
        if not isinstance(response, dict) or not isinstance(response.get("schema"), str):
            self._refuse("its response has no schema")
        if not isinstance(response.get("schemaType") or "", str):
            self._refuse(f"a schema is of the type {_quoted(response['schemaType'])}")
        references = response.get("references") or []
        if not isinstance(references, list):
            self._refuse(f"it refers to {_quoted(references)}")
        for reference in references:
            is_object = isinstance(reference, dict)
            if not is_object or not all(isinstance(reference.get(key), str | int) for key in _REFERENCE_KEYS):
                self._refuse(f"it refers to {_quoted(reference)}")
        return response

    def _refuse(self, reason: str) -> NoReturn:
        raise InstanceError(f"The server at '{self.url}' is not a schema registry: {reason}.")

    def get(self, path: str) -> Any:
        """Return the decoded response to a GET.

        Raises:
            LookupError: the registry has no such subject, version or schema.
            InstanceError: the registry did not respond, or responded with another error.
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
            if self._is_timed_out:
                raise TimeoutError
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read(_MAX_RESPONSE_BYTES))
        except HTTPError as refused:
            with refused:
                raise _refusal(self.url, path, refused) from None
        except (OSError, HTTPException, ValueError, RecursionError) as problem:
            cause = getattr(problem, "reason", None) or problem
            if self._is_timed_out or isinstance(cause, TimeoutError):
                cause = f"it has not answered within {TIMEOUT_S:g} s"
            raise InstanceError(
                f"The schema registry at '{self.url}' cannot be reached ({cause}). Messages that need it are retried."
            ) from None


_REFERENCE_KEYS = ("name", "subject", "version")
_MAX_QUOTED_CHARACTERS = 100  # the part of an invalid response that an error quotes


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}..."


def _opener(sockets: list[socket.socket]) -> OpenerDirector:
    """Return an opener for requests, which uses the environment's proxy. It adds each socket to `sockets`."""

    class Plain(HTTPConnection):
        @override
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class Secure(HTTPSConnection):
        @override
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class PlainHandler(HTTPHandler):
        @override
        def http_open(self, req: Request) -> Any:
            return self.do_open(Plain, req)

    class SecureHandler(HTTPSHandler):
        @override
        def https_open(self, req: Request) -> Any:
            return self.do_open(Secure, req)

    return build_opener(PlainHandler, SecureHandler, _SameOrigin)


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects only to the same origin: another server could return a forged schema."""

    @override
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Refuse a redirect to another origin; otherwise do as the base class."""
        if _origin(newurl) != _origin(req.full_url):
            raise InstanceError(
                f"The schema registry at '{req.full_url}' redirects to another server, '{newurl}'. Such "
                "a redirect is not followed: if that is the registry, name it in the pipeline file."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_trusted(url: str) -> bool:
    """True if the environment's credentials are for this registry. A pipeline file could name any URL."""
    trusted_url = os.environ.get(URL, "")
    return bool(trusted_url) and _origin(trusted_url) == _origin(url)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _refusal(url: str, path: str, refused: HTTPError) -> Exception:
    """Return the exception to raise for an HTTP error of a registry."""
    try:
        content = json.loads(refused.read(_MAX_RESPONSE_BYTES))
        code, message = content["error_code"], str(content["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        code, message = None, refused.reason
    if refused.code == 404 and code in _NOT_FOUND_CODES:
        return LookupError(message)
    if refused.code in (401, 403):
        message += (
            f"; credentials come from {USER_INFO} or {TOKEN} in the environment, and go only to the registry that "
        )
        message += f"{URL} names there"
    return InstanceError(
        f"The schema registry at '{url}' answers {refused.code} to {path} ({message}). "
        "Messages that need it are retried."
    )
