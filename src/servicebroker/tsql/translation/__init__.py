"""T-SQL queries, changes of rows and definitions of tables, written as PostgreSQL's SQL. `tsql/translator.py` calls it.

**The problem.** The two dialects differ in types, conversions, functions and names. A text must give the result that
SQL Server gives, or be refused.

**The flow.** `reading` checks that a text is T-SQL (`reading/grammar_check.py`) and makes a tree of it
(`reading/syntax_tree.py`; sqlglot parses). A `Writer` (`text_writer.py`) carries what the translation gathers:
parameters, names, tables in sight, and what the statement uses of which object. The writers go by subject: `queries`
(SELECT), `rows` (INSERT, UPDATE, DELETE, MERGE), `definitions` (CREATE, ALTER, DROP), `values` (expressions and
functions), `documents` (XML and JSON). The result is a `Translation` (`result.py`).

**The rules.**

* A translation is a function of the text and of the answers of the `Scope` (`tsql/scope.py`). What it needs of the
  catalog, it asks the scope for. `tsql/translator.py` remembers it for every scope that gives the same answers.
* Whatever happens with a text, a `TsqlError` comes out, and no other exception.
* What a statement does with an object is noted in `Translation.uses`; permissions are asked by it before it runs.
* A function is a row of `tsql/functions.tsv`. Only what such a row cannot say is written in `values`.
* What PostgreSQL cannot do in an expression is a function of `store/tsql`.

Begin with `tsql/translator.py`, then `queries/selects.py` and `values/expressions.py`.
"""
