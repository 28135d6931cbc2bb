"""Bytes of a TDS client, for tests."""

from __future__ import annotations

from servicebroker_lab.tds_client import (
    NO_HEADERS,
    PLAIN_PRELOGIN,
    RawClient,
    call,
    login_message,
    packet,
    parameter,
)

__all__ = ["NO_HEADERS", "PLAIN_PRELOGIN", "RawClient", "call", "login_message", "packet", "parameter"]
