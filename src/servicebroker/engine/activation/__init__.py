"""Activation as rows: the ACTIVATION clause, the rows of queue monitors, and automatic poison detection.

**The problem.** A queue starts readers when messages wait and no session receives them. It switches itself off when
transactions that receive from it are rolled back again and again.

**The flow.** `clause.py` stores the clause of CREATE and ALTER QUEUE. A process that runs monitors takes the queue's
lease, an advisory lock, and calls `look` of the queue (`monitors.py`, `store/queue.sql`). The pure function of
`protocol/queue_monitor.py` decides; `servicebroker.activation` starts the reader. `poison_detection.py` finds out how
receiving transactions have ended; `model/poison.py` counts them.

**The rules.**

* One process at a time runs the monitor of a queue: the holder of the lease.
* The procedure's name is not looked up here. It may be created later, or live in another database.
* Rollbacks are counted outside of the transaction, because a ROLLBACK would undo the count.

Begin with `monitors.py`.
"""
