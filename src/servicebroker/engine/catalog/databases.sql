-- The statements of databases.py.

-- name: create_database.insert_principals
insert into servicebroker.principals (database_id, principal_id, name, is_role)
select $1, * from unnest($2::int[], $3::text[], $4::bool[])

-- name: create_database.insert_permissions
insert into servicebroker.permissions values ($1, $2, 0, $3, $4, 'CONNECT', $5::"char")

-- name: create_database.insert_message_types
insert into servicebroker.message_types (database_id, message_type_id, name, validation)
select $1, * from unnest($2::int[], $3::text[], $4::"char"[])

-- name: create_database.insert_contracts
insert into servicebroker.service_contracts (database_id, service_contract_id, name) values ($1, $2, $3)

-- name: create_database.insert_routes
insert into servicebroker.routes (database_id, name, address) values ($1, 'AutoCreatedLocal', 'LOCAL')

-- name: create_system_services
insert into servicebroker.services (service_id, database_id, name, queue_id)
values (nextval('servicebroker.system_ids'), $1, $2, $3)

-- name: make_answering.insert_contracts_used
insert into servicebroker.service_contract_usages (database_id, service_id, service_contract_id)
select database_id, service_id, service_contract_id
from servicebroker.services s join servicebroker.service_contracts c using (database_id)
where database_id = $1 and s.name = $2 and service_contract_id = any ($3)

-- name: find_database
select database_id from servicebroker.databases where lower(name) = lower($1)

-- name: is_trustworthy
select from servicebroker.databases where database_id = $1 and is_trustworthy_on

-- name: drop_database.find_databases
select name from servicebroker.databases where database_id = $1

-- name: drop_database.find_queues
select queue_id, postgres_schema, postgres_name from servicebroker.queues where database_id = $1

-- name: drop_database.find_schema_use
select from pg_depend d join pg_namespace n on n.oid = d.refobjid
where d.refclassid = 'pg_namespace'::regclass and n.nspname = $1 limit 1

-- name: check_database
select from servicebroker.databases where database_id = $1
