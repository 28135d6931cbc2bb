-- The dynamic routing service is asked for remote service bindings too, and told when its answer was of no use.
alter table servicebroker.route_requests
    add column about text not null default 'Route' check (about in ('Route', 'RemoteServiceBinding')),
    add column was_useless boolean not null default false,  -- the last answer was no error, and yet brought none
    drop constraint route_requests_pkey,
    add primary key (database_id, about, service_name);
