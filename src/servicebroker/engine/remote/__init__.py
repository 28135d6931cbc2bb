"""Conversations with other instances, as rows. The daemon (`servicebroker.broker`) calls these functions in its rounds.

**The problem.** A message leaves one database and enters another. Each side can only trust its own commits.

**Departures** (`departing.py`). `look` finds the rows of the transmission queue that became visible since the last
round, by the difference of two snapshots. `route` asks the routes. `claim` marks the conversation as remote. `read`
reads bodies. `acknowledge` deletes rows.

**Arrivals** (`arriving.py`). `store` writes the messages of many conversations in one transaction.
`remote_opening.py` creates the target's endpoint of a new conversation. If the queue is off, messages wait beside it
(`waiting_arrivals.py`). Parts of long messages are stored until they are complete (`unfinished_arrivals.py`).

**The rules.**

* A conversation is claimed, and the claim committed, before its first byte leaves. From then on no service of this
  instance can become its target: opening a target checks `is_remote` in its row.
* The security of a conversation is claimed with it. It does not change later.
* The claim holds the broker identifier of the route's target. The first acknowledgement replaces it by the real one.
  Unacknowledged messages go to no other instance.
* No function waits for a row that another session holds: it returns the work that is left.
* A message is acknowledged after the commit that stores it, also if it waits beside a queue that is off.
* An unreadable Error or EndDialog of a peer is replaced by a readable one: `_readable`.

**Where.** Facts of this instance for routing: `local_topology.py`. Endpoints with a remote peer: `remote_endpoints.py`.
The dynamic routing service: `missing_routes.py`, `route_answers.py`. Permission to begin a conversation from outside:
`admission.py`. Peers and their claims: `known_peers.py`. Mirrored routes: `mirrored_pairs.py`. Refusals, for doctor:
`refusals.py`, `old_copies.py`. Begin with `departing.py`.
"""
