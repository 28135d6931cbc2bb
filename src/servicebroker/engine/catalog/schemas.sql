-- The statements of schemas.py.

-- name: create_xml_schema_collection
insert into servicebroker.xml_schema_collections (database_id, schema_name, name, postgres_schema)
values ($1, $2, $3, $4) on conflict do nothing returning xml_collection_id

-- name: alter_xml_schema_collection
update servicebroker.xml_schema_collections set version = nextval('servicebroker.catalog_versions'),
modify_date = clock_timestamp() where xml_collection_id = $1

-- name: drop_xml_schema_collection.find_message_types
select from servicebroker.message_types where xml_collection_id = $1 limit 1

-- name: drop_xml_schema_collection.delete_collections
delete from servicebroker.xml_schema_collections where xml_collection_id = $1

-- name: find_collection
select xml_collection_id from servicebroker.xml_schema_collections
where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)

-- name: insert
insert into servicebroker.xml_schemas select $1, $2 + number - 1, namespace, document
from unnest($3::text[], $4::text[]) with ordinality as added (namespace, document, number)
