"""The activated procedure of the chaos run: it misbehaves as the file CHAOS_TROUBLE says, while the file exists."""

from __future__ import annotations

import os
import time
from pathlib import Path

import servicebroker as sb

TROUBLE = Path(os.environ["CHAOS_TROUBLE"])
LEAK_BYTES = 50 * 2**20  # bytes
_leaked: list[bytearray] = []


@sb.procedure("usp_Chaos", worker="process")
def work(transaction: sb.Transaction, message: sb.Message) -> None:
    """Process the message, unless the file asks for a fault."""
    while TROUBLE.exists():
        match TROUBLE.read_text():
            case "throws":
                raise ValueError("on purpose")
            case "exits":
                os._exit(3)
            case "leaks":
                _leaked.append(bytearray(os.urandom(LEAK_BYTES)))
                raise MemoryError("on purpose")
        time.sleep(0.1)  # hang
    if message.message_type_name == sb.END_DIALOG:
        transaction.end_conversation(message.conversation_handle)
