"""Plain values that every other package uses: names, states, messages, permissions, errors.

**The problem.** All faces, the engine, the daemon and the in-memory double must agree on what a name is, which state
follows which event, and which number refuses what. Each of these facts stands here once.

**What stands where.**

* `states.py`: the states of a conversation endpoint. `TRANSITIONS` maps a state and an event to the next state. If a
  pair is missing, the event is refused.
* `errors.py`: every error with its Service Broker number and text. `remedies.py` says what a person does about it.
* `arguments.py`: what a verb or a definition refuses by its arguments alone. `names.py`: rules for names.
* `security/permissions.py`: principals and permissions. `NEEDS` says what each statement needs; `is_allowed` decides.
* `poison.py`: when a queue is switched off, and what a policy says about a failed message.
* `security/dialog_security.py`, `security/peers.py`: how a conversation between instances is secured, and who a peer
  is.
* `workers.py`: a worker as a value.

**The rules.**

* Nothing here imports another package of the house, a database driver, a thread or a clock. Functions that depend on
  the time take it as an argument.
* An answer of the broker is a `BrokerError` with a number. An `InstanceError` says that the instance itself cannot be
  reached, made or used.
* XML from outside is hostile until `xml.py` has parsed it: no entities, no DTD, no network. The schema of a message
  type reads nothing but the documents of its collection.
* Text from a peer passes `cleaned` in `wording.py` before it is stored, logged or shown.

Begin with `states.py`, then `NEEDS` in `security/permissions.py`.
"""
