-- The trail, an optional log of what happened to each message: functions of its triggers. They write one row for all
-- messages of a conversation that a statement has inserted or deleted, and one for each change of an endpoint's state.
-- Arguments of a trigger: the event (not for endpoints), and optionally which conversations are logged: how many of
-- 10,000, ids of services ('{}': all), and identifiers of conversations that are always logged. Without them all are
-- logged.

create or replace function servicebroker.is_trailed(conversation uuid, service integer, chosen text[]) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select coalesce(conversation = any (chosen[3]::uuid[]), false)
        or (uuid_hash(conversation)::bigint & 4294967295) % 10000 < chosen[1]::bigint
           and (chosen[2] = '{}' or service = any (chosen[2]::integer[]))
$$;

create or replace function servicebroker.trail_messages() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_nargs = 1 then
        insert into servicebroker.trail (conversation_handle, what, first_number, last_number, messages, message_type_id)
        select conversation_handle, tg_argv[0]::"char", min(message_sequence_number), max(message_sequence_number), count(*),
               case when min(message_type_id) = max(message_type_id) then min(message_type_id) end
          from moved group by conversation_handle;
    else
        insert into servicebroker.trail (conversation_handle, what, first_number, last_number, messages, message_type_id,
                                         conversation_id)
        select conversation_handle, tg_argv[0]::"char", min(message_sequence_number), max(message_sequence_number), count(*),
               case when min(m.message_type_id) = max(m.message_type_id) then min(m.message_type_id) end, e.conversation_id
          from moved m join servicebroker.conversation_endpoints e using (conversation_handle)
         where servicebroker.is_trailed(e.conversation_id, e.service_id, tg_argv[1:])
         group by conversation_handle, e.conversation_id;
    end if;
    return null;
end $$;

-- The same for the transmission queue, whose rows have no message_type_id.
create or replace function servicebroker.trail_sent() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into servicebroker.trail (conversation_handle, what, first_number, last_number, messages, conversation_id, detail)
    select conversation_handle, tg_argv[0]::"char", min(message_sequence_number), max(message_sequence_number), count(*),
           e.conversation_id, nullif(max(m.transmission_status), '')
      from moved m join servicebroker.conversation_endpoints e using (conversation_handle)
     where tg_nargs = 1 or servicebroker.is_trailed(e.conversation_id, e.service_id, tg_argv[1:])
     group by conversation_handle, e.conversation_id;
    return null;
end $$;

create or replace function servicebroker.trail_endpoint() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
declare
    side record;
begin
    if tg_op = 'DELETE' then side := old; else side := new; end if;
    if tg_nargs > 0 and not servicebroker.is_trailed(side.conversation_id, side.service_id, tg_argv[0:]) then
        return null;
    end if;
    if tg_op <> 'UPDATE' or old.state is distinct from new.state then
        insert into servicebroker.trail (conversation_handle, what, conversation_id, detail)
        values (side.conversation_handle, case tg_op when 'INSERT' then 'B' when 'DELETE' then 'G' else 'S' end,
                side.conversation_id, case when tg_op = 'UPDATE' then old.state || ' ' || new.state else side.state end);
    end if;
    if tg_op = 'UPDATE' then
        if old.conversation_group_id is distinct from new.conversation_group_id then
            insert into servicebroker.trail (conversation_handle, what, conversation_id, detail)
            values (side.conversation_handle, 'M', side.conversation_id, new.conversation_group_id::text);
        end if;
        if old.dialog_timer is distinct from new.dialog_timer then
            insert into servicebroker.trail (conversation_handle, what, conversation_id, detail)
            values (side.conversation_handle, 'T', side.conversation_id, coalesce(new.dialog_timer::text, ''));
        end if;
    end if;
    return null;
end $$;

create or replace function servicebroker.trail_failure() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into servicebroker.trail (conversation_handle, what, first_number, last_number, messages, message_type_id,
                                     conversation_id, detail)
    select new.conversation_handle, tg_argv[0]::"char", new.message_sequence_number, new.message_sequence_number, 1,
           new.message_type_id, e.conversation_id, coalesce(to_jsonb(new)->>'last_error', to_jsonb(new)->>'error')
      from servicebroker.conversation_endpoints e
     where e.conversation_handle = new.conversation_handle
       and (tg_nargs = 1 or servicebroker.is_trailed(e.conversation_id, e.service_id, tg_argv[1:]));
    return null;
end $$;
revoke execute on function servicebroker.is_trailed, servicebroker.trail_messages, servicebroker.trail_sent,
    servicebroker.trail_endpoint, servicebroker.trail_failure from public;
