"""The errors of this package, and `RULES`: the texts of all numbers.

A `BrokerError` is the answer of the broker to a statement and has a number of Service Broker. An `InstanceError` means
that the instance itself cannot be reached or created. `DomainError` and `BodyError` are errors of a call in Python. The
last three have no numbers. `RULES` also has the texts of Error messages, of `transmission_status` and of the log.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from servicebroker.model.wording import cut, safe_text

WRONG_ARGUMENT = 402
LONGEST_VALUE = 2_000  # characters of a name or other value in the text of an error
LONGEST_TEXT = 20_000  # characters of an error in all
ERROR_NAMESPACE = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"


class ServiceBrokerError(Exception):
    """The base of all errors of this package. Long texts are cut to a maximum length."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(cut(argument, LONGEST_TEXT) if isinstance(argument, str) else argument for argument in arguments)
        )


class InstanceError(ServiceBrokerError):
    """The instance cannot be started, reached or used. The message says what to do."""


class LockTimeout(InstanceError):
    """PostgreSQL gave up waiting for a lock, because of the session's lock_timeout."""


class Unreachable(InstanceError):
    """No connection to the PostgreSQL server was possible: no statement was sent."""


class NotAdopted(InstanceError):
    """The data folder or database holds a copy of an instance: `servicebroker instance adopt` decides what it is."""


class NoInstance(InstanceError):
    """The data folder or database has no instance, and the command does not create one."""


class JoinError(InstanceError, TypeError):
    """`join` needs an open psycopg connection, or an object that has one."""


class DomainError(ServiceBrokerError):
    """A domain, or a membership in one, cannot be created, read or used. The message says what to do."""


class BodyError(ServiceBrokerError, ValueError):
    """A body does not fit the codec of its message type (`servicebroker.codec`)."""


class BrokerError(ServiceBrokerError):
    """A statement was refused, and has changed nothing.

    Attributes:
        number: the Service Broker error number, for example 8429.
        severity: 10 (information) to 25; 16 for almost all.
        state: distinguishes the places that raise the same number.
        text: the filled-in text, without the hint.
        place: the position of the SEND among pipelined SENDs, from 0; None outside of a pipeline.
    """

    def __new__(cls, number: int, *values: object, **named: object) -> BrokerError:
        """Create an `ArgumentError` for number 402."""
        kind: type[BrokerError] = ArgumentError if cls is BrokerError and number == WRONG_ARGUMENT else cls
        return super().__new__(kind, number, *values)

    def __init__(self, number: int, *values: object, hint: str = "", state: int = 1) -> None:
        rule = RULES[number]
        self.number = number
        self.severity = rule.severity
        self.state = state
        self.text = rule.text.format(*(cut(safe_text(value), LONGEST_VALUE) for value in values))
        self.hint = hint
        advice = hint or rule.hint
        message = f"Msg {number}, Level {self.severity}, State {state}: {self.text}"
        self.place: int | None = None
        super().__init__(f"{message} {advice}" if advice else message)

    def of_send(self, place: int, what: str) -> Self:
        """Add the position of its SEND among pipelined SENDs, and return this error."""
        self.place = place
        position = f"This is SEND {place} of the pipeline: {what}."
        self.hint = f"{self.hint} {position}".strip()
        self.args = (f"{self.args[0]} {position}",)
        return self


class ArgumentError(BrokerError, TypeError, ValueError):
    """The error 402: a mistake of the program, which is a TypeError and a ValueError too."""


class Rule(NamedTuple):
    """The text and severity of one error number, and the advice for its usual cause."""

    text: str
    severity: int = 16
    hint: str = ""


MINIMUM_LIFETIME = 1  # second
MAXIMUM_LIFETIME = 2_147_483_647  # seconds; also the default (docs/reference/rules.md#begin-dialog)

_NAMES_ARE_EXACT = "Names are compared byte by byte, also upper and lower case: check the spelling."
_UNDELIVERABLE = "This message could not be delivered because "

RULES: dict[int, Rule] = {
    208: Rule("Invalid object name '{0}'."),
    218: Rule("Could not find the type '{0}'. Either it does not exist or you do not have the necessary permission."),
    226: Rule("{0} is not allowed within an open transaction."),
    229: Rule("The {0} permission was denied on the object '{1}', database '{2}', schema '{3}'.", 14),
    259: Rule("Ad hoc updates to system catalogs are not allowed."),
    262: Rule("{0} permission denied in database '{1}'.", 14),
    402: Rule("Wrong argument: {0} is {1}; it must be {2}."),
    416: Rule('The service queue "{0}" cannot be directly updated.'),
    911: Rule("Database '{0}' does not exist."),
    916: Rule(
        'The server principal "{0}" is not able to access the database "{1}" under the current security context.',
        14,
    ),
    1084: Rule("'{0}' is an invalid event type.", 15),
    1088: Rule('Cannot find the object "{0}" because it does not exist or you do not have permissions.'),
    1093: Rule("'{0}' is not a valid broker name."),
    1098: Rule("The specified event type(s) is/are not valid on the specified target object: {0} on a {1}.", 15),
    1205: Rule(
        "Transaction (Process ID {0}) was deadlocked on {1} resources with another process and has been chosen as "
        "the deadlock victim. Rerun the transaction.",
        13,
    ),
    1801: Rule("Database '{0}' already exists. Choose a different database name."),
    1914: Rule("Index cannot be created on object '{0}' because the object is not a user table or view."),
    2010: Rule("Cannot perform alter on '{0}' because it is an incompatible object type."),
    2104: Rule("Cannot create the trigger '{0}', because you do not have permission.", 14),
    2378: Rule("Expected XML schema document."),
    2714: Rule("There is already an object named '{0}' in the database."),
    2760: Rule('The specified schema name "{0}" either does not exist or you do not have permission to use it.'),
    3701: Rule("Cannot {0} the {1} '{2}', because it does not exist or you do not have permission.", 14),
    3702: Rule('Cannot drop database "{0}" because it is currently in use.'),
    3705: Rule("Cannot use {0} with '{1}' because '{1}' is a {2}. Use {3}."),
    3708: Rule("Cannot drop the database '{0}' because it is a system database."),
    3716: Rule("Cannot drop the {0} '{1}' because it is bound to one or more {2}."),
    3859: Rule("Warning: The system catalog was updated directly: {0}.", 10),
    3906: Rule('Failed to update database "{0}" because the database is read-only.'),
    4606: Rule("Granted or revoked privilege {0} is not compatible with object."),
    4611: Rule("To revoke or deny grantable privileges, specify the CASCADE option."),
    4613: Rule("Grantor does not have GRANT permission."),
    4617: Rule("Cannot grant, deny or revoke permissions to or from special roles."),
    4621: Rule("Permissions at the server scope can only be granted when the current database is master."),
    4624: Rule(
        "Cannot grant, deny, or revoke permissions to sa, dbo, entity owner, information_schema, sys, or yourself."
    ),
    4708: Rule("Could not truncate object '{0}' because it is not a table."),
    4909: Rule("Cannot alter '{0}' because it is not a table."),
    5011: Rule(
        "User does not have permission to alter database '{0}', the database does not exist, "
        "or the database is not in a state that allows access checks.",
        14,
    ),
    5070: Rule("Database state cannot be changed while other users are using the database '{0}'."),
    5837: Rule("The Service Broker endpoint cannot listen on dynamic ports. Valid port numbers are 1024 to 32767."),
    5838: Rule("The connection authentication value of the Service Broker endpoint is invalid."),
    5839: Rule("The message forward store size of the Service Broker endpoint cannot be set to 0."),
    5840: Rule("The message forwarding mode of the Service Broker endpoint is invalid."),
    7874: Rule("An endpoint already exists with the specified bindings."),
    8197: Rule("The object '{0}' does not exist or is invalid for this operation."),
    8401: Rule(
        _UNDELIVERABLE + "the target user with ID {0} in database ID {1} does not have permission to receive from the "
        "queue '{2}'."
    ),
    8403: Rule("The message type '{0}' is specified more than once. Remove the duplicate message type."),
    8404: Rule("The service contract '{0}' is specified more than once. Remove the duplicate service contract."),
    8405: Rule(
        "An error occurred in the service broker queue rollback handler, while trying to disable a queue. "
        "Database ID: {0}, Queue ID: {1}, Error: {2}, State: {3}."
    ),
    8406: Rule("The dialog lifetime can not be NULL. Specify a valid dialog lifetime value from {0} to {1}."),
    8408: Rule("Target service '{0}' does not support contract '{1}'."),
    8410: Rule("The conversation timer cannot be set beyond the conversation's lifetime."),
    8411: Rule(
        "The dialog lifetime value of {0} is outside the allowable range of {1} to {2}. "
        "Specify a valid dialog lifetime value."
    ),
    8413: Rule(
        "The syntax of the broker instance '{0}' is invalid. "
        "The specified broker instance is too long, the maximum size is 256 bytes."
    ),
    8414: Rule("The conversation group ID '{0}' is invalid in this context. Specify a different conversion group ID."),
    8415: Rule(
        "The activated task was aborted because the invoked stored procedure '{0}' did not issue COMMIT or ROLLBACK "
        "on one or more transactions that it begun."
    ),
    8417: Rule("The service contract name is NULL. Specify a service contract name."),
    8418: Rule("The conversation handle is missing. Specify a conversation handle."),
    8419: Rule(
        "Both the error code and the description must be provided for END CONVERSATION WITH ERROR. "
        "Neither value can be NULL."
    ),
    8420: Rule("The conversation group is missing. Specify a conversation group."),
    8421: Rule("The service name is missing. Specify a service name."),
    8422: Rule("The error description is missing. Specify a description of the error."),
    8423: Rule('The service "{0}" is not found.', hint=_NAMES_ARE_EXACT),
    8424: Rule(
        "The error code and error description are missing. Specify both the error code and description of the error."
    ),
    8425: Rule("The service contract '{0}' is not found.", hint=_NAMES_ARE_EXACT),
    8426: Rule(
        'The conversation handle "{0}" is not found.',
        hint="It has ended on this side, or the handle is that of the other side: see sys.conversation_endpoints.",
    ),
    8427: Rule(
        "The conversation endpoint is not in a valid state for END CONVERSATION. The current endpoint state is '{0}'."
    ),
    8428: Rule('The message type "{0}" is not found.', hint=_NAMES_ARE_EXACT),
    8429: Rule("The conversation endpoint is not in a valid state for SEND. The current endpoint state is '{0}'."),
    8430: Rule("The message body failed the configured validation."),
    8431: Rule("The message type '{0}' is not part of the service contract."),
    8432: Rule(
        "The message cannot be sent because the message type '{0}' is marked SENT BY TARGET in the contract, "
        "however this service is an Initiator."
    ),
    8433: Rule("The message body may not be NULL. A zero-length UNICODE or binary string is allowed."),
    8434: Rule(
        "The message cannot be sent because the message type '{0}' is marked SENT BY INITIATOR "
        "in the contract, however this service is a Target."
    ),
    8436: Rule('The conversation group "{0}" is not found.'),
    8437: Rule(
        "The message received was sent by a Target service, but the message type '{0}' is marked SENT BY INITIATOR "
        "in the contract."
    ),
    8438: Rule(
        "The conversation endpoint is not in a valid state for MOVE CONVERSATION. The current endpoint state is '{0}'."
    ),
    8439: Rule("The destination conversation group '{0}' is invalid."),
    8442: Rule(
        "There is no Service Broker active in the database. "
        "Change to a database context that contains a Service Broker."
    ),
    8444: Rule("The service queue structure is inconsistent: queue with ID {0}.", 23),
    8457: Rule(
        "The message received was sent by the initiator of the conversation, but the message type '{0}' is marked "
        "SENT BY TARGET in the contract."
    ),
    8458: Rule(
        "The conversation endpoint is not in a valid state for BEGIN CONVERSATION TIMER. "
        "The current endpoint state is '{0}'."
    ),
    8459: Rule("The message size, including header information, exceeds the maximum allowed of {0}."),
    8462: Rule(
        "The remote conversation endpoint is either in a state where no more messages can be exchanged, "
        "or it has been dropped."
    ),
    8468: Rule("Underlying service has been altered."),
    8470: Rule("Remote service has been dropped."),
    8487: Rule("The remote service contract has been dropped."),
    8489: Rule("The dialog has exceeded the specified LIFETIME."),
    8490: Rule("Cannot find the remote service '{0}' because it does not exist."),
    8492: Rule("The service contract '{0}' must have at least one message SENT BY INITIATOR or ANY."),
    8493: Rule("The alter of service '{0}' must change the queue or at least one contract."),
    8494: Rule("You do not have permission to access the service '{0}'."),
    8495: Rule("The conversation has already been acknowledged by another instance of this service."),
    8498: Rule("The remote service has sent a message of type '{0}' that is not part of the local contract."),
    8499: Rule(
        "The remote service has sent a message body of type '{0}' that does not match the message body encoding "
        "format. This occurred in the message with Conversation ID '{1}', Initiator: {2}, and Message sequence "
        "number: {3}."
    ),
    8992: Rule("Check Catalog: {0}."),
    9601: Rule("Cannot relate to {0} {1} because it is {2}."),
    9609: Rule("The {0} name '{1}' contains more than the maximum number of prefixes. The maximum is {2}."),
    9610: Rule("The service '{0}' in the FROM SERVICE clause must match the service '{1}' referenced by {2} = '{3}'."),
    9611: Rule("Cannot find the specified user '{0}'."),
    9613: Rule("The queue '{0}' cannot be activated because the activation user is not specified."),
    9614: Rule(
        "The queue '{0}' cannot be activated because the activation stored procedure is either not specified or is "
        "invalid."
    ),
    9615: Rule(
        "A message of type '{0}' failed XML validation on the target service. {1} This occurred in the message "
        "with Conversation ID '{2}', Initiator: {3}, and Message sequence number: {4}."
    ),
    9616: Rule(
        "A message of type '{0}' was received and failed XML validation. {1} This occurred in the message "
        "with Conversation ID '{2}', Initiator: {3}, and Message sequence number: {4}."
    ),
    9617: Rule('The service queue "{0}" is currently disabled.'),
    9618: Rule(
        "The message cannot be sent because the service queue '{0}' associated with the dialog is currently disabled "
        "and retention is on."
    ),
    9619: Rule(
        "Failed to create remote service binding '{0}'. A remote service binding for service '{1}' already exists."
    ),
    9644: Rule("An error occurred in the service broker message dispatcher: {0}."),
    9648: Rule(
        "The queue '{0}' has been enabled for activation, but the MAX_QUEUE_READERS is zero. No procedures will be "
        "activated. Consider increasing the number of MAX_QUEUE_READERS.",
        10,
    ),
    9653: Rule("The signature of activation stored procedure '{0}' is invalid. Parameters are not allowed."),
    9659: Rule("The {0} of route '{1}' cannot be empty."),
    9660: Rule("The {0} of route '{1}' must be less than {2} characters long."),
    9661: Rule('The SERVICE_NAME and BROKER_INSTANCE of route "{0}" must be specified when using mirroring.'),
    9662: Rule('Cannot specify BROKER_INSTANCE without SERVICE_NAME in route "{0}".'),
    9663: Rule("The system object cannot be modified."),
    9666: Rule("The Service Broker protocol transport is disabled or not configured.", 10),
    9680: Rule("The conversation endpoint '{0}' is referencing the missing conversation group '{1}'."),
    9681: Rule("The conversation endpoint '{0}' is referencing the missing service contract with ID {1}."),
    9682: Rule("The conversation endpoint '{0}' is referencing the missing service with ID {1}."),
    9683: Rule("The conversation group '{0}' is referencing the missing service with ID {1}."),
    9692: Rule(
        "The Service Broker protocol transport cannot listen on port {0} because it is in use by another process."
    ),
    9693: Rule(
        "The Service Broker protocol transport could not listen for connections due to the following error: '{0}'."
    ),
    9705: Rule("The messages in the queue with ID {0} are referencing the invalid conversation handle '{1}'."),
    9707: Rule("The queue with ID {0} is referencing the invalid user ID {1} in the EXECUTE AS of its activation."),
    9708: Rule("The messages in the queue with ID {0} are referencing the invalid conversation group '{1}'."),
    9709: Rule("The messages in the queue with ID {0} are referencing the invalid message type ID {1}."),
    9711: Rule("The transmission queue is referencing the invalid conversation handle '{0}'."),
    9715: Rule("The conversation endpoint with conversation ID '{0}' and is_initiator: {1} is inconsistent."),
    9716: Rule("The conversation group '{0}' references no conversation."),
    9717: Rule(
        "Cannot enable stored procedure activation on queue '{0}'. Event notification for queue_activation is already "
        "configured on this queue."
    ),
    9718: Rule(
        'Cannot create event notification for queue_activation on queue "{0}". Stored procedure activation is already '
        "configured on this queue."
    ),
    9719: Rule("The database for this conversation endpoint is attached or restored."),
    9720: Rule("The database for the remote conversation endpoint is attached or restored."),
    9724: Rule("The activated proc '{0}' running on queue '{1}' output the following: '{2}'.", 10),
    9727: Rule(
        "Dialog security is not available for this conversation because there is no remote service binding for the "
        "target service. Create a remote service binding, or specify ENCRYPTION = OFF in the BEGIN DIALOG statement."
    ),
    9731: Rule(
        "Dialog security is unavailable for this conversation because there is no security certificate bound to the "
        "database principal (Id: {0}). Either create a certificate for the principal, or specify ENCRYPTION = OFF when "
        "beginning the conversation."
    ),
    9733: Rule("There is no private key for the security certificate bound to database principal (Id: {0})."),
    9735: Rule("The public key of the security certificate bound to database principal (Id: {0}) cannot be used here."),
    9737: Rule(
        "The private key for the security certificate bound to the database principal (ID {0}) is password protected. "
        "Password protected private keys are not supported for use with secure dialogs."
    ),
    9742: Rule(
        "The activation stored procedure '{0}' is invalid. Temporary procedures may not be configured for activation."
    ),
    9743: Rule('The {0} of route "{1}" must be an address when using mirroring.'),
    9744: Rule('The {0} of route "{1}" is not a valid address.'),
    9745: Rule("The ADDRESS of route '{0}' cannot be 'TRANSPORT' when SERVICE_NAME is specified."),
    9746: Rule("The LIFETIME of route '{0}' must be in the range {1} to {2}."),
    9747: Rule("The ADDRESS and MIRROR_ADDRESS of route '{0}' cannot be the same."),
    9748: Rule("The {0} protocol transport is not available.", 10),
    9749: Rule("Target queue is busy; message(s) queued for delivery.", 10),
    9750: Rule(
        "No route matches the destination service name for this conversation. Create a route to the destination "
        "service name for messages in this conversation to be delivered.",
        10,
    ),
    9751: Rule("Authentication failed with error: '{0}'.", 10),
    9753: Rule("The target service broker is unreachable.", 10),
    9758: Rule("Login protocol negotiation error occurred.", 10),
    9761: Rule(
        "The Broker Configuration conversation on dialog handle '{0}' closed due to an error. To troubleshoot this "
        "problem, investigate the error: '{1}'."
    ),
    9762: Rule(
        "An error occurred while looking up the public key certificate associated with this SQL Server instance: "
        "No certificate was found.",
        10,
    ),
    9763: Rule(
        "An error occurred while looking up the public key certificate associated with this SQL Server instance: "
        "The certificate found is not valid at the current time.",
        10,
    ),
    9767: Rule(
        "The security certificate bound to database principal (Id: {0}) has been disabled for use with BEGIN DIALOG."
    ),
    9770: Rule("Locating routes and security information via the Broker Configuration Service.", 10),
    9772: Rule(
        'The Service Broker in database "{0}" cannot be enabled because there is already an enabled Service Broker '
        "with the same ID."
    ),
    9779: Rule(
        "Service Broker received an END CONVERSATION message on this conversation. "
        "Service Broker will not transmit the message; it will be held until the application ends the conversation.",
        10,
    ),
    9784: Rule(
        "Service Broker received an error message on this conversation. "
        "Service Broker will not transmit the message; it will be held until the application ends the conversation.",
        10,
    ),
    9785: Rule("Invalid address specified: '{0}'.", 10),
    9791: Rule("The broker is disabled in the sender's database.", 10),
    9792: Rule("Could not forward the message because forwarding is disabled in this SQL Server instance.", 10),
    9793: Rule(
        "The target service name could not be found. Ensure that the service name is specified correctly "
        "and/or the routing information has been supplied.",
        10,
    ),
    9795: Rule("Could not find the target broker in the local SQL Server instance.", 10),
    9796: Rule(
        "The target service name matched a LOCAL route, but there is no service by that name "
        "in the local SQL Server instance.",
        10,
    ),
    9797: Rule("Classification has been delayed because the routing information is currently being updated.", 10),
    10928: Rule("The limit of {0} for {1} is {2} and has been reached."),
    11201: Rule(_UNDELIVERABLE + "the FROM service name is missing. The message origin is: '{0}'."),
    11202: Rule(
        "This message has been dropped because the FROM service name exceeds the maximum size of {0} bytes. "
        'Service name: "{1}". Message origin: "{2}".'
    ),
    11205: Rule(_UNDELIVERABLE + "the TO service name is missing. The message origin is: '{0}'."),
    11206: Rule(
        "This message has been dropped because the TO service name exceeds the maximum size of {0} bytes. "
        'Service name: "{1}". Message origin: "{2}".'
    ),
    11207: Rule(_UNDELIVERABLE + "the service contract name is missing. The message origin is: '{0}'."),
    11208: Rule(
        "This message has been dropped because the service contract name exceeds the maximum size of {0} bytes. "
        'Contract name: "{1}". Message origin: "{2}".'
    ),
    11209: Rule(
        _UNDELIVERABLE + "the conversation ID could not be associated with an active conversation. "
        "The message origin is: '{0}'."
    ),
    11210: Rule(
        "This message has been dropped because the TO service could not be found. {2} "
        'Service name: "{0}". Message origin: "{1}".'
    ),
    11212: Rule(_UNDELIVERABLE + "the conversation endpoint has already been closed."),
    11213: Rule(_UNDELIVERABLE + "this is not the first message in the conversation."),
    11214: Rule(
        _UNDELIVERABLE + "the '{0}' contract could not be found or the service does not accept conversations for the "
        "contract."
    ),
    11215: Rule(
        _UNDELIVERABLE + "the user with ID {0} in database ID {1} does not have permission to send to the service. "
        "Service name: '{2}'."
    ),
    11217: Rule(
        _UNDELIVERABLE + "it is out of sequence with respect to the conversation. "
        "Conversation receive sequence number: {0}, Message sequence number: {1}."
    ),
    11218: Rule(_UNDELIVERABLE + "it is a duplicate."),
    11220: Rule(_UNDELIVERABLE + "the TO broker instance is missing."),
    11221: Rule(_UNDELIVERABLE + "there is an inconsistency in the message header: {0}."),
    11222: Rule(
        _UNDELIVERABLE + "the TO service name '{0}' in the message does not match the name in the conversation "
        "endpoint, '{1}'."
    ),
    11223: Rule(
        _UNDELIVERABLE + "the service contract name '{0}' in the message does not match the name in the conversation "
        "endpoint, '{1}'."
    ),
    11224: Rule(
        _UNDELIVERABLE + "another instance of this service program has already started conversing with this endpoint."
    ),
    11225: Rule(_UNDELIVERABLE + "the message type name could not be found. Message type name: '{0}'."),
    11226: Rule(
        _UNDELIVERABLE + "the message type is not part of the service contract. Message type name: '{0}'. "
        "Service contract name: '{1}'."
    ),
    11227: Rule(
        _UNDELIVERABLE + "the initiator service has sent a message with a message type that can only be sent by the "
        "target. Message type name: '{0}'. Service contract name: '{1}'."
    ),
    11228: Rule(
        _UNDELIVERABLE + "the target service has sent a message with a message type that can only be sent by the "
        "initiator. Message type name: '{0}'. Service contract name: '{1}'."
    ),
    11230: Rule(_UNDELIVERABLE + "the message could not be decrypted and validated."),
    11231: Rule(_UNDELIVERABLE + "the conversation endpoint is not secured, however the message is secured."),
    11232: Rule(_UNDELIVERABLE + "the conversation endpoint is secured, however the message is not secured."),
    11233: Rule(
        "This message has been dropped because the session key of the conversation endpoint does not match that of the "
        "message."
    ),
    11235: Rule("Received a malformed message: {0}."),
    11251: Rule(
        "A corrupted message has been received: the certificate of its source and its signature must be present "
        "together."
    ),
    11254: Rule("A corrupted message has been received: its session key is not known."),
    11277: Rule(
        "A corrupted message has been received: "
        "End of Conversation and Error flags may not be set in the first sequenced message."
    ),
    11285: Rule("This forwarded message has been dropped because the hops remaining count has reached 0."),
    11288: Rule("This forwarded message has been dropped because a duplicate message is already being forwarded."),
    11289: Rule(
        "This forwarded message has been dropped because its memory usage would exceed the configured memory limit of "
        "{0} bytes for forwarded messages."
    ),
    11290: Rule("This forwarded message has been dropped because it could not be delivered within its time to live."),
    11291: Rule(
        "This forwarded message has been dropped because the time consumed has exceeded the message's time to live of "
        "{0} seconds (the message arrived with {1} seconds consumed and used {2} seconds in this broker)."
    ),
    11293: Rule("This forwarded message has been dropped because a transport is shutdown."),
    11294: Rule("This forwarded message has been dropped because the destination route is not valid."),
    11295: Rule("Endpoint configuration change detected. Service Broker manager and transport will now restart.", 10),
    11296: Rule("Certificate change detected. Service Broker manager and transport will now restart.", 10),
    11299: Rule(
        "A corrupted message has been received: an unsequenced message had a non-zero sequence number.",
        10,
    ),
    15007: Rule("'{0}' is not a valid login or you do not have permission."),
    15023: Rule("User, group, or role '{0}' already exists in the current database."),
    15025: Rule("The server principal '{0}' already exists."),
    15063: Rule("The login already has an account under a different user name."),
    15081: Rule("Membership of the public role cannot be changed."),
    15116: Rule(
        "Password validation failed. The password does not meet the policy requirements because it is too short."
    ),
    15136: Rule(
        "The database principal is set as the execution context of one or more procedures, functions, or event "
        "notifications and cannot be dropped."
    ),
    15138: Rule("The database principal owns a {0} in the database, and cannot be dropped."),
    15141: Rule("The server principal owns a {0} and cannot be dropped."),
    15144: Rule("The role has members. It must be empty before it can be dropped."),
    15150: Rule("Cannot {0} the {1} '{2}'."),
    15151: Rule("Cannot {0} the {1} '{2}', because it does not exist or you do not have permission."),
    15196: Rule('The current security context is non-revertible. The "Revert" statement failed.'),
    15199: Rule(
        "The current security context cannot be reverted. Please switch to the original database where '{0}' was "
        "called and try it again."
    ),
    15208: Rule(
        "The certificate, asymmetric key, or private key file is not valid or does not exist; "
        "or you do not have permissions for it."
    ),
    15232: Rule("A certificate with name '{0}' already exists or this certificate already has been added."),
    15240: Rule(
        "Cannot write into file '{0}'. Verify that you have write permissions, that the file path is valid, "
        "and that the file does not already exist."
    ),
    15247: Rule("User does not have permission to perform this action."),
    15284: Rule(
        "The database principal has granted or denied permissions to objects in the database and cannot be dropped."
    ),
    15299: Rule("The signature of the module by certificate '{0}' is invalid."),
    15313: Rule("The key is not encrypted using the specified decryptor."),
    15315: Rule("The key '{0}' is not open. Please open the key before using it."),
    15329: Rule(
        "The current {0} cannot be decrypted. Open it in this session first. FORCE regenerates it, but data encrypted "
        "with it is lost."
    ),
    15352: Rule("The {0} '{1}' cannot be dropped because one or more entities are signed using it."),
    15405: Rule("Cannot use the special principal '{0}'.", 11),
    15406: Rule(
        'Cannot execute as the server principal because the principal "{0}" does not exist, '
        "this type of principal cannot be impersonated, or you do not have permission."
    ),
    15407: Rule("'{0}' is not a valid Windows NT name. Give the complete name: <domain\\username>.", 11),
    15413: Rule("Cannot make a role a member of itself.", 11),
    15465: Rule("The private key password is invalid."),
    15517: Rule(
        'Cannot execute as the database principal because the principal "{0}" does not exist, '
        "this type of principal cannot be impersonated, or you do not have permission."
    ),
    15533: Rule("Invalid data type is supplied in the '{0}' statement."),
    15556: Rule("Cannot decrypt or encrypt using the specified {0}, because it has no private key."),
    15557: Rule("There is already a signature of '{0}' by certificate '{1}'."),
    15558: Rule("Cannot drop {0} by {1}."),
    15559: Rule("Cannot drop certificate '{0}' because there is a user mapped to it."),
    15578: Rule("There is already a master key in the database. Please drop it before performing this statement."),
    15580: Rule("Cannot drop {0} because {1} '{2}' is encrypted by it."),
    15581: Rule(
        "Please create a master key in the database or open the master key in the session "
        "before performing this operation."
    ),
    15590: Rule("Can only use the 'No Revert' or 'Cookie' options with the 'Execute As' statement at the adhoc level."),
    15591: Rule(
        "The current security context cannot be reverted using this statement. A cookie may or may not be needed with "
        "'Revert' statement depending on how the context was set with 'Execute As' statement."
    ),
    17001: Rule("Failure to send an event notification instance of type '{0}' on the conversation '{1}': {2}."),
    17003: Rule("The event notification '{0}' was dropped: its conversation was closed with an error."),
    17004: Rule("The event notification '{0}' was dropped: its conversation was closed without an error."),
    28000: Rule("The session key has an unexpected size: {0} bytes instead of {1}."),
    28004: Rule("This message could not be delivered because the '{0}' action cannot be performed in the '{1}' state."),
    28006: Rule(
        "User does not have permission to {0} the conversation '{1}' in state '{2}'. Only members of the sysadmin "
        "fixed server role and the db_owner fixed database role have this permission.",
        14,
    ),
    28010: Rule(
        _UNDELIVERABLE + "it contains an invalid acknowledged message number. "
        "Highest expected message number: {0}. Acknowledged message number: {1}, fragment number: {2}."
    ),
    28012: Rule("The Service Broker in the target database is unavailable: '{0}'."),
    28021: Rule("One or more messages could not be delivered to the local service targeted by this dialog: {0}."),
    28027: Rule("Connection handshake failed. There is no compatible {0}.", 10),
    28028: Rule("Connection handshake failed. The connection was closed by the peer.", 10),
    28029: Rule("Connection handshake failed. Received unexpected event {0} in state {1}.", 10),
    28032: Rule("Connection handshake failed. The connection lost arbitration to a previously existing one.", 10),
    28033: Rule("A new connection was established with the same peer. This connection lost the arbitration.", 10),
    28034: Rule("Connection handshake failed. The login '{0}' does not have CONNECT permission on the endpoint.", 10),
    28035: Rule("Connection handshake failed. The certificate used by the peer is invalid because {0}.", 10),
    28036: Rule("Connection handshake failed. The certificate used by this endpoint was not found.", 10),
    28038: Rule("Connection handshake failed. The verification of the peer failed: {0}.", 10),
    28050: Rule(
        "The session keys for this conversation could not be created or accessed. The database master key is required "
        "for this operation.",
        10,
    ),
    28051: Rule(
        "Could not save a dialog session key. A master key is required in the database to save the session key.", 10
    ),
    28054: Rule(
        "Service Broker needs to access the master key in the database '{0}'. Error code:{1}. The master key has to "
        "exist and the service master key encryption is required."
    ),
    28055: Rule(
        "The certificate '{0}' is not valid for endpoint authentication. The certificate must have a private key "
        "encrypted with the database master key and current UTC date has to be between the certificate start date and "
        "the certificate expiration date."
    ),
    28056: Rule(
        _UNDELIVERABLE + "the user with ID {0} in database ID {1} does not have control permission on the service. "
        "Service name: '{2}'."
    ),
    28080: Rule("Connection handshake failed. The Service Broker endpoint is not configured.", 10),
    28083: Rule(
        "The database principal '{0}' cannot be used in a remote service binding because it cannot own certificates. "
        "Remote service bindings cannot be associated with 1) roles, 2) groups or 3) principals mapped to "
        "certificates or asymmetric keys."
    ),
    28084: Rule(
        "An error occurred in Service Broker internal activation while trying to scan the user queue '{0}' for its "
        "status. Error: {1}, State: {2}.",
        10,
    ),
    28085: Rule("The activated task was ended because the associated queue was dropped."),
    28086: Rule("The activated task was ended because either the queue or activation was disabled."),
    28087: Rule("The activated task was aborted because the invoked stored procedure '{0}' did not execute RECEIVE."),
    28088: Rule("The activated task was aborted due to an error (Error: {0}, State {1})."),
    33301: Rule(
        "The {0} specified for conversation priority '{1}' is not valid. "
        "The value must be between 1 and {2} characters long."
    ),
    33302: Rule("The PRIORITY_LEVEL specified for conversation priority '{0}' must be between 1 and 10."),
    33303: Rule(
        "A conversation priority already exists in the database with either the name '{0}' or the properties "
        "CONTRACT_NAME='{1}', LOCAL_SERVICE_NAME='{2}', and REMOTE_SERVICE_NAME='{3}'."
    ),
}
