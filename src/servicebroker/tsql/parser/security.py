"""Parser of databases, principals, keys, certificates and permissions."""

from __future__ import annotations

from typing import Any

from servicebroker.tsql.collations import check_collation
from servicebroker.tsql.parser.functions import FunctionParser
from servicebroker.tsql.parser.keywords import STARTERS, begins_statement
from servicebroker.tsql.syntax import Definition, Name, Permission, Revert, Statement
from servicebroker.tsql.tokens import STRING

Clauses = dict[str, Any]

_BROKER_OPTIONS = {
    "ENABLE_BROKER": "enable_broker",
    "DISABLE_BROKER": "disable_broker",
    "NEW_BROKER": "new_broker",
    "ERROR_BROKER_CONVERSATIONS": "error_broker_conversations",
}
_SECURABLES = (
    "MESSAGE TYPE", "REMOTE SERVICE BINDING", "XML SCHEMA COLLECTION", "SYMMETRIC KEY", "ASYMMETRIC KEY", "SERVICE",
    "CONTRACT", "ROUTE", "OBJECT", "SCHEMA", "DATABASE", "ENDPOINT", "CERTIFICATE", "LOGIN", "USER", "ROLE", "TYPE",
)  # fmt: skip
_SCHEMA_SECURABLES = ("OBJECT", "TYPE", "XML SCHEMA COLLECTION")  # their names have more than one part
_UNSUPPORTED_SECURABLES = (
    "APPLICATION ROLE", "ASSEMBLY", "AVAILABILITY GROUP", "CREDENTIAL", "DATABASE SCOPED CREDENTIAL", "EVENT SESSION",
    "EXTERNAL DATA SOURCE", "EXTERNAL FILE FORMAT", "EXTERNAL LANGUAGE", "EXTERNAL LIBRARY", "EXTERNAL MODEL",
    "FULLTEXT CATALOG", "FULLTEXT STOPLIST", "SEARCH PROPERTY LIST", "SERVER ROLE", "SERVER",
)  # fmt: skip


class SecurityParser(FunctionParser):
    """Parses statements whose first words, such as CREATE LOGIN, have been read."""

    def if_exists(self, keyword: str) -> bool:
        """Read IF EXISTS of DROP. Return True if it was present."""
        return keyword == "DROP" and self.take("IF", "EXISTS")

    def database(self, line: int, keyword: str) -> Statement:
        """Clauses of ALTER: the broker's options, `trustworthy`, `read_only`, those of WITH, and `ignored` options."""
        if_exists = self.if_exists(keyword)
        name = self.single_name()
        clauses: Clauses = {}
        if keyword == "DROP":
            clauses["names"] = [name.object]
            while self.take(","):
                clauses["names"].append(self.single_name().object)
        elif keyword == "CREATE":
            self._database_files(clauses)
        else:
            self._alter_database(clauses)
        return Definition(line, keyword, "DATABASE", name, clauses, if_exists)

    def _database_files(self, clauses: Clauses) -> None:
        """Read COLLATE and WITH, and skip ON (...) LOG ON (...), since PostgreSQL manages its files."""
        if self.take("CONTAINMENT", "="):
            self.expect_any("NONE", "PARTIAL")
        if self.word == "(":  # edition and size in Azure
            self.parenthesized()
        while self.word in ("ON", "LOG", "COLLATE", "WITH", "FOR"):
            if self.take("COLLATE"):
                clauses["collate"] = check_collation(self.single_name().object, self.line)
            elif self.take("WITH"):
                self._database_option(clauses)
                while self.take(","):
                    self._database_option(clauses)
            elif self.take("FOR"):
                self.refuse("FOR ATTACH", "Restore PostgreSQL's backup, see the page on backups.")
            else:
                self.take("LOG")
                self.expect("ON")
                self.take("PRIMARY")
                while self.word == "(":
                    self.parenthesized()
                    if not self.take(","):
                        break
                    if self.take("FILEGROUP"):
                        self.single_name()
                        self._filegroup_options()
        if self.take("AS", "SNAPSHOT"):
            self.refuse("A snapshot of a database", "Use SET TRANSACTION ISOLATION LEVEL SNAPSHOT.")
        if self.take("AS", "COPY"):
            self.refuse("CREATE DATABASE AS COPY", "Restore PostgreSQL's backup, see the page on backups.")

    def _filegroup_options(self) -> None:
        while self.take_any(
            "CONTAINS", "FILESTREAM", "MEMORY_OPTIMIZED_DATA", "DEFAULT", "READONLY", "READ_ONLY", "READWRITE",
            "READ_WRITE", "AUTOGROW_ALL_FILES", "AUTOGROW_SINGLE_FILE",
        ):  # fmt: skip
            pass

    def _database_option(self, clauses: Clauses) -> None:
        """Read one option of CREATE DATABASE ... WITH. The broker's options are kept, storage options skipped."""
        option = self.single_name().object.upper()
        if option == "BACKUP_STORAGE_REDUNDANCY":
            self._redundancy()
        elif option in _BROKER_OPTIONS:
            clauses[_BROKER_OPTIONS[option]] = True
        elif option == "TRUSTWORTHY":
            clauses["trustworthy"] = self.expect_any("ON", "OFF") == "ON"
        else:
            self._other_option(option)

    def _redundancy(self) -> None:
        """Skip the clause on backup storage in Azure."""
        self.expect("=")
        self.string()

    def _alter_database(self, clauses: Clauses) -> None:
        if self.take("MODIFY", "NAME"):
            self.refuse("ALTER DATABASE MODIFY NAME", "Create a database of the new name.")
        if self.take("COLLATE"):
            clauses["collate"] = check_collation(self.single_name().object, self.line)
            return
        if self.word in ("ADD", "REMOVE", "MODIFY"):
            clauses["ignored"] = [self._file_clause()]
            self._termination(clauses)
            return
        moved = self.take_any("FAILOVER", "FORCE_FAILOVER_ALLOW_DATA_LOSS", "REBUILD", "PERFORM", "PERFORM_CUTOVER")
        if moved:
            self.refuse(f"ALTER DATABASE {moved}", "Use PostgreSQL's replication and backups.")
        self.expect("SET")
        ignored: list[str] = []
        while True:
            option = self.single_name().object.upper()
            if option in _BROKER_OPTIONS:
                clauses[_BROKER_OPTIONS[option]] = True
            elif option in ("HONOR_BROKER_PRIORITY", "TRUSTWORTHY"):
                clauses[option.lower()] = self.expect_any("ON", "OFF") == "ON"
            elif option in ("READ_ONLY", "READ_WRITE"):
                clauses["read_only"] = option == "READ_ONLY"
            else:
                ignored.append(self._other_option(option))
            if not self.take(","):
                break
        clauses["ignored"] = ignored
        self._termination(clauses)

    def _termination(self, clauses: Clauses) -> None:
        """Read WITH NO_WAIT or WITH ROLLBACK."""
        if self.word == "WITH" and self.peek() in ("ROLLBACK", "NO_WAIT"):
            self.at += 1
            if self.take("NO_WAIT"):
                clauses["no_wait"] = True
            elif self.take("ROLLBACK", "IMMEDIATE"):
                clauses["rollback_after"] = 0
            else:
                self.expect("ROLLBACK", "AFTER")
                clauses["rollback_after"] = self.integer()
                self.take_any("SECONDS", "SECOND")

    def _file_clause(self) -> str:
        """Skip ADD FILE (...), MODIFY FILEGROUP name DEFAULT and the like. Return the words.

        PostgreSQL manages its files.
        """
        keyword = self.expect_any("ADD", "REMOVE", "MODIFY")
        if keyword == "MODIFY" and self.word == "(":  # edition and size in Azure
            self.parenthesized()
            self.take("WITH", "MANUAL_CUTOVER")
            return keyword
        if self.take("BACKUP_STORAGE_REDUNDANCY"):
            self._redundancy()
            return keyword
        if self.take("SECONDARY"):
            self.refuse(f"ALTER DATABASE {keyword} SECONDARY", "Use PostgreSQL's replication.")
        self.take("LOG")
        kind = self.expect_any("FILE", "FILEGROUP")
        if kind == "FILE" and self.word == "(":
            self.parenthesized()
            while self.take(","):
                self.parenthesized()
            if self.take("TO", "FILEGROUP"):
                self.single_name()
        else:
            self.single_name()
            self._filegroup_options()
            if self.take("NAME", "="):
                self.single_name()
        return f"{keyword} {kind}"

    def _other_option(self, option: str) -> str:
        begin = self.at
        while self.word not in (",", ";", "", ")", "WITH") and not self._at_statement():
            if self.word == "(":
                self.parenthesized()
            elif self.tokens.line(self.at) == self.tokens.line(self.at - 1):
                self.at += 1
            else:
                break
        return f"{option} {self.slice(begin, self.at)}" if self.at > begin else option

    def _at_statement(self) -> bool:
        return self.word in STARTERS and begins_statement(self.tokens, self.at)

    # ------------------------------------------------------------ principals

    def login(self, line: int, keyword: str) -> Statement:
        """Clauses: `password`, `from_windows`, `from_certificate`, `state` (ENABLE or DISABLE), `default_database`."""
        name, if_exists = self._principal(keyword)
        clauses: Clauses = {}
        if keyword == "DROP":
            return Definition(line, keyword, "LOGIN", name, clauses, if_exists)
        state = self.take_any("ENABLE", "DISABLE") if keyword == "ALTER" else None
        if state:
            clauses["state"] = state
        elif keyword == "ALTER" and self.take_any("ADD", "DROP"):
            self.expect("CREDENTIAL")
            self.refuse("A credential of a login", "Omit it: files are read with the rights of the process.")
        elif self.take("FROM"):
            self._refuse_external_provider()
            if self.take("WINDOWS"):
                clauses["from_windows"] = True
                if self.take("WITH"):
                    self._name_value_pairs(clauses)
            elif self.take("ASYMMETRIC"):
                self.refuse("A login of an asymmetric key", "Use a certificate.")
            else:
                self.expect("CERTIFICATE")
                clauses["from_certificate"] = self.single_name().object
                if self.take("WITH", "CREDENTIAL"):
                    self.refuse("A credential of a login", "Omit it: files are read with the rights of the process.")
        else:
            self.expect("WITH")
            self._name_value_pairs(clauses)
        return Definition(line, keyword, "LOGIN", name, clauses, if_exists)

    def _name_value_pairs(self, clauses: Clauses) -> None:
        """Read PASSWORD = '...' MUST_CHANGE, DEFAULT_DATABASE = [x], CHECK_POLICY = OFF, ..."""
        while True:
            if self.take("NO", "CREDENTIAL"):
                self.refuse("A credential of a login", "Omit it: files are read with the rights of the process.")
            option = self.single_name().object.lower()
            self.expect("=")
            if self.tokens.kinds[self.at] == STRING:
                clauses[option] = self.string()
            elif self.word in ("0", "-"):
                clauses[option] = self.constant().value
            else:
                clauses[option] = self.single_name().object
            while self.take_any("HASHED", "MUST_CHANGE", "UNLOCK"):
                pass
            if option == "password" and self.take("OLD_PASSWORD", "="):
                self.string()
                self.take("UNLOCK")
            if not self.take(","):
                return

    def _refuse_external_provider(self) -> None:
        if self.take("EXTERNAL", "PROVIDER"):
            self.refuse("EXTERNAL PROVIDER", "Use a certificate, or WITHOUT LOGIN.")

    def user(self, line: int, keyword: str) -> Statement:
        """Clauses: `for_login`, `without_login`, `from_certificate`, `default_schema`, `name`."""
        name, if_exists = self._principal(keyword)
        clauses: Clauses = {}
        if keyword == "DROP":
            return Definition(line, keyword, "USER", name, clauses, if_exists)
        if self.take_any("FOR", "FROM"):
            self._refuse_external_provider()
            if self.take("LOGIN"):
                clauses["for_login"] = self.single_name().object
            elif self.take("ASYMMETRIC"):
                self.refuse("A user of an asymmetric key", "Use a certificate.")
            else:
                self.expect("CERTIFICATE")
                clauses["from_certificate"] = self.single_name().object
        elif self.take("WITHOUT", "LOGIN"):
            clauses["without_login"] = True
        if self.take("WITH"):
            self._name_value_pairs(clauses)
        return Definition(line, keyword, "USER", name, clauses, if_exists)

    def role(self, line: int, keyword: str) -> Statement:
        """Clauses: `authorization`; of ALTER `add_member`, `drop_member` or `name`."""
        name, if_exists = self._principal(keyword)
        clauses: Clauses = {}
        if keyword == "CREATE" and self.take("AUTHORIZATION"):
            clauses["authorization"] = self.single_name().object
        if keyword == "ALTER":
            change = self.expect_any("ADD", "DROP", "WITH")
            if change == "WITH":
                self.refuse("ALTER ROLE WITH NAME", "Create a role of the new name.")
            self.expect("MEMBER")
            clauses[f"{change.lower()}_member"] = self.single_name().object
        return Definition(line, keyword, "ROLE", name, clauses, if_exists)

    def schema(self, line: int, keyword: str) -> Statement:
        """Clauses: `authorization`; of ALTER `kind` and `object`, the object of TRANSFER."""
        if_exists = self.if_exists(keyword)
        clauses: Clauses = {}
        if keyword == "ALTER":
            name = self.single_name()
            self.expect("TRANSFER")
            kinds = ("OBJECT", "TYPE", "XML SCHEMA COLLECTION")
            kind = next((kind for kind in kinds if self.take(*kind.split(), "::")), "OBJECT")
            return Definition(line, keyword, "SCHEMA", name, {"kind": kind, "object": self.name()})
        name = Name(("",)) if self.word == "AUTHORIZATION" else self.single_name()
        if self.take("AUTHORIZATION"):
            clauses["authorization"] = self.single_name().object
            name = name if name.object else Name((clauses["authorization"],))
        return Definition(line, keyword, "SCHEMA", name, clauses, if_exists)

    def _principal(self, keyword: str) -> tuple[Name, bool]:
        if_exists = self.if_exists(keyword)
        return self.single_name(), if_exists

    # ------------------------------------------------------------ keys and certificates

    def master_key(self, line: int, keyword: str) -> Statement:
        """Clauses: `password`; of ALTER also `action`: REGENERATE, FORCE REGENERATE, ADD or DROP."""
        clauses: Clauses = {}
        if keyword == "ALTER":
            force = self.take("FORCE")
            action = self.expect_any("REGENERATE", "ADD", "DROP")
            clauses["action"] = f"FORCE {action}" if force else action
            if action == "REGENERATE":
                self.expect("WITH")
        if keyword == "CREATE" or keyword == "ALTER":
            if self.take("ENCRYPTION", "BY", "PASSWORD"):
                self.expect("=")
                clauses["password"] = self.string()
            elif keyword == "ALTER":
                self.expect("ENCRYPTION", "BY", "SERVICE", "MASTER", "KEY")
                clauses["service_master_key"] = True
        return Definition(line, keyword, "MASTER KEY", Name(("",)), clauses)

    def certificate(self, line: int, keyword: str) -> Statement:
        """Clauses: the fields of the operation, and those of the private key in a dict `private_key`."""
        name, if_exists = self._principal(keyword)
        clauses: Clauses = {}
        if keyword == "CREATE":
            if self.take("AUTHORIZATION"):
                clauses["authorization"] = self.single_name().object
            if self.take("FROM"):
                self._certificate_source(clauses)
            elif self.take("ENCRYPTION", "BY", "PASSWORD", "="):
                clauses["encryption_password"] = self.string()
            if len(clauses) == ("authorization" in clauses) and self.word != "WITH":
                self.fail()
        elif keyword == "ALTER" and self.take("REMOVE", "PRIVATE", "KEY"):
            clauses["remove_private_key"] = True
        elif keyword == "ALTER" and self.word in ("REMOVE", "ATTESTED"):
            self.refuse(f"ALTER CERTIFICATE {self.word} ATTESTED", "Omit it.")
        while True:
            if self.take("WITH") or self.take(","):
                if self.take("PRIVATE", "KEY"):
                    clauses["private_key"] = self._private_key()
                elif not self.take("ACTIVE", "FOR", "BEGIN_DIALOG"):
                    option = self.expect_any("SUBJECT", "START_DATE", "EXPIRY_DATE")
                    self.expect("=")
                    clauses[option.lower()] = self.string()
                else:
                    clauses["active_for_begin_dialog"] = self.on_off()
            elif self.take("ACTIVE", "FOR", "BEGIN_DIALOG"):
                clauses["active_for_begin_dialog"] = self.on_off()
            else:
                return Definition(line, keyword, "CERTIFICATE", name, clauses, if_exists)

    def _certificate_source(self, clauses: Clauses) -> None:
        if self.take("ASSEMBLY"):
            self.refuse("A certificate FROM ASSEMBLY", "Use FROM FILE.")
        if self.take("EXECUTABLE"):
            self.refuse("A certificate FROM EXECUTABLE FILE", "Use FROM FILE.")
        if self.take("BINARY"):
            self.expect("=")
            clauses["binary"] = self.constant()
            return
        self.expect("FILE", "=")
        clauses["file"] = self.string()
        if self.word == "WITH" and self.peek() == "FORMAT":
            self.at += 1
            self._format()

    def _format(self) -> None:
        """Skip FORMAT = 'DER', the format of all certificate files."""
        if self.take("FORMAT", "="):
            file_format = self.string()
            if file_format.upper() != "DER":
                self.refuse(f"FORMAT = '{file_format[:20]}'", "Keep the certificate and its private key in two files.")
            self.take(",")

    def _private_key(self) -> Clauses:
        self.expect("(")
        clauses: Clauses = {}
        while True:
            if self.take("FILE"):
                self.expect("=")
                clauses["private_key_file"] = self.string()
            elif self.take("BINARY"):
                self.expect("=")
                clauses["binary"] = self.constant()
            else:
                action = self.expect_any("DECRYPTION", "ENCRYPTION")
                self.expect("BY", "PASSWORD", "=")
                clauses[f"{action.lower()}_password"] = self.string()
            if not self.take(","):
                break
        self.expect(")")
        return clauses

    def backup(self, line: int) -> Statement:
        """BACKUP CERTIFICATE name TO FILE = '...' WITH PRIVATE KEY (...), BACKUP MASTER KEY."""
        if self.take("CERTIFICATE"):
            name = self.single_name()
            self.expect("TO", "FILE", "=")
            clauses: Clauses = {"file": self.string()}
            if self.take("WITH"):
                self._format()
                self.expect("PRIVATE", "KEY")
                clauses["private_key"] = self._private_key()
            return Definition(line, "BACKUP", "CERTIFICATE", name, clauses)
        if self.take("MASTER", "KEY"):
            self.expect("TO", "FILE", "=")
            clauses = {"file": self.string()}
            self.expect("ENCRYPTION", "BY", "PASSWORD", "=")
            clauses["password"] = self.string()
            return Definition(line, "BACKUP", "MASTER KEY", Name(("",)), clauses)
        raise self.failure()

    def signature(self, line: int, keyword: str) -> Statement:
        """Clauses: `signers`, each certificate with its `password` and `signature`; `counter`."""
        clauses: Clauses = {"counter": self.take("COUNTER")}
        self.expect("SIGNATURE")
        self.expect("TO" if keyword == "ADD" else "FROM")
        for kind in ("ASSEMBLY", "DATABASE"):
            if self.take(kind, "::"):
                self.refuse(f"A signature of {kind}", "Sign the procedure.")
        self.take("OBJECT", "::")
        name = self.name()
        self.expect("BY")
        signers = []
        while True:
            if self.take("ASYMMETRIC"):
                self.refuse("A signature by an asymmetric key", "Use a certificate.")
            self.expect("CERTIFICATE")
            signer: Clauses = {"certificate": self.single_name().object}
            if keyword == "ADD" and self.take("WITH"):
                option = self.expect_any("PASSWORD", "SIGNATURE")
                self.expect("=")
                signer[option.lower()] = self.string() if option == "PASSWORD" else self.constant().value
            signers.append(signer)
            if not self.take(","):
                break
        return Definition(line, keyword, "SIGNATURE", name, clauses | {"signers": signers})

    def open_key(self, line: int) -> Statement:
        """OPEN MASTER KEY DECRYPTION BY PASSWORD."""
        self.expect("MASTER", "KEY", "DECRYPTION", "BY", "PASSWORD", "=")
        return Definition(line, "OPEN", "MASTER KEY", Name(("",)), {"password": self.string()})

    def close_key(self, line: int) -> Statement:
        """CLOSE MASTER KEY."""
        self.expect("MASTER", "KEY")
        return Definition(line, "CLOSE", "MASTER KEY", Name(("",)))

    # ------------------------------------------------------------ permissions

    def permission(self, line: int, keyword: str) -> Statement:
        """GRANT, DENY, REVOKE."""
        grant_option = keyword == "REVOKE" and self.take("GRANT", "OPTION", "FOR")
        permissions = [self._permission_words()]
        while self.take(","):
            permissions.append(self._permission_words())
        kind, name = "", None
        if self.take("ON"):
            kind, name = self._securable()
        self.expect_any("TO", "FROM")
        principals = [self.single_name().object]
        while self.take(","):
            principals.append(self.single_name().object)
        if keyword == "GRANT" and self.take("WITH", "GRANT", "OPTION"):
            grant_option = True
        cascade = keyword != "GRANT" and self.take("CASCADE")
        if (
            self.take("AS") and self.single_name().object.lower() != "dbo"
        ):  # dbo owns every object, so AS dbo changes nothing
            self.refuse("AS grantor", "Use EXECUTE AS to act as that user.")
        return Permission(line, keyword, tuple(permissions), kind, name, tuple(principals), grant_option, cascade)

    def _permission_words(self) -> str:
        words: list[str] = []
        while self.word not in (",", "ON", "TO", "FROM", "", ";", "("):
            words.append(self.single_name().object.upper())
        if words == ["EXEC"]:
            words = ["EXECUTE"]
        if self.word == "(":
            self.refuse("A permission on columns", "Grant it on the table.")
        if not words:
            self.fail()
        return " ".join(words)

    def _securable(self) -> tuple[str, Name]:
        for kind in _SECURABLES:
            words = (*kind.split(), "::")
            if self.take(*words):
                name = self.name() if kind in _SCHEMA_SECURABLES and self.is_identifier() else self.single_name_alone()
                return kind, name
        for kind in _UNSUPPORTED_SECURABLES:
            if self.take(*kind.split(), "::"):
                self.refuse(f"A permission on {kind}", "Omit it.")
        if self.word == "COLUMN" and self.words[self.at + 2 : self.at + 4] == ["KEY", "DEFINITION"]:
            self.refuse("A permission on column keys", "Omit it.")
        name = self.name()
        if self.word == "(":
            self.refuse("A permission on columns", "Grant it on the table.")
        return "OBJECT", name

    def single_name_alone(self) -> Name:
        """Read a name of one part. One of several parts names nothing of this kind."""
        if self.word == ".":
            self.name()
        name = self.single_name()
        if self.word == ".":
            self.refuse("A name of several parts", "These objects have no schema: write the name alone.")
        return name

    def alter_authorization(self, line: int) -> Statement:
        """ALTER AUTHORIZATION ON kind::name TO owner."""
        self.expect("ON")
        kind, name = self._securable()
        self.expect("TO")
        owner = "dbo" if self.take("SCHEMA", "OWNER") else self.single_name().object
        return Definition(line, "ALTER", "AUTHORIZATION", name, {"kind": kind, "owner": owner})

    def revert(self, line: int) -> Statement:
        """REVERT [WITH COOKIE = value]."""
        if not self.take("WITH"):
            return Revert(line)
        self.expect("COOKIE", "=")
        return Revert(line, self.expression())
