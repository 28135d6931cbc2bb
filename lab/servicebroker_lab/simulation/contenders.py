"""Daemons that compete to serve an instance: one serves, the others wait for its lease or for a promotion."""

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

RECONNECT_INTERVAL_S = 1.0
UNPROVED = "The synchronous standby does not confirm what is committed here."
PAUSES = {
    TakeoverAction.WAIT_FOR_PROMOTION: PROMOTION_INTERVAL_S,
    TakeoverAction.WAIT_FOR_LEASE: LEASE_INTERVAL_S,
    TakeoverAction.WAIT_FOR_PROOF: PROOF_INTERVAL_S,
}


class Contender:
    """A daemon at one of the two servers of an instance, until it serves. It follows `sharing/takeover.py`."""

    def __init__(self, instance: Instance, half: int, serve: Callable[[], None]) -> None:
        self.instance = instance
        self.half = half
        self._serve = serve
        self._connection = 0  # counts connections, to recognize stale events
        self._takeover = Takeover()

    def connect(self) -> None:
        """Start again on a new connection. Pending events of the previous one are ignored."""
        self._connection += 1
        self._takeover = Takeover()
        self._carry_out(FIRST_ACTIONS, self._connection)

    def lose(self) -> None:
        """Lose the connection to the server, and connect again later."""
        self._connection += 1
        self._takeover = Takeover()
        self.instance.world.loop.after(RECONNECT_INTERVAL_S, self.connect)

    @property
    def has_lease(self) -> bool:
        """True if the session of this daemon has the lease."""
        return self._takeover.phase is Phase.PROVING

    def _carry_out(self, actions: Sequence[TakeoverAction], connection: int) -> None:
        if connection != self._connection:
            return
        for position, act in enumerate(actions):
            if act in PAUSES:
                rest = actions[position + 1 :]
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
