-- Routes: which broker a service is reached at. Null stands for any service, any instance, never expires.
create table servicebroker.routes (
    route_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    remote_service_name text collate "C",
    broker_instance text,
    lifetime timestamptz,  -- the instant of expiry
    address text not null,
    mirror_address text,
    owner_id integer not null default 1  -- dbo
);
create unique index routes_name on servicebroker.routes (database_id, lower(name));

insert into servicebroker.routes (database_id, name, address)
select database_id, 'AutoCreatedLocal', 'LOCAL' from servicebroker.databases;

-- drawn anew when a route of the database has changed: what a client remembers of them is checked against it
alter table servicebroker.databases
    add column routes_version bigint not null default nextval('servicebroker.catalog_versions');
