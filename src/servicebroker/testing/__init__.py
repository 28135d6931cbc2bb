"""The in-memory double (a test double, a fake instance): no PostgreSQL, no threads, and a clock that the test moves.

import servicebroker.testing

with servicebroker.testing.open() as instance:
    db = instance.database("Warehouse", create=True)
    ...
    instance.clock.jump(minutes=31)

Its classes have the methods of `servicebroker.Instance`, `Database` and `Transaction`, with the same arguments, errors
and messages.

**The problem.** A test of an application needs a broker that answers in milliseconds. The project needs a second
implementation of the rules: random histories run through the engine and the double, and every difference is a bug in
one of them.

**The flow.** `verbs.py` and `instance.py` have the methods. A statement (a *verb*: SEND, RECEIVE and so on) runs in a
`Session` (`memory.py`), a transaction over rows in memory. The next statement sees committed rows, as in READ
COMMITTED. `delivery.py`, `receiving.py`, `dialogs.py` and `ending.py` have the rules of these statements,
`definitions.py` the rules of DDL.

**The rules.**

* The double shares names, states, errors and operations with the engine, but no rule about order, locks or delivery.
  Write a rule from docs/reference/rules.md, never from the engine's code.
* Nothing waits. If PostgreSQL would wait for another transaction, the statement does nothing and raises `WouldWait`.
* The time is the instance's clock, which stands still until a test moves it.

Begin with `memory.py`, then `delivery.py`. `failures.py` has the retry policies of workers.
"""

from servicebroker.testing.asyncio_instance import AsyncDatabase, AsyncInstance, AsyncTransaction, open_async
from servicebroker.testing.instance import Clock, Database, Instance, Transaction
from servicebroker.testing.instance import open_instance as open
from servicebroker.testing.memory import WouldWait
from servicebroker.testing.sqlite import sqlite

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
    "sqlite",
]
