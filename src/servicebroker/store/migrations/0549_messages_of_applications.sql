-- sp_addmessage: texts of errors by number and language, for RAISERROR, FORMATMESSAGE and sys.messages.
create table servicebroker.tsql_messages (
    message_id integer not null check (message_id > 50000),
    language_id smallint not null,  -- of sys.syslanguages: 1033 is us_english
    severity smallint not null,
    is_event_logged boolean not null,
    text text not null,
    primary key (message_id, language_id)
);
