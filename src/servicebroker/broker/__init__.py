"""The daemon `servicebroker serve`, which carries messages from one instance to another.

**The problem.** A message for another instance is a row of the sender's transmission queue (an outbox). The sender's
daemon sends it over TLS to the receiver's daemon, which inserts it into the target queue. Either process may be killed
at any point. Each message must arrive exactly once, and in the order of its conversation.

**The solution.** The sender repeats a message until it is acknowledged, and only then deletes the row. The receiver
acknowledges after its commit, and ignores a sequence number that it has stored before.

**The flow.** The way of a message, and of its acknowledgement back::

    sender     transmission queue -> relay.py: a round -> departures.py -> transport/stream.py (TLS, frames)
    receiver   transport/stream.py -> inboxes.py -> relay.py: a round -> arrivals.py -> target queue, COMMIT
    sender     transport/stream.py <- acknowledgement; inboxes.py -> relay.py: a round -> DELETE from transmission queue

A round is one database transaction. Each round does these steps:

1. Take the received frames from the inbox.
2. Insert the received messages, and delete the acknowledged ones.
3. Find messages that were committed since the last round. Route their conversations, claim them, and read the bodies
   that may be sent. A claim records in the database that a conversation goes to another instance, so that no service of
   this one becomes its target.
4. Commit. Then send acknowledgements and frames.

The network has a thread of its own. Each share (a partition of the conversations) has a thread that runs its rounds.
One more thread LISTENs for notifications, and wakes the rounds.

**The rules.**

* Nothing that depends on a round is sent before the round's commit (`Relay.round`). Only operations whose loss is
  harmless may be committed without waiting for the disk: `_do_lazily` in `postgres_store.py`.
* A round never waits for a row lock. It skips locked rows, and retries them after 20 ms, later once a second.
* All state is in the database. After an error the relay drops its memory and restarts from the tables.
* Memory is bounded: 10,000 conversations, 64 MB of bodies that wait for links, 64 MB that wait for rows, 32 MB in the
  inboxes. If a peer has used up its part, its connections are not read.
* Only `conversations.py` changes the state of a conversation. The states and transitions are the tables of
  `protocol/conversation_states.py`.
* A peer (the daemon of another instance) proves its identity by a certificate (`transport/tls.py`, `recognition.py`).
  A message is accepted if its dialog security proves the sender. Otherwise a route must name the peer for the sending
  service (`trust.py`).
* The relay knows no socket and no SQL: `transport/links.py` and `store_operations.py` are its interfaces. The simulator
  implements both in memory.
* An advisory lock lets only one daemon serve an instance. In a mirrored pair (primary and standby), a daemon tells
  peers that it is the principal only after a commit.

**Where.** Routes and claims: `matching.py`. Received messages: `arrivals.py`. Session keys: `dialog_security.py`,
`exchanges.py`, `key_exchange.py`. Forwarding: `forwarding.py`. Several relays: `shares.py`, in processes
`processes.py`, and their decisions: `sharing/share.py`. The stored endpoint and its certificates: `policy.py`. Proof
that this server is the principal: `principal_check.py`. Metrics and log: `metrics.py`, `journal.py`. Current failures
of the daemon: `self_report.py`.
Begin with `relay.py`, then `departures.py`. The files that a message passes are listed in
docs/reference/message-path.md.
"""
