"""Readable names of SQL statements: the T-SQL verb for its main statements, else the words of the statement's name."""

from __future__ import annotations

VERBS = {
    "begin.begin_at": "BEGIN DIALOG",
    "conversation.send": "SEND",
    "send.open_and_send": "SEND that opens the conversation",
    "send.answer": "SEND of an answer",
    "send.send_batch": "SEND of a batch",
    "send.transmit": "SEND to another instance",
    "conversation.receive": "RECEIVE",
    "conversation.receive.groups": "RECEIVE of several groups",
    "owner_verbs.register_reader.insert_readers": "RECEIVE begins to wait",
    "owner_verbs.register_reader.delete_readers": "RECEIVE waits no longer",
    "end.end_dialog": "END CONVERSATION",
}


def readable(name: str) -> str:
    """Return the display name of a statement: "Queue counts: stored queues" for `queue_counts.stored_queues`."""
    module, _, rest = name.replace("_", " ").partition(".")
    return VERBS.get(name) or ": ".join(filter(None, (module.capitalize(), rest.replace(".", ", "))))
