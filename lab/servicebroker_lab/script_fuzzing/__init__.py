"""Changed T-SQL scripts, judged by `tsql check` and run.

A case has a number, from which its text is made: batches of real scripts, cut, joined and changed token by token. Check
and run have failed when they raise an exception, take too long, or report an error without a line or without a number
of SQL Server. The default scripts are the repository's own: tests, pages and examples.

Begin with `mutations.py`, then `trials.py`.
"""
