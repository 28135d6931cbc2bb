"""Translation of T-SQL queries, changes of rows and definitions to PostgreSQL's SQL. `tsql/translator.py` calls it.

**The problem.** The two dialects differ in types, conversions, functions and names. A text must give the result that
SQL Server gives, or be refused.

**The flow.** `reading` checks the syntax of a text (`reading/grammar_check.py`) and parses it to a tree with sqlglot
(`reading/syntax_tree.py`). A `Writer` (`text_writer.py`) carries the state of one translation: parameters, names,
visible tables, and the uses of objects. The writing functions are grouped by subject: `queries` (SELECT), `rows`
(INSERT, UPDATE, DELETE, MERGE), `definitions` (CREATE, ALTER, DROP), `values` (expressions and functions), `documents`
(XML and JSON). The result is a `Translation` (`result.py`).

**The rules.**

* A translation depends on the text and on the answers of the `Scope` (`tsql/scope.py`) only. All catalog data comes
  from the scope. `tsql/translator.py` reuses a translation for every scope that gives the same answers.
* No text raises an exception other than `TsqlError`.
* Every use of an object is listed in `Translation.uses`. The permissions for it are checked before the statement runs.
* A function is a row of `tsql/functions.tsv`. Code in `values` is only for functions that no row can describe.
* An operation that PostgreSQL's expressions lack is a function in `store/tsql`.

Begin with `tsql/translator.py`, then `queries/selects.py` and `values/expressions.py`.
"""
