from __future__ import annotations

from servicebroker.protocol.fairness import MAX_TURNS_WAITED, FairQueue, Turn


def take_keys(line: FairQueue[str], count: int) -> list[str]:
    turns = [line.take() for _ in range(count)]
    return [turn.key for turn in turns if turn is not None]


def test_equals_take_turns_so_fragments_interleave() -> None:
    line: FairQueue[str] = FairQueue()
    for key in "abc":
        line.add(key, 5)
    order = []
    for _ in range(6):
        (key,) = take_keys(line, 1)
        order.append(key)
        line.add(key, 5)
    assert order == list("abcabc")
    assert len(line) == 3


def test_the_higher_priority_goes_first() -> None:
    line: FairQueue[str] = FairQueue()
    line.add("low", 1)
    line.add("high", 10)
    line.add("middle", 5)
    assert take_keys(line, 4) == ["high", "middle", "low"]
    assert line.take() is None


def test_being_in_line_once_is_enough() -> None:
    line: FairQueue[str] = FairQueue()
    line.add("a", 5)
    line.add("a", 5)
    assert len(line) == 1


def test_leaving_the_line() -> None:
    line: FairQueue[str] = FairQueue()
    line.add("a", 5)
    line.add("b", 5)
    line.discard("a")
    line.discard("nobody")
    assert take_keys(line, 2) == ["b"]


def test_a_low_priority_under_a_flood_gets_its_turns_and_no_more() -> None:
    line: FairQueue[str] = FairQueue()
    for number in range(50):
        line.add(f"low {number}", 1)
    elevated = 0
    for _ in range(20 * MAX_TURNS_WAITED):
        line.add("flood", 10)
        turn = line.take()
        assert turn is not None
        assert turn.is_elevated == turn.key.startswith("low")
        elevated += turn.is_elevated
    assert elevated == 20


def test_an_entry_that_has_not_waited_is_not_elevated() -> None:
    line: FairQueue[str] = FairQueue()
    for _ in range(3 * MAX_TURNS_WAITED):
        line.add("high", 10)
        line.take()
    line.add("high", 10)
    line.add("low", 1)
    assert line.take() == Turn("high", False)
    assert line.take() == Turn("low", False)


def test_a_sender_that_is_added_again_keeps_its_place_and_its_wait() -> None:
    """A conversation that waits is added at each of its messages."""
    line: FairQueue[str] = FairQueue()
    line.add("low", 1)
    for number in range(MAX_TURNS_WAITED):
        line.add("high", 10)
        line.add("low", 1)
        assert line.take() == (Turn("high", False) if number < MAX_TURNS_WAITED - 1 else Turn("low", True))
    for key in ("a", "b", "a"):
        line.add(key, 5)
    assert take_keys(line, 3) == ["high", "a", "b"]
