"""The daemon `servicebroker serve`, which carries messages between instances: transactions in rounds, and sockets.

**The problem.** A message for another instance waits in the transmission queue of the sender. The daemon carries it to
the daemon of the receiver, which puts it into the queue. Either process may be killed at any point.

**The flow.** Three kinds of threads, which hand frames to each other through inboxes::

    socket -> stream.py (TLS, frames) -> inboxes.py -> relay.py: a round -> departures.py -> stream.py -> socket
              the network thread                       the thread of a share (shard): one transaction
                                                       a third thread LISTENs, and wakes it

A round takes frames from the inbox, stores what arrived and deletes what was acknowledged. It finds what was committed
since the last round, claims conversations and reads what may leave. After the commit it sends acknowledgements and
frames.

**The rules.**

* A round is one transaction (`Relay.round`). Nothing that depends on it leaves before its commit. Only operations whose
  loss is harmless may be committed without waiting for the disk: `_do_lazily` in `postgres_store.py`.
* A round never waits for a row lock. It skips locked rows, and tries them again after 20 ms, later once a second.
* All state is in the database. After an error the relay drops its memory and begins again from the tables.
* Memory is bounded: 10,000 conversations, 64 MB of bodies that wait for links, 64 MB that wait for rows, 32 MB in the
  inboxes. If a peer has used up its part, its connections are not read.
* Only `conversations.py` changes the state of a conversation, by the tables of `protocol/on_its_way.py`.
* The certificate of a peer proves its identity (`transport/tls.py`, `recognition.py`). A message is accepted if its
  seal (dialog security) proves the sender, or if a route names the peer for the sending service (`trust.py`).
* The relay knows no socket and no SQL: `transport/links.py` and `store_operations.py` are its interfaces. The simulator
  implements both in memory.
* An advisory lock lets one daemon serve an instance. Of a mirrored pair, it claims to be the principal only after a
  commit.

**Where.** Routes and claims: `matching.py`. What arrives: `arrivals.py`. Session keys: `dialog_security.py`,
`exchanges.py`, `key_exchange.py`. Forwarding: `forwarding.py`. Several relays: `shares.py`, in processes
`processes.py`, and their decisions: `sharing/share.py`. The stored endpoint and its certificates: `policy.py`. Proof
that this server is the principal: `principal_check.py`. Metrics and log: `metrics.py`, `journal.py`. Current failures
of the daemon: `self_report.py`.
Begin with `relay.py`, then `departures.py`. The files that a message passes are listed in
docs/reference/message-path.md.
"""
