"""T-SQL objects in the schemas of a database (tables, views, procedures, synonyms ...), and permissions on them.

dbo owns all of them. Objects are identified by the names of their PostgreSQL tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import check_schema
from servicebroker.engine.security.authorization import Lookup, authorize, authorize_all, forget_permissions, schema
from servicebroker.model import names
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID, DBO_SCHEMA_ID, Kind, Securable, User
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


ENTER = "USE"  # the statement of a `Use` that every user of the database may make


class Use(NamedTuple):
    """The use of an object in a schema by a statement.

    Attributes:
        statement: the key in `NEEDS` of model/security/permissions.py, such as SELECT or CREATE TABLE.
        schema, name: the object.
        database: '' for the current database.
        shown: the object's name in an error; '' for `name`.
    """

    statement: str
    schema: str
    name: str
    database: str = ""
    shown: str = ""

    @property
    def defines(self) -> bool:
        """True if the statement creates, alters or drops the object itself, as CREATE TABLE does."""
        return " " in self.statement


class _Found(NamedTuple):
    is_queue: bool
    module: str | None  # its kind in sys.objects, None for an object that is not a module
    is_known: bool  # its schema exists
    is_there: bool
    securable: Securable


def authorize_uses(user: User, uses: Sequence[Use]) -> Steps[None]:
    """Check that the user has the permissions for these uses. Missing objects are ignored: the statement fails.

    Raises:
        BrokerError: the refusal that `NEEDS` names, 208 or 2760 the database has no such schema.
    """
    if user.is_dbo or not uses:
        return
    objects = yield from _find(user, uses)
    for use, tsql_object in zip(uses, objects, strict=True):
        if not tsql_object.is_known:
            raise BrokerError(2760, use.schema) if _creates(use) else BrokerError(208, f"{use.schema}.{use.name}")
    wanted = [pair for pair in zip(uses, objects, strict=True) if pair[1].is_there or _creates(pair[0])]
    yield from authorize_all(
        user, [(_resolve_create_or_alter(use, tsql_object), tsql_object.securable) for use, tsql_object in wanted]
    )


def authorize_queues(user: User, uses: Sequence[Use]) -> Steps[None]:
    """Check the permissions for those uses that concern queues not owned by dbo.

    For a module of dbo: ownership chaining allows all other uses.

    Raises:
        BrokerError: the refusal that `NEEDS` names.
    """
    if user.is_dbo or not uses:
        return
    objects = yield from _find(user, uses)
    pairs = zip(uses, objects, strict=True)
    others = [
        (use.statement, tsql_object.securable)
        for use, tsql_object in pairs
        if tsql_object.is_queue and tsql_object.securable.owner_id != DBO_ID
    ]
    if others:
        yield from authorize_all(user, others)


def check_definitions(user: User, uses: Sequence[Use]) -> Steps[None]:
    """Refuse definitions that would change objects of the broker or take their names, for all users including dbo.

    Raises:
        BrokerError: 2760, 3701 or 1088 in a schema of the system, 2760 no such schema; 2714, 3705, 4909, 2010, 1914,
            4708 or 8197 for a queue or a synonym; 2714 for a module, 208 for a missing view to alter.
    """
    check_schemas(uses)
    objects = yield from _find(user, uses)
    for use, tsql_object in zip(uses, objects, strict=True):
        if tsql_object.is_queue:
            raise _of_no_table(use, "service queue", "DROP QUEUE")
        if tsql_object.module is not None and _creates(use):
            raise BrokerError(2714, use.name)
        if not tsql_object.is_known and _creates(use):
            raise BrokerError(2760, use.schema)
        if tsql_object.module == "SN" and use.statement != "DROP SYNONYM":
            raise _of_no_table(use, "synonym", "DROP SYNONYM")
        if use.statement == "ALTER VIEW" and not tsql_object.is_there:
            raise BrokerError(208, use.shown or use.name)


def create_schema(user: User, name: str) -> Steps[str]:
    """CREATE SCHEMA. Returns the PostgreSQL schema, which the caller creates.

    Raises:
        BrokerError: 15247 the user may not, 2714 the name is taken, 2760 it collides with another database.
    """
    names.checked("schema", name)
    yield from authorize(user, "CREATE SCHEMA")
    if name.lower() in (*names.SYSTEM_SCHEMAS, "dbo", "guest"):
        raise BrokerError(2714, name)
    postgres_schema = names.postgres_name(user.database, name)
    yield from check_schema(user.database_id, name, postgres_schema)
    rows = yield Statement(
        "tsql_objects.create_schema.insert_tsql_schemas",
        "insert into servicebroker.tsql_schemas (database_id, name, postgres_schema) values ($1, $2, $3) "
        f"on conflict do nothing returning schema_id, {audit_context_sql(4)}",
        (user.database_id, name, postgres_schema, user.name, client_kind()),
    )
    if not rows:
        raise BrokerError(2714, name)
    yield SQL("create_schema.update_queues", (user.database_id, name, rows[0][0]))
    return postgres_schema


def find_schema_to_drop(user: User, name: str) -> Steps[str]:
    """Return the PostgreSQL schema for DROP SCHEMA. The caller drops it if it is empty, then calls `forget_schema`.

    Raises:
        BrokerError: 15151 no such schema, or the user may not.
    """
    yield from authorize(user, "DROP SCHEMA", schema(name))
    rows = yield SQL("find_schema_to_drop", (user.database_id, name))
    if not rows:
        raise BrokerError(15151, "drop", "schema", name)
    return str(rows[0][0])


def forget_schema(user: User, name: str) -> Steps[None]:
    """Delete the row of a dropped schema, and the permissions on it."""
    rows = yield Statement(
        "tsql_objects.forget_schema",
        "delete from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2) "
        f"returning schema_id, {audit_context_sql(3)}",
        (user.database_id, name, user.name, client_kind()),
    )
    yield forget_permissions(user.database_id, Kind.SCHEMA, rows[0][0])


def authorize_type(user: User, statement: str, schema_name: str, shown: str) -> Steps[None]:
    """Check the permission for CREATE TYPE or DROP TYPE. A type may have the name of a table.

    Raises:
        BrokerError: 2760 the schema is the system's; 262, 2760 or 218 the user may not.
    """
    if schema_name.lower() in names.SYSTEM_SCHEMAS:
        raise BrokerError(2760, schema_name)
    yield from authorize(user, statement, schema(schema_name), subject=(shown,))


def look_up_object(name: object) -> Lookup:
    """Look up an object or queue of the database by `name` or `schema.name`."""

    def look(user: User) -> Steps[list[Securable]]:
        ((is_queue, _, is_known, is_there, securable),) = yield from _find(
            user, [Use("SELECT", *names.split_name("object", name))]
        )
        return [securable] if is_queue or (is_there and is_known) else []

    return look


def look_up_registered(name: object) -> Lookup:
    """Look up an object by `name` or `schema.name` to grant permissions on it. An object without an id gets one."""

    def look(user: User) -> Steps[list[Securable]]:
        schema, own = names.split_name("object", name)
        ((is_queue, _, is_known, is_there, securable),) = yield from _find(user, [Use("SELECT", schema, own)])
        if is_queue or not is_there or not is_known:
            return []
        if securable.major_id:
            return [securable]
        rows = yield SQL(
            "look_up_registered",
            (user.database_id, names.postgres_name(user.database, schema), names.postgres_name(own)),
        )
        return [securable._replace(major_id=rows[0][0])]

    return look


def forget(user: User, schema: str, name: str) -> Steps[None]:
    """Delete the permissions on a dropped object."""
    rows = yield SQL(
        "forget", (user.database_id, names.postgres_name(user.database, schema or "dbo"), names.postgres_name(name))
    )
    for (object_id,) in rows:
        yield forget_permissions(user.database_id, Kind.OBJECT, object_id)


def check_schemas(uses: Iterable[Use]) -> None:
    """Refuse to create (2760), drop (3701) or alter (1088) an object in a system schema.

    Raises:
        BrokerError: 2760, 3701 or 1088.
    """
    for use in uses:
        if use.defines and use.schema.lower() in names.SYSTEM_SCHEMAS:
            raise _of_the_system(use)


_FIND = f"""
select q.queue_id is not null, m.kind, s.schema_id is not null or lower(used.schema_name) = 'dbo',
       to_regclass(format('%I.%I', used.postgres_schema, used.postgres_name)) is not null or m.module_id is not null,
       coalesce(q.queue_id, o.object_id, 0), coalesce(q.owner_id, {DBO_ID}), coalesce(q.name, m.name, used.name),
       case when lower(used.schema_name) = 'dbo' then {DBO_SCHEMA_ID} else coalesce(s.schema_id, 0) end,
       used.schema_name
  from unnest($2::text[], $3::text[], $4::text[], $5::text[]) with ordinality
       as used (schema_name, name, postgres_schema, postgres_name, place)
  left join servicebroker.queues q
    on q.database_id = $1 and q.postgres_schema = used.postgres_schema and q.postgres_name = used.postgres_name
  left join servicebroker.tsql_objects o
    on o.database_id = $1 and o.postgres_schema = used.postgres_schema and o.postgres_name = used.postgres_name
  left join servicebroker.tsql_schemas s on s.database_id = $1 and lower(s.name) = lower(used.schema_name)
  left join servicebroker.tsql_modules m
    on m.database_id = $1 and lower(m.schema_name) = lower(used.schema_name) and lower(m.name) = lower(used.name)
 order by used.place
"""


def _find(user: User, uses: Sequence[Use]) -> Steps[list[_Found]]:
    schemas = [use.schema or "dbo" for use in uses]
    rows = yield Statement(
        "tsql_objects.find",
        _FIND,
        (
            user.database_id,
            schemas,
            [use.name for use in uses],
            [names.postgres_name(user.database, schema) for schema in schemas],
            [names.postgres_name(use.name) for use in uses],
        ),
    )
    objects = []
    for use, (is_queue, module, is_known, is_there, major_id, owner_id, name, *place) in zip(uses, rows, strict=True):
        kind = Kind.QUEUE if is_queue else Kind.OBJECT
        securable = Securable(kind, major_id, owner_id, use.shown or name, *place)
        # a queue may be in a schema that CREATE SCHEMA has not created
        objects.append(_Found(is_queue, module, is_known or is_queue, is_there, securable))
    return objects


def _resolve_create_or_alter(use: Use, tsql_object: _Found) -> str:
    """Return the statement, with CREATE OR ALTER replaced by the one that applies."""
    return use.statement.replace("CREATE OR ALTER", "ALTER" if tsql_object.is_there else "CREATE")


def _creates(use: Use) -> bool:
    return use.statement.startswith("CREATE") and use.statement not in ("CREATE INDEX", "CREATE TRIGGER")


def _of_the_system(use: Use) -> BrokerError:
    if _creates(use):
        return BrokerError(2760, use.schema)
    verb, kind = use.statement.split(" ", 1)
    if verb == "DROP":
        return BrokerError(3701, "drop", kind.lower(), f"{use.schema}.{use.name}")
    return BrokerError(1088, f"{use.schema}.{use.name}")


def _of_no_table(use: Use, what: str, instead: str) -> BrokerError:
    """Return the error for a statement that treats a queue or synonym as another kind of object.

    `what` is the object's kind, `instead` the statement that the user should run.
    """
    if _creates(use) and not use.statement.startswith("CREATE OR ALTER"):
        return BrokerError(2714, use.name)
    if use.statement == "DROP INDEX":
        return BrokerError(3701, "drop", "index", use.shown or use.name)
    if use.statement.startswith("DROP"):
        return BrokerError(3705, use.statement, use.name, what, instead)
    number = {"CREATE INDEX": 1914, "CREATE TRIGGER": 8197, "ALTER TABLE": 4909, "TRUNCATE TABLE": 4708}
    return BrokerError(number.get(use.statement, 2010), use.name)
