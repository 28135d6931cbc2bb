"""Python processes of Spark: how they start on this machine, and what they have imported then.

**The problem.** Spark starts Python processes for each query and forks one for each task. Java gives the former ten
seconds to connect. It puts PySpark's zip archives first on their path, in which no module is compiled.

**The flow.** A session of ours names `worker_python.sh` as Python. The script takes the archives off the path. It
starts `worker_start.py` for a process of a query, which connects first and imports PySpark then. Tasks are forked from
`worker_daemon.py`, which has imported our modules.

**The rules.** `worker_start.py` imports nothing beyond the standard library before it is connected. `worker_daemon.py`
imports no module that starts a thread, since threads do not survive a fork. Begin with `worker_python.sh`.
"""
