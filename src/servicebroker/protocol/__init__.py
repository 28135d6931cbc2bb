"""The protocol between brokers, without I/O: values in, values out. `servicebroker.broker` drives it.

**The problem.** Connections break, daemons are killed, messages are lost or come twice. Still each message is stored
once and in order. This package decides what to send, what to send again, what to store and what to acknowledge.

**The flow.** The sender numbers the messages of a conversation. `Outgoing` (`outgoing.py`) sends them within a window.
It sends again what is not acknowledged: after 4 seconds, then less often, up to 64 seconds (`limits.py`). `Incoming`
(`incoming.py`) drops what it has, keeps what comes too early, and hands on what is next. After the commit it
acknowledges. `Dialog` (`dialog.py`) joins both halves for one endpoint.

**The rules.**

* No I/O, thread, clock or randomness: the time and random numbers are arguments. So a run of the simulator can be
  repeated.
* An acknowledgement leaves after the commit of what it acknowledges (`Dialog.committed`). The sender deletes a message
  after its acknowledgement (`Acknowledged`).
* A message is known by its number and its token. The token tells a new message of a restored copy from an old one:
  `contradicts` of `Incoming` and `Outgoing`.
* Bytes from outside are hostile: a decoder returns values or raises an error of `wire_errors.py`.
* `dialog_keys.py` chooses the key that seals or opens a frame of a secured conversation.
* A forwarder acknowledges nothing and opens nothing (`forwarding.py`).

**Where.** Routes: `routing.py`, explained by `explanation.py`. Bytes: `frames.py`, `envelope.py`, `integrity.py`. One
connection: `adjacent.py`; the choice between two with one peer: `arbitration.py`. States of a conversation in a
daemon: `conversation_states.py`. Mirrored routes: `mirroring.py`. Replays of a first message: `freshness.py`. Limits
for unknown and known peers: `admission.py`, `unfinished.py`. Another reader for a queue: `queue_monitor.py`. Begin with
`dialog.py`, then `incoming.py`.

**How to drive it.** One `Dialog` for each conversation endpoint that sends or receives remotely.

1. Make it with `Identity` and a `State`: from the store, or `unpack(saved)`, taken out of where it was saved. Tell it
   `end()` when its endpoint is DISCONNECTED_OUTBOUND, `close()` when CLOSED.
2. To send: for the committed rows of the transmission queue from `next_to_offer` on, while `room > 0`, call
   `offer(number, size, content)`. Whenever `has_work(now)`, put its key into the `FairQueue` of the connection that
   its route leads to. While the socket takes bytes: `take()` a key, `transmit(now)`, read what its `cut` names from
   the transmission queue, `encode(header, payload, protection)`, `connection.send(body, now)`; if it `has_work` still,
   `add` it again. The payload of a cut with `fragments == 1` is one `Part` for each message first..last; else one
   `Part` whose body is `length` bytes at `offset`. When there is no connection, and each time one is lost:
   `link_down(now, status)`, and leave the line; when there is one: `link_up()`.
3. To receive: `parse(body)`, find the endpoint by conversation and side (the peer's `is_from_initiator` reversed),
   `open_payload` with the conversation's protection; where there is no endpoint, make the target's from a sequenced
   frame with an `opening`, else answer with `refusal`; then `arrived(header, payload)`. A `CorruptedMessage`
   means: drop it, and the event Broker:Corrupted Message.
4. To store: collect `batch()` of many dialogs, carry their steps out in order in one transaction, guarded by
   `expected` against the endpoint's stored count; where the endpoint is CLOSED only the count changes. After the
   commit `committed()`: only now acknowledgements leave. When it failed, `rolled_back()`. One batch of a dialog at a
   time.
5. Events of `arrived`: `Acknowledged` deletes rows, and `deleted(event)` says that it is committed; `Failed` puts an
   Error into the queue; `Dropped` is logged.
6. `tick(now)` at `wake_at`, then ask `has_work` again. Refuse a conversation with `refuse(failure)`.
7. While `is_idle`, the object may be saved (`save()`, when `dirty`) and forgotten; remember its `wake_at`.

One `Connection` for each byte stream, one `Arbiter` for all of them: `begin(arbiter.moment(), now)`; feed `receive`,
write `outgoing()`, `tick` at `wake_at`. On `Greeted` ask `arbiter.greeted`, then `reject`, or `welcome` and `resume`.
On `Online` ask `arbiter.online`, and `close` what it returns with 28033. On `Closed` close the stream, call
`arbiter.gone`, and `link_down` for every dialog that used it. Stop reading a stream while much waits to be stored.
"""
