"""TDS: SQL Server's clients connect to T-SQL sessions of the product.

**The problem.** Applications of SQL Server speak TDS, the protocol of its drivers. They shall change their connection
string and nothing else. A driver depends on exact metadata, on error numbers, and on what it may ask unasked.

**The flow.** Bytes of a client become messages, then requests; the output of a T-SQL session becomes tokens::

    bytes -> packets.py -> prelogin.py, login.py -> requests.py (parameters: type_reader.py)
                                                        |
    bytes <- packets.py <- tokens.py (values: type_writer.py) <- results of the session

All these modules take bytes and return values, or the reverse. They know no socket, thread or clock. `handshake.py`
joins them, with the encryption of `tls.py`. Around them is the server::

    server.py: listener, event loop, threads
      connection.py: one client's socket       -> sign_in.py: its password, its session
        client_session.py: one client's session -> tsql/session.py, on session_instance.py
          response.py: output of the session as tokens
      reporter.py: what status, doctor, metrics and views tell about the clients

**The rules.**

* A length is compared with the bytes that are there before memory is taken (`byte_reader.py`, `packets.py`).
* Malformed input is a `ProtocolError`, which ends the connection. A request that is well-formed and refused, such as a
  table-valued parameter (`UnsupportedType`), leaves the session as it was.
* A type is a row of a table, in `type_reader.py` and in `type_writer.py`. Types are those of `tsql/types.py`.
* One request of a client runs at a time, in a worker thread. The event loop alone touches sockets. An attention cancels
  the request; a session that has state in PostgreSQL keeps it.
* A long value is not copied to be written: `type_writer.py` returns its parts, `packets.py` cuts them into packets.

**Where.** The protocol is TDS 7.4; `dialect.py` has what 7.1 to 7.3 write in another way. MARS, bulk load, cursors and
federated sign-in are refused. Begin with `connection.py`, then `client_session.py`; for the protocol with `packets.py`,
then `requests.py`.
"""
