-- The statements of message_types.py.

-- name: create_message_type
insert into servicebroker.message_types (database_id, name, validation, xml_collection_id, owner_id)
values ($1, $2, $3, $4, $5) on conflict do nothing returning message_type_id

-- name: alter_message_type
update servicebroker.message_types set validation = $3, xml_collection_id = $4
where database_id = $1 and message_type_id = $2

-- name: drop_message_type.find_types_used
select from servicebroker.service_contract_message_usages where database_id = $1 and message_type_id = $2

-- name: drop_message_type.delete_message_types
delete from servicebroker.message_types where database_id = $1 and message_type_id = $2
