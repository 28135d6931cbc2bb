-- How a conversation is secured is checked where that is written. A CHECK of the table is read and compiled anew for each statement that
-- updates an endpoint, so by each SEND; a trigger of one column is passed over. After the row: one before it would lock it first.
alter table servicebroker.conversation_endpoints drop constraint conversation_endpoints_security_check;
create function servicebroker.refuse_security() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise check_violation using message = format('a conversation is secured by N, A or F, not by %L', new.security);
end $$;
revoke execute on function servicebroker.refuse_security from public;
create trigger conversation_endpoints_security after insert or update of security on servicebroker.conversation_endpoints
    for each row when (new.security not in ('N', 'A', 'F')) execute function servicebroker.refuse_security();
