"""The Python API: instances, databases, transactions, and their maintenance. The files here are made from `aio/`.

**The problem.** An application calls SEND, RECEIVE and the other statements (the *verbs*) as methods, in its own
transaction, with threads or with asyncio. A waiting reader must be woken at once. A cancelled task loses no message.

**The flow of a statement.** A method of `aio/verbs.py` makes an operation (`servicebroker.operations`). The public
`run` runs it within its wrappers (`WRAPPERS` in `aio/wrappers.py`): counting, traces, a retry if a queue was dropped,
events, WAITFOR. `_do` runs the SQL steps: in the open transaction (`aio/transaction.py`), or as a transaction of their
own (`aio/database.py`). `instance.engine` is the interpreter: `OwnerVerbs` for the owner of the schema,
`RestrictedVerbs` for a restricted role. `shared/preparation.py` chooses one when the instance is opened.

**A waiting reader** registers in `waiting_readers`. A SEND that finds the registration runs NOTIFY in its transaction,
and the notifier wakes the reader (`aio/notifier.py`). If notifications arrive in bursts, the process polls instead
(`shared/polling_mode.py`). A reader polls once a second in any case.

**The rules.**

* Write in `aio/`, then run `make sync`. Never edit a file whose first line says "Made from".
* A cancellation must not lose a result on its way to the caller. Wrap each later await in `finish`, or in `shelter` if
  the result does not depend on it (`store/aio/concurrency.py`).
* BEGIN and COMMIT are sent with the next statement (`QueuedCommand` in `store/direct.py`). `aio/instance.py` lends the
  connections.
* The catalog cache of a process is bounded, and each use verifies its entries (`Catalog`).
* Neither `broker` nor `pipeline` is imported here. T-SQL is imported at its first use (`scripts.py`); under asyncio it
  runs in a thread, on a connection of the same pool (`aio/scripts.py`).

**The files.** Definitions: `aio/definitions.py`; retries of definitions that wait for locks: `aio/lock_retry.py`.
Timers, lifetimes and disk space without readers: `aio/maintenance.py` (the maintenance thread).
Workers: `aio/working.py`, `aio/processing.py`, `aio/failure_policy.py`. Recycled conversations: `aio/pool.py`.
Requests: `aio/requesting.py`.
Deferred SENDs: `aio/pipelined.py`. SQLAlchemy and Django: `aio/foreign.py`. Begin with `aio/verbs.py`, then
`aio/transaction.py`.
"""
