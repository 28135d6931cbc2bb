-- The statements of catalog.py.

-- name: create_contract
insert into servicebroker.service_contracts (database_id, name, owner_id) values ($1, $2, $3)
on conflict do nothing returning service_contract_id

-- name: create_queue.find_databases
select name from servicebroker.databases where database_id = $1 for update

-- name: create_queue.find_queues
select relname::text, exists (select from servicebroker.queues q where q.postgres_schema = $1
and q.postgres_name = relname) from pg_class where relnamespace = to_regnamespace(quote_ident($1))
-- only what begins as it does: a schema may have thousands of queues
and relname >= $6::text::name and relname < ($6::text || chr(1114111))::name
union all select $2, false from servicebroker.tsql_modules
where database_id = $3 and lower(schema_name) = lower($4) and lower(name) = lower($5)

-- name: create_queue.insert_queues
insert into servicebroker.queues (database_id, schema_name, name, postgres_schema, postgres_name,
is_receive_enabled, is_enqueue_enabled, is_retention_enabled, keeps_retained,
is_poison_message_handling_enabled, owner_id, queue_id, schema_id)
values ($1, $2, $3, $4, $5, $6, $6, $7, $7, $8, $9, nextval($10::text::regclass), coalesce((select schema_id
from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2)), $11))
on conflict do nothing returning queue_id

-- name: check_schema
select from servicebroker.queues where postgres_schema = $1 and database_id <> $2 union all
select from servicebroker.tsql_schemas where postgres_schema = $1 and database_id <> $2 limit 1

-- name: create_service.insert_services
insert into servicebroker.services (database_id, name, queue_id, owner_id) values ($1, $2, $3, $4)
on conflict do nothing returning service_id

-- name: create_service.insert_contracts_used
insert into servicebroker.service_contract_usages (database_id, service_id, service_contract_id)
select $1, $2, unnest($3::int[])

-- name: lock_service_alone
select pg_advisory_xact_lock_shared($1, 0), pg_advisory_xact_lock($2, hashtext($3))

-- name: find_queue_uncached
select queue_id, database_id, name from servicebroker.queues
where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)

-- name: find_usages
select t.name, t.message_type_id, t.validation::text, u.is_sent_by_initiator, u.is_sent_by_target,
s.xml_collection_id, s.version from servicebroker.service_contract_message_usages u
join servicebroker.message_types t using (database_id, message_type_id)
left join servicebroker.xml_schema_collections s on s.xml_collection_id = t.xml_collection_id
where u.database_id = $1 and u.service_contract_id = $2

-- name: schema_documents
select target_namespace, document from servicebroker.xml_schemas where xml_collection_id = $1 order by number

-- name: find_labels.find_services
select service_id, name from servicebroker.services where database_id = $1

-- name: find_labels.find_contracts
select service_contract_id, name from servicebroker.service_contracts where database_id = $1

-- name: find_labels.find_message_types
select message_type_id, name from servicebroker.message_types where database_id = $1

-- name: find_routes
select name, remote_service_name, broker_instance, lifetime, address, mirror_address
from servicebroker.routes where database_id = $1 order by route_id

-- name: insert_usages
insert into servicebroker.service_contract_message_usages
select $1, $2, * from unnest($3::int[], $4::bool[], $5::bool[])

-- name: find_expected_types
select distinct t.name, c.name, s.name from servicebroker.services s
join servicebroker.service_contract_usages using (database_id, service_id)
join servicebroker.service_contracts c using (database_id, service_contract_id)
join servicebroker.service_contract_message_usages u using (database_id, service_contract_id)
join servicebroker.message_types t using (database_id, message_type_id)
where s.queue_id = $1 and u.is_sent_by_initiator and not u.is_sent_by_target order by 1, 2, 3
