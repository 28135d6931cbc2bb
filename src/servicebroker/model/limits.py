"""Limits and defaults that the verbs share."""

from __future__ import annotations

MAXIMUM_BODY = 512 * 1024 * 1024  # bytes; PostgreSQL itself breaks at 1 GB
DEFAULT_LEVEL = 5  # of a conversation that no broker priority names
