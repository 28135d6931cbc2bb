-- The statements of tsql_objects.py.

-- name: create_schema.update_queues
update servicebroker.queues set schema_id = $3 where database_id = $1 and lower(schema_name) = lower($2)

-- name: find_schema_to_drop
select postgres_schema from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2)

-- name: look_up_registered
insert into servicebroker.tsql_objects (database_id, postgres_schema, postgres_name) values ($1, $2, $3)
returning object_id

-- name: forget
delete from servicebroker.tsql_objects where database_id = $1 and postgres_schema = $2 and postgres_name = $3
returning object_id
