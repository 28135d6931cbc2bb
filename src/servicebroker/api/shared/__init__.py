"""The parts that the blocking and the asyncio form of the API share, written once.

**The problem.** `tools/make_sync.py` makes the blocking form from `api/aio`, one file for each. What neither waits nor
runs a statement needs no twin.

**What stands where.**

* `open.py`: opening an instance, in both forms.
* `preparation.py`: preparation of a PostgreSQL database for an instance: schema, home, the rights of the role.
* `tracing.py`: spans of OpenTelemetry. Without it installed nothing of that happens.
* `tally.py`: counts of the verbs of a process, until they are added to the totals.
* `polling_mode.py`: when readers poll instead of being notified of each message.

**The rules.**

* Nothing here waits for a message or knows which form calls it.
* What threads share has its lock here.

Begin with `open.py`.
"""
