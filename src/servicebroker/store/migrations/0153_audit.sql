-- Who has defined what, and what operators have done (engine/diagnosis/audit.py): the triggers of store/audit.sql write it,
-- whoever changes a definition. Rows are added, and go when they are old; nothing else is done to them.
create table servicebroker.audit (
    audit_id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    transaction_id bigint not null default pg_current_xact_id()::text::bigint,  -- what was done together
    postgres_role text not null default session_user,
    principal text not null,      -- who worked, by the permissions of the database; '' where that is not known
    face text not null,           -- Python, T-SQL, command, dashboard; '' for somebody at the tables themselves
    program text not null default current_setting('application_name'),
    address text not null default coalesce(host(inet_client_addr()), 'local'),
    act text not null,
    broker_database text not null,  -- '' for what concerns the instance
    subject text not null,
    before jsonb,                 -- what it was, without secrets; of a change only what has changed
    after jsonb
);
create index audit_at on servicebroker.audit (at);
