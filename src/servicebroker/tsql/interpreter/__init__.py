"""Runs statements: a machine that finds the function for each kind of statement, and a file for each subject.

**The problem.** A failed statement of T-SQL may end itself, its procedure, its batch or the transaction, by its error
number, XACT_ABORT and TRY blocks. PostgreSQL knows one case: the transaction is lost.

**The flow.** `Machine.run` (`machine.py`) steps through the statements of a batch or procedure. A function marked
`@runs(kind)` does the work and calls the API, a system procedure or `queries.py`. `_failed` decides what an error ends.
Frames (`frame.py`) hold the variables of a batch or a call. `evaluation.py` computes an expression in Python if
`simple.py` can, else PostgreSQL does.

**The rules.**

* A relational statement inside a transaction runs behind a savepoint, so that its failure undoes nothing else
  (`transactions.py`). A verb of the broker needs none: a refused verb has changed nothing.
* Errors of PostgreSQL and of the broker become a `TsqlError` in `Machine.step`, with line and procedure.
* Whatever calls a procedure or a text leaves its frames and EXECUTE AS as they were: `Machine.inside`, `unwind`.
* `simple.py` and the translation give the same value for the same expression.
* A new file with `@runs` is imported by `tsql/session.py`, since only an imported function is registered.

**Where.** Broker's verbs: `conversations.py`, `receive.py`; objects: `definitions/objects.py`,
`definitions/principals.py`. EXEC: `calls.py`; modules: `definitions/modules.py`; triggers: `definitions/triggers.py`.
Control flow and errors: `control.py`, `printing.py`. What is known before a statement runs: `foresight.py`. What is
remembered of the catalog: `remembered.py`. System procedures: `procedures/system.py`,
`procedures/catalog_procedures.py`, `procedures/foreign_procedures.py`. Begin with `machine.py`, then
`conversations.py`.
"""
