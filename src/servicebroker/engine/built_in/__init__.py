"""The services that every database has: Echo, Query and ServiceDiagnostic.

**The problem.** An administrator or a peer asks whether a broker answers, what it offers and the state of a service,
without an application at the other end.

**The flow.** A message into the built-in service's queue wakes the background of an open instance (`api/aio/upkeep.py`)
or the daemon (`broker/daemon.py`). `answer_built_in` receives it, answers in the same transaction and ends
conversations that the initiator has ended.

**The rules.**

* Only target endpoints answer, so that two built-in services never talk to each other for ever.
* No lock is waited for: a conversation that another session holds is answered by the next call.

Begin with `echo_and_query.py`.
"""
