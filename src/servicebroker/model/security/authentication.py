"""AUTHENTICATION of an endpoint: the methods to authenticate peers, and their order."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from servicebroker.model.errors import BrokerError


class Method(StrEnum):
    """A method to authenticate a peer: the domain of both instances, or an imported certificate."""

    WINDOWS = "WINDOWS"
    CERTIFICATE = "CERTIFICATE"


# SQL Server's names for the protocol of WINDOWS; here they all mean the same
PROTOCOLS = ("NTLM", "KERBEROS", "NEGOTIATE")


class Authentication(NamedTuple):
    """The AUTHENTICATION clause. `protocol`: that of WINDOWS, for display only."""

    methods: tuple[Method, ...] = (Method.CERTIFICATE,)
    protocol: str = ""

    @property
    def description(self) -> str:
        """The value of connection_auth_desc in sys.service_broker_endpoints."""
        return ", ".join(self.protocol if method is Method.WINDOWS else method.value for method in self.methods)

    @property
    def number(self) -> int:
        """The value of connection_auth in sys.service_broker_endpoints: 1 to 10."""
        return _ALL_METHODS.index(self) + 1

    @classmethod
    def numbered(cls, number: int) -> Authentication:
        """Return the authentication with this number."""
        return _ALL_METHODS[number - 1]


CERTIFICATE = Authentication()
_ALL_METHODS = [
    *(Authentication((Method.WINDOWS,), protocol) for protocol in PROTOCOLS),
    CERTIFICATE,
    *(Authentication((Method.WINDOWS, Method.CERTIFICATE), protocol) for protocol in PROTOCOLS),
    *(Authentication((Method.CERTIFICATE, Method.WINDOWS), protocol) for protocol in PROTOCOLS),
]
_WINDOWS = r"WINDOWS(?:\s+(?P<protocol{0}>NTLM|KERBEROS|NEGOTIATE))?"
_NAMED = r"CERTIFICATE(?:\s+(?P<certificate{0}>\[.+\]|\S.*?))??"
_CLAUSE = re.compile(
    f"(?:{_WINDOWS.format(1)}(?:\\s+(?P<second>{_NAMED.format(1)}))?"
    f"|{_NAMED.format(2)}(?:\\s+(?P<windows>{_WINDOWS.format(2)}))?)",
    re.IGNORECASE | re.DOTALL,
)


def parse_authentication(text: object) -> tuple[Authentication, str | None]:
    """Parse AUTHENTICATION = ... Returns also the name of the certificate; None for any certificate of the instance.

    A name may be in brackets.

    Raises:
        BrokerError: 5838 the clause has another form.
    """
    match = _CLAUSE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise BrokerError(
            5838,
            hint="Write WINDOWS [NTLM | KERBEROS | NEGOTIATE], CERTIFICATE or CERTIFICATE and the name of one of this "
            "instance, or both; the first named is tried first.",
        )
    protocol = (match["protocol1"] or match["protocol2"] or "NEGOTIATE").upper()
    name = match["certificate1"] or match["certificate2"]
    if name is not None and name.startswith("[") and name.endswith("]"):
        name = name[1:-1].replace("]]", "]")
    if match["second"]:
        return Authentication((Method.WINDOWS, Method.CERTIFICATE), protocol), name
    if match["windows"]:
        return Authentication((Method.CERTIFICATE, Method.WINDOWS), protocol), name
    if match[0].upper().startswith("WINDOWS"):
        return Authentication((Method.WINDOWS,), protocol), None
    return CERTIFICATE, name
