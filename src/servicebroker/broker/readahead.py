"""What waits in the transmission queue and may travel is read, a part of it at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from servicebroker.broker.lines import Lines
from servicebroker.broker.relay_memory import Entry, Memory
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.departing import NOTHING, Leaving, Reading
from servicebroker.protocol.dialog import SENDS
from servicebroker.protocol.envelope import Content, Part
from servicebroker.protocol.outgoing import NEVER

AT_ONCE = 1_000  # messages of one conversation that a round reads
BUDGET = 64 * 1024 * 1024  # bytes of bodies that wait in memory for a link
PIPELINE = 4 * 1024 * 1024  # bytes under way on a link; much more only makes acknowledgements late, and sent again
FIRST_SHARE = 64 * 1024  # bytes that a conversation may always have under way


class Readahead:
    """Reads for all conversations in turns, bodies up to `longest` bytes, and offers it to their dialogs."""

    def __init__(self, memory: Memory, lines: Lines, longest: int, seconds: Callable[[], float]) -> None:
        self._memory = memory
        self._lines = lines
        self._longest = longest
        self._seconds = seconds

    @property
    def wake_at(self) -> float:
        """When there is more to read, and room for it."""
        return self._seconds() if self._lines.hungry and self._memory.waiting_bytes <= BUDGET else NEVER

    def offer(self, store: Store, touched: Iterable[UUID]) -> None:
        """Read what waits and may travel; a part of it at a time, so that memory stays bounded."""
        self._lines.hungry.update(dict.fromkeys(touched))
        wanted: dict[UUID, Reading] = {}
        budget = BUDGET - self._memory.waiting_bytes
        for handle in list(self._lines.hungry):
            if budget <= 0:
                break
            del self._lines.hungry[handle]
            entry = self._memory.get(handle)
            if entry is not None and (reading := self._reading(entry)) is not None:
                wanted[handle] = reading
                budget -= min(reading.room, (entry.end - reading.first) * self._longest)
        if not wanted:
            return
        found = store.read(wanted, self._longest)
        for handle, reading in wanted.items():
            entry = self._memory.get(handle)
            assert entry is not None
            leaving = found.get(handle, NOTHING)
            self._offer_read(entry, leaving)
            was_all = len(leaving.numbers) < reading.most and sum(leaving.sizes) < reading.room
            if was_all and entry.dialog.room > 0:
                entry.end = entry.dialog.next_to_offer  # END CONVERSATION has dropped the rest
            elif entry.link is not None and entry.wants_more and entry.dialog.room > 0:
                self._lines.hungry[handle] = None

    def _reading(self, entry: Entry) -> Reading | None:
        """What to read of it; of a conversation without a link only one message, so that it is tried again."""
        dialog = entry.dialog
        is_routed = entry.address is not None and not entry.is_stale
        if not is_routed or dialog.sending not in SENDS or not entry.wants_more or not self._lines.is_enabled(entry):
            return None
        if not self._lines.attach(entry):
            return Reading(dialog.next_to_offer, 1, 1)
        assert entry.link is not None
        room = max(dialog.room, 1)
        if self._lines.load(entry.link) >= PIPELINE:
            room = min(room, FIRST_SHARE)
            if entry.load:  # its acknowledgement will bring it here again
                return None
        return Reading(dialog.next_to_offer, AT_ONCE, room)

    def _offer_read(self, entry: Entry, leaving: Leaving) -> None:
        """The application's messages as far as there is room for them, and what ends the conversation."""
        dialog, (numbers, sizes, parts) = entry.dialog, leaving
        ends = bool(parts) and parts[-1].content is not Content.DATA
        count = len(parts) - ends
        if count and dialog.room > 0 and numbers[0] == dialog.next_to_offer:
            following = next((place for place in range(count) if numbers[place] != numbers[0] + place), count)
            offered = dialog.offer_run(numbers[0], sizes[:following], [part.token for part in parts[:following]])
            self._memory.hold(entry, numbers[:offered], parts)
        if ends:
            self._offer_end(entry, numbers[-1], sizes[-1], parts[-1])
        self._lines.weigh(entry)

    def _offer_end(self, entry: Entry, number: int, size: int, part: Part) -> None:
        """An Error needs no room and may leave messages out; an EndDialog waits for room and its turn."""
        dialog = entry.dialog
        if part.content is Content.ERROR:
            self._memory.release(entry)
        elif dialog.room <= 0 or number != dialog.next_to_offer:
            return
        dialog.offer(number, size, part.content, part.token)
        self._memory.hold(entry, [number], [part])
