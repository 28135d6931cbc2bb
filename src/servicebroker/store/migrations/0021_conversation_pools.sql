-- Conversations that many senders use one after the other, until each is ended (docs/reference/rules.md#recycled-conversations).

-- Which conversation a sender uses: one for each key. A sender holds its row until its transaction ends.
create table servicebroker.session_conversations (
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    to_service text collate "C" not null,
    service_contract_name text collate "C" not null,
    session text collate "C" not null,
    conversation_handle uuid unique,  -- null until it has begun
    sent bigint not null,
    end_of_stream text collate "C" not null,  -- the message type that tells the target
    primary key (database_id, from_service, to_service, service_contract_name, session)
) with (fillfactor = 60);

-- What came back on such conversations and is to be answered, in a transaction that takes their rows first.
create table servicebroker.session_answers (
    answer_id bigint generated always as identity primary key,
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    conversation_handle uuid not null,
    message_type_id integer not null,
    message_body bytea
);

-- The Errors that ended some of them: the last thousand.
create table servicebroker.session_errors (
    error_id bigint generated always as identity primary key,
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    conversation_handle uuid not null,
    code integer not null,
    description text not null,
    received_at timestamptz not null
);
