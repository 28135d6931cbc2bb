"""Conversations with other instances: the statements of the daemon (`servicebroker.broker`).

The daemon runs them in its rounds. A round is one transaction; the daemon can divide conversations into shares
(partitions), each with rounds of its own.

**The problem.** A message leaves one database and enters another. Each side can only trust its own commits.

**Departures** (`departing.py`). `look` finds the rows of the transmission queue that became visible since the last
poll, by the difference of two snapshots. `route` evaluates the routes. `claim` marks the conversation as remote. `read`
reads bodies. `acknowledge` deletes rows.

**Arrivals** (`arriving.py`). `store` writes the messages of many conversations in one transaction.
`remote_opening.py` creates the target's endpoint of a new conversation. If the queue is off, messages are stored beside
it: in the table arrived_fragments (`waiting_arrivals.py`). Parts of long messages are stored there until all parts have
arrived (`unfinished_arrivals.py`).

**The rules.**

* A conversation is claimed (marked as remote), and the claim committed, before its first byte is sent. From then on no
  service of this instance can become its target: opening a target checks `is_remote` in its row.
* The claim also stores the security mode of a conversation, which does not change later.
* The claim stores the broker identifier that the route names. The first acknowledgement replaces it by that of the
  actual target. Unacknowledged messages are sent to no other instance.
* No function waits for a row that another session has locked: it skips the row, and returns the skipped handles.
* A message is acknowledged after the commit that stores it, even if it is stored beside a queue that is off.
* An Error or EndDialog of a peer with an unreadable body is replaced by a readable one: `_readable`.

**Where.** Facts of this instance for routing: `local_topology.py`. Endpoints with a remote peer: `remote_endpoints.py`.
The dynamic routing service: `missing_routes.py`, `route_answers.py`. Permission to begin a conversation from another
instance: `admission.py`. Peers and their claims: `known_peers.py`. Mirrored routes: `mirrored_pairs.py`. Facts for
doctor: `refusals.py`, `old_copies.py`. Begin with `departing.py`.
"""
