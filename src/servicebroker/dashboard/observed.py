"""What the dashboard looks at: an instance is opened at the first question; what was last seen while it is down."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.cli.existing import must_exist
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import is_url

FRESH = 0.8  # seconds for which everybody who asks the same is shown the same
SLOW = 0.1  # seconds: who looks at what takes longer is shown what was seen last, while it is looked at anew
REST = 5  # times as long as it takes, nobody looks at that
LATE = 15.0  # seconds after which what was seen last is shown to nobody before it is looked at anew
PAUSE = 1.0  # seconds after a failure in which nobody asks again
KEPT = 50  # pages whose last figures are kept
WINDOW = 10.0  # seconds that a rate is taken over

Look = Callable[[Instance], Any]
Name = tuple[str, ...]


class Seen(NamedTuple):
    """What was seen, when, and what stands against seeing it now: '' when it is of now. `facts` is None before any."""

    facts: Any
    at: datetime
    trouble: str


class _Kept:
    """What one page has last seen; who looks holds the lock, so that many viewers are one question."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.facts: Any = None
        self.at = datetime.now(UTC)
        self.looked = -PAUSE
        self.took = 0.0
        self.trouble = ""


class Watched:
    """Something that pages are of. As many as look, it is asked once in a while.

    Attributes:
        name: what it is called on the pages: never with a password.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._placing = threading.Lock()
        self._done = 0  # how often something was done
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._down_since = -PAUSE
        self._trouble = ""

    def seen(self, page: Hashable, ask: Callable[[], Any], fresh: float) -> Seen:
        """What `ask` returns, not older than `fresh` seconds, or what it has returned last while there is no answer.

        Raises:
            BrokerError: what the page is of is not there.
            psycopg.Error: the role of the URL may not see it.
        """
        kept = self._place(page)
        passed = time.monotonic() - kept.looked
        if kept.facts is not None and kept.took > SLOW and passed < max(LATE, 2 * REST * kept.took):
            if passed > max(fresh, REST * kept.took) and not kept.lock.locked():
                threading.Thread(target=self._look_aside, args=(kept, ask, fresh), daemon=True).start()
            return Seen(kept.facts, kept.at, kept.trouble)
        return self._see(kept, ask, fresh)

    def _look_aside(self, kept: _Kept, ask: Callable[[], Any], fresh: float) -> None:
        """Look while the page shows what was seen last; what cannot be seen any more is told to who asks next."""
        try:
            self._see(kept, ask, fresh)
        except Exception:
            kept.facts = None

    def _see(self, kept: _Kept, ask: Callable[[], Any], fresh: float) -> Seen:
        with kept.lock:
            if time.monotonic() - kept.looked < fresh and kept.facts is not None:
                return Seen(kept.facts, kept.at, "")
            if time.monotonic() - self._down_since < PAUSE:
                kept.trouble = self._trouble
            else:
                self._ask(kept, ask)
            return Seen(kept.facts, kept.at, kept.trouble)

    def _ask(self, kept: _Kept, ask: Callable[[], Any]) -> None:
        """Look. What was asked before something was done stays old, and is looked at again by who asks next."""
        begun, done = time.monotonic(), self._done
        try:
            facts = ask()
        except (InstanceError, psycopg.OperationalError, psycopg.InterfaceError, OSError) as problem:
            self._down_since, self._trouble = time.monotonic(), sentence(problem)
            kept.trouble = self._trouble
            return
        with self._placing:
            kept.facts, kept.at, kept.trouble = facts, datetime.now(UTC), ""
            if self._done == done:
                kept.looked, kept.took = time.monotonic(), time.monotonic() - begun

    def forget(self) -> None:
        """Something was done: nobody is shown what was before."""
        with self._placing:
            self._done += 1
            for kept in self._kept.values():
                kept.looked, kept.took = -PAUSE, 0.0

    def _place(self, page: Hashable) -> _Kept:
        with self._placing:
            kept = self._kept.setdefault(page, _Kept())
            self._kept.move_to_end(page)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept


class Observed(Watched):
    """An instance by its data folder or URL."""

    def __init__(self, target: str) -> None:
        super().__init__(shown_name(target))
        self.target = target
        self.came, self.left = Rates(), Rates()
        self._instance: Instance | None = None
        self._opening = threading.Lock()

    def see(self, page: Hashable, look: Look) -> Seen:
        """What `look` finds in the instance; raises as `seen`."""
        return self.seen(page, lambda: look(self.instance()), FRESH)

    def instance(self) -> Instance:
        """The instance, opened.

        Raises:
            InstanceError: there is none, or it cannot be reached.
        """
        with self._opening:
            if self._instance is None:
                must_exist(self.target)
                self._instance = open_instance(self.target, upkeep=None)
            return self._instance

    def close(self) -> None:
        """Leave the instance; it is opened again when it is asked again."""
        with self._opening:
            if self._instance is not None:
                self._instance.close()
                self._instance = None


class Rates:
    """How much something that only rises has risen a second, by its name."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[Name, float]]] = deque()
        self._lock = threading.Lock()

    def after(self, values: Mapping[Name, float]) -> dict[Name, float]:
        """The rates, with these values of now; 0 for what is seen for the first time."""
        now = time.monotonic()
        with self._lock:
            self._samples.append((now, values))
            while len(self._samples) > 2 and now - self._samples[1][0] > WINDOW:
                self._samples.popleft()
            then, first = self._samples[0]
        passed = now - then
        return {
            name: max(0.0, value - first.get(name, value)) / passed if passed else 0.0 for name, value in values.items()
        }


def shown_name(target: str) -> str:
    """What a data folder or URL is called; of a URL the server and the database."""
    if not is_url(target):
        return target
    try:
        parts = conninfo_to_dict(target)
    except psycopg.Error:
        return "a PostgreSQL URL that cannot be read"
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{parts.get('dbname') or parts.get('user') or 'postgres'} at {host}{port}"


def sentence(problem: BaseException) -> str:
    """What went wrong in one line, without a password that a URL in it may have."""
    said = " ".join(str(problem).split()) or type(problem).__name__
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:...@", said)
