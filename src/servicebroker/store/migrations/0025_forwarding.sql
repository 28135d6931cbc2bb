-- What the daemon tells of the messages that it passes on; written while it holds the lease of the instance.
create unlogged table servicebroker.forwarded_messages (
    pid integer not null,
    message_id uuid not null,
    conversation_id uuid not null,
    is_initiator boolean not null,
    to_service_name text not null,
    to_broker_instance uuid,
    from_service_name text not null,
    from_broker_instance uuid not null,
    adjacent_broker_address text not null,
    message_sequence_number bigint not null,
    message_fragment_number integer not null,
    hops_remaining smallint not null,
    time_to_live integer not null,
    time_consumed integer not null
);
