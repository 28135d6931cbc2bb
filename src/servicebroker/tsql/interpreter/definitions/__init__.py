"""CREATE, ALTER and DROP in T-SQL: the broker's objects, those of PostgreSQL, principals and permissions.

**The problem.** T-SQL names things of three kinds: objects of the broker, tables and functions of PostgreSQL, and what
only T-SQL has, such as procedures, triggers and synonyms. Each has rules of its own for names, owners and rights.

**The flow.** The parser makes a node; the function here with `@runs` for its kind resolves the names in the
session's database, asks for permissions, and calls a method of the API or runs statements. What T-SQL alone has is
kept in its own catalog (`modules.py`) and told to event notifications (`ddl_events.py`).

**The rules.**

* A definition is part of the session's transaction, as in SQL Server, and is undone with it.
* A database prefix says where the definition works; it is never dropped in silence.
* A name that is taken, missing or another's has the number of SQL Server's error.
* A module whose text has changed is parsed again at its next use.

Objects of the broker: `objects.py`. Principals: `principals.py`, `owners.py`. Triggers: `triggers.py`. Begin with
`objects.py`.
"""
