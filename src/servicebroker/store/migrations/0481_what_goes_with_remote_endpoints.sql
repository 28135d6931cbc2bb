-- What is stored for an endpoint with a peer in another instance goes with it by a trigger. Foreign keys searched three
-- tables for every endpoint that was deleted. The trigger passes over endpoints whose peer is in this instance.
-- A round of the daemon that stores something for an endpoint holds its row, FOR KEY SHARE: no row is left behind.

alter table servicebroker.arrivals drop constraint arrivals_conversation_handle_fkey;
alter table servicebroker.arrived_fragments drop constraint arrived_fragments_conversation_handle_fkey;
alter table servicebroker.conversation_keys drop constraint conversation_keys_conversation_handle_fkey;

create function servicebroker.forget_remote_endpoint() returns trigger language plpgsql as $$
begin
    delete from servicebroker.arrivals where conversation_handle = old.conversation_handle;
    delete from servicebroker.arrived_fragments where conversation_handle = old.conversation_handle;
    delete from servicebroker.conversation_keys where conversation_handle = old.conversation_handle;
    return null;
end $$;
revoke execute on function servicebroker.forget_remote_endpoint from public;
create trigger conversation_endpoints_remote after delete on servicebroker.conversation_endpoints
    for each row when (old.is_remote or old.security is not null or old.far_handle is null)
    execute function servicebroker.forget_remote_endpoint();
