"""Reading of T-SQL: syntax checks, syntax trees, and statements split by their keywords.

**The problem.** sqlglot parses most of T-SQL's queries, but it misreads some spellings and accepts text that is no
T-SQL. It does not parse all clauses of INSERT, UPDATE, DELETE and MERGE.

**The flow.** `slice_text` (`syntax_tree.py`) makes a `Slice`, a range of tokens, of a text. `clauses.py` splits a
statement that changes rows at its keywords. `parts.py` parses one part: a value, a condition, a table, a list of names.
Each part passes `grammar_check.py` before `parse_slice` rewrites and parses it. `piece_reader.py` reads definitions
token by token.

**The rules.**

* Trees are cached and shared. Copy a tree before changing it.
* A hint that only concerns SQL Server's execution is removed before parsing (`optimizer_hints.py`). A table hint that
  locks is translated (`hints.py`).
* Text that cannot be parsed is searched for known clauses (`unsupported_clauses.py`), so that the error names them.

Begin with `Slice` in `syntax_tree.py`, then `parts.py`.
"""
