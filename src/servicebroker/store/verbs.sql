-- BEGIN DIALOG and SEND as functions of the server: for triggers, psql and other languages, and for restricted roles
-- (fence.sql). They check the rules of the sender's side and insert the message into the transmission queue. COMMIT
-- notifies a process that has the instance open as the owner, which validates, routes and delivers it.
-- Every migration recreates these functions; grants survive that.

create or replace function servicebroker.refuse(number integer, variadic said text[] default '{}')
returns void language plpgsql as $$
begin
    raise exception using
        errcode = case when number < 10000 then 'S' || lpad(number::text, 4, '0') else 'SB000' end,
        message = format('Msg %s, Level 16, State 1: %s', number, format({texts}::jsonb ->> number::text, variadic said));
end $$;

-- Raise a refusal in the form that the functions below return: the error number, then the arguments of its text. Null
-- means no refusal.
create or replace function servicebroker.refuse_with(refusal text[]) returns void language plpgsql as $$
begin
    if refusal is not null then
        perform servicebroker.refuse(refusal[1]::integer, variadic refusal[2:]);
    end if;
end $$;

-- Refuse changes through the view of a queue, which only SEND and RECEIVE may write. The view's trigger calls this
-- function. SECURITY DEFINER, because it looks up the queue's name.
create or replace function servicebroker.refuse_update() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform servicebroker.refuse(416, (select q.name from servicebroker.queues q
        where q.postgres_schema = tg_table_schema and q.postgres_name = tg_table_name));
    return null;
end $$;

-- Refuse writes into a READ_ONLY database (engine/catalog/read_only.py). An endpoint has columns about its peer, which
-- the verbs of the peer's database write: those must not fail, and neither must the maintenance of all databases.
create or replace function servicebroker.refuse_read_only() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_peer constant text[] := '{far_handle,far_queue_id,far_group_id,receive_sequence,last_stamp}';
begin
    if tg_table_name = 'conversation_endpoints' and tg_level = 'ROW' and tg_op = 'UPDATE' then
        if to_jsonb(old) - of_peer = to_jsonb(new) - of_peer then
            return null;
        end if;
    end if;
    perform servicebroker.refuse(3906, tg_argv[0]);
    return null;
end $$;

-- Create the triggers that refuse writes into a database, or drop them. Tables of the database and of its queues get
-- statement triggers; tables that all databases share get row triggers for the rows of this database. A row trigger also
-- refuses an INSERT into a queue: SEND and END on the other side begin with one that inserts nothing, and then wait.
create or replace function servicebroker.guard_read_only(
    database integer, name text, dbo text, shared text[], guarded boolean
) returns void language plpgsql as $$
declare
    own text;
    is_queue boolean;
    trigger_name text := 'read_only_' || database;
begin
    for own, is_queue in
        select c.oid::regclass::text, n.nspname = 'servicebroker' from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p')
           and (n.nspname = dbo
                or n.nspname in (select s.postgres_schema from servicebroker.tsql_schemas s where s.database_id = database)
                or n.nspname = 'servicebroker'
                   and c.relname in (select 'queue_' || q.queue_id from servicebroker.queues q where q.database_id = database))
         order by c.oid
    loop
        execute format('drop trigger if exists %1$I on %2$s; drop trigger if exists %1$s_new on %2$s', trigger_name, own);
        if guarded and is_queue then
            execute format('create trigger %1$I before update or delete on %2$s for each statement '
                           'execute function servicebroker.refuse_read_only(%3$L); '
                           'create trigger %1$s_new before insert on %2$s for each row '
                           'execute function servicebroker.refuse_read_only(%3$L)', trigger_name, own, name);
        elsif guarded then
            execute format('create trigger %I before insert or update or delete on %s for each statement '
                           'execute function servicebroker.refuse_read_only(%L)', trigger_name, own, name);
        end if;
    end loop;
    foreach own in array shared loop
        execute format('drop trigger if exists %1$I on servicebroker.%2$I; drop trigger if exists %1$s_new on servicebroker.%2$I; '
                       'drop trigger if exists %1$s_gone on servicebroker.%2$I', trigger_name, own);
        if guarded then
            -- a new catalog_version is written to all queues, also by changes of other databases
            execute format('create trigger %1$I after update on servicebroker.%2$I for each row when (old.database_id = %3$s '
                           'and to_jsonb(old) - ''catalog_version'' <> to_jsonb(new) - ''catalog_version'') '
                           'execute function servicebroker.refuse_read_only(%4$L); '
                           'create trigger %1$s_new before insert on servicebroker.%2$I for each row when (new.database_id = %3$s) '
                           'execute function servicebroker.refuse_read_only(%4$L); '
                           'create trigger %1$s_gone before delete on servicebroker.%2$I for each row when (old.database_id = %3$s) '
                           'execute function servicebroker.refuse_read_only(%4$L)', trigger_name, own, database, name);
        end if;
    end loop;
end $$;

-- The priority of a new endpoint. Of the matching rules one with a contract wins, then one with a local service, then
-- one with a remote service.
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

-- Lock the service and the contract of a new dialog, and return the service's queue. Null: the service or the contract
-- is gone, or the queue's catalog version is not `version`. A session that alters or drops one of them
-- (engine/catalog/services.py, engine/catalog/alter.py), or wants the database alone
-- (engine/catalog/database_transactions.py), waits for our transaction, or has committed before our SELECT. So this is a
-- function of two statements: the SELECT needs a snapshot that is younger than the lock.
create or replace function servicebroker.own_queue(
    database integer, service integer, contract integer, version bigint default null
) returns integer language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({begin_in_lock}, database),
            pg_advisory_xact_lock_shared({begin_lock}, service), pg_advisory_xact_lock_shared({begin_lock}, contract);
    return (select s.queue_id from servicebroker.services s
              join servicebroker.service_contracts c
                on c.database_id = database and c.service_contract_id = contract
             where s.service_id = service
               and (version is null or exists (select from servicebroker.queues q
                                                where q.queue_id = s.queue_id and q.catalog_version = version)));
end $$;

-- Return whether a client's cache entry for new conversations between two services of this instance is still valid:
-- services, contract, queues, permissions, and routes to the target. It first takes the locks of BEGIN DIALOG and of a
-- first SEND (engine/delivery/opening.py). So a session that alters or drops one of these objects waits for our
-- transaction, or has committed before our SELECT. For two databases it also checks that no other database has a
-- service of that name, and that no remote service binding secures it.
create or replace function servicebroker.hold_way(
    own_database integer, own_service integer, own_contract integer, own_queue integer, own_version bigint,
    own_routes bigint, own_broker text, to_service text, far_database integer, far_service integer, far_contract integer,
    far_queue integer, far_version bigint, far_broker text
) returns boolean language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({begin_in_lock}, own_database), pg_advisory_xact_lock_shared({delivery_lock}, 0),
            pg_advisory_xact_lock_shared({service_lock}, hashtext(to_service)),
            pg_advisory_xact_lock_shared({begin_lock}, own_service), pg_advisory_xact_lock_shared({begin_lock}, own_contract);
    if far_database <> own_database and not (  -- an IF of its own, so that its plan costs nothing if both are one database
        exists (select from servicebroker.service_contracts c
                 where c.database_id = own_database and c.service_contract_id = own_contract)
        and exists (select from servicebroker.databases fd
                     where fd.database_id = far_database and fd.is_broker_enabled
                       and fd.service_broker_guid = far_broker::uuid)
        and not exists (select from servicebroker.remote_service_bindings b
                         where b.database_id = own_database and b.remote_service_name = to_service)
        and not exists (select from servicebroker.databases h
                          join servicebroker.services hs on hs.database_id = h.database_id and hs.name = to_service
                         where h.database_id <> far_database and h.is_broker_enabled)) then
        return false;
    end if;
    -- Single values, because the plan of a join would read whole rows. The services themselves need no check: moving
    -- one to another queue changes the versions of all queues; dropping one changes routes_version and deletes its
    -- contracts.
    return coalesce(
        (select q.catalog_version = own_version and not q.is_retention_enabled
               from servicebroker.queues q where q.queue_id = own_queue)
        and (select d.routes_version = own_routes and d.is_broker_enabled and d.service_broker_guid = own_broker::uuid
               from servicebroker.databases d where d.database_id = own_database)
        and exists (select from servicebroker.service_contract_usages u
                     where u.service_id = far_service and u.service_contract_id = far_contract)
        and (select fq.catalog_version = far_version and fq.is_enqueue_enabled
               from servicebroker.queues fq where fq.queue_id = far_queue), false);
end $$;

-- Return whether a client's cache entry for new conversations with another instance is still valid. It takes the locks
-- of hold_way. The entry is invalid if a database of this instance has a service of that name now, since routes may
-- lead there.
create or replace function servicebroker.hold_departure(
    own_database integer, own_service integer, own_contract integer, own_queue integer, own_version bigint,
    own_routes bigint, own_broker text, to_service text
) returns boolean language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({begin_in_lock}, own_database), pg_advisory_xact_lock_shared({delivery_lock}, 0),
            pg_advisory_xact_lock_shared({service_lock}, hashtext(to_service)),
            pg_advisory_xact_lock_shared({begin_lock}, own_service), pg_advisory_xact_lock_shared({begin_lock}, own_contract);
    return coalesce(
        (select q.catalog_version = own_version and not q.is_retention_enabled
               from servicebroker.queues q where q.queue_id = own_queue)
        and (select d.routes_version = own_routes and d.is_broker_enabled and d.service_broker_guid = own_broker::uuid
               from servicebroker.databases d where d.database_id = own_database)
        and exists (select from servicebroker.service_contracts c
                     where c.database_id = own_database and c.service_contract_id = own_contract)
        and not exists (select from servicebroker.databases h
                          join servicebroker.services hs on hs.database_id = h.database_id and hs.name = to_service
                         where h.is_broker_enabled), false);
end $$;

-- Return the refusal of a statement on an object, or null if it is allowed. The decision is the same as `is_allowed` of
-- model/security/permissions.py, by the table servicebroker.needs. Without identities everything is allowed.
create or replace function servicebroker.refusal(
    statement text, database integer, identities integer[], kind integer, id integer, owner integer, name text,
    in_schema integer default 0, schema_name text default 'dbo'
) returns text[] language plpgsql stable as $$
declare
    need record;
    states "char"[];
begin
    if identities is null or {dbo} = any (identities) or kind <> 0 and owner = any (identities) then
        return null;
    end if;
    for need in
        select n.permission, n.number, n.brought_by, n.of_roles, n.denied_to from servicebroker.needs n
         where n.statement = refusal.statement and n.class = kind order by n.place
    loop
        states := array(
            select p.state from servicebroker.permissions p
             where p.database_id = database and p.grantee_id = any (identities)
               and p.class || ' ' || p.permission = any (need.brought_by)
               and (p.class = 0 or p.major_id = case p.class when {schema} then in_schema else id end)
             union all
            select 'G' where need.of_roles && identities
                          or kind <> 0 and id < {first_user_id} and need.permission = 'REFERENCES'
             union all
            select 'D' where need.denied_to && identities);
        if states = '{}' or 'D' = any (states) then
            return case need.number
                       when 229 then array['229', need.permission, name,
                                           (select d.name from servicebroker.databases d where d.database_id = database),
                                           schema_name]
                       else array[need.number::text, name]
                   end;
        end if;
    end loop;
    return null;
end $$;

-- Return the refusal of a statement on a conversation: on the service and the queue of its local endpoint. 8426 if the
-- database has no such conversation.
create or replace function servicebroker.conversation_refusal(
    statement text, handle uuid, database integer, identities integer[]
) returns text[] language plpgsql stable as $$
declare
    own record;
begin
    select s.service_id, s.name, s.owner_id, q.queue_id, q.owner_id as queue_owner, q.schema_id into own
      from servicebroker.conversation_endpoints e
      join servicebroker.services s using (service_id)
      join servicebroker.queues q on q.queue_id = e.queue_id
     where e.conversation_handle = handle and e.database_id = database;
    if not found then return array['8426', handle::text]; end if;
    return coalesce(
        servicebroker.refusal(statement, database, identities, {service}, own.service_id, own.owner_id, own.name),
        servicebroker.refusal(statement, database, identities, {queue}, own.queue_id, own.queue_owner, own.name, own.schema_id));
end $$;

-- Return the refusal to begin a conversation in a group of another service, or null if the group is of this service.
create or replace function servicebroker.group_refusal(
    own_service integer, from_service text, related_conversation uuid, related_group uuid
) returns text[] language plpgsql as $$
begin
    return (
        select array['9610', from_service, s.name]
            || case when related_conversation is null
                    then array['RELATED_CONVERSATION_GROUP', related_group::text]
                    else array['RELATED_CONVERSATION', related_conversation::text] end
          from servicebroker.conversation_groups g join servicebroker.services s using (service_id)
         where g.conversation_group_id = related_group and s.service_id <> own_service);
end $$;

-- BEGIN DIALOG CONVERSATION. A group that does not exist is created with the given id. With `keeps` the session keeps
-- the group's lock beyond savepoints, and `kept` is its key. `drawn` is the handle that the caller has drawn, if it
-- has. A refusal has written nothing.
create or replace function servicebroker.begin_conversation(
    database integer, from_service text, to_service text, contract text, lifetime integer, broker_instance text,
    related_conversation uuid, related_conversation_group uuid, encryption boolean, identities integer[], keeps boolean,
    drawn uuid default null, priority integer default null, idempotency_key text default null, key_lifetime integer default null,
    principal integer default null, out handle uuid, out refusal text[], out is_repeated boolean, out kept integer[]
) language plpgsql as $$
declare
    own record;
    own_queue integer;
    drawn_handle uuid := coalesce(drawn, gen_random_uuid());
    conversation_group uuid := coalesce(related_conversation_group, gen_random_uuid());
    locked uuid;
    under_savepoint boolean;
begin
    refusal := case
        when from_service is null or to_service is null then array['8421']
        when contract is null then array['8417']
        when to_service = '' or length(to_service) > {maximum_service_name}
            then array['15151', 'use', 'service', left(to_service, 40)]
        when lifetime is null then array['8406', '1', '{maximum_lifetime}']
        when lifetime < 1 then array['8411', lifetime::text, '1', '{maximum_lifetime}']
        when octet_length(broker_instance) > 256 then array['8413', left(broker_instance, 256)]
        when broker_instance <> 'CURRENT DATABASE'
             and broker_instance !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then array['1093', broker_instance]
        when encryption is null then array['402', 'ENCRYPTION', 'NULL', 'true for ON, false for OFF']
        when related_conversation_group = '00000000-0000-0000-0000-000000000000'
            then array['8414', related_conversation_group::text]
        when priority not between 1 and 10 then array['402', 'priority', priority::text, 'an int from 1 to 10']
        when length(idempotency_key) not between 1 and {maximum_key}
            then array['402', 'idempotency_key', left(idempotency_key, 40), 'a str of 1 to {maximum_key} characters']
        when idempotency_key is not null and coalesce(key_lifetime, 0) < 1
            then array['402', 'idempotency_ttl', coalesce(key_lifetime::text, 'NULL'), 'an int from 1 to {maximum_lifetime} (seconds)']
    end;
    if refusal is not null then return; end if;

    select d.database_id, s.service_id, s.queue_id, q.owner_id as queue_owner, q.schema_id,
           c.service_contract_id, c.owner_id as contract_owner into own
      from servicebroker.databases d
      left join servicebroker.services s on s.database_id = d.database_id and s.name = from_service
      left join servicebroker.queues q on q.queue_id = s.queue_id
      left join servicebroker.service_contracts c
        on c.database_id = d.database_id and c.name = begin_conversation.contract
     where d.database_id = database;
    refusal := case
        when own is null then array['8442']
        when own.service_id is null then array['8423', from_service]
        when own.service_contract_id is null then array['8425', contract]
        else coalesce(
            servicebroker.refusal(
                'BEGIN DIALOG', database, identities, {queue}, own.queue_id, own.queue_owner, from_service, own.schema_id),
            servicebroker.refusal(
                'BEGIN DIALOG', database, identities, {contract}, own.service_contract_id, own.contract_owner, contract))
    end;
    if refusal is not null then return; end if;

    refusal := servicebroker.group_refusal(  -- checked before the lock, too, so that nobody waits for a group of another service
        own.service_id, from_service, related_conversation,
        coalesce((select e.conversation_group_id from servicebroker.conversation_endpoints e
                   where e.conversation_handle = related_conversation), related_conversation_group));
    if refusal is not null then return; end if;
    if related_conversation is not null then
        loop  -- MOVE CONVERSATION may change the group while we wait for its lock
            select e.conversation_group_id into conversation_group from servicebroker.conversation_endpoints e
             where e.conversation_handle = related_conversation;
            if conversation_group is null then
                refusal := array['8426', related_conversation::text];
                return;
            end if;
            exit when conversation_group = locked;
            perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
            locked := conversation_group;
        end loop;
    else
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
    end if;
    perform from servicebroker.conversation_groups g
      where g.conversation_group_id = conversation_group for key share of g;  -- so that nobody deletes the group
    refusal := servicebroker.group_refusal(own.service_id, from_service, related_conversation, conversation_group);
    if refusal is not null then return; end if;
    own_queue := servicebroker.own_queue(database, own.service_id, own.service_contract_id);
    if own_queue is null then
        refusal := array['8423', from_service];
        return;
    end if;
    is_repeated := false;
    while idempotency_key is not null and handle is null loop  -- the same as begin_at in engine/conversation/begin.py
        insert into servicebroker.idempotency_keys as k
        values (own.service_id, principal, idempotency_key, drawn_handle, clock_timestamp() + make_interval(secs => key_lifetime))
            on conflict (service_id, principal_id, key) do update
           set conversation_handle = excluded.conversation_handle, expires_at = excluded.expires_at
         where k.expires_at <= clock_timestamp() returning k.conversation_handle into handle;
        if handle is null then
            select k.conversation_handle into handle from servicebroker.idempotency_keys k
             where k.service_id = own.service_id and k.principal_id = principal and k.key = idempotency_key
               and k.expires_at > clock_timestamp();
            is_repeated := found;
        end if;
    end loop;
    if is_repeated then return; end if;
    insert into servicebroker.conversation_groups values (conversation_group, own.service_id) on conflict do nothing;
    insert into servicebroker.conversation_endpoints
           (conversation_handle, is_initiator, database_id, service_id, service_contract_id, conversation_group_id, queue_id,
            state, encryption, lifetime, far_service, far_broker_instance, priority, far_priority)
    values (drawn_handle, true, database, own.service_id, own.service_contract_id, conversation_group, own_queue, 'SO',
            begin_conversation.encryption, clock_timestamp() + make_interval(secs => begin_conversation.lifetime), to_service,
            case broker_instance
                when 'CURRENT DATABASE' then  -- read now: own_queue may have waited for an ALTER DATABASE ... NEW_BROKER
                    (select d.service_broker_guid::text from servicebroker.databases d where d.database_id = database)
                else lower(broker_instance)
            end,
            coalesce(begin_conversation.priority,
                     servicebroker.conversation_priority(database, own.service_contract_id, own.service_id, to_service)),
            begin_conversation.priority)
    returning conversation_handle, xmin <> pg_current_xact_id()::xid into handle, under_savepoint;
    if keeps and under_savepoint then
        kept := array[servicebroker.keep_lock(uuid_hash(conversation_group))];
    end if;
end $$;

-- BEGIN DIALOG CONVERSATION for the owner of the schema. Returns the handle, and raises a refusal.
create or replace function servicebroker.begin_dialog(
    broker_database text, from_service text, to_service text, contract text default 'DEFAULT',
    lifetime integer default {maximum_lifetime}, broker_instance text default null,
    related_conversation_group uuid default null, encryption boolean default true
) returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    begun record := servicebroker.begin_conversation(
        (select d.database_id from servicebroker.databases d where lower(d.name) = lower(broker_database)),
        from_service, to_service, contract, lifetime, broker_instance, null, related_conversation_group, encryption,
        null, false);
begin
    if begun.refusal = array['8442'] then perform servicebroker.refuse(911, broker_database); end if;
    perform servicebroker.refuse_with(begun.refusal);
    return begun.handle;
end $$;

-- Notify those who deliver messages of the transmission queue.
create or replace function servicebroker.ring_transmission() returns void language plpgsql as $$
begin
    perform pg_notify('{delivery_channel}', '');
    if exists (select from servicebroker.waiting_readers where queue_id = 0) then  -- the daemon sleeps
        perform pg_notify('servicebroker', '0');
    end if;
end $$;

-- SEND of messages of one type. Returns the sequence number of the first one, or a refusal. The conversation is parked
-- (engine/delivery/transmission.py): later messages wait behind these in the transmission queue, from whichever client
-- they come. The locks are those of engine/conversation/endpoints.py and engine/delivery/opening.py, in their order.
-- With identities, permissions are checked, and the handle must belong to `database`. If `until` is in the future, the
-- messages are delayed.
create or replace function servicebroker.send_on(
    handle uuid, message_type text, bodies bytea[], database integer, identities integer[],
    until timestamptz default null, out number bigint, out refusal text[]
) language plpgsql as $$
declare
    sender record;
    usage record;
    own record;
    many integer := cardinality(bodies);
begin
    refusal := case
        when handle is null then array['8418']
        when coalesce(many, 0) = 0 or array_position(bodies, null) is not null then array['8433']
        when (select max(octet_length(body)) from unnest(bodies) body) > {maximum_body} then array['8459', '{maximum_body}']
        when identities is not null then servicebroker.conversation_refusal('SEND', handle, database, identities)
    end;
    if refusal is not null then return; end if;

    perform pg_advisory_xact_lock_shared({delivery_lock}, 0),
            pg_advisory_xact_lock_shared({service_lock}, hashtext(e.far_service))
       from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
    perform from servicebroker.conversation_endpoints where conversation_handle = handle for update;
    select e.*, peer.state as peer_state into sender from servicebroker.conversation_endpoints e
      left join servicebroker.conversation_endpoints peer on peer.conversation_handle = e.far_handle
     where e.conversation_handle = handle;
    if not found then refusal := array['8426', handle::text];
    elsif sender.state not in ('SO', 'CO') then refusal := array['8429', sender.state];
    elsif sender.lifetime <= clock_timestamp() then refusal := array['8429', 'ER'];
    end if;
    if refusal is not null then return; end if;

    select t.message_type_id, t.validation, u.is_sent_by_initiator, u.is_sent_by_target into usage
      from servicebroker.message_types t
      left join servicebroker.service_contract_message_usages u
        on u.database_id = t.database_id and u.message_type_id = t.message_type_id
       and u.service_contract_id = sender.service_contract_id
     where t.database_id = sender.database_id and t.name = message_type;
    if not found then refusal := array['8428', message_type];
    elsif usage.is_sent_by_initiator is null then refusal := array['8431', message_type];
    elsif sender.is_initiator and not usage.is_sent_by_initiator then refusal := array['8432', message_type];
    elsif not sender.is_initiator and not usage.is_sent_by_target then refusal := array['8434', message_type];
    end if;
    if refusal is not null then return; end if;

    -- RETENTION: the own queue keeps a copy (engine/conversation/retention.py)
    select q.name, q.is_retention_enabled, q.is_enqueue_enabled into own
      from servicebroker.queues q where q.queue_id = sender.queue_id;
    if own.is_retention_enabled and not own.is_enqueue_enabled then
        refusal := array['9618', own.name];
    elsif until > sender.lifetime then
        refusal := array['402', 'the delay', format('one until %s', until),
                         format('a time before the lifetime ends, %s', sender.lifetime)];
    end if;
    if refusal is not null then return; end if;
    if own.is_retention_enabled then
        execute format(
            'insert into servicebroker.retained_%s (status, priority, conversation_group_id, conversation_handle, '
            'message_sequence_number, service_id, service_contract_id, message_type_id, validation, is_shared, '
            'message_body) select 3, $1, $2, $3, $4 + place - 1, $5, $6, $7, $8, false, nullif(body, $10) '
            'from unnest($9) with ordinality given (body, place) order by place', sender.queue_id)
        using sender.priority, sender.conversation_group_id, handle, sender.send_sequence, sender.service_id,
              sender.service_contract_id, usage.message_type_id, usage.validation, bodies, ''::bytea;
    end if;

    perform nextval('servicebroker.sent_in_sql') from generate_series(1, many);  -- SQL SEND Total
    number := sender.send_sequence;
    -- the peer has ended, but its EndDialog has not arrived, or it expired and was deleted: count the messages, drop
    -- them
    if sender.peer_state in ('DO', 'CD') or sender.far_handle is not null and sender.peer_state is null then
        update servicebroker.conversation_endpoints set send_sequence = send_sequence + many
         where conversation_handle = handle;
        return;
    end if;
    update servicebroker.conversation_endpoints set send_sequence = send_sequence + many, state = 'CO', far_queue_id = null
     where conversation_handle = handle;
    insert into servicebroker.transmission_queue
           (conversation_handle, message_sequence_number, message_type_name, message_body, transmission_status,
            delayed_until, xact)
    select handle, number + place - 1, message_type, nullif(body, ''),
           case when until > clock_timestamp() then {delayed} else '' end,
           case when until > clock_timestamp() then until end,
           case when until > clock_timestamp() then '0' else pg_current_xact_id() end
      from unnest(bodies) with ordinality given (body, place);
    perform servicebroker.ring_transmission();
end $$;

-- SEND for the owner of the schema. Returns the sequence number of the message, and raises a refusal.
create or replace function servicebroker.send(handle uuid, message_type text default 'DEFAULT', body bytea default '')
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    sent record := servicebroker.send_on(handle, message_type, array[body], null, null);
begin
    perform servicebroker.refuse_with(sent.refusal);
    return sent.number;
end $$;

-- Return delayed messages, and those that wait behind a delayed one (engine/delivery/delayed_messages.py).
create or replace function servicebroker.delayed_messages(database integer, handle uuid) returns table (
    conversation_handle uuid, message_sequence_number bigint, message_type_name text, from_service text, far_service text,
    size bigint, enqueue_time timestamptz, due timestamptz
) language sql stable as $$
    select t.conversation_handle, t.message_sequence_number, t.message_type_name, coalesce(s.name, ''), e.far_service,
           coalesce(octet_length(case when t.is_shared then (
               select b.body from servicebroker.shared_bodies b join servicebroker.shared_body_readers r using (body_id)
                where r.reader = t.message_body) else t.message_body end), 0)::bigint,
           t.enqueue_time, max(t.delayed_until) over (partition by t.conversation_handle order by t.message_sequence_number)
      from (select d.conversation_handle, min(d.message_sequence_number) as first from servicebroker.transmission_queue d
             where d.delayed_until is not null and (handle is null or d.conversation_handle = handle) group by 1) held
      join servicebroker.transmission_queue t
        on t.conversation_handle = held.conversation_handle and t.message_sequence_number >= held.first
      join servicebroker.conversation_endpoints e on e.conversation_handle = t.conversation_handle
      left join servicebroker.services s on s.service_id = e.service_id
     where e.database_id = database
$$;

-- Cancel message `number`, which is delayed or waits behind a delayed one, or all delayed messages if it is null. Later
-- messages get the free sequence numbers. Returns how many messages were deleted.
create or replace function servicebroker.cancel_delayed(handle uuid, number bigint) returns bigint language plpgsql as $$
declare
    own record;
    gone bigint[];
begin
    perform pg_advisory_xact_lock_shared({delivery_lock}, 0);
    select e.conversation_id, e.is_initiator, e.queue_id, q.keeps_retained into own
      from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
     where e.conversation_handle = handle for no key update of e;
    if not found then
        return 0;
    end if;
    with cancelled as (
        delete from servicebroker.transmission_queue t
         where t.conversation_handle = handle and not t.is_end_of_dialog and not t.is_conversation_error
           and case when number is null then t.delayed_until is not null
                    else t.message_sequence_number = number and exists (
                         select from servicebroker.transmission_queue h
                          where h.conversation_handle = handle and h.delayed_until is not null
                            and h.message_sequence_number <= number)
               end
        returning t.message_sequence_number, t.is_shared, t.message_body
    ), unread as (
        delete from servicebroker.shared_body_readers
         where reader = any (array(select message_body from cancelled where is_shared))
    )
    select array_agg(message_sequence_number order by message_sequence_number) into gone from cancelled;
    if gone is null then
        return 0;
    end if;
    -- sequence numbers are unique after each row, so the new ones are written negative first
    update servicebroker.transmission_queue t
       set message_sequence_number = -1 - (t.message_sequence_number
           - (select count(*) from unnest(gone) g where g < t.message_sequence_number))
     where t.conversation_handle = handle and t.message_sequence_number > gone[1];
    -- a message that no delayed one precedes any more counts as sent now; the numbers are still negative, so earlier
    -- messages have greater ones
    update servicebroker.transmission_queue t
       set message_sequence_number = -1 - t.message_sequence_number,
           xact = case when f.is_free then pg_current_xact_id() else t.xact end,
           transmission_status = case when f.is_free and t.transmission_status = {delayed}
                                      then '' else t.transmission_status end
      from (select m.message_sequence_number as number, not exists (
                   select from servicebroker.transmission_queue h
                    where h.conversation_handle = handle and h.delayed_until is not null
                      and h.message_sequence_number >= m.message_sequence_number) as is_free
              from servicebroker.transmission_queue m
             where m.conversation_handle = handle and m.message_sequence_number < 0) f
     where t.conversation_handle = handle and t.message_sequence_number = f.number;
    update servicebroker.conversation_endpoints set send_sequence = send_sequence - cardinality(gone)
     where conversation_handle = handle;
    delete from servicebroker.trace_contexts c
     where c.conversation_id = own.conversation_id and c.is_from_initiator = own.is_initiator
       and c.message_sequence_number >= gone[1];
    if own.keeps_retained then
        execute format('delete from servicebroker.retained_%s where conversation_handle = $1 and status = 3 '
                       'and message_sequence_number = any ($2)', own.queue_id) using handle, gone;
        execute format('update servicebroker.retained_%s r set message_sequence_number = message_sequence_number '
                       '- (select count(*) from unnest($2) g where g < r.message_sequence_number) '
                       'where conversation_handle = $1 and status = 3 and message_sequence_number > $2[1]', own.queue_id)
          using handle, gone;
    end if;
    perform servicebroker.ring_transmission();
    return cardinality(gone);
end $$;

-- Lock and return a worker's schedule (engine/conversation/schedules.py). Nulls if there is none.
create or replace function servicebroker.find_schedule(
    queue integer, schedule text, out handle uuid, out rule text, out time_zone text, out missed text,
    out next_time timestamptz, out is_open boolean, out service text
) language plpgsql as $$
begin
    select s.conversation_handle, s.rule, s.time_zone, s.missed, s.next_time
      into handle, rule, time_zone, missed, next_time
      from servicebroker.schedules s where s.queue_id = queue and s.name = schedule for update;
    is_open := exists (
        select from servicebroker.conversation_endpoints e
         where e.conversation_handle = handle and e.queue_id = queue and e.state = 'SO');
    service := (select o.name from servicebroker.services o where o.queue_id = queue order by o.service_id limit 1);
end $$;

-- Store a schedule and set its conversation timer. False, with nothing stored, if the schedule has another open
-- conversation.
create or replace function servicebroker.set_schedule(
    queue integer, schedule text, handle uuid, rule text, time_zone text, missed text, next_time timestamptz
) returns boolean language plpgsql as $$
#variable_conflict use_variable
begin
    insert into servicebroker.schedules (queue_id, name, conversation_handle, rule, time_zone, missed, next_time)
    values (queue, schedule, handle, rule, time_zone, missed, next_time)
        on conflict on constraint schedules_pkey do nothing;  -- it waits for another first start
    if not found then  -- a statement of its own, whose snapshot has the conversation of that start
        perform from servicebroker.schedules s where s.queue_id = queue and s.name = schedule for update;
        update servicebroker.schedules s
           set conversation_handle = handle, rule = set_schedule.rule, time_zone = set_schedule.time_zone,
               missed = set_schedule.missed, next_time = set_schedule.next_time
         where s.queue_id = queue and s.name = schedule and (
               s.conversation_handle = handle or not exists (
               select from servicebroker.conversation_endpoints e
                where e.conversation_handle = s.conversation_handle and e.queue_id = s.queue_id and e.state = 'SO'));
    end if;
    if not found then
        return false;
    end if;
    update servicebroker.conversation_endpoints e set dialog_timer = next_time where e.conversation_handle = handle;
    return true;
end $$;

-- Lock and return the schedule of a conversation.
create or replace function servicebroker.schedule_of(handle uuid)
returns table (schedule text, rule text, time_zone text, missed text, next_time timestamptz) language sql as $$
    select s.name, s.rule, s.time_zone, s.missed, s.next_time
      from servicebroker.schedules s where s.conversation_handle = handle for update
$$;

-- Set the next time of a conversation's schedule, and its timer.
create or replace function servicebroker.set_next_time(handle uuid, next_time timestamptz) returns void language sql as $$
    update servicebroker.schedules s set next_time = $2 where s.conversation_handle = $1;
    update servicebroker.conversation_endpoints e set dialog_timer = $2 where e.conversation_handle = $1 and e.state = 'SO';
$$;

-- Limits for all workers of a queue together (api/aio/throttle.py). A slot is an advisory lock of the session, so the
-- end of the session frees it.
create or replace function servicebroker.slot_key(queue integer, slot integer) returns integer language sql immutable as $$
    select ((queue::bigint * {maximum_slots} + slot) % 2147483648)::integer
$$;

-- Take a free slot and return it; null if none is free. Records the number of slots for status, doctor and dashboard.
create or replace function servicebroker.take_slot(queue integer, slots integer) returns integer language plpgsql as $$
declare
    first integer := floor(random() * slots);
begin
    if not exists (
        select from servicebroker.worker_limits l
         where l.queue_id = queue and l.slots = take_slot.slots and l.slots_time > clock_timestamp() - interval '1 hour'
    ) then
        insert into servicebroker.worker_limits (queue_id, slots, slots_time)
        values (queue, take_slot.slots, clock_timestamp())
            on conflict (queue_id) do update set slots = excluded.slots, slots_time = excluded.slots_time;
    end if;
    for place in 0 .. least(slots, {maximum_slots}) - 1 loop
        if pg_try_advisory_lock({slot_lock}, servicebroker.slot_key(queue, (first + place) % slots)) then
            return (first + place) % slots;
        end if;
    end loop;
    return null;
end $$;

create or replace function servicebroker.release_slot(queue integer, slot integer) returns boolean language sql as $$
    select pg_advisory_unlock({slot_lock}, servicebroker.slot_key(queue, slot))
$$;

-- Take a token of the rate limit for one message. Returns 0, or the seconds until the next token is free.
create or replace function servicebroker.take_place(queue integer, seconds double precision) returns double precision
language plpgsql as $$
declare
    free timestamptz := (select l.next_time from servicebroker.worker_limits l where l.queue_id = queue);
begin
    if free is null or free <= clock_timestamp() then
        insert into servicebroker.worker_limits as l (queue_id, next_time, interval_s)
        values (queue, clock_timestamp() + make_interval(secs => seconds), seconds)
            on conflict (queue_id) do update
           set next_time = greatest(l.next_time, clock_timestamp() - interval '50 ms') + make_interval(secs => seconds),
               interval_s = seconds
         where l.next_time is null or l.next_time <= clock_timestamp();
        if found then return 0; end if;
        free := (select l.next_time from servicebroker.worker_limits l where l.queue_id = queue);
    end if;
    return greatest(0.001, extract(epoch from free - clock_timestamp()));
end $$;

-- Correct the rate limit by the time of further messages that were received with one token; a negative time returns the
-- token.
create or replace function servicebroker.settle_place(queue integer, seconds double precision) returns void language sql as $$
    update servicebroker.worker_limits l set next_time = l.next_time + make_interval(secs => seconds) where l.queue_id = queue
$$;

-- A hash that changes when an object of a queue is created, replaced or dropped. It covers the names of the objects
-- and, of their rows in PostgreSQL's catalogs, the transaction that wrote them (xmin). Catalog columns that normal work
-- changes (relfilenode, statistics) are left out.
create or replace function servicebroker.fingerprint(queue integer) returns bigint language plpgsql stable as $$
begin
    return (
        with relations as materialized (
            select c.oid, c.relname, c.relkind, c.reloptions from pg_catalog.pg_class c
             where c.relnamespace = 'servicebroker'::regnamespace and c.relname = any (array[
                       format('queue_%s', queue), format('queue_%s_arrival', queue), format('queue_%s_group', queue),
                       format('queue_%s_order', queue), format('queue_%s_receives', queue), format('queue_%s_empty_receives', queue),
                       format('retained_%s', queue), format('retained_%s_conversation', queue)]::name[])
            union all
            select c.oid, c.relname, c.relkind, c.reloptions from servicebroker.queues q
              join pg_catalog.pg_namespace n on n.nspname = q.postgres_schema::name
              join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = q.postgres_name::name
             where q.queue_id = queue
        ), parts (kind, whose, id, made) as (
            select 'relation', oid, 0::bigint, concat(relname, relkind, case when relkind = 'v' then reloptions end) from relations
            union all
            select 'column', a.attrelid, a.attnum, a.xmin::text from pg_catalog.pg_attribute a
             where a.attrelid = any (array(select oid from relations where relkind in ('r', 'v'))) and a.attnum > 0
            union all
            select 'default', d.adrelid, d.oid, d.xmin::text from pg_catalog.pg_attrdef d
             where d.adrelid = any (array(select oid from relations where relkind in ('r', 'v')))
            union all
            select 'rule', r.ev_class, r.oid, r.xmin::text from pg_catalog.pg_rewrite r
             where r.ev_class = any (array(select oid from relations where relkind in ('r', 'v')))
            union all
            select 'policy', p.polrelid, p.oid, p.xmin::text from pg_catalog.pg_policy p
             where p.polrelid = any (array(select oid from relations where relkind = 'r'))
            union all
            select 'trigger', t.tgrelid, t.oid, t.xmin::text from pg_catalog.pg_trigger t
             where t.tgrelid = any (array(select oid from relations where relkind in ('r', 'v')))
               and not t.tgisinternal and t.tgname <> 'arrival'
            union all
            select 'function', 0::oid, p.oid, p.xmin::text from pg_catalog.pg_proc p
             where p.pronamespace = 'servicebroker'::regnamespace and p.proname = any (array[
                       format('fire_timers_%s', queue), format('expire_%s', queue), format('survey_%s', queue),
                       format('receive_%s', queue), format('receive_groups_%s', queue), format('take_%s', queue),
                       format('end_dialog_%s', queue), format('finish_dialog_%s', queue),
                       format('end_remote_%s', queue), format('look_%s', queue)]::name[])
        )
        select bit_xor(hashtextextended(concat_ws(' ', kind, whose, id, made), 0)) from parts);
end $$;
