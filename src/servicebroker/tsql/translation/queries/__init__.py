"""SELECT, its clauses and its sources.

**The flow.** `translate_query` (`selects.py`) writes a query and returns a `Query` (`results.py`): its SQL and its
columns, the `Output` list. FROM comes first (`sources.py`), since it makes tables visible to the other clauses.
Aggregates, window functions and ORDER BY are in `aggregates.py`, PIVOT and UNPIVOT in `pivots.py`.

A SELECT that assigns variables goes to `assignments.py`, and to `accumulations.py` if a variable depends on its own
value in the row before. SELECT ... INTO goes to `selects_into.py`. A common table expression that UPDATE or DELETE
changes is rewritten by `common_targets.py`.

**The rules.**

* The columns of a query are None if a star stands for unknown columns. Code that needs them raises `UnknownColumns`.
* Code with a nested query calls `write_query` of `results.py`, which finds the writer by node type. It must not import
  `selects.py`, which imports that code.

Begin with `selects.py`, then `sources.py`.
"""
