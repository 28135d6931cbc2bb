"""A dashboard that listens at a port, with people who are signed in, and an instance whose state can be compared."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

import servicebroker as sb
from servicebroker.dashboard import Dashboard, People
from servicebroker.dashboard.server import Server, make_config
from servicebroker.store.running import execute
from servicebroker_lab.error_log import ErrorLog

START_TIMEOUT_S = SETTLING_TIMEOUT_S = 20.0
CONVERSATION_COUNT = 6  # conversations that each state of the instance begins with
ACTOR, READER = "ann", "bob"  # the people; only the first may act
DATABASE, SERVICE, QUEUE = "Fuzzed", "//fuzz/Service", "FuzzQueue"


class Viewer(NamedTuple):
    """A person who is signed in: the cookie and the form token of the session."""

    cookie: str
    form_token: str
    may_act: bool


class Site:
    """The dashboard of an instance, served in a thread of this process. `folder` gets the file of people."""

    def __init__(self, instance: sb.Instance, folder: Path) -> None:
        self._instance = instance
        people = folder / "people"
        people.touch(0o600)
        people.write_text(f"{ACTOR}:act:\n{READER}:see:\n")
        self._dashboard = Dashboard([instance.url, str(folder / "nowhere")], token=None, people=People(people))
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self._server = Server(make_config(self._dashboard, timeout_graceful_shutdown=2))
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), name="dashboard")
        self.log = ErrorLog()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self.log)
        self._thread.start()
        end = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and time.monotonic() < end:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(START_TIMEOUT_S)
        self._listening.close()
        logging.getLogger().removeHandler(self.log)

    def sign_in(self, name: str) -> Viewer:
        """Begin a session, as the sign-in page does after the right password."""
        sessions = self._dashboard._sessions
        session = sessions.begin(name)
        return Viewer(f"{sessions.cookie}={session}", sessions.form_token(session), name == ACTOR)

    def settle(self) -> None:
        """Wait until the server has no request in progress: a client that has left does not end its action."""
        end = time.monotonic() + SETTLING_TIMEOUT_S
        while self._server.server_state.tasks and time.monotonic() < end:
            time.sleep(0.002)

    def handles(self) -> Sequence[UUID]:
        """Return the open conversations. Begin some if none is left."""
        with self._instance.connection() as connection:
            rows = execute(
                connection,
                "http_fuzzing.handles",
                "select conversation_handle from servicebroker.conversation_endpoints where state <> 'CD' "
                "order by conversation_handle limit 20",
            )
        if len(rows) < CONVERSATION_COUNT:
            fill(self._instance)
            return self.handles()
        return [handle for (handle,) in rows]

    def state(self) -> set[str]:
        """Return the rows that only the action of a person who may act changes, as texts."""
        with self._instance.connection() as connection:
            rows = execute(
                connection,
                "http_fuzzing.state",
                "select 'audit ' || a::text from servicebroker.audit a "
                "union all select 'queue ' || q::text from servicebroker.queues q "
                "union all select 'endpoint ' || (to_jsonb(e) - 'dialog_timer')::text "  # a timer fires by itself
                "from servicebroker.conversation_endpoints e where state <> 'CD'",
            )
        return {text for (text,) in rows}


def fill(instance: sb.Instance) -> None:
    """Make the objects of the fuzzer, switch the queue on, and begin conversations."""
    database = instance.database(DATABASE, create=True)
    try:
        database.create_queue(QUEUE)
        database.create_service(SERVICE, QUEUE, ["DEFAULT"])
    except sb.BrokerError:  # they are there
        database.alter_queue(QUEUE, status=True)
    for number in range(CONVERSATION_COUNT):
        handle = database.begin_dialog(SERVICE, SERVICE, encryption=False)
        database.send(handle, body=f"<b data-zz9='{number}'>")
