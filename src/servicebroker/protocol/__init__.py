"""The protocol between brokers, without I/O: values in, values out. `servicebroker.broker` drives it.

**The problem.** Connections break, daemons are killed, messages are lost or duplicated. Still each message must be
stored once and in order. This package decides which messages to send, repeat, store and acknowledge.

**The flow.** The sender numbers the messages of a conversation. `Outgoing` (`outgoing.py`) sends them within a window.
It repeats messages without acknowledgement: after 4 seconds, then less often, up to 64 seconds (`limits.py`).
`Incoming` (`incoming.py`) drops duplicates, keeps early messages, and returns the next ones to be stored. After the
commit it acknowledges them. `Dialog` (`dialog.py`) joins both halves for one endpoint.

**The rules.**

* No I/O, thread, clock or randomness: the time and random numbers are arguments. So a run of the simulator can be
  repeated.
* An acknowledgement is sent after the commit of its messages (`Dialog.committed`). The sender deletes a message
  after its acknowledgement (`Acknowledged`).
* A message is known by its number and its token. The token tells a new message of a restored copy from an old one:
  `contradicts` of `Incoming` and `Outgoing`.
* Bytes from outside are hostile: a decoder returns values or raises an error of `wire_errors.py`.
* `dialog_keys.py` chooses the key that seals or opens a frame of a secured conversation.
* A forwarder acknowledges nothing and decrypts nothing (`forwarding.py`).

**Where.** Routes: `routing.py`, explained by `explanation.py`. Bytes: `frames.py`, `envelope.py`, `integrity.py`. One
connection: `adjacent.py`; the choice between two with one peer: `arbitration.py`. States of a conversation in a
daemon: `conversation_states.py`. Mirrored routes: `mirroring.py`. Replays of a first message: `freshness.py`. Limits
for unknown and known peers: `admission.py`, `unfinished.py`. Another reader for a queue: `queue_monitor.py`. Begin with
`dialog.py`, then `incoming.py`.

**How to use it.** One `Dialog` for each conversation endpoint that sends or receives remotely.

1. Create it with an `Identity` and a `TransmissionState`: from the store, or `unpack(saved)`. Call `end()` if its
   endpoint is DISCONNECTED_OUTBOUND, `close()` if it is CLOSED.
2. To send: while `room > 0`, call `offer_run(number, sizes, tokens)` for the committed messages from `next_to_offer`
   on. Whenever `has_work(now)`, add the key of the dialog to the `FairQueue` of its connection. While the socket
   accepts bytes: `take()` a key, call `transmit(now)`, and read the messages of its `cut` from the transmission queue.
   Then `connection.send(encode(header, payload, protection), now)`, and add the key again if it still `has_work`. With
   `fragments == 1` the payload has one `Part` for each message first..last. Otherwise it is one `Part` whose body is
   `length` bytes at `offset`. Without a connection, and at each loss: `link_down(now, status)`. With one: `link_up()`.
3. To receive: `parse(body)`, and find the endpoint by the conversation and the side (`is_from_initiator` reversed).
   Then `open_payload` with the conversation's protection, and `arrived(header, payload)`. Without an endpoint, create
   the target's from a sequenced frame with an `opening`; otherwise answer with `refusal`. A `CorruptedMessage` means:
   drop the frame.
4. To store: collect the `batch()` of many dialogs, and run their steps in order in one transaction. Compare `expected`
   with the endpoint's stored count; if the endpoint is CLOSED, change only the count. After the commit call
   `committed()`, which lets acknowledgements leave; after a failure `rolled_back()`. A dialog has one batch at a time.
5. Events of `arrived`: `Acknowledged` deletes rows, and after that commit `deleted(event)` is called. `Failed` inserts
   an Error into the queue. `Dropped` is logged.
6. Call `tick(now)` at `wake_at`, then check `has_work` again. `refuse(failure)` refuses a conversation.
7. While `is_idle`, the object may be saved (`save()`, if `dirty`) and dropped from memory; keep its `wake_at`.

One `Connection` for each byte stream, and one `Arbiter` for all of them. Call `begin(arbiter.count_connection(), now)`.
Pass received bytes to `receive`, write `outgoing()`, and call `tick` at `wake_at`. On `Greeted` call `arbiter.greeted`,
then `reject`, or `welcome` and `resume`. On `Online` call `arbiter.online`, and close the connection that it returns
with 28033. On `Closed` close the stream, call `arbiter.gone`, and `link_down` of each dialog that used it. Stop reading
a stream while many messages wait to be stored.
"""
