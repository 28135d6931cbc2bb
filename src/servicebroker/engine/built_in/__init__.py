"""The built-in service that every database has: it returns an Echo, and answers a Query about another service.

**The problem.** An administrator or a peer wants to know whether a broker answers, and the state and contracts of a
service, even if no application runs there.

**The flow.** A message in the built-in service's queue wakes the maintenance thread of an open instance
(`api/aio/maintenance.py`) or the daemon (`broker/daemon.py`). `answer_built_in` receives the message and answers in
the same transaction. It also ends conversations that the initiator has ended.

**The rules.**

* Only target endpoints answer, so that two built-in services never answer each other for ever.
* The transaction waits for no lock: a conversation that another session has locked is answered by the next call.

Begin with `echo_and_query.py`.
"""
