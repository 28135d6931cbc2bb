"""Code that the blocking API and the asyncio API share.

**The problem.** `tools/make_sync.py` makes a blocking twin of each file of `api/aio`. Code that neither waits nor runs
a statement needs no twin, so it is here.

**The files.**

* `open.py`: `open` and `open_async`.
* `preparation.py`: checks and migrates the PostgreSQL database of an instance, and finds the rights of the role.
* `tracing.py`: spans of OpenTelemetry, if the process uses it.
* `tally.py`: counters of one process, before they are added to the totals of the instance.
* `polling_mode.py`: decides whether readers poll, or wait for a NOTIFY.
* `in_progress.py`: the messages that a worker process handles, for its supervisor after a crash.
* `rate_limit.py`: the messages per second of a worker.
* `slow_steps.py`: log messages for slow steps of `open`.

**The rules.**

* Nothing in this package waits for a message, or depends on the API that calls it.
* Objects that threads share are thread-safe by a lock of their own.

Begin with `open.py`.
"""
