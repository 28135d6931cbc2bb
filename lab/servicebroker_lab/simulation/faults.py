"""The faults of one run; each seed draws its own rates."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from servicebroker.protocol.budgets import DEFAULT, Budget, Budgets
from servicebroker.protocol.limits import Limits


class Faults(NamedTuple):
    """Probabilities for each message, chunk or commit; times in seconds."""

    loss: float = 0.0  # of a message, as by a broker that forwards and forgets
    replay: float = 0.0  # the message comes once more, up to two minutes later
    reorder: float = 0.0  # the message comes later than it was sent
    tampering: float = 0.0  # a message is changed, and its frame made to fit
    noise: float = 0.0  # a bit of the byte stream is changed
    cut: float = 0.0  # the connection breaks
    partition: float = 0.0  # two instances cannot reach each other, looked at every ten seconds
    lost: float = 0.0  # the connection to the database, before or after an operation of the store, or its commit
    killed: float = 0.0  # the daemon, there
    between: float = 0.0  # an application commits there
    held: float = 0.0  # somebody else has the row that an operation would write
    usurped: float = 0.0  # a daemon loses its session, and another one begins to serve, looked at every ten seconds
    clock: float = 0.0  # the server's clock steps, looked at every ten seconds
    detour: float = 0.0  # a route leads to any other instance, in circles too, looked at every ten seconds
    nowhere: float = 0.0  # a route leads to an address where nobody is, looked at every ten seconds
    old_copy: float = (
        0.0  # an instance goes back to what it was up to 20 seconds before, once, looked at every ten seconds
    )
    replaced: float = 0.0  # an instance replaces its certificate, which others learn later, looked at every ten seconds
    promoted: float = (
        0.0  # the other server of an instance takes over, looked at every ten seconds; routes are mirrored
    )
    divided: float = 0.0  # another number of shares is wanted, one to three, looked at every ten seconds
    processes: float = 0.0  # shares have processes of their own
    share_killed: float = 0.0  # the process of a share, before or after an operation of the store
    unstartable: float = 0.0  # a process, or another connection, cannot be had
    stopped: float = 0.0  # an endpoint is stopped or disabled for up to ten seconds, looked at every ten seconds
    retired: float = 0.0  # a daemon is told to stop, looked at every ten seconds
    contended: float = 0.0  # several processes want to serve an instance
    unproved: float = 0.0  # a commit by which a process proves that its server is the principal does not go through
    unrouted: float = 0.0  # a route is missing, or expires, looked at every ten seconds
    gripped: float = 0.0  # applications have rows for up to fifteen seconds, looked at every ten seconds
    scattered: float = 0.0  # a service is in all instances: which of them a route names, looked at every ten seconds
    narrow: float = 0.0  # daemons have room for the bodies of one conversation
    hostile: float = 0.0  # somebody with a certificate tries to pass for others, looked at every second
    hoarded: float = 0.0  # a forwarder brings openings again when their targets have gone
    skewed: float = 0.0  # clocks of instances differ, by hours or days
    outages: float = 0.0  # a database is away while routes change, looked at every ten seconds and when faults stop

    @classmethod
    def draw(cls, random: Random) -> Faults:
        """Each kind of fault is there in every other run."""

        def rate(most: float) -> float:
            return random.random() * most if random.random() < 0.5 else 0.0

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
        apart = Random(sum(drawn))  # in one run of twelve, so that the seeds of the mutants do what they did before
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
        drawn = drawn._with_outages(Random(sum(drawn) + 1))  # beside that, for the same reason
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
        """Databases are away in one run of ten; of these half have routes that lead nowhere, and half mirrored ones."""
        if random.random() >= 0.1:
            return self
        drawn = self._replace(outages=0.3 + 0.7 * random.random())
        if random.random() < 0.5:
            drawn = drawn._replace(nowhere=0.2 + 0.3 * random.random())
        return drawn if random.random() < 0.5 else drawn._replace(promoted=0.1 + 0.4 * random.random())


def draw_limits(random: Random) -> Limits:
    """Small ones, so that a few messages meet every limit."""
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
    """Return budgets that go with drawn limits: small ones where few messages are kept ahead."""
    return Budgets(Budget(unfinished_bytes=limits.window, openings=3) if limits.ahead_messages == 3 else DEFAULT)
