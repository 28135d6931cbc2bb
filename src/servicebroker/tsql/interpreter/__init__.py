"""The interpreter of T-SQL: one machine for each session, and one function for each kind of statement.

**The problem.** A failed statement of T-SQL may end itself, its procedure, its batch or the transaction. The error's
number, XACT_ABORT and TRY blocks decide which. PostgreSQL has one answer: the transaction is lost.

**The flow.** `Machine.run` (`machine.py`) steps through the statements of a batch or procedure. A function marked
`@runs(kind)` does the work and calls the API, a system procedure or `queries.py`. `Machine._failed` decides what an
error ends. A frame (`call_frame.py`) holds the variables of a batch or a call. `evaluation.py` computes an expression
in Python if `simple_expressions.py` can, and asks PostgreSQL otherwise.

**The rules.**

* A relational statement inside a transaction runs after a savepoint, so that its failure undoes nothing else
  (`transactions.py`). A broker statement (a "verb", such as SEND) needs none: if it is refused, it has changed nothing.
* Errors of PostgreSQL and of the broker become a `TsqlError` in `Machine.step`, with line and procedure.
* After a procedure or dynamic SQL, the caller's frames and EXECUTE AS are restored: `Machine.enter_frame`, `unwind`.
* `simple_expressions.py` and the translation to SQL give the same value for the same expression.
* `tsql/session.py` imports every file with `@runs`, because only an imported function is registered.

**Where.** Broker verbs: `conversations.py`, `receive.py`. Objects: `definitions/objects.py`,
`definitions/principals.py`. EXEC: `calls.py`. Procedures: `definitions/modules.py`. Triggers:
`definitions/triggers.py`. Control flow: `control.py`. PRINT, RAISERROR and THROW: `message_statements.py`. Checks
before a statement runs: `static_checks.py`. Cached rows of the catalog: `catalog_cache.py`. System procedures:
`procedures/general_procedures.py`, `procedures/catalog_procedures.py`. Begin with `machine.py`, then
`conversations.py`.
"""
