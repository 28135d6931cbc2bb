"""Random histories in T-SQL text and on the in-memory double, with the steps of `random_histories`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import servicebroker as sb
from random_histories import Model
from side_by_side import DOCUMENT, PLAIN, Pair
from spoken_tsql import TsqlSpeaker


class TsqlModel(Model):
    """Runs every verb of the engine as a statement, alone or between BEGIN TRANSACTION and COMMIT."""

    spoken = TsqlSpeaker
    receive_groups = None  # type: ignore[assignment] # T-SQL has no such clause
    begin_with_choices = None  # type: ignore[assignment] # nor these

    def step(self, kind: str, pair: Pair, verb: Callable[[Any], Any], **options: Any) -> None:  # type: ignore[override]
        """Compare without the numbers of SEND, which T-SQL lacks, and accept T-SQL's errors for missing objects."""
        known_handles = pair.real.met if kind == "receive" and pair in self.open else frozenset()
        spoken_verb = (
            unsaid(verb) if kind in ("send", "multicast", "send batch", "answer") else as_read(verb, known_handles)
        )
        super().step(kind, pair, only_handle(verb) if kind == "short" else spoken_verb, **options)

    @precondition(Model.has_conversations)
    @rule(which=Model.number, other=Model.number, kind=st.sampled_from([PLAIN, DOCUMENT]), count=st.integers(1, 4))
    def send_batch(self, which: int, other: int, kind: str, count: int) -> None:
        """Send in a loop, because T-SQL has no such verb. Without an open transaction each SEND is one."""

        def send(speaker: Any, handle: UUID) -> None:
            if isinstance(speaker, TsqlSpeaker):
                speaker.send_in_a_loop(handle, kind, count)
            else:
                for n in range(count):
                    speaker.send(handle, kind, b"<a>%d</a>" % n)

        self.step_on("send batch", which, other, send)


def unsaid(verb: Callable[[Any], Any]) -> Callable[[Any], None]:
    def run(database: Any) -> None:
        verb(database)

    return run


def only_handle(verb: Callable[[Any], Any]) -> Callable[[Any], list[UUID]]:
    """Return only the handle of BEGIN DIALOG with SENDs, because T-SQL returns no numbers."""

    def run(database: Any) -> list[UUID]:
        handle: UUID = verb(database)[0]
        return [handle]

    return run


def as_read(verb: Callable[[Any], Any], known_handles: Collection[UUID]) -> Callable[[Any], Any]:
    """Accept 208 for 15151 where RECEIVE and GET name a missing queue.

    RECEIVE from a group or conversation that the transaction has received from or ended may return no rows.
    """

    def run(speaker: Any) -> Any:
        try:
            return verb(speaker)
        except sb.BrokerError as error:
            named = re.search(r'"([0-9a-f-]{36})"', str(error))
            if error.number in (8426, 8436) and named and UUID(named[1]) in known_handles:
                return []
            missing = re.search(r"Cannot find the queue '(.+)'", str(error))
            raise (sb.BrokerError(208, missing[1]) if missing else error) from None

    return run
