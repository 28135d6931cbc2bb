"""The figures of the dialog protocol, in bytes and seconds."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.arguments import HIGHEST_MAX_BODY_BYTES


class Limits(NamedTuple):
    """The limits. `fragment_size` is part of the protocol: both sides of a conversation must use the same one."""

    fragment_size: int = 32_768  # bytes of a body in one frame; longer messages travel in fragments
    window: int = 1_048_576  # bytes in flight (unacknowledged) of a conversation
    message_cost: int = 100  # overhead bytes that a message counts for
    ahead_messages: int = 16_384  # messages beyond the next one that are kept
    ahead_bytes: int = 4_194_304  # bytes of these messages, with overhead
    # Overhead bytes of a kept message, besides `message_cost` for each fragment. The sum is at most four times
    # `message_cost`, and `ahead_bytes` is four windows. So all messages in flight of a sender can be kept.
    kept_cost: int = 300
    kept_ranges: int = 64  # runs of fragments of one message; a sender's window leaves at most half as many gaps
    largest_body: int = HIGHEST_MAX_BODY_BYTES  # bytes
    unfinished_cost: int = 1_600  # further overhead bytes of an incomplete message, for its memory
    unfinished_idle: float = 3_600.0  # seconds without a new fragment until the fragments are deleted
    unfinished_idle_full: float = 300.0  # the timeout for a peer that has used up its quota: a few times `last_retry`
    first_retry: float = 4.0  # seconds until the first retransmission
    last_retry: float = 64.0  # the longest interval between retransmissions
    jitter: float = 0.05  # random part of an interval, in both directions

    @property
    def most_fragments(self) -> int:
        """The number of fragments of the largest body."""
        return -(-self.largest_body // self.fragment_size)


LIMITS = Limits()
