"""GET_TRANSMISSION_STATUS, a function in T-SQL."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from servicebroker.model.arguments import check_handle
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class GetTransmissionStatus(Operation[str]):
    """GET_TRANSMISSION_STATUS: return why the oldest message waits that was sent on this side of the conversation.

    The text is that of sys.transmission_queue; '' if no message waits, if it was not tried yet, and for a handle
    that is unknown in this database.

    Args:
        handle: the conversation.

    Raises:
        BrokerError: 8418, 402 what is no handle.
    """

    handle: UUID

    def check(self) -> None:
        """Refuse an invalid handle.

        Raises:
            BrokerError: 8418, 402.
        """
        check_handle(self.handle)
