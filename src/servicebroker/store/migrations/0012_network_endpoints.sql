-- The endpoint of the instance in the network, its certificates, and what the daemon tells of its connections.

-- is_own: this instance has the private key, which is kept in a file outside of the database
create table servicebroker.transport_certificates (
    certificate_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    is_own boolean not null,
    certificate bytea not null,           -- DER
    thumbprint bytea not null unique,     -- SHA-256 of it
    subject text not null,
    issuer_name text not null,
    serial_number text not null,
    start_date timestamptz not null,
    expiry_date timestamptz not null
);
create unique index transport_certificates_name on servicebroker.transport_certificates (lower(name));

-- state is 0 STARTED, 1 STOPPED, 2 DISABLED; ip_address null: ALL; certificate_id null: the oldest that is valid
create table servicebroker.network_endpoints (
    endpoint_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    state smallint not null,
    port integer not null,
    ip_address text,
    certificate_id integer references servicebroker.transport_certificates,
    encryption text not null,
    is_message_forwarding_enabled boolean not null,
    message_forwarding_size integer not null  -- MB
);
create unique index network_endpoints_once on servicebroker.network_endpoints ((true));

-- written by the daemon while it holds the lease of the instance; pid is its session's
create unlogged table servicebroker.broker_connections (
    connection_id uuid primary key,
    pid integer not null,
    state smallint not null,
    connect_time timestamptz not null,
    login_time timestamptz,
    principal_name text,
    peer_certificate_id integer,
    remote_address text not null,
    last_activity_time timestamptz not null,
    is_accept boolean not null,
    login_state smallint not null,
    is_encrypted boolean not null,
    is_receive_flow_controlled boolean not null,
    is_send_flow_controlled boolean not null,
    total_bytes_sent bigint not null,
    total_bytes_received bigint not null,
    total_fragments_sent bigint not null,
    total_fragments_received bigint not null,
    total_sends bigint not null,
    total_receives bigint not null,
    peer_arbitration_id uuid
);

-- connections that were refused, by the number of the reason
create unlogged table servicebroker.refused_connections (
    number integer primary key,
    refused bigint not null,
    last_time timestamptz not null,
    last_peer text not null
);
