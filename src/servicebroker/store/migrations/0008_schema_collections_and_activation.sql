-- XML schema collections, compared by name as queues are. `version` is drawn anew at every change of the documents.
create table servicebroker.xml_schema_collections (
    xml_collection_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    schema_name text not null,
    name text not null,
    postgres_schema text not null,  -- where queues of that schema stand
    version bigint not null default nextval('servicebroker.catalog_versions'),
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp()
);
create unique index xml_schema_collections_name
    on servicebroker.xml_schema_collections (database_id, lower(schema_name), lower(name));

create table servicebroker.xml_schemas (
    xml_collection_id integer not null references servicebroker.xml_schema_collections on delete cascade,
    number integer not null,
    target_namespace text collate "C" not null,  -- '' for none
    document text not null,
    primary key (xml_collection_id, number)
);

-- VALID_XML: the letter is X, and the collection says more
alter table servicebroker.message_types
    add column xml_collection_id integer references servicebroker.xml_schema_collections,
    add constraint message_types_validation check (xml_collection_id is null or validation = 'X');

-- ACTIVATION of a queue; execute_as_principal_id -2 stands for OWNER
alter table servicebroker.queues
    add column activation_procedure text,
    add column max_readers smallint check (max_readers >= 0),
    add column execute_as_principal_id integer,
    add column is_activation_enabled boolean not null default false,
    add column modify_date timestamptz;
update servicebroker.queues set modify_date = create_date;
alter table servicebroker.queues
    alter column modify_date set default clock_timestamp(),
    alter column modify_date set not null;
