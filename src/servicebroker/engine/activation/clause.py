"""The ACTIVATION clause of CREATE and ALTER QUEUE: check and store it (docs/reference/rules.md#queues).

The procedure is looked up only when it is started. It may be created later, or be in another database.
"""

from __future__ import annotations

from typing import Literal

from servicebroker.engine.catalog.alter import RENEW_MONITOR, find_user_queue, wake_monitors
from servicebroker.engine.security.authorization import authorize, user_named
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import User
from servicebroker.model.wording import short_repr
from servicebroker.operations.queues import DROP, Activation
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAXIMUM_QUEUE_READERS = 32_767
SELF, OWNER = "SELF", "OWNER"
OWNER_ID = -2  # the value of EXECUTE AS OWNER in the catalog


def set_activation(user: User, queue: str, activation: Activation | Literal["DROP"]) -> Steps[BrokerError | None]:
    """Store the settings that the clause names; "DROP" removes all settings.

    Returns the warning 9648 if activation is on with MAX_QUEUE_READERS = 0.

    Raises:
        BrokerError: 15151 no such queue, 402 wrong types or number of readers, 9609, 9742 and 15151 the procedure's
            name, 9611 no such user, 15517 a user that the caller may not impersonate, 9613 and 9614 switched on without
            user or procedure, 9717 with event notifications for QUEUE_ACTIVATION.
    """
    queue_id = (yield from find_user_queue("alter", user.database_id, queue)).queue_id
    if activation == DROP:
        yield Statement(
            "clause.set_activation.drop",
            "update servicebroker.queues set activation_procedure = null, max_readers = null, "
            f"execute_as_principal_id = null, is_activation_enabled = false, {RENEW_MONITOR} where queue_id = $1",
            (queue_id,),
        )
        yield wake_monitors()
        return None
    if not isinstance(activation, Activation):
        raise BrokerError(402, "ACTIVATION", short_repr(activation), 'an Activation, or "DROP"')
    _check_types(activation)
    rows = yield Statement(
        "clause.set_activation.alter",
        "update servicebroker.queues q set activation_procedure = coalesce($2, activation_procedure), "
        "max_readers = coalesce($3, max_readers), execute_as_principal_id = coalesce($4, execute_as_principal_id), "
        f"is_activation_enabled = coalesce($5, is_activation_enabled), {RENEW_MONITOR} where queue_id = $1 "
        "returning name, is_activation_enabled, activation_procedure is not null, execute_as_principal_id is not null, "
        "coalesce(max_readers, 0), notifies_activation",
        (
            queue_id,
            None if activation.procedure_name is None else _procedure(user, activation),
            activation.max_queue_readers,
            None if activation.execute_as is None else (yield from _principal(user, activation.execute_as)),
            activation.status,
        ),
    )
    name, enabled, has_procedure, has_user, readers, notifies = rows[0]
    if enabled and notifies:
        raise BrokerError(9717, name)
    if enabled and not has_procedure:
        raise BrokerError(9614, name)
    if enabled and not has_user:
        raise BrokerError(9613, name)
    yield wake_monitors()
    return BrokerError(9648, name) if enabled and not readers else None


def _check_types(activation: Activation) -> None:
    readers = activation.max_queue_readers
    if readers is not None and (
        not isinstance(readers, int) or isinstance(readers, bool) or not 0 <= readers <= MAXIMUM_QUEUE_READERS
    ):
        raise BrokerError(402, "MAX_QUEUE_READERS", short_repr(readers), f"an int from 0 to {MAXIMUM_QUEUE_READERS}")
    if activation.status is not None and not isinstance(activation.status, bool):
        raise BrokerError(402, "ACTIVATION STATUS", short_repr(activation.status), "True for ON, False for OFF")


def _procedure(user: User, activation: Activation) -> str:
    """Return the procedure's three-part name, in brackets.

    Raises:
        BrokerError: 9742 a name with #, and what the name's check raises.
    """
    kind = "activation procedure"
    *prefix, procedure = names.name_parts(kind, activation.procedure_name, 3)
    if procedure.startswith("#"):
        raise BrokerError(9742, procedure)
    if len(prefix) < 2:
        prefix = [user.database, *(prefix or ["dbo"])]
    return names.bracketed(*prefix, procedure)


def _principal(user: User, execute_as: object) -> Steps[int]:
    """Return the principal id for EXECUTE AS. SELF is the caller; another user needs the permission IMPERSONATE.

    Raises:
        BrokerError: 9611 no such user, 15517 no permission.
    """
    name = names.checked("user", execute_as)
    if name.upper() == OWNER:
        return OWNER_ID
    if name.upper() == SELF:
        return user.principal_id
    rows = yield SQL("principal", (user.database_id, name))
    if not rows:
        raise BrokerError(9611, name)
    (principal_id,) = rows[0]
    if principal_id != user.principal_id:
        yield from authorize(user, "EXECUTE AS USER", user_named(name))
    return int(principal_id)
