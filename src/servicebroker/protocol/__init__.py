"""Between brokers, without I/O: plain values in, plain values out; time and randomness are arguments.

How to drive it (`servicebroker.broker` does, by rounds):

One `Dialog` (the transmission object) for each conversation endpoint that sends or receives remotely.

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
