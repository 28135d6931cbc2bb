"""Parser of CREATE, ALTER and DROP of the broker's objects. `Definition.clauses` maps each clause to its value."""

from __future__ import annotations

from typing import Any

from servicebroker.model.names import bracketed
from servicebroker.model.security.authentication import PROTOCOLS
from servicebroker.operations.queues import DROP, FILEGROUPS, Activation
from servicebroker.tsql.parser.security import SecurityParser
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Constant, Definition, Name, Operand, Statement
from servicebroker.tsql.tokens import STRING

Clauses = dict[str, Any]


class ObjectParser(SecurityParser):
    """One method for each kind of object. Its words, such as CREATE MESSAGE TYPE, have been read."""

    def message_type(self, line: int, keyword: str) -> Statement:
        """Clauses: `validation` and `schema_collection`, `authorization`."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword != "DROP" and self.take("VALIDATION"):
            self.expect("=")
            clauses["validation"] = self.expect_any("NONE", "EMPTY", "WELL_FORMED_XML", "VALID_XML")
            if clauses["validation"] == "VALID_XML":
                self.expect("WITH", "SCHEMA", "COLLECTION")
                clauses["schema_collection"] = self.name()
        elif keyword == "ALTER":
            self.fail()
        return Definition(line, keyword, "MESSAGE TYPE", name, clauses, if_exists)

    def contract(self, line: int, keyword: str) -> Statement:
        """Clause `sent_by`: pairs of a message type and INITIATOR, TARGET or ANY."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword == "ALTER":
            self.refuse(
                "ALTER CONTRACT", "A contract cannot change. Create another contract, or use ALTER AUTHORIZATION."
            )
        if keyword == "CREATE":
            sent_by: list[tuple[str, str]] = []
            self.expect("(")
            while True:
                message_type = self.single_name().object
                self.expect("SENT", "BY")
                sent_by.append((message_type, self.expect_any("INITIATOR", "TARGET", "ANY")))
                if not self.take(","):
                    break
            self.expect(")")
            clauses["sent_by"] = sent_by
        return Definition(line, keyword, "CONTRACT", name, clauses, if_exists)

    def queue(self, line: int, keyword: str) -> Statement:
        """Clauses of a queue: `status`, `retention`, `poison_message_handling`, `activation` and others.

        `activation` is an Activation, or "DROP". The others are `rebuild`, `reorganize` and `move_to`. A filegroup
        changes nothing, as of a table: PostgreSQL manages its files.
        """
        if_exists = self.if_exists(keyword)
        name = self.name()
        clauses: Clauses = {}
        if keyword == "ALTER" and self.take("REBUILD"):
            clauses["rebuild"] = True
            if self.take("WITH"):
                self.parenthesized()  # MAXDOP
        elif keyword == "ALTER" and self.take("REORGANIZE"):
            clauses["reorganize"] = True
            if self.take("WITH"):
                self.parenthesized()  # LOB_COMPACTION is always on
        elif keyword == "ALTER" and self.take("MOVE", "TO"):
            self._skip_filegroup()
            clauses["move_to"] = FILEGROUPS[0]
        elif keyword == "ALTER":
            self.expect("WITH")
            self._queue_options(clauses)
        elif keyword == "CREATE":
            if self.take("WITH"):
                self._queue_options(clauses)
            if self.take("ON"):
                self._skip_filegroup()
        return Definition(line, keyword, "QUEUE", name, clauses, if_exists)

    def _skip_filegroup(self) -> None:
        if self.tokens.kinds[self.at] == STRING:
            self.string()
        else:
            self.single_name()

    def _queue_options(self, clauses: Clauses) -> None:
        enclosed = self.word == "(" and self.take("(")
        while True:
            option = self.expect_any("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING")
            if option == "ACTIVATION":
                clauses["activation"] = self._activation()
            elif option == "POISON_MESSAGE_HANDLING":
                self.expect("(", "STATUS")
                clauses["poison_message_handling"] = self.on_off()
                self.expect(")")
            else:
                clauses[option.lower()] = self.on_off()
            if not self.take(",") and self.word not in ("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING"):
                break
        if enclosed:
            self.expect(")")

    def _activation(self) -> Activation | str:
        self.expect("(")
        if self.take("DROP"):
            self.expect(")")
            return DROP
        clauses: Clauses = {}
        while True:
            option = self.expect_any("STATUS", "PROCEDURE_NAME", "MAX_QUEUE_READERS", "EXECUTE")
            if option == "STATUS":
                clauses["status"] = self.on_off()
            elif option == "PROCEDURE_NAME":
                self.expect("=")
                clauses["procedure_name"] = bracketed(*filter(None, self.name().parts))
            elif option == "MAX_QUEUE_READERS":
                self.expect("=")
                clauses["max_queue_readers"] = self.integer()
            else:
                self.expect("AS")
                principal = self.take_any("SELF", "OWNER")
                clauses["execute_as"] = principal or (
                    self.string() if self.tokens.kinds[self.at] == STRING else self.single_name().object
                )
            if not self.take(","):
                break
        self.expect(")")
        return Activation(**clauses)

    def service(self, line: int, keyword: str) -> Statement:
        """Clauses: `queue`, `contracts`. Of ALTER: `queue`, `add_contracts`, `drop_contracts`."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword == "DROP":
            return Definition(line, keyword, "SERVICE", name, clauses, if_exists)
        if keyword == "CREATE" or self.word == "ON":
            self.expect("ON", "QUEUE")
            clauses["queue"] = self.name()
        if self.take("("):
            while True:
                if keyword == "ALTER":
                    change = self.expect_any("ADD", "DROP")
                    self.expect("CONTRACT")
                    clauses.setdefault(f"{change.lower()}_contracts", []).append(self.single_name().object)
                else:
                    clauses.setdefault("contracts", []).append(self.single_name().object)
                if not self.take(","):
                    break
            self.expect(")")
        return Definition(line, keyword, "SERVICE", name, clauses, if_exists)

    def route(self, line: int, keyword: str) -> Statement:
        """Clauses: `service_name`, `broker_instance`, `lifetime`, `address`, `mirror_address`."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword != "DROP":
            self.expect("WITH")
            self._settings(clauses, "SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS")
        return Definition(line, keyword, "ROUTE", name, clauses, if_exists)

    def _settings(self, clauses: Clauses, *allowed: str) -> None:
        while True:
            option = self.expect_any(*allowed)
            self.expect("=")
            clauses[option.lower()] = self.operand()
            if not self.take(",") and self.word not in allowed:
                return

    def remote_service_binding(self, line: int, keyword: str) -> Statement:
        """Clauses: `to_service`, `user`, `anonymous`."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword == "CREATE":
            self.expect("TO", "SERVICE")
            clauses["to_service"] = self.operand()
        if keyword != "DROP":
            self.expect("WITH")
            while True:
                if self.take("USER"):
                    self.expect("=")
                    clauses["user"] = self.single_name().object
                else:
                    self.expect("ANONYMOUS")
                    clauses["anonymous"] = self.on_off()
                if not self.take(","):
                    break
        return Definition(line, keyword, "REMOTE SERVICE BINDING", name, clauses, if_exists)

    def broker_priority(self, line: int, keyword: str) -> Statement:
        """Clauses: `contract_name`, `local_service_name`, `remote_service_name`, `priority_level`."""
        name, if_exists = self.object_name(keyword)
        clauses: Clauses = {}
        if keyword != "DROP":
            self.expect("FOR", "CONVERSATION")
            if self.take("SET"):
                self.expect("(")
                while True:
                    option = self.expect_any(
                        "CONTRACT_NAME", "LOCAL_SERVICE_NAME", "REMOTE_SERVICE_NAME", "PRIORITY_LEVEL"
                    )
                    self.expect("=")
                    clauses[option.lower()] = self._criterion()
                    if not self.take(","):
                        break
                self.expect(")")
        return Definition(line, keyword, "BROKER PRIORITY", name, clauses, if_exists)

    def _criterion(self) -> Operand:
        if self.take("ANY"):
            return Constant("ANY")
        if self.take("DEFAULT"):
            return Constant("DEFAULT")
        return self.operand()

    def event_notification(self, line: int, keyword: str) -> Statement:
        """Clauses: `on`, `queue`, `events`, `to_service`, `broker_instance`, `with_fan_in`.

        `on` is SERVER, DATABASE or QUEUE.
        """
        if_exists = self.if_exists(keyword)
        name = self.single_name()
        also = [name.object]
        while keyword == "DROP" and self.take(","):
            also.append(self.single_name().object)
        clauses: Clauses = {"names": also}
        self.expect("ON")
        clauses["on"] = self.expect_any("SERVER", "DATABASE", "QUEUE")
        if clauses["on"] == "QUEUE":
            clauses["queue"] = self.name()
        if keyword != "DROP":
            clauses["with_fan_in"] = self.take("WITH", "FAN_IN")
            self.expect("FOR")
            events = [self.single_name().object.upper()]
            while self.take(","):
                events.append(self.single_name().object.upper())
            clauses["events"] = events
            self.expect("TO", "SERVICE")
            clauses["to_service"] = self.operand()
            self.expect(",")
            clauses["broker_instance"] = self.operand()
        return Definition(line, keyword, "EVENT NOTIFICATION", name, clauses, if_exists)

    def xml_schema_collection(self, line: int, keyword: str) -> Statement:
        """Clauses: `documents` of CREATE, `add` of ALTER. Both are expressions."""
        if_exists = self.if_exists(keyword)
        name = self.name()
        clauses: Clauses = {}
        if keyword == "CREATE":
            self.expect("AS")
            clauses["documents"] = self.expression()
        elif keyword == "ALTER":
            self.expect("ADD")
            clauses["add"] = self.expression()
        return Definition(line, keyword, "XML SCHEMA COLLECTION", name, clauses, if_exists)

    def endpoint(self, line: int, keyword: str) -> Statement:
        """Clauses: `state`, `authorization`, and those in the parentheses of TCP and SERVICE_BROKER."""
        name, if_exists = self.object_name(keyword)
        clauses = self.authorization(keyword)
        if keyword == "DROP":
            return Definition(line, keyword, "ENDPOINT", name, clauses, if_exists)
        while self.word in ("STATE", "AFFINITY", ","):
            if self.take("STATE", "="):
                clauses["state"] = self.expect_any("STARTED", "STOPPED", "DISABLED")
            elif self.word == "AFFINITY":
                self.refuse("AFFINITY of an endpoint", "Omit it.")
            else:
                self.expect(",")
                if self.word not in ("STATE", "AFFINITY"):
                    self.fail()
        if self.take("AS", "TCP"):
            self._tcp(clauses)
        elif self.word == "AS":
            self.refuse("An endpoint that is not AS TCP", "The broker listens on TCP.")
        if self.take("FOR"):
            if not self.take("SERVICE_BROKER"):
                self.refuse(f"An endpoint FOR {self.word}", "Only FOR SERVICE_BROKER is supported.")
            self._broker_options(clauses)
        return Definition(line, keyword, "ENDPOINT", name, clauses, if_exists)

    def _tcp(self, clauses: Clauses) -> None:
        self.expect("(")
        while True:
            if self.take("LISTENER_PORT"):
                self.expect("=")
                clauses["listener_port"] = self.integer()
            else:
                self.expect("LISTENER_IP", "=")
                if self.take("ALL"):
                    clauses["listener_ip"] = "ALL"
                else:
                    text = self.parenthesized() if self.word == "(" else self.string()
                    clauses["listener_ip"] = text.strip("()' \t\r\n")
            if not self.take(","):
                break
        self.expect(")")

    def _broker_options(self, clauses: Clauses) -> None:
        if not self.take("("):
            return
        while self.word != ")":
            option = self.expect_any("AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE")
            self.expect("=")
            if option == "AUTHENTICATION":
                clauses["authentication"] = self._authentication()
            elif option == "ENCRYPTION":
                clauses["encryption"] = self.expect_any("DISABLED", "SUPPORTED", "REQUIRED")
                if self.take("ALGORITHM"):
                    self.expect_any("AES", "RC4")  # TLS negotiates its own algorithm
                    self.take_any("AES", "RC4")
            elif option == "MESSAGE_FORWARDING":
                clauses["message_forwarding"] = self.expect_any("ENABLED", "DISABLED")
            else:
                clauses["message_forward_size"] = self.integer()
            if not self.take(","):
                break
        self.expect(")")

    def _authentication(self) -> str:
        """Read AUTHENTICATION in the form that `parse_authentication` takes. Each method may occur once."""
        first = self.expect_any("WINDOWS", "CERTIFICATE")
        methods = self._method(first)
        if self.take("CERTIFICATE" if first == "WINDOWS" else "WINDOWS"):
            methods += " " + self._method("CERTIFICATE" if first == "WINDOWS" else "WINDOWS")
        return methods

    def _method(self, method: str) -> str:
        if method == "WINDOWS":
            return f"WINDOWS {self.take_any(*PROTOCOLS) or ''}".rstrip()
        if self.is_identifier() and self.word != "WINDOWS":
            return f"CERTIFICATE {bracketed(self.identifier())}"
        return "CERTIFICATE"

    def type_(self, line: int, keyword: str) -> Statement:
        """Clauses: `type` and `is_nullable` of an alias type, `columns` of a table type."""
        if_exists = self.if_exists(keyword)
        name = self.name()
        if keyword == "DROP":
            return Definition(line, keyword, "TYPE", name, {}, if_exists)
        if keyword != "CREATE":
            self.refuse("ALTER TYPE", "Drop the type, and create it again.")
        if name.database:
            raise TsqlError(
                117, f"The object name '{name}' contains more than the maximum number of prefixes. The maximum is 1.",
                severity=15, line=line,
            )  # fmt: skip
        if self.take("EXTERNAL"):
            self.refuse("A .NET type (EXTERNAL NAME)", "Use columns, or xml.")
        if self.take("AS", "TABLE"):
            clauses: Clauses = {"columns": self.parenthesized()}
            if self.take("WITH"):  # MEMORY_OPTIMIZED only concerns storage
                self.parenthesized()
            return Definition(line, keyword, "TYPE", name, clauses)
        self.expect("FROM")
        clauses = {"type": self.type_name()}
        if self.take("NOT", "NULL"):
            clauses["is_nullable"] = False
        else:
            self.take("NULL")
        return Definition(line, keyword, "TYPE", name, clauses)

    def synonym(self, line: int, keyword: str) -> Statement:
        """Clauses: `base` of CREATE, `names` (one synonym) of DROP."""
        if keyword == "ALTER":
            self.fail()
        if_exists = self.if_exists(keyword)
        name = self.name()
        clauses: Clauses = {"names": [name]}
        while keyword == "DROP" and self.take(","):
            clauses["names"].append(self.name())
        if keyword == "CREATE":
            self.expect("FOR")
            clauses = {"base": self.name()}
        return Definition(line, keyword, "SYNONYM", name, clauses, if_exists)

    def object_name(self, keyword: str) -> tuple[Name, bool]:
        """Read IF EXISTS of DROP and a name of one part."""
        if_exists = self.if_exists(keyword)
        return self.single_name(), if_exists

    def authorization(self, keyword: str) -> Clauses:
        """Read AUTHORIZATION owner of CREATE, if it comes next."""
        return (
            {"authorization": self.single_name().object} if keyword == "CREATE" and self.take("AUTHORIZATION") else {}
        )
