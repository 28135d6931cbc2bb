"""Web pages that show and operate instances: `servicebroker dashboard`, or mounted in an ASGI application.

Needs the extra `servicebroker[dashboard]`.

**The problem.** Many people may watch an instance that is in trouble. Watching must not add load, and pages of other
sites must not be able to act.

**The flow.** A request passes `AccessControl` (`access.py`: host, origin, session). Then `application.py` finds the
page or the action. The query of a page (`pages.py`) runs through the cache of an `ObservedInstance`
(`snapshot_cache.py`). All viewers of a page share one query, and see the last snapshot while the database is down.
Jinja templates write the HTML. The server sends changes of an open page as server-sent events.

**The rules.**

* Only actions (`actions.py`) write. Each calls a method of the API, which records it in the audit log.
* Pages call the functions of the commands status, doctor and poison (`engine/diagnosis`), so results agree.
* Every request passes `AccessControl`. An action is a POST from a page of this dashboard, with a form token.
* Limits hold per viewer (`viewer_limits.py`), per sign-in name (`sign_in_limits.py`) and per connection (`server.py`).
* Only the beginning of a message body is read, and it is escaped (`bodies.py`).

Begin with `application.py`, then `access.py`.
"""

from servicebroker.cli.people_file import People, Role
from servicebroker.dashboard.access import Proxy
from servicebroker.dashboard.application import Dashboard

__all__ = ["Dashboard", "People", "Proxy", "Role"]
