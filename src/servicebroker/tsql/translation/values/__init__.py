"""Expressions, conditions, conversions and functions.

**The flow.** `write_value` and `write_predicate` (`tsql/translation/text_writer.py`) find the writer of a node by its
type. The writers register themselves with `@writes_value` and `@writes_predicate`, most of them in `expressions.py`. A
value is an `Sql`: its text and its T-SQL type.

A call of a function is a row of `tsql/functions.tsv` (`functions.py`), or a function in `SPECIAL` that writes it
(`special_functions.py`, `date_functions.py`, `json_functions.py`). Types meet in `type_precedence.py`, and `casts.py`
writes conversions. `catalog_views.py` finds the views of sys and INFORMATION_SCHEMA.

**The rules.**

* A condition is not a value in T-SQL: a node is either a condition or a value.
* A quoted string and NULL are untyped (`Sql.is_untyped`) until an operand beside them or a conversion gives them a
  type.
* A type is None if it is unknown. Then PostgreSQL chooses an overload of a function of the schema tsql at run time.

Begin with `expressions.py`, then `functions.py`.
"""
