"""The faults of a run: each seed draws which faults happen, and how often."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from servicebroker.protocol.budgets import DEFAULT, Budget, Budgets
from servicebroker.protocol.limits import Limits


class Faults(NamedTuple):
    """The probability of each kind of fault, for each message, chunk of bytes or commit.

    A comment says if a fault is drawn every ten seconds instead.
    """

    loss: float = 0.0  # a message is lost, as by a forwarder that crashes
    replay: float = 0.0  # a message arrives again, up to two minutes later
    reorder: float = 0.0  # a message arrives late, after later ones
    tampering: float = 0.0  # a bit of a message is flipped, inside a valid frame
    noise: float = 0.0  # a bit of the byte stream is flipped
    cut: float = 0.0  # the connection is lost
    partition: float = 0.0  # two instances cannot reach each other, drawn every ten seconds
    lost: float = 0.0  # the database connection is lost, before or after an operation of the store or a commit
    killed: float = 0.0  # the daemon is killed, before or after an operation of the store
    between: float = 0.0  # an application commits between two operations of the store
    held: float = 0.0  # another session has locked the row that an operation would write
    usurped: float = 0.0  # a daemon loses its session and lease, and another daemon takes over, drawn every ten seconds
    clock: float = 0.0  # the server's clock is set, drawn every ten seconds
    detour: float = 0.0  # a route leads to another instance, possibly in a circle, drawn every ten seconds
    nowhere: float = 0.0  # a route leads to an address without a listener, drawn every ten seconds
    old_copy: float = 0.0  # a backup of an instance, up to 20 seconds old, is restored, once, drawn every ten seconds
    replaced: float = 0.0  # an instance replaces its certificate, which others learn later, drawn every ten seconds
    promoted: float = 0.0  # the other server of an instance takes over, drawn every ten seconds; routes are mirrored
    divided: float = 0.0  # the number of shares (partitions) changes, one to three, drawn every ten seconds
    processes: float = 0.0  # each share has its own process
    share_killed: float = 0.0  # the process of a share is killed, before or after an operation of the store
    unstartable: float = 0.0  # a process cannot be started, or a connection not be opened
    stopped: float = 0.0  # an endpoint is stopped or disabled for up to ten seconds, drawn every ten seconds
    retired: float = 0.0  # a daemon is told to stop, drawn every ten seconds
    contended: float = 0.0  # several daemons compete to serve an instance
    unproved: float = 0.0  # the commit that proves that a server is the primary fails
    unrouted: float = 0.0  # a route is missing, or expires, drawn every ten seconds
    gripped: float = 0.0  # applications lock rows for up to fifteen seconds, drawn every ten seconds
    scattered: float = 0.0  # a service exists in all instances: a route changes to another one, drawn every ten seconds
    narrow: float = 0.0  # daemons have memory for the bodies of only one conversation
    hostile: float = 0.0  # a hostile peer with a certificate impersonates others, drawn every second
    hoarded: float = 0.0  # a forwarder delivers first messages again after their targets were removed
    skewed: float = 0.0  # clocks of instances differ, by hours or days
    outages: float = 0.0  # a database is unreachable while routes change, drawn every ten seconds and when faults stop

    @classmethod
    def draw(cls, random: Random) -> Faults:
        """Draw the rates of a run. Each of the first kinds of fault happens in every second run."""

        def rate(maximum: float) -> float:
            return random.random() * maximum if random.random() < 0.5 else 0.0

        drawn = cls(
            loss=rate(0.3),
            replay=rate(0.5),
            reorder=rate(0.5),
            tampering=rate(0.2),
            noise=rate(0.03),
            cut=rate(0.05),
            partition=rate(0.3),
            lost=rate(0.01),
            killed=rate(0.01),
            between=rate(0.2),
            held=rate(0.3),
            usurped=rate(0.3),
            clock=rate(0.5),
            detour=rate(0.7),
            old_copy=rate(0.5),
        )
        # later kinds of fault have a generator of their own, so that earlier seeds repeat their runs
        apart = Random(sum(drawn))
        drawn = drawn._replace(nowhere=apart.random() * 0.3 if 0.87 < apart.random() < 0.95 else 0.0)
        drawn = drawn._replace(hostile=apart.random() * 0.5 if apart.random() < 0.25 else 0.0)
        drawn = drawn._replace(promoted=apart.random() * 0.5 if apart.random() < 0.2 else 0.0)
        drawn = drawn._replace(replaced=apart.random() * 0.7 if apart.random() < 0.2 else 0.0)
        drawn = drawn._replace(divided=apart.random() if 0.62 < apart.random() < 0.765 else 0.0)
        # A forwarder refuses messages without a route.
        drawn = drawn._replace(unrouted=apart.random() if apart.random() < 0.3 and not drawn.detour else 0.0)
        drawn = drawn._replace(gripped=apart.random() if apart.random() < 0.15 else 0.0)
        drawn = drawn._replace(narrow=1.0 if apart.random() < 0.1 else 0.0)
        # Forwarding, missing trust and an old copy may lead one conversation to two instances.
        is_plain = not (drawn.detour or drawn.hostile or drawn.old_copy)
        drawn = drawn._replace(scattered=apart.random() if apart.random() < 0.5 and is_plain else 0.0)
        drawn = drawn._replace(hoarded=1.0 if apart.random() < 0.5 else 0.0)
        drawn = drawn._replace(skewed=1.0 if apart.random() < 0.2 else 0.0)
        drawn = drawn._with_outages(Random(sum(drawn) + 1))  # another generator, for the same reason
        if not drawn.divided:
            return drawn
        drawn = drawn._replace(processes=1.0 if apart.random() < 0.7 else 0.0)
        drawn = drawn._replace(share_killed=apart.random() * 0.01 if apart.random() < 0.7 and drawn.processes else 0.0)
        drawn = drawn._replace(unstartable=apart.random() * 0.5 if apart.random() < 0.4 else 0.0)
        drawn = drawn._replace(stopped=apart.random() * 0.5 if apart.random() < 0.5 else 0.0)
        drawn = drawn._replace(retired=apart.random() * 0.5 if apart.random() < 0.5 else 0.0)
        drawn = drawn._replace(contended=1.0 if apart.random() < 0.6 else 0.0)
        return drawn._replace(unproved=apart.random() * 0.5 if drawn.contended else 0.0)

    def _with_outages(self, random: Random) -> Faults:
        """Add outages of databases to one run of ten, in half of these routes to nowhere, in half promotions."""
        if random.random() >= 0.1:
            return self
        drawn = self._replace(outages=0.3 + 0.7 * random.random())
        if random.random() < 0.5:
            drawn = drawn._replace(nowhere=0.2 + 0.3 * random.random())
        return drawn if random.random() < 0.5 else drawn._replace(promoted=0.1 + 0.4 * random.random())


def draw_limits(random: Random) -> Limits:
    """Draw small limits, so that a few messages reach every limit."""
    window = random.choice((150, 400, 2_000))
    return Limits(
        fragment_size=random.choice((16, 50, 200)),
        window=window,
        message_cost=10,
        kept_cost=0,
        ahead_messages=random.choice((3, 10, 1_000)),
        ahead_bytes=random.choice((200, 2 * window, 100_000)),
        unfinished_cost=0,
        unfinished_idle=80.0,
        unfinished_idle_full=70.0,
    )


def budgets_of(limits: Limits) -> Budgets:
    """Return the budgets for drawn limits: small ones if few messages are kept ahead of their turn."""
    return Budgets(Budget(unfinished_bytes=limits.window, openings=3) if limits.ahead_messages == 3 else DEFAULT)
