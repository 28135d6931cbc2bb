"""Buttons for what a finding of doctor advises: each finding names its acts, and here are their forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from servicebroker.engine.diagnosis.findings import Finding, Remedy

QueueNames = Mapping[str, tuple[str, str]]  # database and `schema.name`, by doctor's name of a queue


class Button(NamedTuple):
    """A button: the action, its label, and the fields of its form.

    An action with a `consequence` asks first, by a second button below that text.
    """

    action: str
    label: str
    fields: dict[str, str]
    consequence: str = ""


def buttons(finding: Finding, names: QueueNames, database: str = "") -> list[Button]:
    """Return the buttons of a finding. `database` is the database of the conversation, for a finding about one."""
    possible = (_button(act, names, database) for act in finding.acts)
    return [button for button in possible if button is not None]


def _button(act: Remedy, names: QueueNames, database: str) -> Button | None:
    """Return the button of an act; None if its object is unknown by now."""
    subject = act.subject
    if act.name in ("retry", "switch-on", "restart-activation"):
        if subject not in names:
            return None
        of_database, queue = names[subject]
        fields = {"database": of_database, "queue": queue}
        if act.name == "retry":
            return Button("retry", f"Retry failed messages of {queue} now", fields)
        if act.name == "switch-on":
            return Button("retry", f"Switch on {queue}, and retry", fields)
        return Button("restart-activation", f"Start the activation of {queue} again", fields)
    if act.name == "enable-broker":
        return Button("enable-broker", f"Enable the broker of {subject}", {"database": subject})
    if act.name == "end-conversation":
        return Button(
            "end",
            f"End conversation {subject}",
            {"database": database, "handle": subject},
            "Messages that this side has not received are removed, and the other side gets an EndDialog message.",
        )
    if act.name == "remove-conversation":
        return Button(
            "clean-up",
            f"Remove conversation {subject}",
            {"database": act.database, "handle": subject},
            "Its messages are lost, also sent ones that are not delivered yet. The other side gets no message.",
        )
    if act.name == "end-session":
        return Button(
            "end-session",
            f"End session {subject}",
            {"pid": subject},
            "Its transaction is rolled back, so received messages return to their queues. Its program loses the "
            "connection.",
        )
    raise AssertionError(act)
