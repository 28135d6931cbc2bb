"""The verbs of Service Broker (SEND, RECEIVE, CREATE QUEUE ...) as generators of SQL statements.

**The problem.** The same verb runs in a thread, in asyncio, inside a T-SQL session and in the daemon. So its rules are
written once, without a connection, a clock or a thread.

**The flow.** A verb is a generator (`Steps` of `store/statements.py`). It yields a `Statement`, is sent the rows, and
returns its result. `store/running.py` runs the statements on a connection; `store/aio/running.py` does so for asyncio.

| package | subject |
|---|---|
| `conversation` | SEND, RECEIVE, BEGIN, END, MOVE, timers |
| `delivery` | from SEND to the target's queue inside an instance |
| `remote` | conversations with other instances: the statements of the daemon |
| `catalog` | CREATE, ALTER and DROP |
| `security` | principals, permissions, certificates, keys |
| `activation` | queue monitors and automatic poison detection: their statements |
| `built_in` | the services that every database has |
| `diagnosis` | the queries of status, check, doctor and the dashboard |

**The rules.**

* A verb runs in its caller's transaction only. So none of its changes is visible before the commit.
* The first statement of a verb completes the verb, or only reads. So a verb that is interrupted after one statement has
  done everything or nothing (`run_alone`), and the usual SEND and RECEIVE are one round trip.
  `tests/integration/conversation/test_interruptions.py` interrupts at each statement.
* The current time is an argument: `now`.
* A statement's name is the module and the function that issues it (`send.transmit`). Errors and counters show it.
* `security/authorization.py` checks the caller's permissions before a verb writes.

Begin with `conversation/send.py`.
"""
