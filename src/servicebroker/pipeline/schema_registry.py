"""What a schema registry has under a number: Confluent's API, of which three GETs are needed.

The rules: "Schemas of a registry" in docs/reference/pipeline-file.md; why no client of others: decision 232.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding.registered import Registered

if TYPE_CHECKING:
    from urllib.error import HTTPError

URL = "SCHEMA_REGISTRY_URL"
USER_INFO = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
TOKEN = "SCHEMA_REGISTRY_BEARER_AUTH_TOKEN"
TIMEOUT = 10.0  # seconds
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
        _get(url, "schemas/types")
    except LookupError as problem:
        raise InstanceError(f"There is no schema registry at '{url}': {problem}.") from None


@lru_cache(maxsize=1000)
def find(url: str, number: int) -> Registered:
    """The schema of a number, which never changes: what was found is kept as long as the process lives.

    Raises:
        LookupError: the registry has none.
        InstanceError: it cannot be asked, or does not answer as a registry does.
    """
    told = _schema(url, f"schemas/ids/{number}")
    kind = told.get("schemaType") or "AVRO"
    form = "?format=serialized" if kind == "PROTOBUF" else ""
    if form:
        told = _schema(url, f"schemas/ids/{number}{form}")
    references: dict[str, bytes] = {}
    _add_references(url, told, form, references)
    return Registered(kind, _content(url, told, form), tuple(references.items()))


def _add_references(url: str, told: dict[str, Any], form: str, found: dict[str, bytes]) -> None:
    for one in told.get("references") or ():
        if not isinstance(one, dict) or not one.keys() >= {"name", "subject", "version"}:
            raise InstanceError(f"What answers at '{url}' is no schema registry: it refers to {one!r}.")
        if one["name"] not in found:
            subject, version = quote(str(one["subject"]), safe=""), quote(str(one["version"]), safe="")
            inner = _schema(url, f"subjects/{subject}/versions/{version}{form}")
            _add_references(url, inner, form, found)
            found[one["name"]] = _content(url, inner, form)


def _content(url: str, told: dict[str, Any], form: str) -> bytes:
    """The schema of an answer: its text, or in the form of bytes that was asked for.

    Raises:
        InstanceError: the registry does not know that form.
    """
    text = str(told["schema"])
    try:
        return base64.b64decode(text, validate=True) if form else text.encode()
    except binascii.Error:
        raise InstanceError(
            f"The schema registry at '{url}' gives the text of a Protobuf schema instead of its descriptor: it "
            "does not know format=serialized, and no body of this rule can be read."
        ) from None


def _schema(url: str, path: str) -> dict[str, Any]:
    """An answer that is a schema; raises as `find`."""
    told = _get(url, path)
    if not isinstance(told, dict) or "schema" not in told:
        raise InstanceError(f"What answers at '{url}' is no schema registry: there is no schema in what it says.")
    return told


def _get(url: str, path: str) -> Any:
    """The answer to one GET.

    Raises:
        LookupError: the registry says that it has no such thing.
        InstanceError: anything else than an answer.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(f"{url}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"})
    if user_info := os.environ.get(USER_INFO):
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user_info.encode()).decode()}")
    elif token := os.environ.get(TOKEN):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read(_LARGEST))
    except HTTPError as refused:
        with refused:
            raise _refusal(url, path, refused) from None
    except (OSError, HTTPException, ValueError) as problem:
        why = getattr(problem, "reason", None) or problem
        raise InstanceError(
            f"The schema registry at '{url}' cannot be asked ({why}): what needs it is read later."
        ) from None


def _refusal(url: str, path: str, refused: HTTPError) -> Exception:
    """Why a registry did not give what it was asked for."""
    try:
        told = json.loads(refused.read(_LARGEST))
        code, message = told["error_code"], str(told["message"])
    except (OSError, ValueError, KeyError, TypeError):
        code, message = None, refused.reason
    if refused.code == 404 and code in _UNKNOWN:
        return LookupError(message)
    if refused.code in (401, 403):
        message = f"{message}; credentials come from {USER_INFO} or {TOKEN} in the environment"
    return InstanceError(
        f"The schema registry at '{url}' answers {refused.code} to {path} ({message}): what needs it is read later."
    )
