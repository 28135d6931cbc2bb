"""Delivery between services of this instance: the target's side, and messages that cannot be delivered yet.

**The problem.** BEGIN DIALOG does not look for the target; the first message does. The message has to wait if the
service does not exist yet, its queue or its broker is off, or a route is missing.

**The flow.**

1. SEND on a conversation without a target calls `open_target` (`opening.py`). That function evaluates the routes,
   checks permissions and contract, and creates the target's endpoint and conversation group.
2. If the target is not available now, `park` (`parking.py`) writes the message into the transmission queue, with the
   reason as its transmission status. The sender's `far_queue_id` becomes null, so no later SEND overtakes the message.
3. The statement that removes the reason (CREATE SERVICE, STATUS = ON, a new route) delivers parked messages, in order,
   in its own transaction (`transmission.py`). A conversation on which a session is sending is skipped, and delivered
   afterwards in a transaction of its own (`deliver_conversation`).
4. If the routes lead to another instance, the message waits for the daemon: see `servicebroker.engine.remote`.

**The rules.**

* A conversation is parked while messages of it are in the transmission queue: SEND queues its message behind them.
* A transaction that may park messages for a service takes `lock_service` before it locks an endpoint. CREATE, ALTER
  and DROP SERVICE take the same lock exclusively. So they see each parked message, or the sender sees their change.
* The definitions of the receiver's database decide whether a message is accepted.
* If the target is in another database, `impersonation.py` decides as which principal the conversation acts.

Begin with `opening.py`, then `deliver_conversation` in `transmission.py`.
"""
