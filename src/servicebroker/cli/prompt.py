"""The prompt of `servicebroker sql`: lines up to GO, with history and completion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import TransactSqlLexer

from servicebroker.cli.output import say
from servicebroker.cli.sqlcmd import Sqlcmd
from servicebroker.overriding import override
from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError

_SERVICE_BROKER_WORDS = (
    "ACTIVATION CERTIFICATE CLEANUP CONTRACT CONVERSATION DESCRIPTION DIALOG ENCRYPTION ENDPOINT ERROR INITIATOR "
    "LIFETIME MESSAGE NOTIFICATION PRIORITY QUEUE RECEIVE REMOTE RETENTION ROUTE SEND SENT SERVICE STATUS TARGET "
    "TIMEOUT TIMER VALIDATION WELL_FORMED_XML conversation_group_id conversation_handle message_body message_type_name "
    "sys.conversation_endpoints sys.databases sys.routes sys.service_contracts sys.service_message_types "
    "sys.service_queues sys.services sys.transmission_queue"
)


class WordsAndNames(Completer):
    """Completes words of T-SQL, and names of objects in the current database."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._words = sorted(RESERVED | set(_SERVICE_BROKER_WORDS.split()), key=str.lower)

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the word at the cursor."""
        word = document.get_word_before_cursor(WORD=True).lstrip("([,")
        if not word:
            return
        for name in (*self._words, *self._session.names()):
            if name.lower().startswith(word.lower()):
                yield Completion(name, -len(word))


def prompt(session: Session, sqlcmd: Sqlcmd, history: Path | None = None) -> None:
    """Read and run batches until QUIT, EXIT or the end of input. `history` is the file of earlier batches."""
    file = history or Path.home() / ".servicebroker_history"
    try:
        file.touch(mode=0o600)
        earlier_batches: FileHistory | InMemoryHistory = FileHistory(str(file))
    except OSError:
        earlier_batches = InMemoryHistory()
    prompt_session: PromptSession[str] = PromptSession(
        history=earlier_batches,
        completer=WordsAndNames(session),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        lexer=PygmentsLexer(TransactSqlLexer),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=lambda width, number, wrapped: f"{number + 1:>{max(width - 2, 1)}}> ",
    )
    say("GO on a line of its own runs the batch; QUIT ends the session.")
    while True:
        try:
            text = prompt_session.prompt(lambda: f"{session.machine.context.database.name}> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip().upper().rstrip(";") in ("QUIT", "EXIT"):
            return
        try:
            session.run(sqlcmd.expand(text, Path.cwd()).text)
        except TsqlError as unreadable:
            session.machine.emit(unreadable)
        except KeyboardInterrupt:
            say("Interrupted.")


def is_complete(text: str) -> bool:
    """Return whether Enter runs the text: its last line is GO, or it is QUIT, EXIT or a directive of sqlcmd."""
    if "\n" not in text and text.startswith(":"):
        return True
    last = text.rstrip().split("\n")[-1].strip().upper().rstrip(";")
    return last.split(" ")[0] == "GO" or text.strip().upper().rstrip(";") in ("QUIT", "EXIT")


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys
