"""Findings about SQL Server's clients: refusals, and servers with almost as many clients as they let in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from servicebroker.engine.diagnosis.fact_types import REFUSAL_AGE
from servicebroker.engine.diagnosis.findings import Finding, Severity
from servicebroker.engine.diagnosis.tds_clients import TdsRefusalCount, TdsServerStatus
from servicebroker.model.security.client_refusals import REFUSAL_TEXTS, ClientRefusal
from servicebroker.model.wording import counted, short_repr

_NOTABLE_CLIENTS = 0.9  # a finding reports clients above this part of the server's limit


def judge_clients(
    servers: Iterable[TdsServerStatus], refusals: Iterable[TdsRefusalCount], now: datetime
) -> Iterator[Finding]:
    """Report the refusals of the last hour, and servers that are almost full."""
    for server in servers:
        if server.clients >= _NOTABLE_CLIENTS * server.max_clients:
            yield Finding(
                f"TDS {server.address}",
                f"{server.clients:,} clients of SQL Server are connected; {server.max_clients:,} are let in.",
                REFUSAL_TEXTS[ClientRefusal.LIMIT][1],
                Severity.WARNING,
            )
    for refusal in refusals:
        if now - refusal.last_time < REFUSAL_AGE:
            problem, advice = REFUSAL_TEXTS.get(
                refusal.kind, (f"A client was refused ({refusal.kind})", "See the log.")
            )
            who = f"login {short_repr(refusal.last_login)} " if refusal.last_login else ""
            yield Finding(
                "SQL Server's clients",
                f"{problem}, {counted(refusal.times, 'time')}, the last {refusal.last_time:%Y-%m-%d %H:%M:%S} UTC, "
                f"{who}from {refusal.last_address}. {refusal.last_text}".rstrip(),
                advice,
                Severity.WARNING,
            )
