"""Hide passwords of URLs and connection strings in texts for users.

A mistyped URL must not show its password: errors reach logs, terminals, and the pages of Spark.
"""

from __future__ import annotations

import re

HIDDEN = "..."

# user and password before the last @, since users write passwords without escapes
_USER_INFO = re.compile(r"(//|/|^)([^:/?#@]*):(?!//)(.*)@", re.DOTALL)
_PARAMETER = re.compile(r"(passw\w*|pwd)(\s*[=:]\s*)('[^']*'?|[^&\s]*)", re.IGNORECASE)
_VALUE = re.compile(r"(?:passw\w*|pwd)\s*=\s*(.*?)(?=[\s&]+\w+\s*=|$)", re.IGNORECASE | re.DOTALL)  # up to the next key
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")


def without_password(target: str) -> str:
    """Return a URL, connection string or folder without the password in it."""
    target = _USER_INFO.sub(rf"\1\2:{HIDDEN}@", target)
    return _PARAMETER.sub(rf"\1\2{HIDDEN}", target)


def without_quoted_secrets(message: str, target: str) -> str:
    """Return the message of a driver about a target, without the parts of its password that the message quotes."""
    secrets = [match[3] for match in _USER_INFO.finditer(target)] + _VALUE.findall(target)

    def hidden(quoted: re.Match[str]) -> str:
        text = quoted[1] or quoted[2] or ""
        is_key = re.search(rf"\b{re.escape(text)}\s*=", target) is not None
        is_secret = bool(text) and not is_key and any(text in secret for secret in secrets)
        is_rest_of_password = "@" in text and bool(
            secrets
        )  # if the password has an @, the driver takes its rest for a host
        mark = quoted[0][0]
        return f"{mark}{HIDDEN}{mark}" if is_secret or is_rest_of_password else quoted[0]

    return _QUOTED.sub(hidden, message)
