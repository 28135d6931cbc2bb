-- What ALTER and DROP need: switches, versions that a client's memory is checked against, broker priorities.

-- identifiers must differ among the enabled databases only: a restored copy may stay, disabled
alter table servicebroker.databases drop constraint databases_service_broker_guid_key;
create unique index databases_service_broker_guid
    on servicebroker.databases (service_broker_guid) where is_broker_enabled;
alter table servicebroker.databases add column is_honor_broker_priority_on boolean not null default false;

-- catalog_version is drawn anew when something that a SEND into the queue relies on has changed;
-- service_changes counts what its waiting readers must be told of
create sequence servicebroker.catalog_versions;
alter table servicebroker.queues
    add column catalog_version bigint not null default nextval('servicebroker.catalog_versions'),
    add column service_changes integer not null default 0;

-- the validation letter under which a waiting message was already accepted, null when nobody looked yet
alter table servicebroker.transmission_queue add column validation "char";

-- null stands for ANY; names of priorities are compared without case
create table servicebroker.broker_priorities (
    priority_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    service_contract_id integer,
    local_service_id integer references servicebroker.services,
    remote_service_name text collate "C",
    priority smallint not null check (priority between 1 and 10),
    foreign key (database_id, service_contract_id) references servicebroker.service_contracts
);
create unique index broker_priorities_name on servicebroker.broker_priorities (database_id, lower(name));
create unique index broker_priorities_criteria on servicebroker.broker_priorities
    (database_id, service_contract_id, local_service_id, remote_service_name) nulls not distinct;
