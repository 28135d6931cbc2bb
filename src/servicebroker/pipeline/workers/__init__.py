"""Starts the Python processes of Spark quickly on this machine.

**The problem.** Spark starts a Python process for each query, and forks one for each task. Java waits ten seconds for
the process of a query to connect. It puts PySpark's zip archives first on the path, without compiled modules, so that
imports are slow.

**The flow.** `pipeline/spark_session.py` sets `worker_python.sh` as Spark's Python. The script removes the archives
from the path. For the process of a query it starts `worker_start.py`, which connects first and then imports PySpark.
Tasks are forked from `worker_daemon.py`, which has already imported servicebroker's modules.

**The rules.** `worker_start.py` imports nothing beyond the standard library before it is connected. `worker_daemon.py`
imports no module that starts a thread, since threads do not survive a fork. Begin with `worker_python.sh`.
"""
