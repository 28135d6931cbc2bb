"""The reasons why messages wait in the transmission queue: the texts of `transmission_status`."""

from __future__ import annotations

from servicebroker.model.errors import RULES

NOT_HERE = RULES[9796].text
INSTANCE_NOT_HERE = RULES[9795].text
TARGET_QUEUE_OFF = RULES[9749].text
SENDER_DISABLED = RULES[9791].text
DELAYED = "It is delayed, or a message before it on its conversation is."
NO_ACKNOWLEDGEMENT = (
    "It was sent and sent again over a connection that stands, and the other side acknowledges nothing."
)
_OLD_COPY = "as an old copy of its database does"
UNANSWERED = f"{NO_ACKNOWLEDGEMENT} It may be frozen or overloaded, or lack the conversation, {_OLD_COPY}."
CLOCK_DIFFERS = (
    "The clock of the target's broker differs from ours: it did not take what was dated by ours. The message goes "
    "again, dated by that clock."
)
TARGET_DISABLED = RULES[28012].text.format("Service broker is administratively disabled.")
