-- The instance among its peers: endpoint, certificates of the transport, reports of the daemon, identities of peers.

-- ---------------------------------------------------------------- the endpoint

-- Certificates of the transport: our own, and those of peers that an administrator has imported.
create table servicebroker.transport_certificates (
    certificate_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    is_own boolean not null,           -- the private key is ours, in a file outside of the database
    certificate bytea not null,        -- DER
    thumbprint bytea not null unique,  -- SHA-256 of it
    subject text not null,
    issuer_name text not null,
    serial_number text not null,
    start_date timestamptz not null,
    expiry_date timestamptz not null,
    login_id integer references servicebroker.logins,  -- the login of a peer with it; null: any peer with it is let in
    instance_id uuid,      -- the instance that the certificate names
    owner text not null,   -- see model/security/peers.py
    accepted timestamptz,  -- when a claim of its owner was accepted
    by_password boolean not null default false  -- a password encrypts the private key, so the endpoint cannot use it
);
create unique index transport_certificates_name on servicebroker.transport_certificates (lower(name));

-- The endpoint.
create table servicebroker.network_endpoints (
    endpoint_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    state smallint not null,  -- 0 STARTED, 1 STOPPED, 2 DISABLED
    port integer not null,
    ip_address text,          -- null: ALL
    certificate_id integer references servicebroker.transport_certificates,  -- null: the oldest that is valid
    encryption text not null,
    is_message_forwarding_enabled boolean not null,
    message_forwarding_size integer not null,  -- MB
    connection_auth smallint not null  -- SQL Server's number: 1 NTLM, 2 KERBEROS, 3 NEGOTIATE, 4 CERTIFICATE,
                                       -- 5 to 10 both (model/security/authentication.py)
);
create unique index network_endpoints_once on servicebroker.network_endpoints ((true));  -- one row at most

-- CONNECT ON ENDPOINT.
create table servicebroker.endpoint_permissions (
    endpoint_id integer not null references servicebroker.network_endpoints on delete cascade,
    login_id integer not null references servicebroker.logins on delete cascade,
    state "char" not null check (state in ('G', 'D')),
    primary key (endpoint_id, login_id)
);

-- The membership of the instance in a domain, written by the daemon. One row while the endpoint says WINDOWS, else
-- none.
create table servicebroker.domain_membership (
    account text,       -- DOMAIN\member; null: it has no certificate yet
    thumbprint bytea,   -- SHA-256 of the certificate
    start_date timestamptz,
    expiry_date timestamptz,
    problem text not null  -- '': none
);
create unique index domain_membership_once on servicebroker.domain_membership ((true));

-- ---------------------------------------------------------------- reports of the daemon

-- Connections; pid is the daemon's session. The daemon writes these tables while it holds the lease of the instance.
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
    peer_arbitration_id uuid,
    authentication text  -- null: no peer was authenticated
);

-- Refused connections, by the number of the reason.
create unlogged table servicebroker.refused_connections (
    number integer primary key,
    refused bigint not null,
    last_time timestamptz not null,
    last_peer text not null
);

-- Messages that the daemon forwards.
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

-- The processes that run the daemon's rounds; pid is the daemon's session.
create unlogged table servicebroker.serving_processes (
    pid integer not null,
    number integer primary key,
    process_id integer not null,
    memory bigint,              -- bytes
    replaced integer not null,  -- how often a new process took the place of an ended one
    last_time timestamptz,      -- of the last of those; how it ended
    ending text
);

-- Refusals between this instance and its peers, a row for each peer and reason: connections that were not let in,
-- messages that were not taken (engine/remote/refusals.py). The daemon adds to it once a second, and keeps it small.
create table servicebroker.refusals (
    is_ours boolean not null,  -- this side has refused, else the peer has
    peer text not null,
    number integer not null,
    times bigint not null,
    first_time timestamptz not null,
    last_time timestamptz not null,
    last_text text not null,
    primary key (is_ours, peer, number)
);

-- Notify the processes that run built-in services of a message for one. The trigger is on the queue of those services.
create function servicebroker.ring_delivery() returns trigger language plpgsql as $$
begin
    perform pg_notify('servicebroker_delivery', '');
    return null;
end $$;

-- ---------------------------------------------------------------- identities of peers (decision 150)

-- The peer that answered at an address, kept as long as its owner has a certificate here.
create table servicebroker.peers (
    address text primary key,
    owner text not null,
    instance_id uuid not null,
    since timestamptz not null
);

-- The owner of an instance that several peers have claimed, as an administrator has decided.
create table servicebroker.accepted_peers (
    instance_id uuid primary key,
    owner text not null
);

-- Claims and messages of peers that were not theirs.
create table servicebroker.mistrusted (
    owner text not null,
    claim text not null,    -- 'instance' or 'address' of `subject`; 'messages' or 'standing', with the subject ''
    subject text not null,
    times bigint not null,
    last_time timestamptz not null,
    last_detail text not null,
    primary key (owner, claim, subject)
);

-- The brokers behind mirrored routes, as the daemon has found them. Rows stay, so that an old primary which comes back
-- while the new one cannot be reached is recognised by its lower timeline.
create table servicebroker.mirrored_pairs (
    address text not null,
    mirror_address text not null,
    principal text,             -- its address; null: neither is known to be it
    system text not null,       -- the identifier of the PostgreSQL cluster
    timeline bigint not null,   -- the highest that was seen of it
    explanation text not null,
    since timestamptz not null,
    evidence bytea not null default '',  -- the signature of the server that reported the timeline
    primary key (address, mirror_address)
);

-- Databases that are older than their conversations' peers, or whose peers are older: a backup was restored. For
-- doctor.
create table servicebroker.old_copies (
    own_broker uuid not null,
    far_broker text not null,
    is_here boolean not null,  -- our database is the one that was restored
    far_service text not null,
    times bigint not null,
    last_time timestamptz not null,
    last_detail text not null,
    primary key (own_broker, far_broker, is_here)
);
