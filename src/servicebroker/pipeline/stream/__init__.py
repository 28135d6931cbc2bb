"""The Spark source: a queue as a stream of batches that can be read again.

**The problem.** Spark wants offsets that mean the same rows at any time. A queue has messages of transactions that
commit in any order, and its rows leave when they are acknowledged.

**The flow.** A process plans for each query and holds its queues by a lock (`planners.py`, `reader.py`). `frontier.py`
finds up to where every transaction has ended. From there it takes a page: the batch. `queue_stream.py` divides the page
into parts, and tasks read them by COPY (`rows.py`). Spark's next call acknowledges what the sink has:
`acknowledge.py` deletes rows and ends conversations. `stream_offsets.py` keeps in the database what was given.

**The rules.**

* A message counts for a batch only when every transaction that may come before it has ended.
* From the same start the same end is planned again, and the same offsets give the same rows.
* A start before what was acknowledged is refused.
* Nothing is deleted before Spark has said that the sink has it.

Begin with `frontier.py`, then `reader.py`.
"""
