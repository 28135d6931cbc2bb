"""A PostgreSQL role that tries every kind of statement on every object of ours, and every function with any arguments.

The objects are read from pg_catalog, so that no new object is forgotten.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

OURS = "n.nspname in ('servicebroker', 'servicebroker_fence', 'sys', 'tsql') or n.nspname like '%\\_dbo'"

_TABLES = (
    "select * from {0} limit 1", "select count(*) from {0}", "table {0}", "insert into {0} default values",
    "insert into {0} select * from {0}", "delete from {0}", "truncate {0}", "lock {0} in access share mode",
    "lock {0} in access exclusive mode", "copy {0} to '/dev/null'", "drop table {0}", "drop view {0} cascade",
    "alter table {0} rename to gone", "alter table {0} add column more int", "alter table {0} owner to {role}",
    "alter table {0} disable trigger all", "alter table {0} enable row level security", "alter table {0} set unlogged",
    "alter view {0} rename to gone", "create index on {0} ((1))", "create statistics on ctid, xmin from {0}",
    "create trigger t after insert on {0} execute function suppress_redundant_updates_trigger()",
    "create rule r as on insert to {0} do nothing", "create policy p on {0}",
    "create view v as select * from {0} where false; select * from v", "create table copied as select * from {0}",
    "create table child () inherits ({0})", "create table taken (like {0} including all)",
    "create materialized view m as select * from {0}", "grant all on {0} to {role}", "grant select on {0} to public",
    "revoke all on {0} from {owner}", "comment on table {0} is 'mine'", "reindex table {0}", "cluster {0}",
    "refresh materialized view {0}", "explain analyze select * from {0}", "declare c cursor for select * from {0}",
    "select {name}::text::regclass, (select max(ctid) from {0})", "security label on table {0} is 'x'",
    "create publication p for table {0}", "merge into {0} t using (select 1) s on true when matched then delete",
    "select * from {0} for update", "select query_to_xml('select * from {0}', true, true, '')",
    "do $x$ declare r {0}; begin select * into r from {0}; end $x$",
)  # fmt: skip
_COLUMNS = (
    "update {0} set {1} = {1}",
    "select {1} from {0}",
    "insert into {0} ({1}) values (null)",
    "alter table {0} drop column {1} cascade",
    "create table pointing (x int references {0} ({1}))",
)
_SEQUENCES = (
    "select nextval({oid}::oid::regclass)", "select setval({oid}::oid::regclass, 1)", "select last_value from {0}",
    "select pg_sequence_last_value({oid}::oid::regclass) is null or true from pg_sequences where false union all "
    "select nextval({name}) is null", "alter sequence {0} restart", "drop sequence {0} cascade",
)  # fmt: skip
_FUNCTIONS = (
    "drop function {0} cascade", "alter function {0} owner to {role}", "alter function {0} set search_path = public",
    "alter function {0} security invoker", "alter function {0} rename to gone",
    "grant execute on function {0} to {role}",
    "grant execute on function {0} to public", "comment on function {0} is 'mine'",
    "alter function {0} depends on extension plpgsql",
)  # fmt: skip
_SCHEMAS = (
    "create table {0}.planted (x int)", "create view {0}.planted as select 1",
    "create function {0}.planted() returns int language sql return 1", "create type {0}.planted as (x int)",
    "create sequence {0}.planted", "create domain {0}.planted as int",
    "create operator {0}.=== (function = texteq, leftarg = text, rightarg = text)", "drop schema {0} cascade",
    "alter schema {0} rename to gone", "alter schema {0} owner to {role}", "grant all on schema {0} to {role}",
    "grant usage on schema {0} to public",
    "alter default privileges for role {owner} in schema {0} grant all on tables to {role}",
    "comment on schema {0} is 'mine'",
    "create collation {0}.planted from \"C\"", "import foreign schema x from server y into {0}",
)  # fmt: skip
_AT_LARGE = (
    "set role {owner}",
    "set session authorization {owner}",
    "set local session authorization default; set role {owner}",
    "reassign owned by {owner} to {role}",
    "drop owned by {owner}",
    "grant {owner} to {role}",
    "alter role {owner} login",
    "alter role {role} superuser",
    "alter role {role} createrole",
    "create role more",
    "drop role {victim}",
    "alter role {victim} rename to mine",
    "set role {victim}",
    "grant {victim} to {role}",
    "alter role {victim} set role = {role}",
    "alter database {database} owner to {role}",
    "alter system set fsync = off",
    "load 'plpgsql'",
    "create extension dblink",
    "set session_replication_role = replica",
    "select pg_read_file('postgresql.conf')",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{owner}'",
    "select lo_import('/etc/passwd')",
    "create event trigger e on ddl_command_start execute function suppress_redundant_updates_trigger()",
    "select * from pg_authid",
    "select * from pg_statistic",
    "update pg_class set relacl = null",
    "create language plpython3u",
    "create subscription s connection '' publication p",
    "copy (select 1) to program 'true'",
)  # fmt: skip


class Objects(NamedTuple):
    """The objects by kind: SQL names, with the oid of relations."""

    tables: list[tuple[str, int, str]]  # with a column
    sequences: list[tuple[str, int]]
    functions: list[str]
    schemas: list[str]


class Outcome(NamedTuple):
    """A statement with its SQLSTATE; '' if it succeeded."""

    statement: str
    sqlstate: str


def objects(connection: psycopg.Connection[Any]) -> Objects:
    """Return all objects of our schemas."""
    rows = connection.execute(
        "select format('%I.%I', n.nspname, c.relname), c.oid::int8, c.relkind::text, "  # type: ignore[arg-type]
        "coalesce((select quote_ident(attname) from pg_attribute where attrelid = c.oid and attnum = 1), 'x') "
        "from pg_class c "
        f"join pg_namespace n on n.oid = c.relnamespace where ({OURS}) and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') "
        "order by 1"
    ).fetchall()
    functions = connection.execute(
        "select format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)) from pg_proc p "  # type: ignore[arg-type]
        f"join pg_namespace n on n.oid = p.pronamespace where {OURS} order by 1"
    ).fetchall()
    schemas = connection.execute(f"select quote_ident(nspname) from pg_namespace n where {OURS} order by 1").fetchall()  # type: ignore[arg-type]
    return Objects(
        [(name, oid, column) for name, oid, kind, column in rows if kind != "S"],
        [(name, oid) for name, oid, kind, _ in rows if kind == "S"],
        [name for (name,) in functions],
        [name for (name,) in schemas],
    )


def statements(objects: Objects, names: dict[str, str]) -> Iterator[str]:
    """Return every kind of statement on every object."""

    def fill_templates(texts: Iterable[str], *places: str, **more: object) -> Iterator[str]:
        for text in texts:
            yield text.format(*places, **names, **more)

    for name, oid, column in objects.tables:
        yield from fill_templates(_TABLES, name, oid=oid, name=f"'{name}'")
        yield from fill_templates(_COLUMNS, name, column)
    for name, oid in objects.sequences:
        yield from fill_templates(_SEQUENCES, name, oid=oid, name=f"'{name}'")
    for name in objects.functions:
        yield from fill_templates(_FUNCTIONS, name)
    for name in objects.schemas:
        yield from fill_templates(_SCHEMAS, name)


def at_large(names: dict[str, str]) -> list[str]:
    """Return statements that would give the role more than it has."""
    return [text.format(**names) for text in _AT_LARGE]


def attempt(connection: psycopg.Connection[Any], texts: Sequence[str], *, undo: bool = False) -> list[Outcome]:
    """Run each statement in its own transaction, which is committed, or with `undo` rolled back."""
    connection.execute(_TRY)  # type: ignore[call-overload]
    rows = connection.execute(
        "select s, pg_temp.attempt(s, %s) from unnest(%s::text[]) with ordinality t (s, place) order by place",
        (undo, list(texts)),
    ).fetchall()
    return [Outcome(*row) for row in rows]


_TRY = """
create or replace function pg_temp.attempt(statement text, undo boolean) returns text language plpgsql as $$
begin
    execute statement;
    if undo then
        raise sqlstate 'UNDO1';
    end if;
    return '';
exception when others then
    return case sqlstate when 'UNDO1' then '' else sqlstate end;
end $$
"""


def executable(connection: psycopg.Connection[Any]) -> list[tuple[str, list[str]]]:
    """Return our functions that the role may execute, each with the types of its arguments."""
    return connection.execute(  # type: ignore[return-value]
        "select format('%I.%I', n.nspname, p.proname), "  # type: ignore[arg-type]
        "array(select t::regtype::text from unnest(p.proargtypes) t) "
        f"from pg_proc p join pg_namespace n on n.oid = p.pronamespace where ({OURS}) "
        "and has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute') "
        "and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype order by 1, 2"
    ).fetchall()


def calls(
    functions: Sequence[tuple[str, list[str]]],
    pool: dict[str, Sequence[object]],
    rng: random.Random,
    calls_of_each: int,
) -> Iterator[str]:
    """Return calls of each function with values from the pool of each type, with arrays of them, and with nulls."""
    for name, types in functions:
        for _ in range(calls_of_each):
            values = [_value(argument_type, pool, rng) for argument_type in types]
            left_out = rng.random() < 0.5 and types[-1:] == ["uuid"]  # me
            arguments_text = ", ".join(values[:-1] if left_out else values)
            yield f"select r::text from {name}({arguments_text}) r"


def _value(kind: str, pool: dict[str, Sequence[object]], rng: random.Random) -> str:
    if rng.random() < 0.1:
        return f"null::{kind}"
    if kind.endswith("[]"):
        elements = [_value(kind[:-2], pool, rng) for _ in range(rng.randrange(4))]
        return f"array[{', '.join(elements)}]::{kind}"
    value = rng.choice(list(itertools.chain(pool.get(kind, ["0"]))))
    return f"{sql.Literal(str(value)).as_string(None)}::{kind}"


def say(connection: psycopg.Connection[Any], texts: Sequence[str]) -> tuple[str, list[Outcome]]:
    """Run the calls. Return all their results and error texts, and the outcome of each."""
    connection.execute(_SAY)  # type: ignore[call-overload]
    rows = connection.execute(
        "select s, (pg_temp.say(s)).* from unnest(%s::text[]) with ordinality t (s, place) order by place",
        (list(texts),),
    ).fetchall()
    return "\n".join(text for _, _, text in rows), [Outcome(statement, state) for statement, state, _ in rows]


_SAY = """
create or replace function pg_temp.say(statement text, out state text, out said text) language plpgsql as $$
declare
    row text;
    detail text;
begin
    state := ''; said := '';
    for row in execute statement loop
        said := said || coalesce(row, '');
    end loop;
exception when others then
    get stacked diagnostics detail = pg_exception_detail;
    state := sqlstate; said := sqlerrm || coalesce(detail, '');
end $$
"""


def digest(connection: psycopg.Connection[Any], but: Sequence[str] = ()) -> dict[str, str]:
    """Return a checksum of each of our tables, and of the definitions of our objects."""
    digests = {}
    for name, _, _ in objects(connection).tables:
        if name.split(".")[0] == "servicebroker" and name.split(".")[1] not in but:
            row = connection.execute(
                f"select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from {name} t"
            )  # type: ignore[call-overload]
            digests[name] = row.fetchone()[0]
    for what, text in {
        "relations": "select c.relname, c.relowner, c.relacl, c.relkind, c.relhasrules, c.relhastriggers, "
        "c.relrowsecurity from pg_class c join pg_namespace n on n.oid = c.relnamespace",
        # a GRANT that is warned of, and not done, writes down the rights that were there by default
        "functions": "select p.proname, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), p.prosrc, "
        "p.prosecdef, p.proconfig "
        "from pg_proc p join pg_namespace n on n.oid = p.pronamespace",
        "schemas": "select n.nspname, n.nspowner, n.nspacl from pg_namespace n",
    }.items():
        row = connection.execute(  # type: ignore[call-overload]
            f"select md5(string_agg(t::text, '|' order by t::text)) from ({text} where {OURS}) t"
        )
        digests[what] = row.fetchone()[0]
    return digests
