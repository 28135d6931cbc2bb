"""The Python face: instances, databases, transactions, and their background. The files here are made from `aio/`.

**The problem.** An application wants verbs as methods, in its own transaction, with threads or with asyncio. A reader
that waits must be woken at once, and a cancelled task must lose no message.

**The flow of a verb.** A method of `aio/verbs.py` makes an operation (`servicebroker.operations`). `run`, which is
public, runs it within its wrappers (`WRAPPERS` in `aio/wrappers.py`): counting, traces, a second try if a queue was
dropped, events, WAITFOR. `_do` runs the steps: in the open transaction (`aio/transaction.py`), or as a transaction of
their own (`aio/database.py`). `instance.engine` is the interpreter: `OwnerVerbs` for the owner of the schema,
`RestrictedVerbs` for a restricted role. `shared/preparation.py` finds out which, once.

**A reader that waits** lists itself in `waiting_readers`. A SEND that sees it notifies at its commit, and the reader's
bell rings (`aio/doorbell.py`). If notifications follow each other closely, the process polls instead
(`shared/polling_mode.py`). A reader polls once a second in any case.

**The rules.**

* Write in `aio/`, then run `make sync`. Never edit a file whose first line says that it was made.
* A cancellation must not lose a result on its way to the caller. Wrap each later await in `finish`, or in `shelter` if
  the result does not depend on it (`store/aio/concurrency.py`).
* BEGIN and COMMIT travel with the next statement (`QueuedCommand` in `store/direct.py`). Connections are lent by
  `aio/instance.py`.
* What a process remembers of the catalog is bounded and verified when it is used (`Catalog`).
* Neither `broker` nor `pipeline` is imported here; T-SQL is, at its first use (`scripts.py`). Under asyncio a thread
  runs it, on a connection of the same pool (`aio/scripts.py`).

**Where.** Definitions: `aio/definitions.py`; each other subject has the file of its name. Definitions that must not
block others: `aio/lock_retry.py`. Timers, lifetimes and space without readers: `aio/upkeep.py`. Workers:
`aio/working.py`, `aio/processing.py`, `aio/failure_policy.py`. Pools: `aio/pool.py`. Requests: `aio/requesting.py`.
SENDs that wait: `aio/pipelined.py`. SQLAlchemy and Django: `aio/foreign.py`. Begin with `aio/verbs.py`, then
`aio/transaction.py`.
"""
