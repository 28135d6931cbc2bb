"""A restricted role against the owner of the schema: what the fence costs."""

from __future__ import annotations

import time
from importlib.metadata import version
from urllib.parse import quote
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, Implementation, System, batches, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import BASELINE
from servicebroker_lab.benchmarks.servicebroker_system import CONTRACT, INITIATOR, QUEUE, TARGET, TYPE

ROLE = "servicebroker_bench"
DATABASE, INITIATOR_QUEUE = "Fence", "InitiatorQueue"
_POLL_INTERVAL_S = 0.001  # seconds between two looks at what has been delivered


class Verbs:
    """SEND, until all is delivered, and RECEIVE: by the restricted role, or by the owner."""

    def __init__(self, name: str, owner: Database) -> None:
        self.name, self.version = name, version("servicebroker")
        self._owner, self._body, self._handle = owner, text_body().encode(), UUID(int=0)
        self._instance = None if name == BASELINE else Instance(_as_role(owner.instance.url))
        self._opened: Database | None = None

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for each scenario of the fence."""
        role = "as the owner" if self._instance is None else "as a restricted role"
        implementations = {
            "fence-send": ("until delivered", self._begin, self._send),
            "fence-send-batch": (f"{BATCH_MESSAGES:,} a batch, until delivered", self._begin, self._send_batches),
            "fence-receive": ("", self._fill, self._receive),
        }
        return [Implementation(role, *implementations[scenario])] if scenario in implementations else []

    def close(self) -> None:
        """Leave what the role has opened."""
        if self._instance is not None:
            self._instance.close()

    @property
    def _database(self) -> Database:
        if self._instance is None:
            return self._owner
        if self._opened is None:
            self._opened = self._instance.open().database(DATABASE)
        return self._opened

    def _begin(self, messages: int) -> None:
        while self._owner.receive(QUEUE):
            pass
        self._handle = self._database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)
        self._database.send(self._handle, TYPE, self._body)
        self._owner.receive(QUEUE, wait=60)

    def _fill(self, messages: int) -> None:
        self._begin(messages)
        handle = self._owner.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)
        for size in batches(messages):
            self._owner.send_batch(handle, TYPE, [self._body] * size)

    def _send(self, messages: int) -> int:
        for _ in range(messages):
            self._database.send(self._handle, TYPE, self._body)
        return self._until_delivered(messages)

    def _send_batches(self, messages: int) -> int:
        for size in batches(messages):
            self._database.send_batch(self._handle, TYPE, [self._body] * size)
        return self._until_delivered(messages)

    def _until_delivered(self, messages: int) -> int:
        """Wait until an open instance of the owner has delivered the messages of the restricted role."""
        with self._owner.instance.connection() as connection:
            waits = "select from servicebroker.transmission_queue where conversation_handle = %s limit 1"
            while connection.execute(waits, (self._handle,)).fetchall():
                time.sleep(_POLL_INTERVAL_S)
        return messages

    def _receive(self, messages: int) -> int:
        return sum(len(self._database.receive(QUEUE, top=1)) for _ in range(messages))


def fence_systems(instance: Instance) -> list[System]:
    """Return the measured system, a restricted role, and its baseline, the owner."""
    owner = instance.database(DATABASE, create=True)
    owner.create_message_type(TYPE)
    owner.create_contract(CONTRACT, {TYPE: "INITIATOR"})
    for queue, service, contracts in ((INITIATOR_QUEUE, INITIATOR, []), (QUEUE, TARGET, [CONTRACT])):
        owner.create_queue(queue)
        owner.create_service(service, queue, contracts)
    with instance.connection() as connection:
        connection.execute(f"create role {ROLE}")
    instance.grant_rights(ROLE, database=DATABASE, receive=[INITIATOR_QUEUE, QUEUE], send=[TARGET])
    return [Verbs(OURS, owner), Verbs(BASELINE, owner)]


def _as_role(url: str) -> str:
    """Return a URL whose sessions begin with SET ROLE."""
    return f"{url}&options={quote(f'-c role={ROLE}')}"
