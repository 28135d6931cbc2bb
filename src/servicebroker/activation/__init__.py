"""Internal activation: queues start their own readers.

**The problem.** A queue has an ACTIVATION clause with a procedure. When messages wait and nobody receives them, a
reader is started, up to MAX_QUEUE_READERS. A reader ends when it finds no message. A fault of a procedure must end its
own transaction and nothing else.

**The flow.** `Host` (`host.py`) is one thread in a process. It sleeps until a SEND or a changed definition notifies it,
and checks its queues once a second. For each queue whose lease it holds it runs the queue's monitor
(`protocol/queue_monitor.py`). To start a reader, it resolves the procedure (`procedures.py`): a registered Python
function, a T-SQL procedure, or the result of a further resolver. Then it runs a task (`task.py`) in a thread or in a
process of its own (`child.py`). A task calls the procedure until the queue is empty, the procedure fails or the task is
asked to stop. It works in one session, as the principal of EXECUTE AS.

**The rules.**

* One process runs the monitor of a queue: the holder of its lease. A process that cannot resolve the procedure leaves
  the queue to others.
* A transaction that a procedure leaves open is rolled back, and its task ends (8415). If a call has not tried to
  receive, the task ends too (28087). An exception ends it with 28088.
* A task is first asked to stop, and ends after the call in progress. After a timeout its connections are closed
  (`stop_signal.py`).
* Whatever a procedure prints goes to the log (`output.py`).

**Subjects.** `servicebroker.activate`: `activate.py`. A monitored queue: `monitored_queue.py`. Coroutine functions:
`coroutine_runner.py`. Alerts for queues that were switched off: `alerts.py`. Begin with `host.py`, then `task.py`.
"""
