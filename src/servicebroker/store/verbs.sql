-- BEGIN DIALOG and SEND for triggers, psql and other languages. They check what the sender's side forbids and put the
-- message into the transmission queue; an open instance is notified at COMMIT, validates, routes and delivers.
-- Made anew after every migration; grants survive that.

create or replace function servicebroker.refuse(number integer, variadic said text[] default '{}')
returns void language plpgsql as $$
begin
    raise exception using
        errcode = case when number < 10000 then 'S' || lpad(number::text, 4, '0') else 'SB000' end,
        message = format('Msg %s, Level 16, State 1: %s', number, format({texts}::jsonb ->> number::text, variadic said));
end $$;

-- A queue is written by SEND and RECEIVE only. Of its own trigger, with the rights to look the queue's name up.
create or replace function servicebroker.refuse_update() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform servicebroker.refuse(416, (select q.name from servicebroker.queues q
        where q.postgres_schema = tg_table_schema and q.postgres_name = tg_table_name));
    return null;
end $$;

-- The level of a new endpoint. Best match: the contract counts most, then the local service, then the remote one.
create or replace function servicebroker.conversation_priority(database integer, contract integer, service integer, remote text)
returns smallint language sql stable
return coalesce(
    (select r.priority from servicebroker.broker_priorities r
      where r.database_id = database
        and (r.service_contract_id is null or r.service_contract_id = contract)
        and (r.local_service_id is null or r.local_service_id = service)
        and (r.remote_service_name is null or r.remote_service_name = remote)
      order by r.service_contract_id is null, r.local_service_id is null, r.remote_service_name is null
      limit 1),
    {default_priority}::smallint);

-- The queue of a service that begins a dialog; null when the service or the contract is gone. Who alters or drops one of
-- them (engine/services.py, engine/alter.py), or wants the database alone (engine/users.py), waits for our transaction, or
-- we see what it has done: a function, because what looks needs a younger snapshot than what waits.
create or replace function servicebroker.own_queue(database integer, service integer, contract integer)
returns integer language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({begin_in_lock}, database),
            pg_advisory_xact_lock_shared({begin_lock}, service), pg_advisory_xact_lock_shared({begin_lock}, contract);
    return (select s.queue_id from servicebroker.services s
              join servicebroker.service_contracts c
                on c.database_id = database and c.service_contract_id = contract
             where s.service_id = service);
end $$;

-- BEGIN DIALOG CONVERSATION: the handle of a new conversation. A group that does not exist is made under its id.
create or replace function servicebroker.begin_dialog(
    broker_database text, from_service text, to_service text, contract text default 'DEFAULT',
    lifetime integer default {maximum_lifetime}, broker_instance text default null,
    related_conversation_group uuid default null, encryption boolean default true
) returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    own record;
    own_queue integer;
    conversation_group uuid := coalesce(related_conversation_group, gen_random_uuid());
    owner record;
    handle uuid;
begin
    if from_service is null or to_service is null then perform servicebroker.refuse(8421); end if;
    if begin_dialog.contract is null then perform servicebroker.refuse(8417); end if;
    if to_service = '' or length(to_service) > {maximum_service_name} then
        perform servicebroker.refuse(15151, 'use', 'service', left(to_service, 40));
    end if;
    if begin_dialog.lifetime is null then
        perform servicebroker.refuse(8406, '1', '{maximum_lifetime}');
    elsif begin_dialog.lifetime < 1 then
        perform servicebroker.refuse(8411, begin_dialog.lifetime::text, '1', '{maximum_lifetime}');
    end if;
    if octet_length(broker_instance) > 256 then
        perform servicebroker.refuse(8413, left(broker_instance, 256));
    elsif broker_instance <> 'CURRENT DATABASE'
       and broker_instance !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform servicebroker.refuse(1093, broker_instance);
    end if;
    if begin_dialog.encryption is null then
        perform servicebroker.refuse(402, 'ENCRYPTION', 'NULL', 'true for ON, false for OFF');
    end if;
    if conversation_group = '00000000-0000-0000-0000-000000000000' then
        perform servicebroker.refuse(8414, conversation_group::text);
    end if;

    select d.database_id, d.service_broker_guid, s.service_id, c.service_contract_id into own
      from servicebroker.databases d
      left join servicebroker.services s on s.database_id = d.database_id and s.name = from_service
      left join servicebroker.service_contracts c
        on c.database_id = d.database_id and c.name = begin_dialog.contract
     where lower(d.name) = lower(broker_database);
    if not found then perform servicebroker.refuse(911, broker_database); end if;
    if own.service_id is null then perform servicebroker.refuse(8423, from_service); end if;
    if own.service_contract_id is null then perform servicebroker.refuse(8425, begin_dialog.contract); end if;

    perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
    select s.service_id, s.name into owner
      from servicebroker.conversation_groups g join servicebroker.services s using (service_id)
     where g.conversation_group_id = conversation_group for key share of g;  -- nobody ends it meanwhile
    if owner.service_id <> own.service_id then
        perform servicebroker.refuse(9610, from_service, owner.name, 'RELATED_CONVERSATION_GROUP', conversation_group::text);
    end if;
    own_queue := servicebroker.own_queue(own.database_id, own.service_id, own.service_contract_id);
    if own_queue is null then perform servicebroker.refuse(8423, from_service); end if;
    insert into servicebroker.conversation_groups values (conversation_group, own.service_id) on conflict do nothing;
    insert into servicebroker.conversation_endpoints
           (is_initiator, database_id, service_id, service_contract_id, conversation_group_id, queue_id, state,
            encryption, lifetime, far_service, far_broker_instance, priority)
    values (true, own.database_id, own.service_id, own.service_contract_id, conversation_group, own_queue, 'SO',
            begin_dialog.encryption, clock_timestamp() + make_interval(secs => begin_dialog.lifetime), to_service,
            case broker_instance when 'CURRENT DATABASE' then own.service_broker_guid::text else lower(broker_instance) end,
            servicebroker.conversation_priority(own.database_id, own.service_contract_id, own.service_id, to_service))
    returning conversation_handle into handle;
    return handle;
end $$;

-- SEND: the sequence number of the message. What is sent later, from wherever, waits behind it: the conversation is
-- parked (engine/transmission.py). The locks are those of engine/endpoints.py and engine/opening.py, in their order.
create or replace function servicebroker.send(handle uuid, message_type text default 'DEFAULT', body bytea default '')
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    sender record;
    usage record;
    own record;
    number bigint;
begin
    if handle is null then perform servicebroker.refuse(8418); end if;
    if body is null then perform servicebroker.refuse(8433); end if;
    if octet_length(body) > {maximum_body} then perform servicebroker.refuse(8459, '{maximum_body}'); end if;

    perform pg_advisory_xact_lock_shared({delivery_lock}, 0),
            pg_advisory_xact_lock_shared({service_lock}, hashtext(e.far_service))
       from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
    perform from servicebroker.conversation_endpoints where conversation_handle = handle for update;
    select e.*, peer.state as peer_state into sender from servicebroker.conversation_endpoints e
      left join servicebroker.conversation_endpoints peer on peer.conversation_handle = e.far_handle
     where e.conversation_handle = handle;
    if not found then perform servicebroker.refuse(8426, handle::text); end if;
    if sender.state not in ('SO', 'CO') then perform servicebroker.refuse(8429, sender.state); end if;
    if sender.lifetime <= clock_timestamp() then perform servicebroker.refuse(8429, 'ER'); end if;

    select t.message_type_id, t.validation, u.is_sent_by_initiator, u.is_sent_by_target into usage
      from servicebroker.message_types t
      left join servicebroker.service_contract_message_usages u
        on u.database_id = t.database_id and u.message_type_id = t.message_type_id
       and u.service_contract_id = sender.service_contract_id
     where t.database_id = sender.database_id and t.name = message_type;
    if not found then perform servicebroker.refuse(8428, message_type); end if;
    if usage.is_sent_by_initiator is null then perform servicebroker.refuse(8431, message_type); end if;
    if sender.is_initiator and not usage.is_sent_by_initiator then perform servicebroker.refuse(8432, message_type); end if;
    if not sender.is_initiator and not usage.is_sent_by_target then perform servicebroker.refuse(8434, message_type); end if;

    -- RETENTION: the own queue keeps a copy (engine/retention.py)
    select q.name, q.is_retention_enabled, q.is_enqueue_enabled into own
      from servicebroker.queues q where q.queue_id = sender.queue_id;
    if own.is_retention_enabled and not own.is_enqueue_enabled then perform servicebroker.refuse(9618, own.name); end if;
    if own.is_retention_enabled then
        execute format(
            'insert into servicebroker.retained_%s (status, priority, conversation_group_id, conversation_handle, '
            'message_sequence_number, service_id, service_contract_id, message_type_id, validation, is_shared, '
            'message_body) values (3, $1, $2, $3, $4, $5, $6, $7, $8, false, $9)', sender.queue_id)
        using sender.priority, sender.conversation_group_id, handle, sender.send_sequence, sender.service_id,
              sender.service_contract_id, usage.message_type_id, usage.validation, nullif(body, '');
    end if;

    perform nextval('servicebroker.sent_in_sql');  -- SQL SEND Total
    if sender.peer_state in ('DO', 'CD') then  -- it has ended and cannot say so yet: counted and dropped
        update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1
         where conversation_handle = handle;
        return sender.send_sequence;
    end if;
    update servicebroker.conversation_endpoints set send_sequence = send_sequence + 1, state = 'CO', far_queue_id = null
     where conversation_handle = handle;
    insert into servicebroker.transmission_queue
           (conversation_handle, message_sequence_number, message_type_name, message_body)
    values (handle, sender.send_sequence, message_type, nullif(body, ''));
    perform pg_notify('{delivery_channel}', '');
    if exists (select from servicebroker.waiting_readers where queue_id = 0) then  -- the daemon sleeps
        perform pg_notify('servicebroker', '0');
    end if;
    return sender.send_sequence;
end $$;

revoke execute on function
    servicebroker.begin_dialog(text, text, text, text, integer, text, uuid, boolean),
    servicebroker.send(uuid, text, bytea)
from public;
