"""The statements of Service Broker as values (operations), each declared once for all APIs and all interpreters.

**The problem.** The blocking API, the asyncio API and T-SQL issue the same statement. Three interpreters run it: the
engine for the owner of the schema, the fence (functions for restricted roles), and the in-memory double for tests. If
each of them had a signature of its own, a new clause would change a dozen files, and they would drift apart.

**The flow.** An API makes an operation, wrappers (middleware) surround it, an interpreter runs it::

    db.send(handle, "M", b"x")          SEND ON CONVERSATION @h MESSAGE TYPE M (0x78)
      operation_method(Send): api/wrappers.py     _sending: tsql/interpreter/conversations.py
                         \\                /
                       Send(handle, "M", b"x")                     a value of this package
                                 |
         `run` of the verbs, within the list `WRAPPERS`: count, trace, retry, raise events
                                 |
           `interpreters`: engine/conversation/owner_verbs.py for the owner,
           restricted_verbs.py for a restricted role; testing/verbs.py for the double, which has no wrappers

**The rules.**

* An operation is a frozen dataclass. It depends on the package `model` only, and has no catalog, connection or clock.
* A field is declared once, in this package. Its name, type and default become the parameters of the methods, and its
  line in `Args` becomes their help. `check` refuses invalid values; each interpreter calls it first.
* The engine and the double share the fields, help and permission of an operation, but no rule about states, order and
  rights. Otherwise a test that compares the two could not find a bug.
* Counting, tracing and retries are wrappers in the list `WRAPPERS`, not methods between the API and the interpreter.

Begin with `send.py`, then `api/aio/wrappers.py`, then `_send` in `engine/conversation/owner_verbs.py`. The worked
example "Add a field to an operation" is in docs/additions.md.

**Definitions.** CREATE, ALTER, DROP, GRANT and similar statements are operations, too. Three places make them: Python
(`operation_method(CreateQueue)` in api/aio/definitions.py), T-SQL (`bound` in tsql/interpreter/definitions/binding.py,
which reads the fields from clauses of the same names) and `define` (`changes` in application.py). `run` of a database
runs them: in one transaction, with retries after lock timeouts, or in several transactions (`_RUNNERS` in
api/aio/definitions.py). Their steps are in `INTERPRETERS` of engine/catalog/definitions.py, and for the double in
testing/definitions.py.
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
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
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
