"""The figures of the dialog protocol, in bytes and seconds."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """`fragment_size` is part of the protocol: both sides of a conversation must cut alike."""

    fragment_size: int = 32_768  # bytes of a body in one frame; longer messages travel in fragments
    window: int = 1_048_576  # bytes that a conversation may have under way, unacknowledged
    message_cost: int = 100  # bytes that a message counts for beside its body
    ahead_messages: int = 16_384  # how far beyond the next message an arrival is kept
    ahead_bytes: int = 4_194_304  # of those, kept
    first_retry: float = 4.0
    last_retry: float = 64.0
    jitter: float = 0.05  # of a wait, to either side


LIMITS = Limits()
