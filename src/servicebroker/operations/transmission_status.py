"""GET_TRANSMISSION_STATUS, a function in T-SQL."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from servicebroker.model.arguments import check_handle
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class GetTransmissionStatus(Operation[str]):
    """GET_TRANSMISSION_STATUS: return the reason why the oldest undelivered message of this side waits.

    The result is the `transmission_status` of sys.transmission_queue. It is '' if no message waits, if delivery was not
    tried yet, and for a handle that is unknown in this database.

    Args:
        handle: the conversation.

    Raises:
        BrokerError: 8418 the handle is missing, 402 it is not a handle.
    """

    handle: UUID

    def check(self) -> None:
        """Refuse an invalid handle.

        Raises:
            BrokerError: 8418 the handle is missing, 402 it is not a handle.
        """
        check_handle(self.handle)
