"""The verbs on conversations (SEND, RECEIVE, BEGIN, END ...): which rows each of them reads and writes.

**The problem.** Many sessions send and receive at the same time. Messages of one conversation must be received once and
in order. Only one session at a time may receive messages of a conversation group. The usual case must be one round
trip.

**SEND** (`send.py`). For each handle the process caches the peer's queue and the contract (`Catalog.channels`). One
statement updates the endpoint, and inserts the message with values that the update returns (`enqueue.py`). If no row
comes back, `_send_slowly` finds the reason, and delivers, opens the target, parks the message in the transmission
queue, or raises an error. For a peer in another instance, SEND writes a row of the transmission queue (`_transmit`).
The first SEND on a received conversation uses the path of the last such SEND with its service and contract
(`Catalog.answer_paths`). Its statement checks that the peer matches.

**BEGIN DIALOG** (`begin.py`). The process caches the delivery path: the initiator's and the target's side
(`engine/catalog/delivery_paths.py`). A new conversation on a cached path is deferred: one statement writes it together
with its first messages (`deferred_dialogs.py`). If the path has changed, the verbs run one after the other.

**RECEIVE** (`receive.py`, and `receive` in `store/queue.sql`). A function of the queue fires due timers and lifetimes,
chooses a conversation group that is not locked, deletes its messages and returns them. If there are none, the client
finds the reason. The process caches queue, service and contract of each conversation, for the SEND or END that follows.

**END** (`end.py`). One statement inserts EndDialog into the peer's queue, or closes this side if the peer has ended
(`enqueue.end_dialog`; `end_dialog`, `end_remote` and `finish_dialog` in `store/queue.sql`). If messages are parked
inside the instance, delayed or retained, or the peer is blocked, it changes nothing. Then `_end_step_by_step` runs.

**The rules.**

* Only the statements of `enqueue.py` put messages of verbs and peers into queues. The queue's own functions add timers
  and expired lifetimes. The lock of the sender's endpoint orders the conversation. The sequence number is drawn under
  that lock, so numbers have no gaps and no duplicates.
* `stamp` (a transaction id) and `queuing_order` rise along a conversation. A stamp is never below the id of the
  transaction that writes it. The `queuing_order` is drawn after the transaction has its id. Pipelines and the marks
  (first possible `queuing_order`) from which RECEIVE searches rely on both.
* The group lock is an advisory lock of the transaction. Under a savepoint the session takes it too (`keep_lock`).
* Parking and delivering take locks in the order of `lock_service` in `engine/delivery/opening.py`.
* A shared body (`shared_bodies.py`) is kept as long as a message refers to it: each message has a row as its reader.
* Cached permissions of SEND and RECEIVE are valid for one catalog version of the queue.
* No state grows without bound. Closed target endpoints are removed after 30 minutes, the table of an empty queue is
  truncated (`maintenance.py`), and `Catalog` has bounded caches.

**Where.** The schema owner's verbs: `owner_verbs.py`; those of a restricted role: `restricted_verbs.py` with
`store/fence.sql`. BEGIN DIALOG and timers: `begin.py`. SENDs of a pipeline: `pipelined_sends.py`; to several handles:
`multicast.py`. Failed conversations: `failure.py`. Failed messages and dead letters: `failed_messages.py`, `replay.py`.
Timers of queues without readers: `maintenance.py`. Retention: `retention.py`. Conversation pools: `recycling.py`.
Traces and events: `traces.py`, `verb_events.py`. Begin with `send.py`.
"""
