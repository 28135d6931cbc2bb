"""A process that traces, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._once import Once


@contextmanager
def tracer_provider() -> Iterator[TracerProvider]:
    """Set a tracer provider during the block. Afterwards no provider is set."""
    provider = TracerProvider()
    trace.set_tracer_provider(provider)
    yield provider
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()
