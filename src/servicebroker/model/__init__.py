"""Plain values that every other package uses: names, states, messages, permissions, errors.

**The problem.** All interfaces, the engine, the daemon and the in-memory double must agree on valid names, on the state
that follows an event, and on the number of each error. Each of these facts is defined here once.

**Modules.**

* `states.py`: the states of a conversation endpoint. `TRANSITIONS` maps a state and an event to the next state. If a
  pair is missing, the event is refused.
* `errors.py`: every error with its Service Broker number and text. `remedies.py`: advice for users.
* `arguments.py`: checks of arguments alone, without the database. `names.py`: rules for names.
* `security/permissions.py`: principals and permissions. `NEEDS` lists what each statement needs; `is_allowed` decides.
* `poison.py`: the rollback count that switches a queue off, and the verdicts of policies about failed messages.
* `security/dialog_security.py`, `security/peers.py`: how a conversation between instances is secured, and the identity
  of a peer.
* `workers.py`: a worker as a value; `handlers/typed.py`: how its handlers are called.

**The rules.**

* No module here imports another package of the product, a database driver, a thread or a clock. Functions that depend
  on the time take it as an argument.
* An answer of the broker is a `BrokerError` with a number. An `InstanceError` means that the instance itself cannot be
  reached, created or used.
* XML from outside is hostile until `xml.py` has parsed it: no entities, no DTD, no network. The schema of a message
  type reads only the documents of its collection.
* Text from a peer passes `cleaned` in `wording.py` before it is stored, logged or shown.

Begin with `states.py`, then `NEEDS` in `security/permissions.py`.
"""
