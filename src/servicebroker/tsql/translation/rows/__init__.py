"""INSERT, UPDATE, DELETE and MERGE.

**The flow.** `tsql/translation/reading/clauses.py` splits the statement and calls `translate_insert` (`inserts.py`),
`write_change` (`updates.py`, for UPDATE and DELETE) or `translate_merge` (`merges.py`). OUTPUT becomes RETURNING
(`outputs.py`). WHERE CURRENT OF compares the address of a row (`current_rows.py`).

**The rules.**

* Every value for a column passes `targets.py`, which adds the conversions that T-SQL does implicitly.
* `Writer.check_changes` comes before a change of a table. It refuses tables that must not change and records the use.
* `inserted` and `deleted` are aliases in PostgreSQL too, where the form of the statement allows it.

Begin with `targets.py`, then `inserts.py`.
"""
