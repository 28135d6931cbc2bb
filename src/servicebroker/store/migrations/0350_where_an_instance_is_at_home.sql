-- The database in which an instance is at home: the one it was made in or adopted for. Any other database that holds these
-- rows is a copy, and serves nobody until it is adopted (decision 350).

alter table servicebroker.instance
    add column system_identifier bigint,  -- of the server; null: its owner may not read that
    add column database_oid oid,          -- null: not known to be at home anywhere
    add column table_oid oid;             -- of this table: pg_upgrade keeps it, a restored dump does not

-- Managed servers may keep pg_control_system() to themselves.
create function servicebroker.system_identifier() returns bigint language plpgsql stable as $$
begin
    if has_function_privilege('pg_catalog.pg_control_system()', 'execute') then
        return (select s.system_identifier from pg_control_system() s);
    end if;
    return null;
end $$;

-- 'here'; 'upgraded' where only the server is another one, as after pg_upgrade; 'copy'.
create function servicebroker.home() returns text language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select case
               when i.database_oid is distinct from d.oid or i.table_oid <> 'servicebroker.instance'::regclass then 'copy'
               when i.system_identifier <> servicebroker.system_identifier() then 'upgraded'
               else 'here'
           end
      from servicebroker.instance i, pg_database d where d.datname = current_database()
$$;

-- Make this database the home of the instance.
create function servicebroker.settle() returns void language sql as $$
    update servicebroker.instance
       set system_identifier = servicebroker.system_identifier(), table_oid = 'servicebroker.instance'::regclass,
           database_oid = (select oid from pg_database where datname = current_database())
$$;

-- An instance that exists is at home here. A restored copy that nobody has adopted still tells where its schema was recorded,
-- as `_VERSION` in store/expected_objects.py has it, and stays without a home.
do $$
begin
    if not exists (select from servicebroker.made) or exists (
        select from servicebroker.made m, generate_series(9, 99) version
         where m.server = hashtext(concat_ws(' ', version, 'servicebroker.made'::regclass::oid)))
    then
        perform servicebroker.settle();
    end if;
end $$;
