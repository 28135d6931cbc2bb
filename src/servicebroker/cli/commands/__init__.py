"""The commands: a file for each, named as the command.

**The problem.** The work of a command belongs to the API and the engine. The modules here have only what a terminal
needs: options, questions before data is lost, and lines that a person or a program reads.

**The flow.** `cli/main.py` imports the module of a command when that command runs, and makes its program. The
function opens an instance or a database (`cli/existing_instance.py`), and calls one method of the API or one function
of `engine/diagnosis`. It prints by `cli/output.py`, or a table by `cli/tables.py`.

**The rules.**

* A module is imported for its command alone. Code that several commands need stands in `cli`.
* A command that loses data asks first, and `--yes` answers.
* With `--json` each line of output is an object, also if there is nothing to show.
* A new command is a row of `COMMANDS` in `cli/main.py`, with an example in `cli/examples.py`.

The daemon: `serve.py`. Workers: `worker.py`. T-SQL: `sql.py`. Begin with `queue.py`.
"""
