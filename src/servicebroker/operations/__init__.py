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
           `interpreters`: engine/conversation/owner_verbs.py for the owner,
           restricted_verbs.py for a restricted role; testing/verbs.py for the double, which has no wrappers

**The rules.**

* An operation is a frozen dataclass: what it is does not depend on who says it, where or when. It knows the model and
  nothing else: no catalog, no connection, no clock.
* A field is declared here and nowhere else: its name, type and default are the parameters of the methods, its line in
  `Args` is their help. What a field cannot be is refused here, by a method that each interpreter calls first.
* Interpreters share fields, help and permission with the double, and no rule about states, order and rights. Only so
  can the model test find a fault in either.
* What surrounds a statement is a wrapper in the list of the operation, not a method between face and interpreter.

Begin with `send.py`, then `api/aio/wrappers.py`, then `_send` in `engine/conversation/owner_verbs.py`. The worked
example "Add a field to an operation" is in docs/architecture.md.

**Definitions.** CREATE, ALTER, DROP, GRANT and their like are operations, too. Python (`operated(CreateQueue)` in
api/aio/definitions.py), T-SQL (`bound` in tsql/interpreter/definitions/binding.py takes the fields from clauses of the
same names) and `define` (`changes` in application.py) make the value. `run` of a database runs it: in one transaction,
retrying while readers are in the way, or in several transactions (`_RUNNERS` in api/aio/definitions.py). The steps are
in `INTERPRETERS` of engine/catalog/definitions.py; the double has its own in testing/definitions.py.
"""

from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.bindings import (
    AlterRemoteServiceBinding,
    CreateRemoteServiceBinding,
    DropRemoteServiceBinding,
)
from servicebroker.operations.certificates import (
    AlterCertificate,
    AlterTransportCertificate,
    BackupCertificate,
    CreateCertificate,
    CreateTransportCertificate,
    DropCertificate,
    DropTransportCertificate,
)
from servicebroker.operations.contracts import CreateContract, DropContract
from servicebroker.operations.databases import AlterDatabase, DropDatabase
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.endpoints import AlterEndpoint, CreateEndpoint, DropEndpoint
from servicebroker.operations.event_notifications import CreateEventNotification, DropEventNotification
from servicebroker.operations.logins import (
    CreateLogin,
    DenyConnect,
    DenyOnInstance,
    DropLogin,
    GrantConnect,
    GrantOnInstance,
    RevokeConnect,
    RevokeOnInstance,
)
from servicebroker.operations.master_keys import (
    AddMasterKeyPassword,
    AlterMasterKey,
    CloseMasterKey,
    CreateMasterKey,
    DropMasterKey,
    DropMasterKeyPassword,
    OpenMasterKey,
    RegenerateMasterKey,
)
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType, DropMessageType
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Definition, Operation
from servicebroker.operations.permissions import AlterAuthorization, Deny, Grant, Revoke
from servicebroker.operations.principals import (
    AddRoleMember,
    CreateRole,
    CreateUser,
    DropRole,
    DropRoleMember,
    DropUser,
)
from servicebroker.operations.priorities import AlterBrokerPriority, CreateBrokerPriority, DropBrokerPriority
from servicebroker.operations.queues import AlterQueue, CreateQueue, DropQueue
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer
from servicebroker.operations.rights import GrantRights, RevokeRights
from servicebroker.operations.routes import AlterRoute, CreateRoute, DropRoute
from servicebroker.operations.schedules import DropSchedule, Schedules
from servicebroker.operations.schema_collections import (
    AlterXmlSchemaCollection,
    CreateXmlSchemaCollection,
    DropXmlSchemaCollection,
)
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.services import AlterService, CreateService, DropService
from servicebroker.operations.set_aside import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.transmission_status import GetTransmissionStatus

__all__ = [
    "AddMasterKeyPassword",
    "AddRoleMember",
    "AlterAuthorization",
    "AlterBrokerPriority",
    "AlterCertificate",
    "AlterDatabase",
    "AlterEndpoint",
    "AlterMasterKey",
    "AlterMessageType",
    "AlterQueue",
    "AlterRemoteServiceBinding",
    "AlterRoute",
    "AlterService",
    "AlterTransportCertificate",
    "AlterXmlSchemaCollection",
    "BackupCertificate",
    "BeginConversationTimer",
    "BeginDialog",
    "BeginRequest",
    "CancelDelayed",
    "CloseMasterKey",
    "CreateBrokerPriority",
    "CreateCertificate",
    "CreateContract",
    "CreateEndpoint",
    "CreateEventNotification",
    "CreateLogin",
    "CreateMasterKey",
    "CreateMessageType",
    "CreateQueue",
    "CreateRemoteServiceBinding",
    "CreateRole",
    "CreateRoute",
    "CreateService",
    "CreateTransportCertificate",
    "CreateUser",
    "CreateXmlSchemaCollection",
    "DeadLetterGroups",
    "Definition",
    "DelayedMessages",
    "Deny",
    "DenyConnect",
    "DenyOnInstance",
    "DiscardMessage",
    "DropBrokerPriority",
    "DropCertificate",
    "DropContract",
    "DropDatabase",
    "DropEndpoint",
    "DropEventNotification",
    "DropLogin",
    "DropMasterKey",
    "DropMasterKeyPassword",
    "DropMessageType",
    "DropQueue",
    "DropRemoteServiceBinding",
    "DropRole",
    "DropRoleMember",
    "DropRoute",
    "DropSchedule",
    "DropService",
    "DropTransportCertificate",
    "DropUser",
    "DropXmlSchemaCollection",
    "EndConversation",
    "GetConversationGroup",
    "GetTransmissionStatus",
    "Grant",
    "GrantConnect",
    "GrantOnInstance",
    "GrantRights",
    "MoveConversation",
    "OpenMasterKey",
    "Operation",
    "Receive",
    "RegenerateMasterKey",
    "ReplayMessage",
    "Request",
    "Revoke",
    "RevokeConnect",
    "RevokeOnInstance",
    "RevokeRights",
    "Schedules",
    "Send",
    "SendBatch",
    "SetAsideMessages",
    "WaitForAnswer",
]
