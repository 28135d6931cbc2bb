from __future__ import annotations

from datetime import UTC, datetime

import pytest

import servicebroker as sb
from servicebroker.model.event_instances import event_body, post_time

EVENT = sb.EventInstance("QUEUE_ACTIVATION", "t", 7, "s", "l", "dbo", "D & <E>", "dbo", "Q'é")


def test_a_written_event_is_read_back() -> None:
    assert sb.read_event(event_body(EVENT)) == EVENT
    assert event_body(EVENT)[:2] == b"\xff\xfe", "UTF-16 with its mark"


@pytest.mark.parametrize("sign", ["\0", "\x0b", "\uffff"])
def test_characters_invalid_in_xml_are_replaced(sign: str) -> None:
    event = EVENT._replace(command=f"CREATE TABLE t (a int DEFAULT '{sign}')")
    assert sb.read_event(event_body(event)).command == "CREATE TABLE t (a int DEFAULT '\ufffd')"


def test_the_time_has_milliseconds() -> None:
    assert post_time(datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)) == "2024-05-06T07:08:09.123"


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"no xml",
        b"<EVENT_INSTANCE/>",
        event_body(EVENT).decode("utf-16").replace(">7<", ">x<").encode("utf-16"),
        event_body(EVENT).decode("utf-16").replace("EVENT_INSTANCE", "OTHER").encode("utf-16"),
    ],
)
def test_anything_else_is_refused(body: bytes | None) -> None:
    with pytest.raises(ValueError, match="not an event notification"):
        sb.read_event(body)
