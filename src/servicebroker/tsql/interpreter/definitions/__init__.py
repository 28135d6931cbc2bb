"""CREATE, ALTER and DROP in T-SQL: broker objects, objects of PostgreSQL, principals and permissions.

**The problem.** T-SQL defines broker objects, tables and functions of PostgreSQL, and objects that only T-SQL has.
The last are procedures, triggers and synonyms. Each kind has its own rules for names, owners and permissions.

**The flow.** The parser makes a statement. A function with `@runs` for its kind, or `@defines` for its words, resolves
the names in the session's database and checks permissions. It then calls a method of the API or runs statements.
T-SQL's own objects are stored in a catalog of their own (`modules.py`). Event notifications are posted
(`ddl_events.py`).

**The rules.**

* A definition is part of the session's transaction, as in SQL Server, and is undone with it.
* A database prefix names the database of the definition. It is never ignored.
* An existing, missing or forbidden name raises the number of SQL Server's error.
* A module whose text has changed is parsed again at its next use.

Broker objects: `objects.py`. Principals: `principals.py`, `authorization.py`. Triggers: `triggers.py`. Begin with
`objects.py`.
"""
