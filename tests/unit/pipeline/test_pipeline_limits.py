"""Options, conversions, pieces and the record of a run, at their limits."""

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import last_run, staging, variables
from servicebroker.pipeline.decoding.coercion import coerce
from servicebroker.pipeline.decoding.json_number import JsonNumber
from servicebroker.pipeline.last_run import LastRun, describe, read_last_run
from servicebroker.pipeline.options import MAX_CLAIM_TIMEOUT_S, MAX_SEND_ID_CHARACTERS, source_options, writer_options
from servicebroker.pipeline.queue_run import QueueState
from servicebroker.pipeline.staging import Checksum, Digest, Piece, combine_digests, slot_of

SOURCE = {"instance": "i", "database": "d", "queue": "q"}
WRITER = {"instance": "i", "database": "d", "fromService": "f", "toService": "t", "contract": "c"}


def value_of(made, options, name):
    """Return the value of an option, or the class of the error."""
    try:
        return getattr(made(options), name)
    except InstanceError:
        return InstanceError


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("maxTriggerDelay", "max_trigger_delay", {None: 900, "30": 30, "30s": 30, "15m": 900, "1h": 3600, "2 H": 7200}),
        ("maxTriggerDelay", "max_trigger_delay", dict.fromkeys(["", "1d", "-1", "1.5h", "h"], InstanceError)),
        ("minPartitions", "min_partitions", {"1": 1, "1024": 1024, "0": InstanceError, "1025": InstanceError}),
        ("claimTimeout", "claim_timeout", {None: 30, "0": 0, str(MAX_CLAIM_TIMEOUT_S): MAX_CLAIM_TIMEOUT_S}),
        ("claimTimeout", "claim_timeout", {str(MAX_CLAIM_TIMEOUT_S + 1): InstanceError, "-1": InstanceError}),
        ("maxMessagesPerTrigger", "max_messages_per_trigger", {None: 1_000_000, "1": 1, "0": InstanceError}),
        ("maxBytesPerTrigger", "max_bytes_per_trigger", {None: 0, "0": 0, str(2**63 - 1): 2**63 - 1}),
        ("startingOffsets", "starting_offsets", {None: "earliest", " LATEST ": "latest", "newest": InstanceError}),
        ("failOnDataLoss", "fail_on_data_loss", {None: True, "false": False, "no": InstanceError}),
        ("includeSystemMessages", "include_system_messages", {None: True, "FALSE": False}),
        ("ack", "archives", {None: False, "archive": True}),
        ("deliver", "delivers_parts", {None: False, "parts": True}),
    ],
)
def test_options_of_a_reader(option, name, values):
    for text, value in values.items():
        options = SOURCE if text is None else {**SOURCE, option: text}
        assert value_of(source_options, options, name) == value, text


@pytest.mark.parametrize("kind", ["Messages", "Bytes"])
@pytest.mark.parametrize(("least", "most", "is_right"), [(5, 5, True), (6, 5, False), (0, 5, True), (5, 6, True)])
def test_a_batch_may_need_as_much_as_it_may_hold(kind, least, most, is_right):
    options = {**SOURCE, f"min{kind}PerTrigger": str(least), f"max{kind}PerTrigger": str(most)}
    assert (value_of(source_options, options, "has_minimum") is not InstanceError) == is_right
    assert source_options({**SOURCE, "minBytesPerTrigger": "5"}).has_minimum  # without a most
    assert not source_options(SOURCE).has_minimum


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("unknownTarget", "refuses_unknown_target", {None: True, "refuse": True, "wait": False, "x": InstanceError}),
        ("encryption", "encryption", {None: True, "on": True, "off": False, "x": InstanceError}),
        (
            "conversations",
            "conversations",
            {None: 4, "1": 1, "10000": 10_000, "0": InstanceError, "10001": InstanceError},
        ),
        ("sendId", "send_id", {None: "", " a ": "a", "x" * MAX_SEND_ID_CHARACTERS: "x" * MAX_SEND_ID_CHARACTERS}),
        ("sendId", "send_id", {"x" * (MAX_SEND_ID_CHARACTERS + 1): InstanceError, "a\0": InstanceError}),
        ("recycleSeconds", "recycle_seconds", {None: 3600, "1": 1, "0": InstanceError}),
        ("queryName", "key", {"ours": ""}),
        ("nothing", "key", {"x": InstanceError}),
    ],
)
def test_options_of_a_writer(option, name, values):
    for text, value in values.items():
        options = WRITER if text is None else {**WRITER, option: text}
        assert value_of(writer_options, options, name) == value, text


# ---------------------------------------------------------------- lenient columns

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", 5, "5"),
        ("string", True, "true"),
        ("string", JsonNumber("1.10"), "1.10"),
        ("string", Decimal("1.50"), "1.50"),
        ("string", None, None),
        ("string", [1], [1]),
        ("integer", "12", 12),
        ("integer", " 1e3 ", 1000),
        ("long", 1.0, 1),
        ("integer", "1.5", "1.5"),
        ("integer", True, True),
        ("integer", "x", "x"),
        ("integer", "1e26", "1e26"),
        ("long", JsonNumber("7.0"), 7),
        ("integer", "", ""),
        ("double", "1.5", Decimal("1.5")),
        ("double", "nan", "nan"),
        ("decimal(5,2)", " 1.50 ", Decimal("1.50")),
        ("double", True, True),
        ("boolean", "TRUE", True),
        ("boolean", 0, False),
        ("boolean", "1", True),
        ("boolean", "yes", "yes"),
        ("boolean", 2, 2),
        ("date", "2026-01-02", "2026-01-02"),
        ("date", "2026-01-02T00:00:00Z", date(2026, 1, 2)),
        ("date", NOON, ValueError),
        ("date", "2026-01-02T12:00:00z", ValueError),
        ("date", NOON.replace(hour=0), date(2026, 1, 2)),
        ("binary", "YQ", "YQ=="),
        ("binary", "a-_ \n", "a+/="),
        ("binary", b"a", b"a"),
        ("timestamp", " 2026 ", "2026"),
        ("timestamp", date(2026, 1, 2), NOON.replace(hour=0)),
        ("timestamp", NOON, NOON),
    ],
)
def test_other_spellings_of_a_value(kind, value, expected):
    def coerced(is_lenient):
        return coerce(kind, value, is_lenient=is_lenient, epoch="", rounds=False)

    if expected is ValueError:
        with pytest.raises(ValueError, match="2026"):
            coerced(True)
    else:
        assert coerced(True) == expected
        assert type(coerced(True)) is type(expected)
    assert coerced(False) is value  # a strict column changes nothing


@pytest.mark.parametrize(
    ("epoch", "value", "rounds", "microseconds"),
    [
        ("s", 1, False, 1_000_000),
        ("ms", 1, False, 1_000),
        ("us", 1, False, 1),
        ("ns", 1000, False, 1),
        ("s", "1.5", False, 1_500_000),
        ("s", -1, False, -1_000_000),
        ("ns", 1500, True, 2),
        ("ns", -1500, True, -2),
        ("ns", 1499, True, 1),
        ("ns", 1, False, ValueError),
        ("us", "0.5", False, ValueError),
        ("us", "0.5", True, 1),
        ("s", "1e20", True, OverflowError),
        ("s", True, False, None),
        ("s", "soon", False, None),
    ],
)
def test_numbers_stand_for_times(epoch, value, rounds, microseconds):
    def coerced():
        return coerce("timestamp", value, is_lenient=False, epoch=epoch, rounds=rounds)

    if isinstance(microseconds, type):
        with pytest.raises(microseconds):
            coerced()
    elif microseconds is None:
        assert coerced() == value
    else:
        since = coerced() - datetime(1970, 1, 1, tzinfo=UTC)
        assert round(since.total_seconds() * 1_000_000) == microseconds


# ---------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([4, 6, 1], [[4, 6], [1]]),  # exactly full
        ([4, 5, 1, 1], [[4, 5, 1], [1]]),
        ([4, 7, 1], [[4, 7], [1]]),  # a body may exceed the rest
        ([20, 20], [[20], [20]]),
        ([0] * 7, [[0] * 5, [0] * 2]),
        ([1] * 5, [[1] * 5]),
    ],
)
def test_a_piece_ends_when_it_is_full(monkeypatch, sizes, pieces):
    monkeypatch.setattr(staging, "MAX_PIECE_BYTES", 10)
    monkeypatch.setattr(staging, "MAX_PIECE_MESSAGES", 5)
    cutter = staging.Cutter(1, "T", "", 0)
    found = list(cutter._add(0, "T", [b"x" * size for size in sizes]))
    found.append(cutter._open[0].piece(0))
    assert [[len(body) for body in piece.bodies] for piece in found] == pieces


def digest_of(kind, *pieces):
    made = kind()
    assert list(made.observe(pieces)) == list(pieces)
    return made.value


@pytest.mark.parametrize("kind", [Digest, Checksum])
def test_a_digest_is_of_the_rows_and_not_of_their_order(kind):
    one, two = Piece(0, "T", [b"1", b"2"]), Piece(1, "T", [b"2", None])
    whole = digest_of(kind, one, two)
    assert whole == digest_of(kind, two, one) == digest_of(kind, Piece(3, "T", [None, b"2", b"1", b"2"]))
    assert whole != digest_of(kind, Piece(0, "T", [b"1", b"2", None]))  # a repeated row counts
    assert whole != digest_of(kind, one, two._replace(message_type="U"))
    if kind is Digest:
        assert digest_of(kind, Piece(0, "T", [b"ab"])) != digest_of(kind, Piece(0, "Ta", [b"b"]))
    parts = [digest_of(kind, one), digest_of(kind, two)]
    assert combine_digests(parts) == whole % 2**63
    assert combine_digests([parts[0], parts[0]]) == 2 * parts[0] % 2**63  # tasks with equal rows


def test_a_key_has_one_slot_in_every_process():
    assert [slot_of(key, 7) for key in ("a", b"a", 5, "5", None)] == [4, 4, 6, 6, 4]


# ---------------------------------------------------------------- the record of a run


@pytest.fixture
def pipe(tmp_path):
    return SimpleNamespace(queues=["q"], checkpoint=lambda queue: tmp_path / "q")


@pytest.mark.parametrize(
    ("host", "outcome", "is_killed"),
    [
        ("here", None, False),
        ("here", ProcessLookupError(), True),
        ("here", PermissionError(), False),  # a process of another user runs
        ("elsewhere", ProcessLookupError(), False),
    ],
)
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_run_whose_process_is_gone_was_killed(monkeypatch, pipe, host, outcome, is_killed, has_ended):
    def kill(process, number):
        assert number == 0
        if outcome is not None:
            raise outcome

    run = LastRun(last_run.last_run_path(pipe))
    states = [QueueState.RUNNING, QueueState.WAITING, QueueState.FAILED]
    counts = {"messages": 5, "restarts": 0}
    run.queues = [SimpleNamespace(label="q", state=state, reason="", counts=lambda: counts) for state in states]
    monkeypatch.setattr(last_run.socket, "gethostname", lambda: host)
    run.write(ended="now" if has_ended else None)
    monkeypatch.setattr(last_run.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(last_run.os, "kill", kill)
    found = read_last_run(pipe)
    killed = is_killed and not has_ended
    assert ("was killed" in (found["error"] or "")) == killed
    stopped = [str(QueueState.STOPPED)] * 2
    assert [queue["state"] for queue in found["queues"]][:2] == (
        stopped if killed else [str(one) for one in states[:2]]
    )
    assert found["queues"][2]["state"] == str(QueueState.FAILED)
    word = "has failed" if killed else "ended at" if has_ended else "runs since"
    assert word in describe(found)[0]


def test_a_failed_run_names_no_secret(monkeypatch, pipe):
    monkeypatch.setattr(variables, "_names_by_value", {"secret": "PASSWORD", "secret word": "PHRASE"})
    with pytest.raises(ValueError, match="secret"), LastRun.recording(pipe):
        assert read_last_run(pipe)["ended"] is None
        raise ValueError("no secret word,\nno secret")
    found = read_last_run(pipe)
    assert found["error"] == "no ${PHRASE}, no ${PASSWORD}"
    assert found["ended"] is not None
    with LastRun.recording(pipe):
        pass
    assert read_last_run(pipe)["error"] is None
