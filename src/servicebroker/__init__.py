"""Service Broker for Python and PostgreSQL.

import servicebroker as sb

with sb.open("./data") as instance:
    db = instance.database("Warehouse", create=True)
    with db.transaction() as tx:
        ...
"""

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.instance import open_instance as open
from servicebroker.api.transaction import JoinedTransaction, Transaction
from servicebroker.engine.activation import Activation
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.events import BrokerEvent, Events
from servicebroker.model.messages import Message, read_error
from servicebroker.model.names import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR

__all__ = [
    "DEFAULT",
    "DIALOG_TIMER",
    "END_DIALOG",
    "ERROR",
    "Activation",
    "BrokerError",
    "BrokerEvent",
    "Database",
    "Events",
    "Instance",
    "InstanceError",
    "JoinedTransaction",
    "Message",
    "ServiceBrokerError",
    "Transaction",
    "open",
    "read_error",
]
