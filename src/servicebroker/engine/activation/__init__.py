"""Activation as rows: the ACTIVATION clause, what a queue monitor reads and writes, and automatic poison detection.

**The problem.** A queue starts readers when messages wait and nobody receives them. It switches itself off when
transactions that receive from it are rolled back again and again.

**The flow.** `clause.py` stores what CREATE and ALTER QUEUE say. A process that runs monitors takes the queue's lease,
an advisory lock, and calls `look` of the queue (`monitors.py`, `store/queue.sql`). The pure function of
`protocol/queue_monitor.py` decides; `servicebroker.activation` starts the reader. `poison_detection.py` finds out how
transactions that received have ended; `model/poison.py` counts them.

**The rules.**

* One process at a time runs the monitor of a queue: who holds the lease.
* The procedure's name is not looked up here. It may be made later, or live in another database.
* Rollbacks are counted outside of the transaction, because a ROLLBACK would undo the count.

Begin with `monitors.py`.
"""
