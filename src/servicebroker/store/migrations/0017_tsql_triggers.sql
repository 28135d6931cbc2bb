-- What a trigger of T-SQL sees as `inserted` and `deleted`: copies that a T-SQL session asks for by the setting
-- servicebroker.tsql_level, and finds by servicebroker.tsql_captured: "table operation" for each, parted by semicolons.
-- Whoever changes a table otherwise asks for nothing.
create function servicebroker.tsql_capture() returns trigger language plpgsql as $$
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
        execute format('create temporary table tsql_inserted_%s as select * from %s with no data', place, tg_relid::regclass);
    else
        execute format('create temporary table tsql_inserted_%s as select * from inserted_rows', place);
    end if;
    if tg_op = 'INSERT' then
        execute format('create temporary table tsql_deleted_%s as select * from %s with no data', place, tg_relid::regclass);
    else
        execute format('create temporary table tsql_deleted_%s as select * from deleted_rows', place);
    end if;
    perform set_config('servicebroker.tsql_captured', concat_ws(';', nullif(captured, ''), tg_relid || ' ' || tg_op), false);
    return null;
end $$;
