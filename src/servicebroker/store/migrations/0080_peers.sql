-- Who a peer is (decision 150): whose its certificate is, which instance that names, and who answered where we connected.

alter table servicebroker.transport_certificates add column instance_id uuid;  -- that the certificate names
alter table servicebroker.transport_certificates add column owner text;        -- see servicebroker.model.peers
alter table servicebroker.transport_certificates add column accepted timestamptz;  -- when a claim of its owner was
update servicebroker.transport_certificates c
   set owner = coalesce('login ' || (select l.name from servicebroker.logins l where l.login_id = c.login_id),
                        'certificate ' || c.name);
alter table servicebroker.transport_certificates alter column owner set not null;

-- learned where we connected, and kept as long as the owner has a certificate
create table servicebroker.peers (
    address text primary key,
    owner text not null,
    instance_id uuid not null,
    since timestamptz not null
);

-- whose an instance is that several have claimed: an administrator has said so
create table servicebroker.accepted_peers (
    instance_id uuid primary key,
    owner text not null
);

-- what peers have claimed and brought that is not theirs. claim: 'instance' or 'address', and subject says which one;
-- 'messages' or 'standing', and subject is empty
create table servicebroker.mistrusted (
    owner text not null,
    claim text not null,
    subject text not null,
    times bigint not null,
    last_time timestamptz not null,
    last_detail text not null,
    primary key (owner, claim, subject)
);
