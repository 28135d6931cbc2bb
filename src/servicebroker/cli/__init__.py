"""The command line: a file for each command.

**The problem.** Commands start fast, never hang at a signal, and print text from strangers safely. An error is one
sentence that says what to do.

**The flow.** `COMMANDS` in `main.py` names each command with its module, which is imported when the command runs. A
command opens an instance that exists (`open_existing`, `open_database` in `existing_instance.py`), calls the API or a
function of `engine/diagnosis`, and prints. `main` turns expected errors into one sentence with exit code 1.

**The rules.**

* A command has no rules of its own: what it does is a method of the API or a function below it.
* A command that looks at an instance or changes it refuses a target that holds none (`must_exist`).
* Output goes through `output.py` and `tables.py` alone: text from outside moves no cursor and makes no line of its own.
  The linter refuses every other way.
* What an operator does is noted in the audit in the same transaction (`audited_act.py`).
* SIGTERM asks a command to end, a second signal ends it at once (`shutdown.py`). Programs that a command has started
  end with it (`orphans.py`).
* What peers can cause in the log is bounded (`log.py`).

**Where.** The daemon: `commands/serve.py`. Workers: `commands/worker.py`. T-SQL: `commands/sql.py`, `sqlcmd.py`,
`prompt.py`. Help with examples: `examples.py`. How bodies are shown: `printable_text.py`. Begin with `main.py`, then
`commands/queue.py`.
"""
