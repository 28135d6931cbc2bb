"""CREATE, ALTER and DROP of tables, views, indexes, sequences and schemas, and the bodies of functions.

**The flow.** `translate_definition` (`object_definitions.py`) returns a sequence of statements. Columns and constraints
are in `table_columns.py`, sequences and NEXT VALUE FOR in `sequences.py`. The interpreter calls `function_bodies.py`
for CREATE FUNCTION. It writes an inline function as a query, and other functions in plpgsql, with the table variables
of `table_variables.py`. Calls of user-defined functions are in `user_functions.py`.

**The rules.**

* PostgreSQL keeps folded names and its own types. The spelling and the T-SQL type of a column are noted in its comment,
  which `tsql/known_columns.py` reads. Constraints, indexes, tables and views have comments with their spelling too.
* A definition outlives the session. So its text must not contain parameters: a value of the session is read from a
  setting of the connection, or refused.

Begin with `object_definitions.py`, then `table_columns.py`.
"""
