"""The commands: a file for each, named as the command.

**The problem.** What a command does belongs to the API and the engine. Here is only what a terminal needs: options,
questions before something is lost, and lines that a person or a program reads.

**The flow.** `cli/main.py` imports the module of a command when that command runs, and makes its program. The
function opens an instance or a database by `cli/existing.py`, calls one method of the API or one function of
`engine/diagnosis`, and prints by `cli/output.py` or as a table by `cli/tables.py`.

**The rules.**

* A module is imported for its command alone: nothing that others need stands here, but in `cli`.
* Whatever loses data asks first, and `--yes` answers.
* With `--json` each line of output is an object, also where there is nothing to show.
* A new command is a row of `COMMANDS` in `cli/main.py`, with an example in `cli/examples.py`.

The daemon: `serve.py`. Workers: `worker.py`. T-SQL: `sql.py`. Begin with `queue.py`.
"""
