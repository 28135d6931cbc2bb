"""Dialog security as how-tos set it up, in T-SQL alone: between two databases of one instance, and between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from remote_support import EAST, WEST, Pair, open_pair
from servicebroker.tsql.statement_errors import TsqlError

# The target's side makes its user, master key and certificate, and hands the certificate out; then the initiator's.
TARGET = """
USE master;
GO
IF EXISTS (SELECT * FROM sys.databases WHERE name = N'{target}') DROP DATABASE {target};
GO
CREATE DATABASE {target};
GO
USE {target};
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'Pa55 of the target';
GO
CREATE USER TargetUser WITHOUT LOGIN;
GO
CREATE CERTIFICATE TargetCertificate AUTHORIZATION TargetUser
     WITH SUBJECT = N'Target Certificate', START_DATE = N'01/01/2026', EXPIRY_DATE = N'12/31/2099';
BACKUP CERTIFICATE TargetCertificate TO FILE = N'{folder}/Target{run}.cer';
GO
CREATE MESSAGE TYPE [//Both/RequestMessage] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//Both/ReplyMessage] VALIDATION = WELL_FORMED_XML;
GO
CREATE CONTRACT [//Both/SimpleContract]
     ([//Both/RequestMessage] SENT BY INITIATOR, [//Both/ReplyMessage] SENT BY TARGET);
GO
CREATE QUEUE TargetQueue;
CREATE SERVICE [//{target}/Target] AUTHORIZATION TargetUser ON QUEUE TargetQueue ([//Both/SimpleContract]);
GO
"""
INITIATOR = """
USE master;
GO
CREATE DATABASE {initiator};
GO
USE {initiator};
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'Pa55 of the initiator';
GO
CREATE USER InitiatorUser WITHOUT LOGIN;
GO
CREATE CERTIFICATE InitiatorCertificate AUTHORIZATION InitiatorUser
     WITH SUBJECT = N'Initiator Certificate', EXPIRY_DATE = N'12/31/2099'
     ACTIVE FOR BEGIN_DIALOG = ON;
BACKUP CERTIFICATE InitiatorCertificate TO FILE = N'{folder}/Initiator{run}.cer';
GO
CREATE MESSAGE TYPE [//Both/RequestMessage] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//Both/ReplyMessage] VALIDATION = WELL_FORMED_XML;
GO
CREATE CONTRACT [//Both/SimpleContract]
     ([//Both/RequestMessage] SENT BY INITIATOR, [//Both/ReplyMessage] SENT BY TARGET);
GO
CREATE QUEUE InitiatorQueue;
CREATE SERVICE [//{initiator}/Initiator] AUTHORIZATION InitiatorUser ON QUEUE InitiatorQueue;
GO
CREATE USER TargetUser WITHOUT LOGIN;
GO
CREATE CERTIFICATE TargetCertificate AUTHORIZATION TargetUser FROM FILE = N'{folder}/Target{run}.cer';
GO
CREATE REMOTE SERVICE BINDING TargetBinding
     TO SERVICE N'//{target}/Target' WITH USER = TargetUser, ANONYMOUS = OFF;
GO
"""
INTRODUCED = """
USE {target};
GO
CREATE USER InitiatorUser WITHOUT LOGIN;
GO
CREATE CERTIFICATE InitiatorCertificate AUTHORIZATION InitiatorUser FROM FILE = N'{folder}/Initiator{run}.cer';
GO
"""
GRANTED = """
USE {target};
GO
GRANT SEND ON SERVICE::[//{target}/Target] TO InitiatorUser;
GO
"""
ROUTED = "USE {own}; CREATE ROUTE {route} WITH SERVICE_NAME = N'{service}', ADDRESS = N'{address}';"
REQUEST = """
USE {initiator};
GO
DECLARE @InitDlgHandle UNIQUEIDENTIFIER;
DECLARE @RequestMsg NVARCHAR(100);
BEGIN TRANSACTION;
BEGIN DIALOG @InitDlgHandle
     FROM SERVICE [//{initiator}/Initiator] TO SERVICE N'//{target}/Target' ON CONTRACT [//Both/SimpleContract]
     WITH ENCRYPTION = ON;
SELECT @RequestMsg = N'<RequestMsg>Message for Target service.</RequestMsg>';
SEND ON CONVERSATION @InitDlgHandle MESSAGE TYPE [//Both/RequestMessage] (@RequestMsg);
SELECT @RequestMsg AS SentRequestMsg;
COMMIT TRANSACTION;
GO
"""
ANSWER = """
USE {target};
GO
DECLARE @RecvReqDlgHandle UNIQUEIDENTIFIER, @RecvReqMsg NVARCHAR(100), @RecvReqMsgName SYSNAME;
BEGIN TRANSACTION;
WAITFOR (
    RECEIVE TOP(1) @RecvReqDlgHandle = conversation_handle, @RecvReqMsg = message_body,
        @RecvReqMsgName = message_type_name
    FROM TargetQueue
), TIMEOUT 100;
SELECT @RecvReqMsg AS ReceivedRequestMsg;
IF @RecvReqMsgName = N'//Both/RequestMessage'
BEGIN
    DECLARE @ReplyMsg NVARCHAR(100) = N'<ReplyMsg>Message for Initiator service.</ReplyMsg>';
    SEND ON CONVERSATION @RecvReqDlgHandle MESSAGE TYPE [//Both/ReplyMessage] (@ReplyMsg);
    END CONVERSATION @RecvReqDlgHandle;
END
COMMIT TRANSACTION;
GO
"""
REPLY = """
USE {initiator};
GO
SELECT transmission_status FROM sys.transmission_queue;
GO
DECLARE @h UNIQUEIDENTIFIER, @body XML, @type SYSNAME;
BEGIN TRANSACTION;
RECEIVE TOP(1) @h = conversation_handle, @body = CAST(message_body AS XML), @type = message_type_name
    FROM InitiatorQueue;
IF @h IS NOT NULL END CONVERSATION @h;
SELECT CAST(@body AS NVARCHAR(MAX)), @type;
COMMIT TRANSACTION;
GO
"""
SECURED = """
USE {own};
GO
SELECT own.name, far.name FROM sys.conversation_endpoints e
    JOIN sys.database_principals own ON own.principal_id = e.principal_id
    JOIN sys.database_principals far ON far.principal_id = e.far_principal_id;
GO
"""
REQUEST_BODY = "<RequestMsg>Message for Target service.</RequestMsg>"
ANSWERED = ("<ReplyMsg>Message for Initiator service.</ReplyMsg>", "//Both/ReplyMessage")


class Script:
    """Runs steps in the instances of the two sides, which may be one."""

    def __init__(self, near: sb.Instance, far: sb.Instance, folder: Path, run: str = "") -> None:
        self.near, self.far = near, far
        self.names = {"initiator": f"InstInitiatorDB{run}", "target": f"InstTargetDB{run}"}
        self.names |= {"folder": str(folder), "run": run}

    def at_near(self, step: str, **names: str) -> list[list[tuple[object, ...]]]:
        return self._run(self.near, step, own=self.names["initiator"], **names)

    def at_far(self, step: str, **names: str) -> list[list[tuple[object, ...]]]:
        return self._run(self.far, step, own=self.names["target"], **names)

    def set_up(self) -> None:
        self.at_far(TARGET)
        self.at_near(INITIATOR)
        self.at_far(INTRODUCED)

    def _run(self, instance: sb.Instance, step: str, **names: str) -> list[list[tuple[object, ...]]]:
        results = instance.database("master", create=True).execute_tsql(step.format(**self.names, **names))
        return [result_set.rows for result_set in results.sets]


@pytest.mark.feature(158, 163)
def test_between_two_databases_of_one_instance(fresh_instance: sb.Instance, tmp_path: Path) -> None:
    script = Script(fresh_instance, fresh_instance, tmp_path)
    script.set_up()
    script.at_near(REQUEST)
    *_, [(error, kind)] = script.at_near(REPLY)
    assert kind == "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
    assert "<Code>-8494</Code>" in str(error)
    script.at_far(GRANTED)
    assert script.at_near(REQUEST) == [[(REQUEST_BODY,)]]
    assert script.at_far(ANSWER) == [[(REQUEST_BODY,)]]
    assert script.at_near(SECURED) == [[("InitiatorUser", "TargetUser")]]
    assert script.at_far(SECURED) == [[("TargetUser", "InitiatorUser")]]
    assert script.at_near(REPLY) == [[], [ANSWERED]]
    # a second run of the script begins anew
    script.at_near("USE master; DROP DATABASE {initiator};")
    script.names["run"] = " again"
    script.set_up()


@pytest.fixture
def pair(make_instance_url: Callable[[], str]) -> Iterator[Pair]:
    with open_pair(make_instance_url) as pair:
        yield pair


@pytest.mark.feature(158, 163, 167)
def test_between_two_instances(pair: Pair, tmp_path: Path) -> None:
    """The same steps, with routes; neither owner has any right on its queue."""
    script = Script(pair.west.instance, pair.east.instance, tmp_path)
    script.set_up()
    names = script.names
    script.at_near(ROUTED, route="ToTarget", service=f"//{names['target']}/Target", address=EAST)
    script.at_far(ROUTED, route="ToInitiator", service=f"//{names['initiator']}/Initiator", address=WEST)
    script.at_near(REQUEST)
    pair.rounds()
    *_, [(error, _)] = script.at_near(REPLY)
    assert "<Code>-8494</Code>" in str(error)
    script.at_far(GRANTED)
    script.at_near(REQUEST)
    pair.west.round([])
    assert not any(b"Message for Target" in frame for frame in pair.west.out.frames)
    pair.rounds()
    assert script.at_far(ANSWER) == [[(REQUEST_BODY,)]]
    pair.rounds()
    assert script.at_near(SECURED) == [[("InitiatorUser", "TargetUser")] * 2]  # the refused one is closed, and there
    assert script.at_far(SECURED) == [[("TargetUser", "InitiatorUser")]]
    assert script.at_near(REPLY) == [[], [ANSWERED]]


@pytest.mark.feature(159)
def test_anonymous_between_two_databases(fresh_instance: sb.Instance, tmp_path: Path) -> None:
    script = Script(fresh_instance, fresh_instance, tmp_path)
    script.set_up()
    script.at_far(GRANTED)
    script.at_near("USE {initiator}; ALTER REMOTE SERVICE BINDING TargetBinding WITH ANONYMOUS = ON;")
    script.at_near(REQUEST)
    *_, [(error, _)] = script.at_near(REPLY)
    assert "<Code>-8494</Code>" in str(error)
    script.at_far("USE {target}; GRANT SEND ON SERVICE::[//{target}/Target] TO [public];")
    script.at_near(REQUEST)
    assert script.at_far(ANSWER) == [[(REQUEST_BODY,)]]
    assert script.at_near(REPLY) == [[], [ANSWERED]]


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("CREATE CERTIFICATE c AUTHORIZATION TargetUser FROM FILE = N'{folder}/none.cer'", 15208),
        ("CREATE CERTIFICATE c AUTHORIZATION Nobody WITH SUBJECT = N'c'", 15151),
        ("BACKUP CERTIFICATE TargetCertificate TO FILE = N'{folder}/Target.cer'", 15240),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE N'//{target}/Target' WITH USER = TargetUser", 9619),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE N'//x' WITH USER = Nobody", 15151),
        ("DROP USER TargetUser", 15138),
        ("DROP MASTER KEY", 15580),
    ],
)
def test_invalid_steps_of_security_scripts_are_refused(
    fresh_instance: sb.Instance, tmp_path: Path, step: str, number: int
) -> None:
    script = Script(fresh_instance, fresh_instance, tmp_path)
    script.set_up()
    with pytest.raises(TsqlError) as error:
        script.at_near("USE {initiator}; " + step)
    assert error.value.number == number
