-- INSTEAD OF triggers: the rows that a statement of a T-SQL session would change are copied into temporary tables
-- (inserted, deleted), and the table or view is not changed. The settings are those of AFTER triggers
-- (servicebroker.tsql_capture). servicebroker.tsql_within lists the running triggers, which their own statements do not
-- fire again. A table changes as usual for sessions that are not T-SQL.

-- Before a statement: create the empty temporary tables, numbered for the trigger that reads them.
create or replace function tsql.divert_statement() returns trigger language plpgsql as $$
declare
    level text := current_setting('servicebroker.tsql_level', true);
    captured text := coalesce(current_setting('servicebroker.tsql_captured', true), '');
    place text;
begin
    if coalesce(level, '') = ''
       or tg_argv[0] = any (string_to_array(coalesce(current_setting('servicebroker.tsql_within', true), ''), ',')) then
        return null;
    end if;
    place := format('%s_%s', level, coalesce(array_length(string_to_array(captured, ';'), 1), 0) + 1);
    execute format('create temporary table %I as select * from %s with no data', 'tsql_inserted_' || place, tg_relid::regclass);
    execute format('create temporary table %I as select * from %s with no data', 'tsql_deleted_' || place, tg_relid::regclass);
    perform set_config('servicebroker.tsql_captured', concat_ws(';', nullif(captured, ''), tg_relid || ' INSTEAD_' || tg_op), false);
    return null;
end $$;

-- For each row: copy it. A BEFORE trigger of a table, or an INSTEAD OF trigger of a view.
create or replace function tsql.divert_row() returns trigger language plpgsql as $$
declare
    captured text[] := string_to_array(coalesce(current_setting('servicebroker.tsql_captured', true), ''), ';');
    place integer := array_position(captured, tg_relid || ' INSTEAD_' || tg_op);
    own text := format('%s_%s', current_setting('servicebroker.tsql_level', true), place);
begin
    if place is null or coalesce(current_setting('servicebroker.tsql_level', true), '') = '' then
        if tg_when = 'INSTEAD OF' then
            raise exception 'The rows of % change by an INSTEAD OF trigger, which only T-SQL runs, and not inside of itself: '
                            'change the tables under it.', tg_relid::regclass using errcode = 'feature_not_supported';
        end if;
        return case when tg_op = 'DELETE' then old else new end;
    end if;
    if tg_op <> 'DELETE' then
        execute format('insert into pg_temp.%I select ($1).*', 'tsql_inserted_' || own) using new;
    end if;
    if tg_op <> 'INSERT' then
        execute format('insert into pg_temp.%I select ($1).*', 'tsql_deleted_' || own) using old;
    end if;
    return null;
end $$;
