"""The command line `servicebroker`.

**The problem.** Commands must start fast, end at a signal even if they hang, and print text from untrusted senders
safely. An error is one sentence that says what to do.

**The flow.** `COMMANDS` in `main.py` names the module of each command, which is imported when the command runs. A
command opens an existing instance (`existing_instance.py`, or read-only `diagnosed_instance.py`), calls the API or a
function of `engine/diagnosis`, and prints the result. `main` prints an expected error as one sentence; the exit code
is then 1.

**The rules.**

* A command has no logic of its own: it calls a method of the API, or a function that the API calls too.
* A command that reads or changes an instance refuses a target without one (`check_exists`). It never creates it.
* All output goes through `output.py` and `tables.py`, which remove control characters and line ends from text of
  others. The linter forbids print and other ways.
* An action of an operator is recorded in the audit log, in the same transaction (`audited_act.py`).
* The first SIGTERM lets a command finish its work, the second one ends it (`shutdown.py`). Child processes of a command
  end with it (`orphans.py`).
* Log lines that peers can cause are limited (`log.py`).

**Where.** `commands` has a module for each command or group. The daemon: `commands/serve.py`. Workers:
`commands/worker.py`. T-SQL: `commands/sql.py`, `sqlcmd.py`, `prompt.py`. Examples of the help: `examples.py`. Bodies as
text: `printable_text.py`. Begin with `main.py`, then `commands/queue.py`.
"""
