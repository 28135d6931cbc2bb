"""The statements of Service Broker as values, each declared once for all who say it and all who run it.

**The problem.** Python, asyncio and T-SQL say a statement; the owner's engine, the fence of restricted roles and the
in-memory double run it. With a signature in each of them, a clause stands in a dozen files, and they drift apart.

**The flow.** A face makes a value, wrappers surround it, an interpreter runs it::

    db.send(handle, "M", b"x")          SEND ON CONVERSATION @h MESSAGE TYPE M (0x78)
      operated(Send): api/wrappers.py     _sending: tsql/interpreter/conversations.py
                         \\                /
                       Send(handle, "M", b"x")                     a value of this package
                                 |
         `run` of the verbs, within the list `WRAPPERS`: counted, traced, repeated, watched
                                 |
           `interpreters`: engine/conversation/plain_verbs.py for the owner,
           fenced_verbs.py for a restricted role; testing/verbs.py for the double, which has no wrappers

**The rules.**

* An operation is a frozen dataclass: what it is does not depend on who says it, where or when. It knows the model and
  nothing else: no catalog, no connection, no clock.
* A field is declared here and nowhere else: its name, type and default are the parameters of the methods, its line in
  `Args` is their help. What a field cannot be is refused here, by a method that each interpreter calls first.
* Interpreters share fields, help and permission with the double, and no rule about states, order and rights. Only so
  can the model test find a fault in either.
* What surrounds a statement is a wrapper in the list of the operation, not a method between face and interpreter.

Begin with `send.py`, then `api/aio/wrappers.py`, then `_send` in `engine/conversation/plain_verbs.py`. The worked
example "Add a field to an operation" is in docs/architecture.md. The verbs of
conversations are operations; definitions follow (decision 440).
"""

from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.set_aside import DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.transmission_status import GetTransmissionStatus

__all__ = [
    "BeginConversationTimer",
    "BeginDialog",
    "BeginRequest",
    "DiscardMessage",
    "EndConversation",
    "GetConversationGroup",
    "GetTransmissionStatus",
    "MoveConversation",
    "Operation",
    "Receive",
    "ReplayMessage",
    "Request",
    "Send",
    "SendBatch",
    "SetAsideMessages",
    "WaitForAnswer",
]
