-- Which routes the dynamic routing service was asked for. database_id is whose routes lack it: msdb's for what comes from
-- outside. Pending until answered, that is, until the service has ended the conversation.
create table servicebroker.route_requests (
    database_id integer not null references servicebroker.databases,
    service_name text not null collate "C",
    conversation_handle uuid not null,
    answered timestamptz,
    primary key (database_id, service_name)
);

-- the broker instance of the route by which a conversation was sent, until an acknowledgement tells the real one: were
-- another one chosen after a restart, two instances could take the same message
alter table servicebroker.conversation_endpoints add column routed_broker text;
