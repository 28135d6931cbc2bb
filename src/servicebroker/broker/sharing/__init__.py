"""The decisions of a daemon that divides its conversations among shares (partitions), without I/O, threads or clock.

**The problem.** Rounds (transactions) of several shares run at the same time, each in a thread of the daemon or in a
child process. Shares come and go with the load, and a process may be killed at any point. Threads and processes cannot
be repeated step by step, so a fault in these decisions would show up once in a million rounds.

**The flow.** Each second `growth.py` decides the number of shares. New ones are opened while the others run. `share.py`
then divides the conversations again, between rounds, and every relay restarts from the database. Each share goes
through the states of `lifecycle.py`, and `pace.py` decides how long it waits between two rounds. A share in a child
process has a `remote_relay.py` in the daemon and a `worker.py` in the child. They exchange the messages of
`messages.py`.

**The rules.**

* Time and random numbers are arguments. This package never waits and starts nothing.
* The caller carries out the actions: `broker/shares.py` with threads, `broker/processes.py` and
  `broker/share_process.py` with pipes, and the simulator with events
  (`lab/servicebroker_lab/simulation/simulated_shares.py`).
* A killed process is replaced only after its database session has ended: until then the session may still commit.
* A round reports to the daemon after its commit. If the process is killed before the report, peers send their messages
  again.

Begin with `lifecycle.py`.
"""
