"""Connections between daemons: sockets, TLS, and the bytes of frames.

**The problem.** A relay hands over frames and gets frames. In between are connections that break, peers that send
anything, and strangers who send nothing.

**The flow.** `sockets.py` runs an event loop in a thread of its own. It opens a connection for each address that the
relay wants (`links.py`), and accepts those of others (`accepting.py`). Each connection is a `stream.py`, which puts
bytes through `tls.py`, and greets and reads frames by the rules of `protocol`. What it reads goes to an inbox of
the relay.

**The rules.**

* `tls.py` and `stream.py` do no I/O: bytes in, bytes out. The simulator runs `stream.py` and `sockets.py` in an event
  loop of its own, with time and connect as it gives them.
* A peer that is not authenticated yet has bounded descriptors, memory and time (`accepting.py`).
* Two daemons keep one connection between them. `protocol/arbitration.py` decides which, so that both close the same
  one.
* A connection whose inbox is full is not read (backpressure).

The rows of connections for `status` and the views: `connections.py`. Begin with `stream.py`.
"""
