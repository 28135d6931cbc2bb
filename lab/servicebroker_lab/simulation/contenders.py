"""Processes that want to serve an instance: one of them does, the others stand by or wait as the mirror."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from servicebroker.broker.sharing.takeover import (
    FIRST_ACTIONS,
    LEASE_INTERVAL_S,
    PROMOTION_INTERVAL_S,
    PROOF_INTERVAL_S,
    Event,
    Phase,
    Takeover,
    TakeoverAction,
)
from servicebroker.model.daemon_reports import Subject

if TYPE_CHECKING:
    from servicebroker_lab.simulation.simulated_instance import Instance

RECONNECT_INTERVAL_S = 1.0  # seconds
UNPROVED = "The synchronous standby does not confirm what is committed here."
PAUSES = {
    TakeoverAction.WAIT_FOR_PROMOTION: PROMOTION_INTERVAL_S,
    TakeoverAction.WAIT_FOR_LEASE: LEASE_INTERVAL_S,
    TakeoverAction.WAIT_FOR_PROOF: PROOF_INTERVAL_S,
}


class Contender:
    """One process at one of the two servers of an instance, until it serves: the acts of `sharing/takeover.py`."""

    def __init__(self, instance: Instance, half: int, serve: Callable[[], None]) -> None:
        self.instance = instance
        self.half = half
        self._serve = serve
        self._connection = 0  # the number of its connections
        self._takeover = Takeover()

    def connect(self) -> None:
        """Begin on a new connection; what was to come on the one before does not."""
        self._connection += 1
        self._takeover = Takeover()
        self._carry_out(FIRST_ACTIONS, self._connection)

    def lose(self) -> None:
        """Its server is gone, and comes back."""
        self._connection += 1
        self._takeover = Takeover()
        self.instance.world.loop.after(RECONNECT_INTERVAL_S, self.connect)

    @property
    def has_lease(self) -> bool:
        """Return whether its session has the lease."""
        return self._takeover.phase is Phase.PROVING

    def _carry_out(self, actions: Sequence[TakeoverAction], connection: int) -> None:
        if connection != self._connection:
            return
        for place, act in enumerate(actions):
            if act in PAUSES:
                rest = actions[place + 1 :]
                self.instance.world.loop.after(PAUSES[act], lambda rest=rest: self._carry_out(rest, connection))  # type: ignore[misc]
                return
            event = self._do(act)
            if event is not None:
                self._carry_out(self._takeover.on_event(event), connection)
                return

    def _do(self, act: TakeoverAction) -> Event | None:
        instance, loop = self.instance, self.instance.world.loop
        match act:
            case TakeoverAction.ASK_ROLE:
                return Event.PRIMARY if self._is_primary else Event.MIRROR
            case TakeoverAction.TRY_LEASE:
                return Event.HELD if instance.lease_is_held else Event.WON
            case TakeoverAction.PROVE if not self._is_primary:
                return Event.MIRROR
            case TakeoverAction.PROVE:
                is_late = loop.happens(instance.world.network.faults.unproved)
                instance.reports.tell(Subject.PRINCIPAL, UNPROVED if is_late else "")
                return Event.UNPROVED if is_late else Event.PROVED
            case TakeoverAction.SERVE:
                instance.contenders.remove(self)
                instance.trace("a process takes over")
                self._serve()
            case TakeoverAction.DISCONNECT:
                self.lose()
            case _:
                instance.trace("a process is to", act)
        return None

    @property
    def _is_primary(self) -> bool:
        return self.half == self.instance.half
