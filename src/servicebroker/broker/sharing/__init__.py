"""The decisions of a daemon that divides its conversations among shares (shards): no thread, process, pipe or clock.

**The problem.** Rounds of several shares run at the same time, each in a thread of the daemon or in a process of its
own. Shares come and go with the load, and a process may be killed at any point. Threads and processes cannot be
repeated step by step, so a fault in these decisions would show up once in a million rounds.

**The flow.** Each second `growth.py` says how many shares there are to be. They are opened beside those that run.
`share.py` then divides the conversations anew, between rounds, and every relay begins from the database. Each share
goes through the states of `lifecycle.py`, and `pace.py` says how long it waits between two rounds. A share in a process
has a `remote_relay.py` in the daemon and a `worker.py` in the process, which exchange the messages of `messages.py`.

**The rules.**

* Time and random numbers are arguments. Nothing here waits, and nothing here starts anything.
* A shell carries out the acts: `broker/shares.py` with threads, `broker/processes.py` and `broker/share_process.py`
  with pipes, and the simulator with events (`lab/servicebroker_lab/simulation/simulated_shares.py`).
* A process that was killed is replaced only after its database session has ended: until then that may still commit.
* What a round has to say is said after its commit. A process that dies before it has told the daemon has said nothing,
  and peers send their messages again.

Begin with `lifecycle.py`.
"""
