"""An instance in memory for the tests of an application: no PostgreSQL, no threads, a clock that jumps.

import servicebroker.testing

with servicebroker.testing.open() as instance:
    db = instance.database("Warehouse", create=True)
    ...
    instance.clock.jump(minutes=31)

The objects have the methods of the real ones, with the same arguments, errors and messages. It is a model of the
rules and shares no SQL with the engine; the same random histories run through both.
"""

from servicebroker.testing.asyncio_face import AsyncDatabase, AsyncInstance, AsyncTransaction, open_async
from servicebroker.testing.instance import Clock, Database, Instance, Transaction
from servicebroker.testing.instance import open_instance as open
from servicebroker.testing.rows import WouldWait

__all__ = [
    "AsyncDatabase",
    "AsyncInstance",
    "AsyncTransaction",
    "Clock",
    "Database",
    "Instance",
    "Transaction",
    "WouldWait",
    "open",
    "open_async",
]
