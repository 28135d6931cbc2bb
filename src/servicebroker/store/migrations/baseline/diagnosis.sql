-- Diagnosis: counters, history, audit and trail.

-- ---------------------------------------------------------------- counters

-- Counters of the processes of applications, added up.
create table servicebroker.totals (
    counter text primary key,
    value bigint not null
) with (fillfactor = 50);

-- SENDs and RECEIVEs by functions of the server; sequences count what is rolled back too.
create sequence servicebroker.sent_in_sql;
create sequence servicebroker.received_in_sql;

-- Executions of each of our statements, added up over the processes of an instance.
create table servicebroker.statement_totals (
    name text primary key,
    calls bigint not null,
    microseconds bigint not null
) with (fillfactor = 50);

-- Machines whose clock differs from the server's, as processes there have measured it
-- (engine/diagnosis/wrong_clocks.py). Each program and host writes its row again every ten seconds while that lasts.
create table servicebroker.wrong_clocks (
    program text not null,
    host text not null,
    seconds_ahead integer not null,
    last_time timestamptz not null,
    primary key (program, host)
);

-- ---------------------------------------------------------------- history

-- Samples of the last hour, day and month (engine/diagnosis/history.py). The upkeep of an instance and its daemon try
-- to take one every ten seconds, and remove those that are too old for their step.
create table servicebroker.history_samples (
    slot bigint primary key,  -- ten seconds since 1970; the process that inserts it takes the sample
    at timestamptz not null,
    step integer not null     -- seconds: 10, 60 or 600, the longest that a round number of has passed with it
);

-- The counts of a sample, for each queue that has changed since its last row of this step or of a longer one.
create table servicebroker.history (
    queue_id integer not null,  -- 0: the transmission queue
    at timestamptz not null,
    step integer not null,
    arrived bigint not null,    -- messages since PostgreSQL has counted
    departed bigint not null,
    messages bigint not null,   -- present, by PostgreSQL's statistics
    peak bigint not null,       -- the most that were present since the last row of this step
    primary key (queue_id, at)
);
create index history_age on servicebroker.history (at, step);

-- ---------------------------------------------------------------- audit and trail

-- Definitions and operators' actions, by whom (engine/diagnosis/audit.py). The triggers of store/audit.sql write it,
-- whoever changes a definition. Rows are added, never changed, and removed when they are old.
create table servicebroker.audit (
    audit_id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    transaction_id bigint not null default pg_current_xact_id()::text::bigint,  -- groups what was done together
    postgres_role text not null default session_user,
    principal text not null,  -- the principal by the permissions of the database; '' where that is not known
    face text not null,       -- Python, T-SQL, command, dashboard; '' for changes of the tables themselves
    program text not null default current_setting('application_name'),
    address text not null default coalesce(host(inet_client_addr()), 'local'),
    act text not null,
    broker_database text not null,  -- '' for what concerns the instance
    subject text not null,
    before jsonb,  -- the definition, without secrets; of a change only what has changed
    after jsonb
);
create index audit_at on servicebroker.audit (at);

-- The switch of the trail; one row.
create table servicebroker.trail_settings (
    is_on boolean not null,
    share integer not null,        -- of 10,000 conversations
    services text[] not null,      -- database.service; none: all
    conversations uuid[] not null  -- conversation ids that are followed whatever the share
);
insert into servicebroker.trail_settings values (false, 10000, '{}', '{}');

-- The life of conversations (engine/diagnosis/trail.py). Its triggers exist only while the trail is on
-- (store/trail.sql). Old partitions are dropped whole.
create table servicebroker.trail (
    at timestamptz not null default clock_timestamp(),
    transaction_id bigint not null default pg_current_xact_id()::text::bigint,
    conversation_handle uuid not null,
    what "char" not null,     -- see engine/diagnosis/trail.py
    first_number bigint,      -- of a run of messages
    last_number bigint,
    messages integer,
    message_type_id integer,  -- null: of several types
    conversation_id uuid,
    detail text
) partition by range (at);
create index trail_conversation on servicebroker.trail (conversation_handle);
create index trail_begun on servicebroker.trail (conversation_id) where what = 'B';
-- Rows for which no partition was made.
create table servicebroker.trail_rest partition of servicebroker.trail default;
