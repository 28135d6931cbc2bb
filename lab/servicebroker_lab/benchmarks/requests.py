"""Requests and their answers: one at a time, and many at a time over one queue. A process beside this one answers.

Its worker answers what has come of up to 50 conversations in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version

import servicebroker as sb
from servicebroker.api.instance import Instance
from servicebroker_lab.benchmarks.dialogs import REQUEST_QUEUE, set_up
from servicebroker_lab.benchmarks.measured_system import Implementation, System, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import CONCURRENT_REQUESTS
from servicebroker_lab.benchmarks.sender_process import SenderProcess
from servicebroker_lab.benchmarks.servicebroker_system import CONTRACT, INITIATOR, TARGET, TYPE

DATABASE = "Requests"
_ANSWERER_COUNT, _GROUP_COUNT = 2, 50  # readers of the process that answers, conversations in a transaction of theirs
_WARM_UP = 40  # requests, for statements, watchers and readers
_TIMEOUT_S = 60.0


class Requests:
    """`request` in threads of this process; a worker answers and ends."""

    name = OURS

    def __init__(self, instance: Instance) -> None:
        self.version = version("servicebroker")
        self._database = set_up(instance, DATABASE)
        self._body = text_body().encode()
        self._answerer: SenderProcess | None = None
        self._threads = ThreadPoolExecutor(CONCURRENT_REQUESTS)

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return implementations with one request at a time, and with many."""
        reader_settings = f"{_ANSWERER_COUNT} readers in a process beside it answer, groups={_GROUP_COUNT}"
        return {
            "request-one": [Implementation("request", reader_settings, self._begin, self._ask)],
            "request": [
                Implementation(
                    "request", f"{CONCURRENT_REQUESTS} threads; {reader_settings}", self._begin, self._ask_in_threads
                )
            ],
        }.get(scenario, [])

    def close(self) -> None:
        """End the process that answers."""
        self._threads.shutdown()
        if self._answerer is not None:
            self._answerer.close()

    def _begin(self, messages: int) -> None:
        if self._answerer is None:
            self._answerer = SenderProcess(_answering, self._database.instance.url)
            self._answerer.during(lambda: None)
        self._ask_in_threads(_WARM_UP)

    def _ask(self, messages: int) -> int:
        return sum(self._ask_one() for _ in range(messages))

    def _ask_in_threads(self, messages: int) -> int:
        return sum(self._threads.map(lambda _: self._ask_one(), range(messages)))

    def _ask_one(self) -> bool:
        answer = self._database.request(
            INITIATOR, TARGET, TYPE, self._body, contract=CONTRACT, encryption=False, timeout=_TIMEOUT_S
        )
        return answer.message_body == self._body


@contextmanager
def _answering(url: str) -> Iterator[Callable[[], None]]:
    """Run in a process whose worker answers during the whole block. Calling the yielded function shows that it runs."""
    worker = sb.Worker(REQUEST_QUEUE, groups=_GROUP_COUNT)

    @worker.on(TYPE)
    def answer(transaction: sb.Transaction, message: sb.Message) -> None:
        transaction.send(message.conversation_handle, TYPE, message.message_body or b"")
        transaction.end_conversation(message.conversation_handle)

    with (
        sb.open(url, upkeep=None) as instance,
        instance.database(DATABASE).working(worker, concurrency=_ANSWERER_COUNT),
    ):
        yield lambda: None


def request_systems(instance: Instance) -> list[System]:
    """Ours: nobody else has a request."""
    return [Requests(instance)]
