"""Activation, its statements: the ACTIVATION clause, queue monitors, and automatic poison detection.

**The problem.** A queue starts readers (activated procedures) when messages wait and no session receives them. It
switches itself off when five transactions in a row that received from it are rolled back.

**The flow.** `clause.py` stores the clause of CREATE and ALTER QUEUE. A process that runs a queue's monitor takes the
queue's lease, an advisory lock, and polls the queue's state (`monitors.py`; `look` in `store/queue.sql`). A pure
function of `protocol/queue_monitor.py` decides; `servicebroker.activation` starts the reader. `poison_detection.py`
finds out how receiving transactions have ended; `model/poison.py` counts the rollbacks.

**The rules.**

* One process at a time runs the monitor of a queue: the holder of the lease.
* The procedure's name is not looked up when the clause is stored. The procedure may be created later, or be in another
  database.
* Rollbacks are counted outside of the transaction, because a ROLLBACK would undo the count.

Begin with `monitors.py`.
"""
