"""Random requests to the dashboard, over raw sockets, and what its server makes of them.

A case has a number, from which its requests are made: pages, sign-ins and actions that make sense, many of them then
changed. Paths, fields, headers and cookies are drawn anew, bodies come in chunks, bytes are turned, and requests come
in pieces and several at a time on one connection. Most cases have no valid form token of a person who may act.

A case has failed when an answer is a server error, when the log has a traceback, or when a complete request is not
answered in time. It has failed, too, when the instance has changed without a valid form token, or when an answer
contains a value of the request without escaping it.
"""
