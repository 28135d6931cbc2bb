"""The Spark source: a queue as a stream of batches that can be read again.

**The problem.** Spark needs offsets that give the same rows at any time. But transactions commit in any order, and
acknowledged rows are deleted from the queue.

**The flow.** For each query, one process plans the batches and owns the queues by a lock (`planners.py`, `reader.py`).
`frontier.py` finds the frontier: every transaction below it has ended. A batch is a page of rows below the frontier.
`queue_stream.py` divides the page into parts, and tasks read them by COPY (`rows.py`). Spark's next call acknowledges
the rows that the sink has: `acknowledgement.py` deletes them and ends conversations. `stream_offsets.py` records in the
database which rows were planned and acknowledged.

**The rules.**

* A message enters a batch only when every transaction that may come before it has ended.
* The same start always plans the same end, and the same offsets give the same rows.
* A start before the acknowledged offset is refused.
* Nothing is deleted before Spark reports that the sink has it.

Begin with `frontier.py`, then `reader.py`.
"""
