"""Mutants that the simulator has to detect: each is one change of the source in `broker/` or `protocol/`.

    python tests/simulation/mutants.py [A:B]

runs each mutant with the seeds A:B (default 0:2000), and prints the first seed that detects it. A test runs each
mutant with its recorded seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parents[2] / "src" / "servicebroker"


class Mutant(NamedTuple):
    """A change of `before` to `after` in `module`, which the simulation of `seed` detects."""

    name: str
    module: str
    before: str
    after: str
    seed: int

    @property
    def file(self) -> Path:
        """Return the file that is changed."""
        return SOURCES.joinpath(*self.module.split(".")).with_suffix(".py")


MUTANTS = [
    Mutant(
        "acknowledgements leave before the commit",
        "broker.relay",
        "            touched |= self._readahead.offer(store, touched)\n",
        "            touched |= self._readahead.offer(store, touched)\n"
        "            if stored is not None:\n"
        "                self._writer.committed(store, stored)\n"
        "                stored = None\n"
        "            self._frames.send(store, is_traced=False)\n",
        38,
    ),
    Mutant(
        "openings are taken however old they are",
        "protocol.freshness",
        "return not is_ahead(sealed_at, now) and now.timestamp() - sealed_at < MAX_AGE.total_seconds()",
        "return not is_ahead(sealed_at, now)",
        8,
    ),
    Mutant(
        "an initiator does not go by the clock of the target",
        "broker.arrivals",
        "                    entry.note_peer_clock(clock, self._seconds())\n",
        "                    pass\n",
        5,
    ),
    Mutant(
        "what a clock that is ahead has dated is taken once it is time",
        "broker.dialog_security",
        "        if is_ahead(own_clock, now):\n",
        "        if False:\n",
        4626,
    ),
    Mutant("rounds fail", "broker.relay", "        self._charges.begin()\n", "        raise RuntimeError\n", 0),
    Mutant(
        "what is stored is not acknowledged",
        "broker.conversations",
        "            entry.dialog.committed()\n",
        "            pass\n",
        0,
    ),
    Mutant(
        "conversations leave without a claim",
        "broker.matching",
        "claimed = store.claim(claims) if claims else set()",
        "claimed = set(claims)",
        0,
    ),
    Mutant(
        "conversations that are not claimed take a link",
        "protocol.conversation_states",
        "(Stage.MATCHED, Event.LINK_FOUND): Step(Stage.MATCHED, (Action.MATCH_SOON,)),",
        "(Stage.MATCHED, Event.LINK_FOUND): Step(Stage.LINKED, (Action.TAKE_LINK, Action.END_BACKOFF)),",
        8,
    ),
    Mutant(
        "who is on a link goes on when its route has changed",
        "protocol.conversation_states",
        "(Stage.LINKED, Event.REROUTED): Step(Stage.CLAIMED, _LINK_DROPPED + _ROUTE_NOTED),",
        "(Stage.LINKED, Event.REROUTED): Step(Stage.LINKED, _ROUTE_NOTED),",
        192,
    ),
    Mutant(
        "who has lost its link keeps it",
        "protocol.conversation_states",
        "(Stage.LINKED, Event.LINK_LOST): Step(Stage.CLAIMED, (Action.DROP_LINK, Action.TRY_LATER)),",
        "(Stage.LINKED, Event.LINK_LOST): Step(Stage.LINKED, (Action.TRY_LATER,)),",
        0,
    ),
    Mutant(
        "who is claimed gets no link when there is a new one",
        "protocol.conversation_states",
        "(Stage.CLAIMED, Event.LINK_FOUND): "
        "Step(Stage.LINKED, (Action.TAKE_LINK, Action.END_BACKOFF, Action.CLEAR_STATUS)),",
        "(Stage.CLAIMED, Event.LINK_FOUND): Step(Stage.CLAIMED, (Action.END_BACKOFF, Action.CLEAR_STATUS)),",
        0,
    ),
    Mutant(
        "a batch whose row somebody holds counts as not given",
        "protocol.conversation_states",
        "(Storing.BATCH, BatchEvent.ROW_LOCKED): Step(Storing.POSTPONED),",
        "(Storing.BATCH, BatchEvent.ROW_LOCKED): Step(Storing.NOTHING),",
        12,
    ),
    Mutant(
        "a lost link is kept",
        "broker.conversations",
        "                self.on_event(entry, Event.LINK_LOST, why=status)\n",
        "",
        0,
    ),
    Mutant(
        "what had no place in memory is not looked for",
        "broker.departures",
        "        self._page_missed = True\n",
        "        return\n",
        60,
    ),
    Mutant(
        "what waits for a retry is at rest",
        "broker.conversations",
        "is_to_send = self.has_unread or self.dialog.load > 0",
        "is_to_send = self.has_unread",
        317,
    ),
    Mutant(
        "who is entered by a message that is not taken is never found",
        "broker.relay",
        "touched = {self._conversations.enter(endpoint) for endpoint in "
        "(store.endpoints_of(unknown) if unknown else ())}\n",
        "touched: set[UUID] = set()\n"
        "        for endpoint in store.endpoints_of(unknown) if unknown else ():\n"
        "            self._conversations.enter(endpoint)\n",
        513,
    ),
    Mutant(
        "a changed route is not seen",
        "broker.matching",
        "        if before == version:\n            return set()\n        self._mirrors",
        "        if True:\n            return set()\n        self._mirrors",
        42,
    ),
    Mutant(
        "a look begins anew each time",
        "broker.relay",
        "look = store.look(self.snapshot)",
        "look = store.look(None)",
        0,
    ),
    Mutant(
        "what an unfinished transaction commits is not looked for",
        "broker.relay",
        "self.snapshot, self._routes, self._is_traced = look.snapshot, ",
        "self.snapshot, self._routes, self._is_traced = look.snapshot._replace(unfinished=()), ",
        7,
    ),
    Mutant(
        "acknowledgements of rows that somebody holds are forgotten",
        "broker.arrivals",
        "            settled = {handle: self._acknowledged.pop(handle) for handle in acknowledged}\n",
        "            settled = {handle: self._acknowledged.pop(handle) for handle in acknowledged}\n"
        "            self._acknowledged.clear()\n",
        1,
    ),
    Mutant(
        "batches that are postponed are forgotten",
        "broker.arrivals",
        "self._postponed = {handle: batch for handle, batch in batches.items() if handle in postponed}",
        "self._postponed = {}",
        1,
    ),
    Mutant(
        "refusals of rows that somebody holds are forgotten",
        "broker.arrivals",
        "            for handle in store.fail(self._failed):\n",
        "            failed, self._failed = self._failed, {}\n"
        "            done = store.fail(failed)\n"
        "            self._failed = {handle: failed[handle] for handle in done}\n"
        "            for handle in done:\n",
        51,
    ),
    Mutant(
        "a dialog is remade without what has arrived",
        "broker.conversations",
        "        next=endpoint.receive_sequence,\n",
        "        next=0,\n",
        1,
    ),
    Mutant(
        "a dialog is remade without what is kept",
        "broker.conversations",
        "        kept=endpoint.kept,\n",
        "        kept={},\n",
        1,
    ),
    Mutant(
        "a dialog is remade without its last token",
        "broker.conversations",
        "        token=endpoint.receive_token,\n",
        "        token=None,\n",
        438,
    ),
    Mutant(
        "what was read is sent although it was dropped",
        "broker.departures",
        "            if read.numbers != tuple(numbers):\n                return None\n",
        "",
        442,
    ),
    Mutant(
        "a checksum is not looked at",
        "protocol.integrity",
        "if len(sealed) < TAG_SIZE or not compare_digest(_digest(header, payload), sealed[:TAG_SIZE]):",
        "if len(sealed) < TAG_SIZE:",
        1,
    ),
    Mutant(
        "an acknowledgement is due before the commit",
        "protocol.incoming",
        "            self._steps += self.seen.add(number, fragment, fragments, part)\n",
        "            self._steps += self.seen.add(number, fragment, fragments, part)\n"
        "            self.is_ack_due, self.stored = True, self.seen.copy()\n",
        0,
    ),
    Mutant(
        "what came is taken again",
        "protocol.incoming",
        "        if number < self.next:\n            return True\n",
        "",
        0,
    ),
    Mutant(
        "the receiver compares no tokens",
        "protocol.incoming",
        "        seen = self.seen\n        place = seen.next - 1 - number\n",
        "        return None\n",
        1367,
    ),
    Mutant(
        "what was under way on a lost link does not travel again",
        "protocol.outgoing",
        "        self._cursor = (self.base, 0)\n        self._in_flight = 0\n",
        "        self._in_flight = 0\n",
        6,
    ),
    Mutant(
        "an end is not offered",
        "broker.departures",
        "                if conversation.has_end:\n                    entry.dialog.end()\n",
        "",
        563,
    ),
    Mutant(
        "a look's messages are not seen",
        "broker.departures",
        "                entry.waits_to(conversation.last)\n",
        "",
        0,
    ),
    Mutant(
        "keys are not kept",
        "broker.arrivals",
        "                dialog.keys,\n",
        "                None,\n",
        4,
    ),
    Mutant(
        "a closed endpoint has no keys",
        "broker.conversations",
        "        session = session or self._session_of(endpoint)\n",
        "        session = None if endpoint.state == EndpointState.CLOSED else session or self._session_of(endpoint)\n",
        13,
    ),
    Mutant(
        "whatever a link brings is taken",
        "broker.relay",
        "            if proves and not self._trust.takes(store, message, entry, decision):\n",
        "            if False:\n",
        11,
    ),
    Mutant(
        "who answers at an address is who should",
        "broker.peers",
        "            if before is not None and before.owner != owner and before.owner in self._owners:\n",
        "            if False:\n",
        11,
    ),
    Mutant(
        "a peer is the instance that it says",
        "broker.peers",
        "        return None if owner == NOBODY else self._claims.objection(instance, owner)\n",
        "        return None\n",
        86,
    ),
    Mutant(
        "CONNECT is not asked for",
        "broker.recognition",
        "            if not peer.may_connect:\n",
        "            if False:\n",
        15,
    ),
    Mutant(
        "a certificate that nobody has imported is enough",
        "broker.recognition",
        "        raise BrokerError(28035, self.untrusted_reason)\n",
        "        return self._unknown(der)\n",
        14,
    ),
    Mutant(
        "who was let in is not known to the policy",
        "broker.policy",
        "        return self.tls is not None and self.encryption != DISABLED\n",
        "        return False\n",
        11,
    ),
    Mutant(
        "the principal of a pair is chosen once and for all",
        "broker.mirrors",
        "        for route, side in self._sides(address):\n            self._set(route, mirroring.unreachable(",
        "        for route, side in ():\n            self._set(route, mirroring.unreachable(",
        590,
    ),
    Mutant(
        "pairs that no route leads to are asked for good",
        "broker.mirrors",
        "            del self._pairs[route], self._told[route]\n",
        "            del self._told[route]\n",
        89,
    ),
    Mutant(
        "pairs whose route went while the database was away are asked for good",
        "broker.mirrors",
        '        self._told = dict.fromkeys(self._pairs, "")\n',
        "        self._told.clear()\n",
        1308,
    ),
    Mutant(
        "who is under way does not follow the principal",
        "broker.matching",
        "for handle, entry in self._conversations.items() if entry.pair in changed)\n",
        "for handle, one in self._conversations.items() if one.pair in set())\n",
        69,
    ),
    Mutant(
        "what begins a conversation is for certificates of yesterday",
        "broker.dialog_security",
        "        is_same = (source, peer_certificate.facts.thumbprint) == (exchange.source, exchange.destination)\n",
        "        is_same = True\n",
        14,
    ),
    Mutant(
        "what has passed is not proven to be ours",
        "broker.forwarding",
        "            case Elsewhere() as away:\n                self._forwarder.limit",
        "            case Elsewhere() as away:\n                return False\n                self._forwarder.limit",
        10,
    ),
    Mutant(
        "the peer's refusal is not obeyed",
        "broker.arrivals",
        "                    self._failed[handle] = event.failure\n",
        "                    pass\n",
        5,
    ),
    Mutant(
        "two pasts are not told",
        "broker.arrivals",
        "                    self._diverged[handle] = event\n",
        "                    pass\n",
        35,
    ),
    Mutant(
        "nobody says why messages wait",
        "broker.conversations",
        "            self._statuses[handle] = entry.status = status\n",
        "            entry.status = status\n",
        29,
    ),
    Mutant(
        "the sender compares no tokens",
        "protocol.outgoing",
        "        if token and ack.token and token != ack.token:\n",
        "        if False:\n",
        154,
    ),
    Mutant(
        "of fragments beside each other one is kept twice",
        "protocol.incoming",
        "        return bool(bisect_right(self.bounds, fragment) & 1)\n",
        "        return bool(bisect_right(self.bounds, fragment - 1) & 1)\n",
        0,
    ),
    Mutant(
        "nothing is said of what was acknowledged",
        "protocol.dialog",
        "        return outgoing.base if is_whole and not self._jumps else None\n",
        "        return None\n",
        51,
    ),
    Mutant(
        "a frame is given to another share",
        "broker.inboxes",
        "        return share_of(conversation_of(body), count)\n",
        "        return (share_of(conversation_of(body), count) + 1) % count\n",
        57,
    ),
    Mutant(
        "a share does not look for what waited before it had it",
        "broker.relay",
        "        self.forwarding.shares = self._unanswered.shares = self._route_requests.shares = shares\n",
        "        self.forwarding.shares = self._unanswered.shares = self._route_requests.shares = shares\n"
        "        if shares > 1:\n"
        "            self._finding._page_at = float('inf')\n",
        42,
    ),
    Mutant(
        "a share's acknowledgements leave before its commit",
        "broker.relay",
        "            self._matching.match(store, touched)\n",
        "            self._matching.match(store, touched)\n"
        "            if stored is not None and self.forwarding.shares > 1:\n"
        "                self._writer.committed(store, stored)\n"
        "                stored = None\n"
        "                self._frames.send(store, is_traced=False)\n",
        4626,
    ),
    Mutant(
        "a share that fails is not missed",
        "broker.sharing.lifecycle",
        "    (Stage.SERVING, Event.ERROR): _FAILURE,\n",
        "    (Stage.SERVING, Event.ERROR): Step(Stage.ENDED, (ShareAction.CLOSE,)),\n",
        96,
    ),
    Mutant(
        "relays remember what they knew before conversations were divided anew",
        "broker.sharing.share",
        "        store.division = Division(0, count)\n        self.forget()\n",
        "        store.division = Division(0, count)\n",
        57,
    ),
    Mutant(
        "what a process says goes to the first link",
        "broker.sharing.remote_relay",
        "                link = self._known.get(number)\n                if link",
        "                link = next(iter(self._known.values()), None)\n                if link",
        167,
    ),
    Mutant(
        "a process serves although another one has the lease",
        "broker.sharing.takeover",
        "    (Phase.STANDING_BY, Event.HELD): Step(Phase.STANDING_BY, _WAIT_FOR_LEASE),\n",
        "    (Phase.STANDING_BY, Event.HELD): _PROVE,\n",
        199,
    ),
    Mutant(
        "what the peer once had is relied on",
        "protocol.outgoing",
        "        if self._acked and self._has_lost_message():\n",
        "        if False:\n",
        85,
    ),
    Mutant(
        "what is kept is not compared with what follows it",
        "protocol.incoming",
        "            for place, token in enumerate((before, *(part.token for part in parts)), -1):\n",
        "            for place, token in enumerate(part.token for part in parts):\n",
        17007,
    ),
    Mutant(
        "a claim is not noted",
        "broker.matching",
        "            entries[handle].note_claim(ready[handle])\n",
        "            pass\n",
        4626,
    ),
    Mutant(
        "an acknowledgement is not noted where it arrives",
        "broker.arrivals",
        "                    entry.note_acknowledgement(str(event.peer_broker))\n",
        "",
        704,
    ),
    Mutant(
        "a claim of a row that is held is tried again at once",
        "protocol.conversation_states",
        "(Stage.MATCHED, Event.BUSY): Step(Stage.MATCHED, (Action.MATCH_SOON,)),",
        "(Stage.MATCHED, Event.BUSY): Step(Stage.MATCHED, (Action.MATCH_NOW,)),",
        108,
    ),
    Mutant(
        "what is given up for want of room is not rolled back",
        "broker.conversations",
        "            entry.dialog.rolled_back()\n",
        "            pass\n",
        574,
    ),
]


class _Finder(MetaPathFinder):
    """Imports the module with the mutant's change."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != f"servicebroker.{self._mutant.module}":
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        assert spec is not None
        spec.loader = _Loader(name, str(self._mutant.file), self._mutant)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> object:
        text = self._mutant.file.read_text()
        assert text.count(self._mutant.before) == 1, self._mutant.name
        return self.source_to_code(text.replace(self._mutant.before, self._mutant.after).encode(), self.path)


def find_seed(mutant: Mutant, seeds: range) -> int | None:
    """Return the first of these seeds that detects the mutant. Runs in a separate process."""
    command = [sys.executable, __file__, f"{seeds.start}:{seeds.stop}", str(MUTANTS.index(mutant))]
    source = os.pathsep.join([str(SOURCES.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "0"}  # some runs depend on the order of sets
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(result.stdout) if result.stdout.strip() else None


def _print_first_seed(mutant: Mutant, seeds: range) -> None:
    """Print the first seed that detects the mutant. The process must not have imported its module."""
    sys.meta_path.insert(0, _Finder(mutant))
    from servicebroker_lab.simulation.run import run_many

    for seed in seeds:
        if run_many(range(seed, seed + 1))[1]:
            sys.stdout.write(f"{seed}\n")
            return


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main(seeds: range) -> int:
    """Search all mutants, and return the number that no seed detects."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds_found = list(pool.map(lambda mutant: find_seed(mutant, seeds), MUTANTS))
    for mutant, seed in zip(MUTANTS, seeds_found, strict=True):
        sys.stdout.write(f"{'not found' if seed is None else seed:>9}  {mutant.module}: {mutant.name}\n")
    return seeds_found.count(None)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _print_first_seed(MUTANTS[int(sys.argv[2])], _range(sys.argv[1]))
    else:
        sys.exit(main(_range(sys.argv[1] if len(sys.argv) == 2 else "0:2000")))
