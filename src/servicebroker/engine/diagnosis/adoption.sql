-- The statements of adoption.py.

-- name: adopt.find_columns
select table_name, column_name, is_nullable = 'YES' from information_schema.columns
where table_schema = 'servicebroker' and udt_name = 'xid8' order by 1, 2

-- name: adopt.find_unlogged
select relname from pg_class where relnamespace = 'servicebroker'::regnamespace and relkind = 'r'
and relpersistence = 'u' order by 1

-- name: adopt.update_instance
update servicebroker.instance set instance_id = gen_random_uuid()

-- name: adopt.stop_endpoint
update servicebroker.network_endpoints set state = $1 where state = $2

-- name: adopt.settle
select servicebroker.settle()

-- name: check_alone.count_sessions
select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
and backend_type = 'client backend'

-- name: check_alone.wait
select pg_sleep(0.1), pg_stat_clear_snapshot()

-- name: databases
select name from servicebroker.databases order by name
