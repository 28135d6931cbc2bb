"""Queues that start their own readers: internal activation.

**The problem.** A queue has an ACTIVATION clause with a procedure. When messages wait and nobody receives them, a
reader is started, up to MAX_QUEUE_READERS; it ends when it finds nothing. A fault of a procedure must end its own
transaction and nothing else.

**The flow.** `Host` (`host.py`) is one thread in a process. It sleeps until a SEND or a change notifies it, and looks
once a second. For each queue whose lease it holds it asks the queue's monitor (`protocol/queue_monitor.py`). To start a
reader, it looks for the procedure (`procedures.py`: registered Python functions, the resolvers that were given, T-SQL
procedures) and runs a task (`task.py`) in a thread or in a process of its own (`child.py`). A task calls the procedure
until it finds nothing, fails or is asked to stop. It works in one session, as the principal of EXECUTE AS.

**The rules.**

* One process runs the monitor of a queue: who holds the lease. A process that cannot find the procedure leaves the
  queue to others.
* A transaction that a procedure leaves open is rolled back, and its task ends (8415). If a call has not tried to
  receive, the task ends too (28087). An exception ends it with 28088.
* A task is asked to end first. It ends after the call in progress; when the patience is over its connections are cut
  (`stop.py`).
* What a procedure prints goes to the log (`output.py`).

**Where.** `servicebroker.activate`: `activate.py`. One watched queue: `watched.py`. Coroutine functions: `loop.py`.
Alerts for queues that were switched off: `alerts.py`. Begin with `host.py`, then `task.py`.
"""
