"""Random connections of SQL Server's clients, over raw sockets, and what the server makes of them.

A case has a number, from which its connections are made: handshakes, sign-ins and requests that make sense, many of
them then changed. Fields are drawn anew, bytes are turned, lengths lie, messages come in pieces and several at a time.
Attentions come at any moment, with TLS and without, and clients leave in the middle of everything.

A case has failed when a valid request is not answered in time, when a response does not follow the protocol, or when
the log has a traceback. It has failed, too, when a session stays after its client has left, or when the process grows
without a bound. An honest client beside must always get the right answer.
"""
