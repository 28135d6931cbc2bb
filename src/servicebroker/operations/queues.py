"""CREATE, ALTER and DROP QUEUE, and the ACTIVATION clause."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

from servicebroker.model import names
from servicebroker.model.arguments import check_changes, check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Definition

DROP: Literal["DROP"] = "DROP"
FILEGROUPS = ("DEFAULT", "PRIMARY")  # two names of the only filegroup


class Activation(NamedTuple):
    """ACTIVATION (PROCEDURE_NAME, MAX_QUEUE_READERS, EXECUTE AS, STATUS) of a queue; None for an omitted clause.

    `procedure_name` has up to three parts, `max_queue_readers` is 0 to 32,767, `execute_as` is SELF, OWNER or a user.
    """

    procedure_name: str | None = None
    max_queue_readers: int | None = None
    execute_as: str | None = None
    status: bool | None = None


@dataclass(frozen=True, slots=True)
class CreateQueue(Definition[None]):
    """CREATE QUEUE. SELECT reads the queue through the PostgreSQL view `<database>_<schema>.<queue>`, in lower case.

    Args:
        name: `queue` or `schema.queue`.
        status: whether the queue is ON.
        retention: whether received and sent messages stay visible until their conversation ends.
        poison_message_handling: whether five rollbacks in a row disable the queue.
        activation: the procedure that reads the queue. It is on unless its `status` is False.
        filegroup: PRIMARY or DEFAULT, which are the same.
        exist_ok: do nothing if a queue of that name exists.

    Raises:
        BrokerError: 2714 the name is taken, 9609 too many parts in the name, 15151 a name with # or an unknown
            filegroup, 402 a wrong argument, 262 no permission. For the activation: 9609 too many parts in the
            procedure's name, 9611 no such user, 9613 no user, 9614 no procedure, 9742 a temporary procedure, 15517 the
            caller may not impersonate the user.
    """

    name: str
    _: KW_ONLY
    status: bool = True
    retention: bool = False
    poison_message_handling: bool = True
    activation: Activation | None = None
    filegroup: str = "DEFAULT"
    exist_ok: bool = False

    def check(self) -> None:
        """Refuse options of wrong types, and unknown filegroups.

        Raises:
            BrokerError: 402 a wrong type, 15151 an unknown filegroup.
        """
        check_switch("STATUS", self.status)
        check_switch("RETENTION", self.retention)
        check_switch("POISON_MESSAGE_HANDLING", self.poison_message_handling)
        _check_filegroup(self.filegroup)
        if not isinstance(self.activation, Activation | None):
            raise BrokerError(402, "ACTIVATION", short_repr(self.activation), "an Activation")


@dataclass(frozen=True, slots=True)
class AlterQueue(Definition[None]):
    """ALTER QUEUE: change options.

    Args:
        name: `queue` or `schema.queue`.
        status: whether the queue is on. While it is off, RECEIVE fails with 9617, and sent messages wait in the
            transmission queue. Once it is on, these messages are delivered in order.
        retention: whether messages that are received and sent from now on stay visible until their conversation ends.
            Messages retained already stay until then in any case.
        poison_message_handling: whether five rollbacks in a row of receiving transactions disable the queue.
        activation: fields other than None change the activation; "DROP" removes it.
        rebuild: free the unused disk space of the queue's tables. Readers and senders wait meanwhile.
        reorganize: free the disk space at the end of the tables. No reader or sender waits.
        move_to: PRIMARY or DEFAULT, the only filegroup.

    Raises:
        BrokerError: 15151 no such queue or filegroup, 402 a wrong argument, and for the activation the errors of
            `CreateQueue`.
    """

    name: str
    _: KW_ONLY
    status: bool | None = None
    retention: bool | None = None
    poison_message_handling: bool | None = None
    activation: Activation | Literal["DROP"] | None = None
    rebuild: bool = False
    reorganize: bool = False
    move_to: str | None = None

    def check(self) -> None:
        """Refuse options of wrong types, and unknown filegroups.

        Raises:
            BrokerError: 402 a wrong type, 15151 an unknown filegroup.
        """
        check_switch("REBUILD", self.rebuild)
        check_switch("REORGANIZE", self.reorganize)
        check_changes(
            STATUS=self.status, RETENTION=self.retention, POISON_MESSAGE_HANDLING=self.poison_message_handling
        )
        if self.move_to is not None:
            _check_filegroup(self.move_to)


@dataclass(frozen=True, slots=True)
class DropQueue(Definition[None]):
    """DROP QUEUE. Its waiting readers get 15151. The statement waits for open transactions that use the queue's table.

    Args:
        name: `queue` or `schema.queue`.

    Raises:
        BrokerError: 3716 a service uses it, 15151 no such queue.
    """

    name: str


def _check_filegroup(name: object) -> None:
    """Refuse filegroups other than PRIMARY and DEFAULT.

    Raises:
        BrokerError: 15151 an unknown filegroup.
    """
    if names.checked("filegroup", name).upper() not in FILEGROUPS:
        hint = "An instance has only PRIMARY. PostgreSQL's ALTER TABLE ... SET TABLESPACE moves a queue's table."
        raise BrokerError(15151, "find", "filegroup", name, hint=hint)
