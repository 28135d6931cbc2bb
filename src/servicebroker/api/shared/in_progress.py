"""Messages in progress, in a file that outlives this process.

**The problem.** A handler may kill its process: `os._exit`, a segmentation fault, the out-of-memory killer. Its
transaction is rolled back, no policy is asked, and the next process takes the same message and dies too.

**The remedy.** A process with a supervisor (`servicebroker worker --processes`) notes its messages in a file. After its
death the supervisor reads the file, names the messages in its log, and tells the next process which message is fatal.
That process counts a failure of the message instead of running the handler, so the retry policy decides about it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.errors import InstanceError
from servicebroker.model.messages import Message
from servicebroker.model.named_files import read_file
from servicebroker.overriding import override

FILE_VARIABLE = "SERVICEBROKER_IN_PROGRESS"  # the file for the messages in progress
FATAL_VARIABLE = "SERVICEBROKER_FATAL_MESSAGES"  # JSON: the messages with which earlier processes have died


class NotedMessage(NamedTuple):
    """A message in progress, as the file has it."""

    queue: str
    conversation_handle: str
    message_sequence_number: int
    message_type_id: int
    message_type_name: str

    @override
    def __str__(self) -> str:
        return (
            f"message {self.message_sequence_number} of conversation {self.conversation_handle} "
            f"({self.message_type_name}) of {self.queue}"
        )


class _Notes:
    """The messages in progress of this process, and the fatal ones of earlier processes."""

    def __init__(self, file: str, fatal: Iterable[NotedMessage]) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._messages: list[NotedMessage] = []
        self._fatal = {_key_of_note(note) for note in fatal}

    @contextmanager
    def noted(self, queue: str, messages: Sequence[Message]) -> Iterator[None]:
        notes = [
            NotedMessage(
                queue,
                str(message.conversation_handle),
                message.message_sequence_number,
                message.message_type_id,
                message.message_type_name,
            )
            for message in messages
        ]
        with self._lock:
            self._messages += notes
            self._write()
        try:
            yield
        finally:
            with self._lock:
                for note in notes:
                    self._messages.remove(note)
                self._write()

    def take_fatal(self, messages: Sequence[Message]) -> bool:
        with self._lock:
            keys = self._fatal.intersection(map(_key, messages))
            if len(messages) == 1:
                self._fatal -= keys
            return bool(keys)

    def _write(self) -> None:
        text = json.dumps(self._messages).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


_notes: _Notes | None = None  # None without a supervisor
_UNNOTED = nullcontext()


def enable(file: str, fatal: str) -> None:
    """Note the messages in progress in `file` from now on. `fatal`: JSON of the fatal messages, '' for none."""
    global _notes
    _notes = _Notes(file, notes_in(fatal.encode()))


def noted(queue: str, messages: Sequence[Message]) -> AbstractContextManager[None]:
    """Return a context that notes the messages while a handler runs on them."""
    return _UNNOTED if _notes is None else _notes.noted(queue, messages)


def take_fatal(messages: Sequence[Message]) -> InstanceError | None:
    """Return the failure of a message with which an earlier process has died; None for another message.

    A failure of several messages is returned again, since they are then received one by one.
    """
    if _notes is None or not _notes.take_fatal(messages):
        return None
    return InstanceError("The worker process died while it handled the message.")


def notes_in(text: bytes) -> list[NotedMessage]:
    """Return the messages that the text of a file or variable has; none if it cannot be read."""
    try:
        rows, _ = json.JSONDecoder().raw_decode(text.decode())  # the end of a longer, older text may follow
        return [NotedMessage(*row) for row in rows]
    except (ValueError, TypeError):
        return []


def read_notes(file: Path) -> list[NotedMessage]:
    """Return the messages that a process which has died had in progress."""
    try:
        return notes_in(read_file(file))
    except OSError:
        return []


def _key(message: Message) -> tuple[UUID, int, int]:
    return message.conversation_handle, message.message_sequence_number, message.message_type_id


def _key_of_note(note: NotedMessage) -> tuple[UUID, int, int]:
    return UUID(note.conversation_handle), note.message_sequence_number, note.message_type_id
