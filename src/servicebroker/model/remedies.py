"""Advice for each error or transmission status, by the number of its text (model/errors.py).

Log, events and `transmission_status` show the texts; doctor adds the advice. A number without an entry needs no
action.
"""

from __future__ import annotations

import re

from servicebroker.model.errors import RULES
from servicebroker.model.waiting import CLOCK_DIFFERS, DELAYED, NO_ACKNOWLEDGEMENT

_EXCHANGE = (
    "Exchange certificates: servicebroker certificate export here and certificate import at the peer, and the same in "
    "the other direction."
)
_TRUST = (
    "If the peer may connect, import its present certificate: servicebroker certificate import NAME FILE. A member of "
    "the domain that was revoked joins again under another name: servicebroker domain join."
)
_ENABLE = "Enable the broker: Database.alter(enable_broker=True)."
_MASTER_KEY = (
    "Create the database's master key (CREATE MASTER KEY), or start the daemon with its key folder "
    "(servicebroker serve --keys)."
)
_ROUTE = "Look where the route leads: servicebroker route explain; create or alter it."
_SERVICE = "Create the service there, or create a route to the instance that has it."
_DIALOG_CERTIFICATES = (
    "Exchange the certificates of the users again (Database.backup_certificate, create_certificate): each side needs "
    "the other's current certificate, and the private key of its own."
)
_BROKEN = (
    "Check the network between the two instances, and that both run current versions. The sender repeats the message "
    "by itself."
)
_MEND_KEY = "Create a certificate with a private key that the master key encrypts: Database.create_certificate."
_ONE_BEGINS_PLAIN = (
    "Only one side encrypts the dialog: check the remote service bindings and certificates of both, then begin a new "
    "dialog."
)

REMEDIES: dict[int, str] = {
    # conversations that failed, on either side
    8408: "The target does not accept the contract: ALTER SERVICE ... ADD CONTRACT there, then begin a new dialog.",
    8428: "The receiver does not know the message type: create it there under the same name.",
    8462: "The other side has ended the conversation without a message: begin a new dialog.",
    8470: "The other side's service was dropped: begin a new dialog when it exists again.",
    8489: "Its lifetime is over: begin dialogs with a longer one, or find out why nobody has answered.",
    8494: (
        "If a statement is refused: GRANT RECEIVE on the queue of the conversation's service. In an Error message: "
        "GRANT SEND on the target service TO the owner of the initiating service, then begin a new dialog."
    ),
    9616: "The peer has sent a message that its own broker should have refused: check which program runs there.",
    9644: (
        "This is a bug of servicebroker: report it with the log of servicebroker serve. If one conversation causes it "
        "each time, END CONVERSATION ... WITH CLEANUP of that one lets the others go on."
    ),
    9719: (
        "This database was restored: ERROR_BROKER_CONVERSATIONS has ended the conversation, or the two sides had "
        "different records of it. Begin a new dialog."
    ),
    9720: (
        "The other side's database was restored and has lost the messages received since that copy. Begin a new dialog."
    ),
    # messages that wait
    9727: "CREATE REMOTE SERVICE BINDING for the service, or begin with encryption=False.",
    9731: _MEND_KEY,
    9733: _MEND_KEY,
    9735: _DIALOG_CERTIFICATES,
    9737: _MEND_KEY,
    9748: "Start the daemon with an endpoint: CREATE ENDPOINT, servicebroker serve.",
    9749: "Switch the target's queue on: ALTER QUEUE ... STATUS = ON, or servicebroker poison retry.",
    9750: _ROUTE,
    9753: (
        "Check that servicebroker serve runs at the address of the route, and that no firewall blocks it. If the "
        "peer has moved: servicebroker route alter NAME --address TCP://host:port."
    ),
    9762: "Create one: servicebroker certificate create NAME, export it, and import it at each peer.",
    9763: "Create a new one: servicebroker certificate create NAME, export it, and import it at each peer.",
    9767: "Run ALTER CERTIFICATE ... WITH ACTIVE FOR BEGIN_DIALOG = ON, or create another certificate.",
    9770: "Check that the dynamic routing service answers: its queue, its procedure, its permissions.",
    9779: "END CONVERSATION: the other side has ended it.",
    9784: "Receive the Error, END CONVERSATION, and begin a new dialog when the cause is removed.",
    9791: _ENABLE,
    9793: _ROUTE,
    9795: _ROUTE,
    9796: _SERVICE,
    9797: _ROUTE,
    28012: f"{_ENABLE} If that server does not answer, or belongs to a mirrored pair, run servicebroker doctor there.",
    28050: _MASTER_KEY,
    28051: _MASTER_KEY,
    28054: _MASTER_KEY,
    # connections that are refused
    9751: _EXCHANGE,
    9758: "Check that the address is that of a broker, and that ENCRYPTION of both endpoints is compatible.",
    28027: "The endpoints have incompatible ENCRYPTION, AUTHENTICATION or versions: ALTER ENDPOINT at one of them.",
    28028: "The peer has closed the connection without a reason: see the log and servicebroker doctor there.",
    28029: "Check that the peer is a broker, and that no proxy or firewall is between them.",
    28034: "Allow its login to connect: GRANT CONNECT ON ENDPOINT::broker TO its login.",
    28035: _TRUST,
    28036: "Create a certificate: servicebroker certificate create NAME, export it, and import it at each peer.",
    28038: _EXCHANGE,
    28080: "CREATE ENDPOINT, or servicebroker serve --listen.",
    # messages that are refused
    10928: (
        "Only this peer or role is limited. A peer's messages wait or are sent again. Raise the budget: servicebroker "
        "certificate budget, for a role servicebroker rights budget. If the peer is an attacker: servicebroker "
        "certificate drop."
    ),
    8401: "GRANT RECEIVE on the queue TO the owner of the target service, or revoke its DENY.",
    11210: _SERVICE,
    11214: "ALTER SERVICE ... ADD CONTRACT at the target, with a contract of the same name; then begin a new dialog.",
    11215: (
        "GRANT SEND on the service TO the user whose certificate the sender shows, or to public; then begin a new "
        "dialog."
    ),
    11220: _BROKEN,
    11221: _BROKEN,
    11230: _DIALOG_CERTIFICATES,
    11231: _ONE_BEGINS_PLAIN,
    11232: _ONE_BEGINS_PLAIN,
    11233: _DIALOG_CERTIFICATES,
    11235: _BROKEN,
    11251: _BROKEN,
    11254: _DIALOG_CERTIFICATES,
    28056: "GRANT CONTROL on the service TO the owner of the certificate that the sender uses for it.",
}


_PATTERNS = {
    number: re.compile(re.sub(r"\\\{\d\\\}", ".*", re.escape(RULES[number].text)), re.DOTALL) for number in REMEDIES
}


_EITHER_SIDE = (_EXCHANGE, _BROKEN, REMEDIES[9758], REMEDIES[28027], REMEDIES[28029])


def after_refusal(number: int, *, is_ours: bool) -> str:
    """Return advice about a refusal, for the side that refused or the one that was refused."""
    if number == 28035 and not is_ours:
        return _EXCHANGE
    remedy = REMEDIES[number]
    return remedy if is_ours or remedy in _EITHER_SIDE else f"At the peer: {remedy}"


_UNANSWERED = (
    "Nothing is lost, and messages go on as soon as the other side answers. Check there that servicebroker serve and "
    "its server run and do not hang, and run servicebroker doctor. Only if that instance was restored and does not "
    "know the conversation: END CONVERSATION WITH ERROR here, and begin a new dialog."
)
_WRONG_CLOCK = (
    "Nothing is lost: the message is sent again after a few seconds. Set the clock of the server that is wrong, here "
    "or there."
)
_ELSE = "Run servicebroker route explain to see its route, and servicebroker doctor at the other side to see refusals."


_DELAYED = (
    "servicebroker delayed list shows when it is due. If that time is past, run servicebroker serve, or a program that "
    "opens the instance as its owner, with the background thread."
)


def after_status(text: str) -> str:
    """Return advice about a `transmission_status`, which may be empty."""
    if text.startswith(NO_ACKNOWLEDGEMENT):
        return _UNANSWERED
    if text == CLOCK_DIFFERS:
        return _WRONG_CLOCK
    if text == DELAYED:
        return _DELAYED
    return next((REMEDIES[number] for number, pattern in _PATTERNS.items() if pattern.match(text)), _ELSE)
