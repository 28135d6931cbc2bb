-- What restricted PostgreSQL roles may do goes through functions that ask for permissions (store/fence.sql).

create schema servicebroker_fence;

-- The roles that may call them. `key` says in a call who calls; only the role itself can read it, by a view.
create table servicebroker.fenced_roles (
    postgres_role text primary key,
    key uuid not null unique default gen_random_uuid()
);

-- The needs of model/permissions.py that those functions ask for, filled with them. `brought_by` are the rights that do,
-- each as "class permission", `of_roles` the fixed roles that have one of them.
create table servicebroker.needs (
    statement text not null,
    place integer not null,
    class smallint not null,
    permission text not null,
    number integer not null,
    brought_by text[] not null,
    of_roles integer[] not null,
    primary key (statement, place)
);

-- RECEIVEs of those roles, as sent_in_sql counts what is sent by functions of the server
create sequence servicebroker.received_in_sql;

-- events of queues that somebody has caused who may not post them: an open instance does
create table servicebroker.events_to_post (
    queue_id integer not null references servicebroker.queues on delete cascade,
    event text not null,
    primary key (queue_id, event)
);

-- PUBLIC may no longer execute our functions, nor count the RECEIVEs of a queue. Roles with rights on our tables go on:
-- they get by name what they had as anybody, and `servicebroker doctor` names them.
do $$
declare
    role text;
    number integer;
begin
    for role in
        select case a.grantee when 0 then 'public' else quote_ident(r.rolname) end
          from pg_namespace n cross join aclexplode(n.nspacl) a left join pg_roles r on r.oid = a.grantee
         where n.nspname = 'servicebroker' and a.privilege_type = 'USAGE' and a.grantee <> n.nspowner
    loop
        execute format('grant execute on all functions in schema servicebroker to %s', role);
    end loop;
    for number in select queue_id from servicebroker.queues loop
        execute format('revoke usage on sequence servicebroker.queue_%1$s_receives, servicebroker.queue_%1$s_empty_receives '
                       'from public', number);
        for role in
            select case a.grantee when 0 then 'public' else quote_ident(r.rolname) end
              from pg_class c cross join aclexplode(c.relacl) a left join pg_roles r on r.oid = a.grantee
             where c.oid = to_regclass('servicebroker.queue_' || number) and a.privilege_type = 'DELETE'
               and a.grantee <> c.relowner
        loop
            execute format('grant usage on sequence servicebroker.queue_%1$s_receives, servicebroker.queue_%1$s_empty_receives '
                           'to %2$s', number, role);
        end loop;
    end loop;
end $$;

-- The names of what a trigger captures are made of a setting, which is anybody's: quoted.
create or replace function servicebroker.tsql_capture() returns trigger language plpgsql as $$
declare
    level text := current_setting('servicebroker.tsql_level', true);
    captured text := coalesce(current_setting('servicebroker.tsql_captured', true), '');
    place text;
begin
    if coalesce(level, '') = '' then
        return null;
    end if;
    place := format('%s_%s', level, coalesce(array_length(string_to_array(captured, ';'), 1), 0) + 1);
    if tg_op = 'DELETE' then
        execute format('create temporary table %I as select * from %s with no data', 'tsql_inserted_' || place, tg_relid::regclass);
    else
        execute format('create temporary table %I as select * from inserted_rows', 'tsql_inserted_' || place);
    end if;
    if tg_op = 'INSERT' then
        execute format('create temporary table %I as select * from %s with no data', 'tsql_deleted_' || place, tg_relid::regclass);
    else
        execute format('create temporary table %I as select * from deleted_rows', 'tsql_deleted_' || place);
    end if;
    perform set_config('servicebroker.tsql_captured', concat_ws(';', nullif(captured, ''), tg_relid || ' ' || tg_op), false);
    return null;
end $$;
