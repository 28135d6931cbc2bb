"""CREATE, ALTER and DROP SERVICE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import read_once
from servicebroker.operations.operation import Definition, ExactlyNamed


@dataclass(frozen=True, slots=True)
class CreateService(Definition[None]):
    """CREATE SERVICE on a queue. Messages that were waiting for the service are then delivered.

    Args:
        name: the name of the service, compared byte by byte.
        queue: the queue of its messages; `schema.queue` if the schema is not dbo.
        contracts: the contracts for which the service is a target.
        authorization: the owner, a user or a role. Default: the current user.
        exist_ok: do nothing if a service of that name exists.

    Raises:
        BrokerError: 8404 a contract is listed twice, 15151 unknown queue, contract or owner, 2714 the name is taken,
            262.
    """

    name: str
    queue: str
    contracts: Iterable[str] = ()
    _: KW_ONLY
    authorization: str | None = None
    exist_ok: bool = False

    def __post_init__(self) -> None:
        """Read an iterator once: the operation may be run again."""
        object.__setattr__(self, "contracts", read_once(self.contracts))


@dataclass(frozen=True, slots=True)
class AlterService(Definition[None]):
    """ALTER SERVICE ON QUEUE (ADD CONTRACT, DROP CONTRACT).

    Conversations on a dropped contract continue. Readers that wait at the service's queue get 8468.

    Args:
        name: the name of the service, compared byte by byte.
        queue: the new queue. The messages of the service move there.
        add_contracts: contracts for which the service becomes a target.
        drop_contracts: contracts for which the service is no longer a target.

    Raises:
        BrokerError: 15151 unknown service, queue or contract, 8493 nothing would change, 8404 a contract is listed
            twice, or the service has it already.
        InstanceError: a pipeline reads the queue that the service leaves.
    """

    name: str
    _: KW_ONLY
    queue: str | None = None
    add_contracts: Iterable[str] = ()
    drop_contracts: Iterable[str] = ()

    def __post_init__(self) -> None:
        """Read iterators once: the operation may be run again."""
        object.__setattr__(self, "add_contracts", read_once(self.add_contracts))
        object.__setattr__(self, "drop_contracts", read_once(self.drop_contracts))


@dataclass(frozen=True, slots=True)
class DropService(ExactlyNamed, Definition[None]):
    """DROP SERVICE with its messages and conversations. Their other sides get the Error -8470.

    Raises:
        BrokerError: 15151 no such service, 3716 a conversation priority uses it.
    """
