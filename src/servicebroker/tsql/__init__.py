"""T-SQL: Service Broker scripts and procedures run as they are.

**The problem.** Scripts for SQL Server mix the broker's statements with queries, variables, procedures and
transactions. A statement that runs must give SQL Server's results and error numbers. One that cannot run must be
refused by name.

**The flow.** `Session` (`session.py`) runs a script batch by batch::

    text -> tokens.py -> parser/ -> statements (syntax.py) -> interpreter/machine.py
                                                 broker's statements -> methods of the API, on the session's connection
                                                 expressions, queries -> translator.py -> translation/ -> PostgreSQL

A broker statement becomes a value of `syntax.py`. A relational statement stays text with its line. It is translated
when it runs, because only then its tables and variables are known.

**The rules.**

* Nothing is silently ignored: a statement, clause or function runs, has no effect by nature (it tunes SQL Server), or
  is refused with a `TsqlError`.
* Permissions are checked for the current principal, which EXECUTE AS may change, and not for the connection's role
  (`context.py`).
* A session has one connection. Its verbs are the API's own on that connection (`SessionVerbs`), so no rule of the
  broker is repeated here.
* A built-in function is a row of `functions.tsv`. Reader, translation, types and reference come from that row.
* Whole numbers of a script are read by `whole_numbers.py`, never by `int` alone.

**Where.** Errors: `statement_errors.py`, `postgres_errors.py`. Types and conversions: `types.py`, `conversion.py`. The
session's names that a translation sees: `scope.py`. `servicebroker tsql check`: `check.py`. T-SQL procedures as readers
of queues: `activation_procedures.py`. Begin with `session.py`, then `syntax.py`.
"""
