"""CREATE and DROP CONTRACT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import checked_sent_by, read_once
from servicebroker.operations.operation import Definition, ExactlyNamed


@dataclass(frozen=True, slots=True)
class CreateContract(Definition[None]):
    """CREATE CONTRACT.

    Args:
        name: the name of the contract, compared byte by byte.
        sent_by: maps each message type to INITIATOR, TARGET or ANY.
        authorization: the owner, a user or a role. Default: the current user.
        exist_ok: do nothing if a contract of that name exists.

    Raises:
        BrokerError: 8403 a message type is listed twice, 8492 the initiator may send nothing, 15151 unknown message
            type or owner, 2714 the name is taken, 262 no permission, 402 a wrong argument.
    """

    name: str
    sent_by: Mapping[str, str] | Iterable[tuple[str, str]]
    _: KW_ONLY
    authorization: str | None = None
    exist_ok: bool = False

    def __post_init__(self) -> None:
        """Convert an iterator into a list, since the operation may run more than once."""
        object.__setattr__(self, "sent_by", read_once(self.sent_by))

    def pairs(self) -> list[tuple[str, str]]:
        """Return each message type with its sender.

        Raises:
            BrokerError: 8403 a message type is listed twice, 8492 the initiator may send nothing, 402 wrong types.
        """
        return checked_sent_by(self.name, self.sent_by)


@dataclass(frozen=True, slots=True)
class DropContract(ExactlyNamed, Definition[None]):
    """DROP CONTRACT. Both sides of its open conversations get the Error -8487.

    Raises:
        BrokerError: 3716 a service or a priority uses it, 15151 no such contract, 9663 it is built in.
    """
