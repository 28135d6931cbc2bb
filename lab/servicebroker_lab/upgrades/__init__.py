"""Upgrades of two instances that exchange messages: first one, then the other, while its peer goes on.

Both begin with the code of an older version, from a checkout of it. A program at `west` sends numbered messages on some
conversations, one at `east` answers each. Each notes what it sends, takes and gets answered in tables of its own, in
the transaction of the verb. An upgrade of a side ends its daemon and its program, runs `servicebroker init` of this
version, and starts both again. At the end the tables must agree: each number once, in its order.

`application.py` runs with the package of either version, so it knows nothing but the API that both have.
"""
