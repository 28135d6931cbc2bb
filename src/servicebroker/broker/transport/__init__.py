"""Connections between daemons: sockets, TLS, and the bytes of frames.

**The problem.** A relay sends and receives frames. In between are connections that break, hostile peers, and unknown
clients that send nothing.

**The flow.** `sockets.py` runs an event loop in a thread of its own. It opens a connection to each address that
the relay requests (`links.py`), and accepts connections of peers (`accepting.py`). Each connection is a `stream.py`,
which encrypts with `tls.py`, and follows the rules of `protocol`. Received frames go to an inbox of the relay.

**The rules.**

* `tls.py` and `stream.py` do no I/O: bytes in, bytes out. The simulator runs `stream.py` and `sockets.py` in an event
  loop of its own, with its own time and connections.
* A peer that is not authenticated yet has bounded descriptors, memory and time (`accepting.py`).
* Two daemons keep one connection between them. `protocol/arbitration.py` decides which, so that both close the same
  one.
* A connection whose inbox is full is not read (backpressure).

The rows of connections for `status` and the views: `connections.py`. Begin with `stream.py`.
"""
