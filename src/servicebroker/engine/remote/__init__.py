"""Conversations with other instances, as rows. The daemon (`servicebroker.broker`) calls these functions in its rounds.

**The problem.** A message leaves one database and enters another. Each side can only trust its own commits.

**What leaves** (`departing.py`). `look` finds the rows of the transmission queue that became visible since the last
round, by the difference of two snapshots. `route` asks the routes. `claim` marks the conversation as remote. `read`
reads bodies. `acknowledge` deletes rows.

**What arrives** (`arriving.py`). `store` writes the messages of many conversations in one transaction.
`remote_opening.py` makes the target's endpoint of a new conversation. If the queue is off, messages wait beside it
(`waiting_arrivals.py`). Parts of long messages are kept until they are complete (`unfinished_arrivals.py`).

**The rules.**

* A conversation is claimed, and the claim committed, before its first byte leaves. From then on no service of this
  instance can become its target: `is_remote` in its row is asked wherever a target is opened.
* The security of a conversation is claimed with it. It does not change later.
* The claim holds the broker identifier of the route's target. The first acknowledgement replaces it by the real one.
  What was sent and is not acknowledged goes to no other instance.
* No function waits for a row that somebody else holds: it returns what it has not done.
* A message is acknowledged after the commit that stores it, also if it waits beside a queue that is off.
* An Error or EndDialog of a peer that the receiver could not read is replaced by one that it can: `_readable`.

**Where.** What this instance tells routing about itself: `site.py`. Endpoints with a remote peer:
`remote_endpoints.py`. The dynamic routing service: `missing_routes.py`, `route_answers.py`. Who may begin a
conversation from outside: `admission.py`. Peers and what they claimed: `known_peers.py`. Mirrored routes:
`mirrored_pairs.py`. What was refused, for doctor: `refusals.py`, `old_copies.py`. Begin with `departing.py`.
"""
