"""The figures of the dialog protocol, in bytes and seconds."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.arguments import HIGHEST_MAX_BODY_BYTES


class Limits(NamedTuple):
    """`fragment_size` is part of the protocol: both sides of a conversation must cut alike."""

    fragment_size: int = 32_768  # bytes of a body in one frame; longer messages travel in fragments
    window: int = 1_048_576  # bytes that a conversation may have under way, unacknowledged
    message_cost: int = 100  # bytes that a message counts for beside its body
    ahead_messages: int = 16_384  # messages beyond the next one that are kept
    ahead_bytes: int = 4_194_304  # bytes of them, with their cost beside their bodies
    # Bytes that a kept message counts for beside its fragments, which count for `message_cost` each. The sum is at most
    # four times `message_cost`, as `ahead_bytes` is four windows: all that a sender has under way can be kept.
    kept_cost: int = 300
    kept_ranges: int = 64  # of the fragments of one message; a sender with its window leaves half as many gaps
    largest_body: int = HIGHEST_MAX_BODY_BYTES  # bytes
    unfinished_cost: int = 1_600  # bytes that an incomplete message counts for beside `kept_cost`: it is in memory too
    unfinished_idle: float = 3_600.0  # seconds without a fragment, after which they go
    unfinished_idle_full: float = 300.0  # the same of a peer without room: a few times `last_retry`
    first_retry: float = 4.0
    last_retry: float = 64.0
    jitter: float = 0.05  # of a wait, to either side

    @property
    def most_fragments(self) -> int:
        """Return how many fragments the largest body needs."""
        return -(-self.largest_body // self.fragment_size)


LIMITS = Limits()
