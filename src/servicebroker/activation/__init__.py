"""Internal activation: queues start their own readers.

**The problem.** A queue may have an ACTIVATION clause with a procedure. If messages wait and too few readers receive
them, a reader is started, up to MAX_QUEUE_READERS. A reader ends when it finds no message. A failure of a procedure
must end only its own transaction.

**The flow.** `Host` (`host.py`) is one thread in a process. It waits for notifications of SENDs and of changed
definitions, and checks its queues once a second. A queue's lease is an advisory lock. For each queue whose lease it
holds it runs the queue's monitor (`protocol/queue_monitor.py`). To start a reader, it resolves the procedure
(`procedures.py`): a registered Python function, a T-SQL procedure, or the result of another resolver. Then it runs a
task (`task.py`) in a thread or in a child process (`child.py`). A task calls the procedure until the queue is empty,
the procedure fails or the task is asked to stop. It works in one session, as the principal of EXECUTE AS.

**The rules.**

* Only the process that holds a queue's lease runs its monitor. A process that cannot resolve the procedure releases the
  lease for other processes.
* A transaction that a procedure leaves open is rolled back, and its task ends (8415). If a call has not tried to
  receive, the task ends too (28087). An exception ends it with 28088.
* A task that is asked to stop ends after the call in progress. After a timeout its connections are closed
  (`stop_signal.py`).
* The output of a procedure goes to the log (`output.py`).

**Subjects.** `servicebroker.activate`: `activate.py`. A monitored queue: `monitored_queue.py`. Coroutine functions:
`coroutine_runner.py`. Alerts for queues that were switched off: `alerts.py`. Begin with `host.py`, then `task.py`.
"""
