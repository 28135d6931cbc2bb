"""Sequences of frames over several connections, and what a relay makes of them.

A case has a number, from which its sequence is made: frames of conversations that make sense, many of them then
changed. Fields of the header are drawn anew, bytes are turned, frames come twice, on other links, after a pause, or as
if they were passed on. Between them an honest peer sends messages of its own.

A case has failed when a round raises or takes too long, or when a bound of `protocol/budgets.py` is broken. It has
failed, too, when a message of the honest peer does not arrive once and in order.
"""
