"""Pages that show what happens in instances, and act on them: `servicebroker dashboard`, or in an ASGI app of your own.

Needs the extra `servicebroker[dashboard]`.

**The problem.** Many people may watch an instance that is in trouble. Watching must not add to the trouble, and a page
that somebody has open elsewhere must not be able to act.

**The flow.** A request passes the door (`door.py`: host, session, role, token), then `application.py` finds the page or
the act. A page (`pages.py`) is looked up by an `Observed` (`observed.py`): all viewers of a page share one look, and
while the database is down the last one is shown. Templates of jinja2 write HTML; changes are sent as a stream.

**The rules.**

* Nothing here writes but the acts (`acts.py`). Each is a method of the API and is noted in the audit.
* Pages ask the functions that status, doctor and poison ask, so there is one judge (`engine/diagnosis`).
* Every request passes the door, whatever page it asks for. What changes something is a POST from a page of ours with
  its token.
* Limits are per viewer (`viewers.py`), per guess (`guesses.py`) and per connection (`server.py`).
* Of a body only its beginning is fetched; nothing in it can act (`bodies.py`).

Begin with `application.py`, then `door.py`.
"""

from servicebroker.cli.people_file import People, Role
from servicebroker.dashboard.application import Dashboard
from servicebroker.dashboard.door import Proxy

__all__ = ["Dashboard", "People", "Proxy", "Role"]
