"""Pages that show instances and act on them: `servicebroker dashboard`, or mounted in an ASGI application of your own.

Needs the extra `servicebroker[dashboard]`.

**The problem.** Many people may watch an instance that is in trouble. Watching must not add to the trouble, and a page
of another site must not be able to act.

**The flow.** A request passes `AccessControl` (`access.py`: host, session, role, form token). Then `application.py`
finds the page or the action. The queries of a page (`pages.py`) run through the cache of an `ObservedInstance`
(`snapshot_cache.py`). All viewers of a page share one query, and see the last snapshot while the database is down.
Templates of jinja2 write HTML; changes are sent as a stream of events.

**The rules.**

* Only actions (`actions.py`) write. Each is a method of the API and is recorded in the audit.
* Pages call the same functions as the commands status, doctor and poison, so there is one judgement
  (`engine/diagnosis`).
* Every request passes `AccessControl`. Whatever changes something is a POST from a page of ours with its form token.
* Limits hold per viewer (`viewer_limits.py`), per sign-in name (`sign_in_limits.py`) and per connection (`server.py`).
* Only the beginning of a body is fetched, and nothing in it can act (`bodies.py`).

Begin with `application.py`, then `access.py`.
"""

from servicebroker.cli.people_file import People, Role
from servicebroker.dashboard.access import Proxy
from servicebroker.dashboard.application import Dashboard

__all__ = ["Dashboard", "People", "Proxy", "Role"]
