"""System procedures, DBCC and the functions that ask for the session.

**The problem.** Scripts call hundreds of sp_ procedures. Some do work of the broker, some show the catalog, some lock,
and most have nothing behind them here, which a script should hear before it relies on them.

**The flow.** `tsql/interpreter/calls.py` looks for a procedure of that name among those registered here, binds
its arguments by position and name, and runs it in the database that the prefix names. Results go to the session's
listener as result sets with SQL Server's columns.

**The rules.**

* A procedure that nothing stands behind is refused by name, in the run and by `tsql check` alike
  (`foreign_procedures.py`).
* A prefix says in which database a procedure works (docs/decisions/400).
* A result set has SQL Server's column names and types, also when it is empty.

What scripts of the broker call: `system.py`. What shows the catalog: `catalog_procedures.py`, `help_procedures.py`.
Begin with `system.py`.
"""
