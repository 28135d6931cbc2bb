"""The statements of Service Broker as rows: generators of SQL statements, without connection, clock or thread.

**The problem.** The same verb runs in a thread, in asyncio, inside a T-SQL session and in the daemon. So the rules are
written once, apart from how a statement reaches PostgreSQL.

**The flow.** A verb is a generator (`Steps` of `store/statements.py`). It yields a `Statement`, is sent the rows, and
returns its result. `store/running.py` drives it on a connection; `store/aio/running.py` does so for asyncio.

| package | subject |
|---|---|
| `conversation` | SEND, RECEIVE, BEGIN, END, MOVE, timers |
| `delivery` | from SEND to the target's queue inside an instance |
| `remote` | the rows of conversations with other instances |
| `catalog` | CREATE, ALTER and DROP |
| `security` | principals, permissions, certificates, keys |
| `activation` | queue monitors and automatic poison detection, as rows |
| `built_in` | the services that every database has |
| `diagnosis` | what status, check, doctor and the dashboard ask |

**The rules.**

* A verb runs in the transaction of its caller and nowhere else. So nothing of it is visible before the commit.
* The first statement of a verb completes it or only reads. So an interrupted verb has done everything or nothing
  (`run_alone`), and the usual SEND and RECEIVE are one round trip.
  `tests/integration/conversation/test_interruptions.py` interrupts at each statement.
* The time is an argument: `now`.
* A statement's name is the module and the function that issues it (`send.transmit`). Errors and counters show it.
* `security/authorization.py` checks the caller's permissions before a verb writes.

Begin with `conversation/send.py`.
"""
