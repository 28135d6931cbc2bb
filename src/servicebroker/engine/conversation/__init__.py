"""The verbs of conversations: which rows each of them reads and writes.

**The problem.** Many sessions send and receive at the same time. Messages of one conversation must be received once and
in order. One reader at a time takes messages of a conversation group. The usual case must be one round trip.

**SEND** (`send.py`). For each handle the process caches the peer's queue and what the contract allows
(`Catalog.channels`). One statement updates the endpoint and inserts the message from what the update returned
(`enqueue.py`). If no row comes back, `_send_slowly` finds out why: it delivers, opens the target, parks the message in
the transmission queue, or refuses. To another instance a SEND writes a row of the transmission queue (`_transmit`).
The first SEND on a received conversation tries the path of the last such SEND of its service and contract
(`Catalog.answer_paths`), also towards another instance. Its statement compares them with the row.

**BEGIN DIALOG** (`begin.py`). Inside the instance the process caches both sides (`engine/catalog/delivery_paths.py`). A
new conversation on a cached path is deferred: it leaves with its first messages, in one statement
(`deferred_dialogs.py`). If the path has changed, the verbs run one after the other.

**RECEIVE** (`receive.py`, and `receive` in `store/queue.sql`). The queue's function fires due timers and lifetimes,
chooses a conversation group that is not locked, deletes its messages and returns them. If nothing comes back, the
client finds out why. The process caches the queue, service and contract of each conversation for the verbs that follow

**END** (`end.py`). One statement tells the peer, or closes this side if the peer has ended (`enqueue.end_dialog` with
`end_dialog`, `end_remote` and `finish_dialog` in `store/queue.sql`). It changes nothing if messages are parked inside
the instance, delayed or retained, or the peer is blocked; then `end.py` goes step by step.

**The rules.**

* Only the statements of `enqueue.py` put messages of verbs and peers into queues. The queue's own functions add timers
  and expired lifetimes. The lock of the sender's endpoint orders the conversation. The sequence number is drawn under
  it, so numbers have no gaps and no duplicates.
* `stamp` and `queuing_order` rise along a conversation. A stamp is never below the id of the transaction that draws it.
  The `queuing_order` is drawn after the transaction has its id: pipelines and the marks of RECEIVE rely on both.
* The group lock is an advisory lock of the transaction. Under a savepoint the session keeps it too (`keep_lock`).
* Parking and delivering take locks in the order of `lock_service` in `engine/delivery/opening.py`.
* A shared body (`shared_bodies.py`) lives as long as a message refers to it: each message has a row as its reader.
* Cached permissions of SEND and RECEIVE hold for one catalog version of the queue.
* No state grows without bound: closed target endpoints go after 30 minutes, an emptied queue gives its space back
  (`maintenance.py`), and `Catalog` keeps a bounded number of channels.

**Where.** The owner's verbs: `owner_verbs.py`; those of a restricted role: `restricted_verbs.py` with
`store/fence.sql`. BEGIN DIALOG and timers: `begin.py`. SENDs of a pipeline: `pipelined_sends.py`; to several handles:
`multicast.py`. Failures: `failure.py`, `failed_messages.py`, `replay.py`. Due work of queues without readers:
`maintenance.py`. Retention: `retention.py`. Pools: `recycling.py`. Traces and events: `traces.py`, `verb_events.py`.
Begin with `send.py`.
"""
