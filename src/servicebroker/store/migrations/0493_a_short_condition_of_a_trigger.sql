-- PostgreSQL reads the text of a trigger's condition anew for each statement that inserts endpoints. A short one leaves the
-- letters to the function, which runs only for conversations between instances.
create or replace function servicebroker.refuse_security() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if new.security not in ('N', 'A', 'F') then
        raise check_violation using message = format('a conversation is secured by N, A or F, not by %L', new.security);
    end if;
    return null;
end $$;

create or replace trigger conversation_endpoints_security
    after insert or update of security on servicebroker.conversation_endpoints
    for each row when (new.security is not null) execute function servicebroker.refuse_security();
