"""System procedures, DBCC commands, and the functions that return values of the session.

**The problem.** Scripts call hundreds of sp_ procedures. Some do the broker's work, some show the catalog, some take
locks. Most have no counterpart, and a script must fail before it relies on them.

**The flow.** `tsql/interpreter/calls.py` finds a procedure among those registered in this package, and runs it in the
database of its prefix. The procedure binds its arguments by position and name. Results go to the session's listener as
result sets with SQL Server's columns.

**The rules.**

* An unsupported procedure is refused by its name, in a run and by `tsql check` (`unsupported_procedures.py`).
* The prefix of a call names the database in which the procedure runs (docs/decisions/160).
* A result set has SQL Server's column names and types, also when it is empty.

Procedures that broker scripts call: `general_procedures.py`. Procedures that show the catalog:
`catalog_procedures.py`, `help_procedures.py`. Begin with `general_procedures.py`.
"""
