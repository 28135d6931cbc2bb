"""Pages that show what happens in instances, and act on them: `servicebroker dashboard`, or in an ASGI app of your own.

Needs the extra `servicebroker[dashboard]`. Nothing here writes but the acts (`acts.py`), each a method of the API.
"""

from servicebroker.cli.people_file import People, Role
from servicebroker.dashboard.application import Dashboard
from servicebroker.dashboard.door import Proxy

__all__ = ["Dashboard", "People", "Proxy", "Role"]
