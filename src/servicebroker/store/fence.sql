-- The fence: functions for PostgreSQL roles that have no rights on our tables.
--
-- The functions of the schema servicebroker_fence are SECURITY DEFINER: they run with the rights of the schema's owner.
-- Each checks the permissions of the calling role's principal. `servicebroker rights grant` gives a role EXECUTE.
-- Messages that they send are parked in the transmission queue, and a process that has the instance open as the owner
-- delivers them. Every migration recreates the functions.
--
-- The caller: within a SECURITY DEFINER function `current_user` is the owner. `session_user` is no proof either: the
-- session of another user may be running the caller's code. So each function takes the argument `me`, a secret key of
-- the role. Its default reads the view `caller`, which shows only the key of the user who reads it, and a default is
-- evaluated as the caller.
--
-- Functions for the engine return a refusal as a row instead of an exception, which would abort the application's
-- transaction.

create or replace view servicebroker_fence.caller with (security_barrier) as
select key from servicebroker.fenced_roles where postgres_role = current_user;

create or replace function servicebroker_fence.me() returns uuid language sql stable
return (select key from servicebroker_fence.caller);

-- the rows of model/security/permissions.py that the functions below need
delete from servicebroker.needs;
insert into servicebroker.needs (statement, place, class, permission, number, brought_by, of_roles, denied_to)
values {permission_rows};

-- ---------------------------------------------------------------- permissions

-- Return the calling role's principal in a database, and its identities: itself, public, and the roles that it is a
-- member of. A refusal if it has no principal there or may not connect.
create or replace function servicebroker.caller(
    me uuid, database integer, out identities integer[], out refusal text[], out principal_id integer, out name text,
    out is_limited boolean
) language plpgsql stable as $$
#variable_conflict use_column
declare
    role text;
begin
    select f.postgres_role, coalesce(f.max_conversations, f.max_messages, f.max_bytes) is not null into role, is_limited
      from servicebroker.fenced_roles f where f.key = me;
    if role is null then
        raise exception using errcode = 'insufficient_privilege',
            message = 'servicebroker: this PostgreSQL role may not call the verbs',
            hint = 'As the owner of the schema: servicebroker rights grant ROLE --database ... --receive ...';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'invalid_transaction_state',
            message = 'servicebroker: the verbs need transactions at READ COMMITTED';
    end if;
    select p.principal_id, p.name into caller.principal_id, caller.name from servicebroker.principals p
     where p.database_id = database and (p.postgres_role = role or p.principal_id = {guest})
     order by p.postgres_role is not distinct from role desc limit 1;
    if not found then
        refusal := array['8442'];
        return;
    end if;
    identities := array(
        with recursive identities (id) as (
            select unnest(array[caller.principal_id, {public}])
             union
            select m.role_id from servicebroker.role_members m join identities i on m.member_id = i.id
             where m.database_id = database)
        select id from identities);
    if servicebroker.refusal('CONNECT', database, identities, 0, 0, {dbo}, '') is not null then
        identities := null;
        refusal := array['916', name, (select d.name from servicebroker.databases d where d.database_id = database)];
    end if;
end $$;

-- Return the refusal of a further conversation if the role's budget of open conversations is used up, else null. A
-- conversation is open until both of its endpoints in this instance are closed: messages may wait at either.
create or replace function servicebroker.opening_refusal(me uuid) returns text[] language plpgsql as $$
declare
    most bigint := (select f.max_conversations from servicebroker.fenced_roles f where f.key = me);
begin
    if (select count(*) from servicebroker.conversations_of_roles c where c.role_key = me) < most then return null; end if;
    delete from servicebroker.conversations_of_roles c where c.role_key = me and c.conversation_id = any (array(
        select o.conversation_id from servicebroker.conversations_of_roles o
         where o.role_key = me and not exists (
            select from servicebroker.conversation_endpoints e
             where e.conversation_id = o.conversation_id and e.state <> 'CD')
           for update skip locked));
    return case when (select count(*) from servicebroker.conversations_of_roles c where c.role_key = me) >= most
                then array['10928', 'open conversations', 'the role', most::text] end;
end $$;

create or replace function servicebroker.count_opening(me uuid, handle uuid) returns void language sql as $$
insert into servicebroker.conversations_of_roles (role_key, conversation_id)
select f.key, e.conversation_id from servicebroker.fenced_roles f, servicebroker.conversation_endpoints e
 where f.key = me and f.max_conversations is not null and e.conversation_handle = handle
on conflict do nothing
$$;

-- Return the refusal of further messages if the role's budget for a conversation is used up, else null. Messages count
-- until they are received.
create or replace function servicebroker.sending_refusal(me uuid, handle uuid, bodies bytea[]) returns text[] language plpgsql as $$
declare
    most record;
    target record;
    messages bigint := coalesce(cardinality(bodies), 0);
    bytes bigint := (select coalesce(sum(octet_length(body)), 0) from unnest(bodies) body);
    more record;
begin
    select f.max_messages, f.max_bytes into most from servicebroker.fenced_roles f where f.key = me;
    if most.max_messages is null and most.max_bytes is null then return null; end if;
    select count(*) as messages, coalesce(sum(octet_length(t.message_body)), 0) as bytes into more
      from (select message_body from servicebroker.transmission_queue
             where conversation_handle = handle limit greatest(most.max_messages, {max_counted_rows})) t;
    messages := messages + more.messages;
    bytes := bytes + more.bytes;
    select p.queue_id, p.priority, p.conversation_group_id, p.conversation_handle into target
      from servicebroker.conversation_endpoints e
      join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle
     where e.conversation_handle = handle;
    if found then
        execute format(
            'select count(*) as messages, coalesce(sum(octet_length(q.message_body)), 0) as bytes from ('
            'select message_body from servicebroker.queue_%s where priority = $1 and conversation_group_id = $2 '
            'and conversation_handle = $3 limit greatest($4, {max_counted_rows})) q', target.queue_id)
          into more using target.priority, target.conversation_group_id, target.conversation_handle, most.max_messages;
        messages := messages + more.messages;
        bytes := bytes + more.bytes;
    end if;
    return case
        when messages > most.max_messages
            then array['10928', 'messages that wait on a conversation', 'the role', most.max_messages::text]
        when bytes > most.max_bytes then array['10928', 'bytes that wait on a conversation', 'the role', most.max_bytes::text]
    end;
end $$;

-- Return the refusal to receive from a queue, or null if the caller may.
create or replace function servicebroker.receive_refusal(me uuid, queue_id integer, statement text default 'RECEIVE')
returns text[] language plpgsql stable as $$
#variable_conflict use_variable
declare
    queue record;
    who record;
begin
    select q.database_id, q.owner_id, q.name, q.schema_id, q.schema_name into queue from servicebroker.queues q where q.queue_id = queue_id;
    if not found then return array['15151', 'find', 'queue', queue_id::text]; end if;
    who := servicebroker.caller(me, queue.database_id);
    return coalesce(who.refusal, servicebroker.refusal(
        statement, queue.database_id, who.identities, {queue}, queue_id, queue.owner_id, queue.name, queue.schema_id,
        queue.schema_name));
end $$;

-- ---------------------------------------------------------------- look-ups

create or replace function servicebroker_fence.migrations(me uuid default servicebroker_fence.me())
returns setof integer language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select number from servicebroker.migrations where exists (select from servicebroker.fenced_roles where key = me);
end;

-- The instance's identity, for store/home.py.
create or replace function servicebroker_fence.home(me uuid default servicebroker_fence.me())
returns text language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select servicebroker.home() where exists (select from servicebroker.fenced_roles where key = me);
end;

create or replace function servicebroker_fence.database(
    name text, me uuid default servicebroker_fence.me(), out database_id integer, out refusal text[]
) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    select d.database_id into database_id from servicebroker.databases d where lower(d.name) = lower(database.name);
    refusal := case when database_id is null then array['911', name]
                    else (servicebroker.caller(me, database_id)).refusal end;
end $$;

create or replace function servicebroker_fence.principal(
    database integer, me uuid default servicebroker_fence.me(),
    out database_name text, out principal_id integer, out name text, out refusal text[]
) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    select d.name, c.principal_id, c.name, c.refusal into database_name, principal_id, principal.name, refusal
      from servicebroker.caller(me, database) c
      left join servicebroker.databases d on d.database_id = principal.database;
end $$;

create or replace function servicebroker_fence.is_there(database integer, me uuid default servicebroker_fence.me())
returns boolean language plpgsql stable security definer {pinned} as $$
begin
    return (servicebroker.caller(me, database)).refusal is distinct from array['8442'];
end $$;

create or replace function servicebroker_fence.queue(
    database integer, schema_name text, name text, me uuid default servicebroker_fence.me(),
    out queue_id integer, out spelled text, out refusal text[]
) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    refusal := (servicebroker.caller(me, database)).refusal;
    if refusal is null then
        select q.queue_id, q.name into queue_id, spelled from servicebroker.queues q
         where q.database_id = database and lower(q.schema_name) = lower(queue.schema_name)
           and lower(q.name) = lower(queue.name);
    end if;
end $$;

-- The names for the ids in received messages: kind 1 are services whose queue the caller may receive from, 2 contracts,
-- 3 message types.
create or replace function servicebroker_fence.labels(database integer, me uuid default servicebroker_fence.me())
returns table (kind integer, id integer, name text) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
declare
    who record := servicebroker.caller(me, database);
begin
    if who.refusal is not null then return; end if;
    return query
        select 1, s.service_id, s.name::text from servicebroker.services s join servicebroker.queues q using (queue_id)
         where s.database_id = database
           and servicebroker.refusal(
                   'RECEIVE', database, who.identities, {queue}, q.queue_id, q.owner_id, '', q.schema_id) is null
         union all
        select 2, c.service_contract_id, c.name::text from servicebroker.service_contracts c where c.database_id = database
         union all
        select 3, t.message_type_id, t.name::text from servicebroker.message_types t where t.database_id = database;
end $$;

-- ---------------------------------------------------------------- BEGIN DIALOG, BEGIN CONVERSATION TIMER

create or replace function servicebroker_fence.begin_conversation(
    database integer, from_service text, to_service text, contract text, lifetime integer, broker_instance text,
    related_conversation uuid, related_conversation_group uuid, encryption boolean, priority integer, idempotency_key text,
    key_lifetime integer, me uuid default servicebroker_fence.me(), out handle uuid, out refusal text[],
    out is_repeated boolean, out kept integer[]
) language plpgsql security definer {pinned} as $$
declare
    who record := servicebroker.caller(me, database);
begin
    refusal := who.refusal;
    if refusal is null and who.is_limited and not exists (  -- a BEGIN DIALOG repeated with its idempotency key begins nothing
        select from servicebroker.idempotency_keys k join servicebroker.services s using (service_id)
         where s.database_id = database and s.name = from_service and k.principal_id = who.principal_id
           and k.key = idempotency_key and k.expires_at > clock_timestamp())
    then
        refusal := servicebroker.opening_refusal(me);
    end if;
    if refusal is null then
        select c.handle, c.refusal, c.is_repeated, c.kept into handle, refusal, is_repeated, kept
          from servicebroker.begin_conversation(
            database, from_service, to_service, contract, lifetime, broker_instance, related_conversation,
            related_conversation_group, encryption, who.identities, true, null, priority, idempotency_key, key_lifetime,
            who.principal_id) c;
        if who.is_limited and not is_repeated then perform servicebroker.count_opening(me, handle); end if;
    end if;
end $$;

-- BEGIN DIALOG and the first SENDs in one call, with the handle and the group id that the caller has drawn. Message
-- types and bodies are pairs. If `is_done` is false, nothing was written. Then `refusal` is that of BEGIN DIALOG;
-- without one, a separate SEND returns the refusal.
create or replace function servicebroker_fence.begin_and_send(
    database integer, new_handle uuid, new_group uuid, from_service text, to_service text, contract text, lifetime integer,
    broker_instance text, encryption boolean, message_types text[], bodies bytea[],
    me uuid default servicebroker_fence.me(), out is_done boolean, out refusal text[], out kept integer[]
) language plpgsql security definer {pinned} as $$
declare
    who record := servicebroker.caller(me, database);
    begun record;
    sent record;
    run record;
begin
    is_done := false;
    refusal := case
        when who.refusal is not null then who.refusal
        when new_handle is null or new_group is null
             or exists (select from servicebroker.conversation_endpoints e where e.conversation_handle = new_handle)
            then array['402', 'the handle', coalesce(new_handle::text, 'NULL'), 'a new uuid, and one of a group']
        when message_types is null or bodies is null or cardinality(message_types) <> cardinality(bodies)
            then array['402', 'the message types', 'other than the bodies', 'one for each body']
    end;
    if refusal is null and who.is_limited then refusal := servicebroker.opening_refusal(me); end if;
    if refusal is not null then return; end if;
    if who.is_limited and servicebroker.sending_refusal(me, new_handle, bodies) is not null then return; end if;
    -- conditions of SEND that BEGIN DIALOG does not check
    if cardinality(bodies) > 0 and (
        array_position(bodies, null) is not null
        or exists (select from unnest(bodies) body where octet_length(body) > {maximum_body})
        or exists (
            select from unnest(message_types) wanted where not exists (
                select from servicebroker.message_types t
                  join servicebroker.service_contract_message_usages u using (database_id, message_type_id)
                  join servicebroker.service_contracts c using (database_id, service_contract_id)
                 where t.database_id = database and t.name = wanted and c.name = begin_and_send.contract
                   and u.is_sent_by_initiator))
        or not exists (select from servicebroker.services s join servicebroker.queues q using (queue_id)
                        where s.database_id = database and s.name = from_service and not q.is_retention_enabled)) then
        return;
    end if;
    begun := servicebroker.begin_conversation(
        database, from_service, to_service, contract, lifetime, broker_instance, null, new_group, encryption,
        who.identities, true, new_handle);
    refusal := begun.refusal;
    kept := begun.kept;
    if refusal is not null then return; end if;
    if who.is_limited then perform servicebroker.count_opening(me, new_handle); end if;
    for run in  -- consecutive messages of one type
        select min(type) as type, array_agg(body order by place) as bodies from (
            select type, body, place, place - row_number() over (partition by type order by place) as number
              from unnest(message_types, bodies) with ordinality m (type, body, place)) numbered
         group by type, number order by min(place)
    loop
        sent := servicebroker.send_on(new_handle, run.type, run.bodies, database, who.identities);
        perform servicebroker.refuse_with(sent.refusal);
    end loop;
    is_done := true;
end $$;

-- For triggers, psql and other languages.
create or replace function servicebroker_fence.begin_dialog(
    broker_database text, from_service text, to_service text, contract text default 'DEFAULT',
    lifetime integer default {maximum_lifetime}, broker_instance text default null,
    related_conversation_group uuid default null, encryption boolean default true,
    me uuid default servicebroker_fence.me()
) returns uuid language plpgsql security definer {pinned} as $$
declare
    found record := servicebroker_fence.database(broker_database, me);
    begun record;
begin
    perform servicebroker.refuse_with(found.refusal);
    begun := servicebroker_fence.begin_conversation(
        found.database_id, from_service, to_service, contract, lifetime, broker_instance, null,
        related_conversation_group, encryption, null, null, null, me);
    perform servicebroker.refuse_with(begun.refusal);
    return begun.handle;
end $$;

create or replace function servicebroker_fence.begin_conversation_timer(
    database integer, handle uuid, seconds integer, me uuid default servicebroker_fence.me(),
    out refusal text[], out kept integer[]
) language plpgsql security definer {pinned} as $$
declare
    timed record;
begin
    refusal := servicebroker.own_refusal(me, 'BEGIN CONVERSATION TIMER', database, handle);
    if refusal is not null then return; end if;
    if seconds is null or seconds < 0 then
        refusal := array['402', 'TIMEOUT', coalesce(seconds::text, 'NULL'), 'an int from 0 to {maximum_lifetime} (seconds)'];
        return;
    end if;
    select l.refusal, l.kept into refusal, kept from servicebroker.lock_group_of(handle) l;
    if refusal is not null then return; end if;
    select e.state, e.lifetime into timed from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
    if timed.state not in ({states_with_timer}) then refusal := array['8458', timed.state];
    elsif clock_timestamp() + make_interval(secs => seconds) > timed.lifetime then refusal := array['8410'];
    else
        update servicebroker.conversation_endpoints set dialog_timer = clock_timestamp() + make_interval(secs => seconds)
         where conversation_handle = handle;
        delete from servicebroker.failed_messages where conversation_handle = handle and message_type_id = {timer_id};
    end if;
end $$;

-- Return the refusal of a statement on a conversation for the calling role, or null.
create or replace function servicebroker.own_refusal(me uuid, statement text, database integer, handle uuid)
returns text[] language plpgsql stable as $$
declare
    who record := servicebroker.caller(me, database);
begin
    return coalesce(
        who.refusal,
        case when handle is null then array['8418']
             else servicebroker.conversation_refusal(statement, handle, database, who.identities) end);
end $$;

-- Lock the group of a conversation, the same as `lock_group_of` in engine/conversation/endpoints.py.
create or replace function servicebroker.lock_group_of(handle uuid, out refusal text[], out kept integer[]) language plpgsql as $$
declare
    wanted uuid;
    locked uuid;
begin
    loop
        select e.conversation_group_id into wanted from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
        if wanted is null then
            refusal := array['8426', handle::text];
            return;
        end if;
        exit when wanted = locked;
        kept := array_remove(kept || servicebroker.lock_group(wanted), null);
        locked := wanted;
    end loop;
end $$;

-- ---------------------------------------------------------------- SEND

-- Send one message on several conversations, or several on one: all or none. Returns the first sequence number on each.
create or replace function servicebroker_fence.send_all(
    database integer, handles uuid[], message_type text, bodies bytea[], delay double precision, due timestamptz,
    me uuid default servicebroker_fence.me(), out numbers bigint[], out refusal text[]
) language plpgsql security definer {pinned} as $$
declare
    who record := servicebroker.caller(me, database);
    sent record;
    handle uuid;
    until timestamptz := coalesce(due, clock_timestamp() + make_interval(secs => delay));
begin
    refusal := case
        when who.refusal is not null then who.refusal
        when coalesce(cardinality(handles), 0) = 0 or array_position(handles, null) is not null then array['8418']
        when cardinality(handles) > {maximum_handles}
             then array['402', 'the list of handles', 'too long', '1 to {maximum_handles} handles']
    end;
    if refusal is null and who.is_limited then
        foreach handle in array handles loop
            refusal := coalesce(
                refusal, servicebroker.conversation_refusal('SEND', handle, database, who.identities),
                servicebroker.sending_refusal(me, handle, bodies));
        end loop;
    end if;
    if refusal is not null then return; end if;
    if cardinality(handles) = 1 then
        sent := servicebroker.send_on(handles[1], message_type, bodies, database, who.identities, until);
        numbers := array[sent.number];
        refusal := sent.refusal;
        return;
    end if;
    -- take the locks of all these SENDs, in the order in which everybody takes several
    foreach handle in array handles loop
        refusal := coalesce(refusal, servicebroker.conversation_refusal('SEND', handle, database, who.identities));
    end loop;
    if refusal is not null then return; end if;
    perform pg_advisory_xact_lock_shared({delivery_lock}, 0);
    perform pg_advisory_xact_lock_shared({service_lock}, hashtext(far_service))
       from (select distinct far_service from servicebroker.conversation_endpoints
              where conversation_handle = any (handles) order by far_service) services;
    perform from servicebroker.conversation_endpoints where conversation_handle = any (handles)
      order by conversation_id, is_initiator for update;
    begin
        foreach handle in array handles loop
            sent := servicebroker.send_on(handle, message_type, bodies, database, who.identities, until);
            refusal := sent.refusal;
            if refusal is not null then
                raise sqlstate 'SBBCK';
            end if;
            numbers := numbers || sent.number;
        end loop;
    exception
        when sqlstate 'SBBCK' then
            numbers := null;
    end;
end $$;

-- For triggers, psql and other languages.
create or replace function servicebroker_fence.send(
    handle uuid, message_type text default 'DEFAULT', body bytea default '', me uuid default servicebroker_fence.me()
) returns bigint language plpgsql security definer {pinned} as $$
declare
    database integer := (select e.database_id from servicebroker.conversation_endpoints e where e.conversation_handle = handle);
    sent record;
begin
    if handle is null then perform servicebroker.refuse(8418); end if;
    if database is null then perform servicebroker.refuse(8426, handle::text); end if;
    sent := servicebroker_fence.send_all(database, array[handle], message_type, array[body], null, null, me);
    perform servicebroker.refuse_with(sent.refusal);
    return sent.numbers[1];
end $$;

-- List and cancel delayed messages of the caller's conversations (engine/delivery/delayed_messages.py).
create or replace function servicebroker_fence.delayed_messages(
    database integer, handle uuid, me uuid default servicebroker_fence.me()
) returns table (
    conversation_handle uuid, message_sequence_number bigint, message_type_name text, from_service text, far_service text,
    size bigint, enqueue_time timestamptz, due timestamptz, refusal text[]
) language plpgsql stable security definer {pinned} as $$
begin
    refusal := case when handle is null then array['8418'] else servicebroker.own_refusal(me, 'SEND', database, handle) end;
    if refusal is not null then
        return next;
        return;
    end if;
    return query select d.*, null::text[] from servicebroker.delayed_messages(database, handle) d
     order by 8, 1, 2;
end $$;

create or replace function servicebroker_fence.cancel_delayed(
    database integer, handle uuid, number bigint, me uuid default servicebroker_fence.me(),
    out cancelled bigint, out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := case when handle is null then array['8418'] else servicebroker.own_refusal(me, 'SEND', database, handle) end;
    if refusal is null then
        cancelled := servicebroker.cancel_delayed(handle, number);
    end if;
end $$;

-- Limits of workers (api/aio/throttle.py), for callers who may receive from the queue.
create or replace function servicebroker_fence.take_slot(
    queue integer, slots integer, me uuid default servicebroker_fence.me(), out slot integer, out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue);
    if refusal is null then slot := servicebroker.take_slot(queue, slots); end if;
end $$;

create or replace function servicebroker_fence.release_slot(
    queue integer, slot integer, me uuid default servicebroker_fence.me(), out is_done boolean, out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    is_done := exists (select from servicebroker.fenced_roles f where f.key = me) and servicebroker.release_slot(queue, slot);
end $$;

create or replace function servicebroker_fence.take_place(
    queue integer, seconds double precision, me uuid default servicebroker_fence.me(), out wait double precision,
    out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue);
    if refusal is null then wait := servicebroker.take_place(queue, seconds); end if;
end $$;

create or replace function servicebroker_fence.settle_place(
    queue integer, seconds double precision, me uuid default servicebroker_fence.me(), out is_done boolean,
    out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue);
    if refusal is null then perform servicebroker.settle_place(queue, seconds); end if;
    is_done := refusal is null;
end $$;

-- Schedules of workers (engine/conversation/schedules.py), for callers who may receive from the queue.
create or replace function servicebroker_fence.find_schedule(
    queue integer, schedule text, me uuid default servicebroker_fence.me(), out handle uuid, out rule text,
    out time_zone text, out missed text, out next_time timestamptz, out is_open boolean, out service text,
    out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue);
    if refusal is null then
        select f.handle, f.rule, f.time_zone, f.missed, f.next_time, f.is_open, f.service
          into handle, rule, time_zone, missed, next_time, is_open, service
          from servicebroker.find_schedule(queue, schedule) f;
    end if;
end $$;

create or replace function servicebroker_fence.set_schedule(
    queue integer, schedule text, handle uuid, rule text, time_zone text, missed text, next_time timestamptz,
    me uuid default servicebroker_fence.me(), out is_done boolean, out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue);
    if refusal is null and (
        coalesce(length(schedule), 0) not between 1 and {maximum_schedule} or length(rule) > {maximum_rule}
        or length(time_zone) > {maximum_schedule} or length(missed) > {maximum_schedule} or not exists (
            select from servicebroker.conversation_endpoints e
             where e.conversation_handle = handle and e.queue_id = queue and e.state = 'SO' and e.far_handle is null))
    then
        refusal := array['402', 'the schedule', coalesce(schedule, 'NULL'), 'a short name, and a conversation of the queue'];
    end if;
    if refusal is null then
        is_done := servicebroker.set_schedule(queue, schedule, handle, rule, time_zone, missed, next_time);
    end if;
end $$;

create or replace function servicebroker_fence.schedule_of(handle uuid, me uuid default servicebroker_fence.me())
returns table (schedule text, rule text, time_zone text, missed text, next_time timestamptz, refusal text[])
language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, (
        select e.queue_id from servicebroker.conversation_endpoints e where e.conversation_handle = handle));
    if refusal is not null then
        return next;
        return;
    end if;
    return query select s.*, null::text[] from servicebroker.schedule_of(handle) s;
end $$;

create or replace function servicebroker_fence.set_next_time(
    handle uuid, next_time timestamptz, me uuid default servicebroker_fence.me(), out refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, (
        select e.queue_id from servicebroker.conversation_endpoints e
          join servicebroker.schedules s using (conversation_handle) where e.conversation_handle = handle));
    if refusal is null then
        perform servicebroker.set_next_time(handle, next_time);
    end if;
end $$;

-- ---------------------------------------------------------------- RECEIVE, GET CONVERSATION GROUP

-- Return the rows of the queue's function `receive` (queue.sql), or one row with a refusal.
create or replace function servicebroker_fence.receive(
    queue_id integer, top integer, handle uuid, in_group uuid, me uuid default servicebroker_fence.me()
) returns table (
    descent smallint, conversation_handle bytea, place bigint, message_sequence_number bigint, kind bigint,
    validation "char", message_body bytea, message_enqueue_time timestamptz, conversation_group_id uuid,
    service_id integer, transaction_id xid8, under_savepoint boolean, refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue_id);
    if refusal is not null then
        return next;
        return;
    end if;
    perform nextval('servicebroker.received_in_sql');
    return query execute format(
        'select r.*, null::text[] from servicebroker.receive_%s($1, clock_timestamp(), $2, $3) r', queue_id)
        using coalesce(top, {all_rows}), handle, in_group;
end $$;

-- Return the rows of the queue's function `receive_groups`, or one row with a refusal.
create or replace function servicebroker_fence.receive_groups(
    queue_id integer, top integer, groups integer, leaves boolean, me uuid default servicebroker_fence.me()
) returns table (
    descent smallint, conversation_handle bytea, place bigint, message_sequence_number bigint, kind bigint,
    validation "char", message_body bytea, message_enqueue_time timestamptz, conversation_group_id uuid,
    service_id integer, transaction_id xid8, under_savepoint boolean, refusal text[]
) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue_id);
    if refusal is not null then
        return next;
        return;
    end if;
    perform nextval('servicebroker.received_in_sql');
    return query execute format(
        'select r.*, null::text[] from servicebroker.receive_groups_%s($1, clock_timestamp(), $2, $3) r', queue_id)
        using coalesce(top, {all_rows}), coalesce(groups, 1), coalesce(leaves, false);
end $$;

-- The second half of `receive_groups` with `leaves`: delete these messages of one group, and return their number.
create or replace function servicebroker_fence.take(
    queue_id integer, in_group uuid, levels smallint[], numbers bigint[], me uuid default servicebroker_fence.me()
) returns bigint language plpgsql security definer {pinned} as $$
declare
    taken bigint;
begin
    perform servicebroker.refuse_with(servicebroker.receive_refusal(me, queue_id));
    execute format('select servicebroker.take_%s($1, $2, $3)', queue_id) into taken using in_group, levels, numbers;
    return taken;
end $$;

create or replace function servicebroker_fence.get_conversation_group(
    queue_id integer, me uuid default servicebroker_fence.me()
) returns table (conversation_group_id uuid, refusal text[], kept integer) language plpgsql security definer {pinned} as $$
begin
    refusal := servicebroker.receive_refusal(me, queue_id, 'GET CONVERSATION GROUP');
    if refusal is not null then
        return next;
        return;
    end if;
    return query execute format(
        'select r.conversation_group_id, null::text[], servicebroker.lock_group(r.conversation_group_id) '
        'from servicebroker.receive_%s(1, clock_timestamp(), only_lock => true) r', queue_id);
end $$;

-- Let the session keep the lock of a group beyond a savepoint or a ROLLBACK. The transaction must have the lock
-- already.
create or replace function servicebroker_fence.keep_lock(in_group uuid, me uuid default servicebroker_fence.me())
returns integer language plpgsql security definer {pinned} as $$
begin
    return case when
        exists (select from servicebroker.fenced_roles f where f.key = me)
        and exists (select from pg_locks l
                     where l.locktype = 'advisory' and l.granted and l.pid = pg_backend_pid() and l.objsubid = 2
                       and l.classid = {group_lock} and l.objid::bigint = (uuid_hash(in_group)::bigint & 4294967295)
                       and l.database = (select oid from pg_database where datname = current_database()))
        then servicebroker.keep_lock(uuid_hash(in_group)) end;
end $$;

-- The facts from which `_check` in engine/conversation/receive.py learns why RECEIVE returned no row.
create or replace function servicebroker_fence.receivable(
    queue_id integer, handle uuid, in_group uuid, me uuid default servicebroker_fence.me()
) returns table (is_enabled boolean, is_handle_known boolean, is_group_known boolean, is_piped boolean)
language plpgsql stable security definer {pinned} as $$
#variable_conflict use_variable
begin
    if servicebroker.receive_refusal(me, queue_id) is null then
        return query
            select q.is_receive_enabled,
                   exists (select from servicebroker.conversation_endpoints e
                            where e.conversation_handle = handle and e.queue_id = q.queue_id),
                   exists (select from servicebroker.conversation_groups g join servicebroker.services s using (service_id)
                            where g.conversation_group_id = in_group and s.queue_id = q.queue_id),
                   exists (select from pg_locks l where l.locktype = 'advisory' and l.granted
                              and l.mode = 'ExclusiveLock' and l.classid = {pipeline_lock} and l.objid = q.queue_id
                              and l.objsubid = 2
                              and l.database = (select oid from pg_database where datname = current_database()))
              from servicebroker.queues q where q.queue_id = queue_id;
    end if;
end $$;

-- ---------------------------------------------------------------- MOVE CONVERSATION

-- MOVE CONVERSATION, by the rules of engine/conversation/move.py.
create or replace function servicebroker_fence.move_conversation(
    database integer, handle uuid, to_group uuid, me uuid default servicebroker_fence.me(),
    out refusal text[], out kept integer[]
) language plpgsql security definer {pinned} as $$
declare
    moved record;
    target integer;
    wanted uuid;
    many integer;
begin
    refusal := case when to_group is null and handle is not null then array['8420']
                    else servicebroker.own_refusal(me, 'MOVE CONVERSATION', database, handle) end;
    if refusal is not null then return; end if;
    -- lock the conversation against another MOVE, then both groups, in the order in which everybody locks several
    perform pg_advisory_xact_lock({move_lock}, uuid_hash(handle));
    for wanted in
        select g from unnest(array[
            (select e.conversation_group_id from servicebroker.conversation_endpoints e where e.conversation_handle = handle),
            to_group]) g where g is not null order by uuid_hash(g)
    loop
        kept := array_remove(kept || servicebroker.lock_group(wanted), null);
    end loop;
    perform servicebroker.lock_conversation_rows(handle);
    select e.*, q.name as queue_name, q.keeps_retained into moved
      from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
     where e.conversation_handle = handle;
    if not found then refusal := array['8426', handle::text];
    elsif moved.state not in ({states_that_move}) then refusal := array['8438', moved.state];
    else
        perform from servicebroker.conversation_groups g  -- both rows, in the order in which everybody locks several
          where g.conversation_group_id in (to_group, moved.conversation_group_id)
          order by g.conversation_group_id for update;
        select g.service_id into target from servicebroker.conversation_groups g where g.conversation_group_id = to_group;
        if not found then refusal := array['8436', to_group::text];
        elsif target <> moved.service_id then refusal := array['8439', to_group::text];
        end if;
    end if;
    if refusal is not null or to_group = moved.conversation_group_id then return; end if;
    if not pg_try_advisory_xact_lock_shared({pipeline_lock}, moved.queue_id) then
        refusal := array['pipeline', moved.queue_name];
        return;
    end if;
    update servicebroker.conversation_endpoints set conversation_group_id = to_group where conversation_handle = handle;
    update servicebroker.arrivals set last_stamp = greatest(last_stamp, pg_current_xact_id()) where conversation_handle = handle;
    update servicebroker.conversation_endpoints
       set far_group_id = to_group, last_stamp = greatest(last_stamp, pg_current_xact_id())
     where conversation_handle = moved.far_handle and far_handle = handle;
    execute format(
        'with numbered as materialized (select place, nextval(''servicebroker.queue_%1$s_order'') as arrival from ('
        'select ctid as place from servicebroker.queue_%1$s where priority = $1 and conversation_group_id = $2 '
        'and conversation_handle = $3 order by rank, queuing_order) found) '
        'update servicebroker.queue_%1$s set conversation_group_id = $4, queuing_order = arrival, '
        'stamp = greatest(stamp, pg_current_xact_id()), bucket = (uuid_hash($4) & 1023)::smallint '
        'from numbered where ctid = place', moved.queue_id)
        using moved.priority, moved.conversation_group_id, handle, to_group;
    if moved.keeps_retained then
        execute format('update servicebroker.retained_%s set conversation_group_id = $2 where conversation_handle = $1',
                       moved.queue_id) using handle, to_group;
    end if;
    perform servicebroker.remove_empty_group(moved.conversation_group_id);
end $$;

-- Lock the rows of both endpoints in this instance, in the order in which everybody locks both. The second endpoint may
-- be created while this waits.
create or replace function servicebroker.lock_conversation_rows(handle uuid) returns void language plpgsql as $$
declare
    conversation uuid := (select e.conversation_id from servicebroker.conversation_endpoints e where e.conversation_handle = handle);
    locked integer := 0;
begin
    loop
        exit when locked >= (select count(*) from servicebroker.conversation_endpoints where conversation_id = conversation);
        perform from servicebroker.conversation_endpoints where conversation_id = conversation order by is_initiator for update;
        get diagnostics locked = row_count;
    end loop;
end $$;

-- Delete a group without conversations. The caller may not hold the group's lock, so another session may be beginning a
-- dialog in it, or deleting another conversation of it. The row lock waits for both, and the next statement sees their
-- work.
create or replace function servicebroker.remove_empty_group(conversation_group uuid) returns void language plpgsql as $$
begin
    perform from servicebroker.conversation_groups g where g.conversation_group_id = conversation_group for update;
    delete from servicebroker.conversation_groups g
     where g.conversation_group_id = conversation_group and not exists (
           select from servicebroker.conversation_endpoints e where e.conversation_group_id = g.conversation_group_id);
end $$;

-- ---------------------------------------------------------------- END CONVERSATION

-- END CONVERSATION, by the rules of engine/conversation/end.py. The peer's EndDialog or Error waits in the transmission
-- queue.
create or replace function servicebroker_fence.end_conversation(
    database integer, handle uuid, code integer, description text, cleanup boolean,
    me uuid default servicebroker_fence.me(), out refusal text[], out kept integer[]
) language plpgsql security definer {pinned} as $$
declare
    who record := servicebroker.caller(me, database);
    own record;
    peer record;
    is_error boolean := code is not null;
    becomes text;
    is_told boolean;
begin
    cleanup := coalesce(cleanup, false);
    refusal := case
        when who.refusal is not null then who.refusal
        when handle is null then array['8418']
        when code is null and description is not null then array['8419']
        when is_error and description is null then array['8422']
        when is_error and cleanup
            then array['402', 'END CONVERSATION', 'WITH ERROR and WITH CLEANUP', 'one of the two']
        when code <= 0 then array['402', 'the error code', code::text, 'a positive int']
        when length(description) > {maximum_description}
            then array['402', 'the error description', 'str', 'str, at most {maximum_description} characters']
        else servicebroker.conversation_refusal('END CONVERSATION', handle, database, who.identities)
    end;
    if refusal is not null then return; end if;
    select l.refusal, l.kept into refusal, kept from servicebroker.lock_group_of(handle) l;
    if refusal is not null then return; end if;
    perform pg_advisory_xact_lock_shared({delivery_lock}, 0);
    perform servicebroker.lock_conversation_rows(handle);
    select e.*, q.keeps_retained into own
      from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
     where e.conversation_handle = handle;
    if not found then
        refusal := array['8426', handle::text];
        return;
    end if;
    select p.* into peer from servicebroker.conversation_endpoints p
     where p.conversation_id = own.conversation_id and p.conversation_handle <> handle;
    if cleanup and own.state in ('DO', 'CD') and servicebroker.refusal(
           'END ENDED CONVERSATION WITH CLEANUP', database, who.identities, 0, 0, {dbo}, '') is not null then
        refusal := array['28006', 'end', handle::text, own.state];
        return;
    end if;
    becomes := case
        when cleanup then null
        when own.lifetime <= clock_timestamp() and own.state in ({states_that_fail}) then 'CD'
        else case own.state {states_after_end} end
    end;
    if not cleanup and becomes is null then
        refusal := array['8427', own.state];
        return;
    end if;

    perform servicebroker.purge('queue_' || own.queue_id, handle, own.priority, own.conversation_group_id);
    if own.keeps_retained then
        perform servicebroker.purge('retained_' || own.queue_id, handle);
    end if;
    if becomes is distinct from 'DO' or is_error or peer.state = 'DO' then
        perform servicebroker.purge('transmission_queue', handle);
    end if;
    if peer.conversation_handle is not null then  -- delete the peer's messages that still wait: nobody will receive them
        perform servicebroker.purge('transmission_queue', peer.conversation_handle);
    end if;
    if peer.state = 'DO' then  -- the peer's EndDialog waits for this side: both have ended, so none is delivered
        perform servicebroker.close_endpoint(peer.conversation_handle);
        becomes := case when becomes = 'DO' then 'CD' else becomes end;
    end if;
    if cleanup then
        update servicebroker.conversation_endpoints set far_handle = null, far_queue_id = null
         where far_handle = handle and conversation_handle = own.far_handle;
    end if;
    if becomes = 'DO' then
        is_told := case
            when own.is_remote then true
            when own.far_handle is null or peer.conversation_handle is null then not is_error and exists (
                select from servicebroker.transmission_queue t
                 where t.conversation_handle = handle and t.message_sequence_number = 0)
            when is_error then peer.state in ({states_that_accept_error})
            else peer.state in ({states_that_accept_end})
        end;
        if is_told then
            update servicebroker.conversation_endpoints
               set send_sequence = send_sequence + 1, state = 'DO', far_queue_id = null, dialog_timer = null
             where conversation_handle = handle;
            insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, message_type_name,
                   message_body, is_end_of_dialog, is_conversation_error)
            values (handle, own.send_sequence, case when is_error then '{error}' else '{end_dialog}' end,
                    case when is_error then servicebroker.error_body(code, description) end, not is_error, is_error);
            delete from servicebroker.arrived_fragments f using servicebroker.arrivals a
             where f.conversation_handle = handle and a.conversation_handle = handle
               and f.message_sequence_number < a.receive_sequence;
            update servicebroker.conversation_endpoints set far_queue_id = null
             where conversation_handle = peer.conversation_handle;
            perform servicebroker.ring_transmission();
            return;
        end if;
    elsif not cleanup and peer.state = 'CO' then  -- a SEND of the peer may be running with a time before the lifetime ended
        update servicebroker.conversation_endpoints set far_queue_id = null
         where conversation_handle = peer.conversation_handle;
    end if;
    perform servicebroker.close_endpoint(handle, is_kept => coalesce(becomes, '') <> '');
end $$;

-- Delete unread messages of a conversation from a table of messages, and their claims on shared bodies.
create or replace function servicebroker.purge(
    messages text, handle uuid, priority smallint default null, conversation_group uuid default null
) returns void language plpgsql as $$
begin
    execute format(
        'with gone as (delete from servicebroker.%I where conversation_handle = $1 %s returning is_shared, message_body) '
        'delete from servicebroker.shared_body_readers '
        'where reader = any (array(select message_body from gone where is_shared))',
        messages, case when conversation_group is not null then 'and priority = $2 and conversation_group_id = $3' end)
        using handle, priority, conversation_group;
end $$;

-- Close an endpoint. Its row is kept for a while if it is a target that has conversed, so that a repeated first message
-- begins nothing, or if its keys are needed to answer the peer's end (engine/conversation/endpoints.py). Any other row
-- is deleted, and the group if it is empty.
create or replace function servicebroker.close_endpoint(handle uuid, is_kept boolean default true) returns void language plpgsql as $$
declare
    own record;
begin
    select e.* into own from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
    if is_kept and not (own.is_initiator and coalesce(own.security, 'N') = 'N') then
        update servicebroker.conversation_endpoints
           set state = 'CD', can_expire = false, dialog_timer = null, far_handle = null, far_queue_id = null,
               security_timestamp = clock_timestamp() + {replay_protection}
         where conversation_handle = handle;
        delete from servicebroker.arrived_fragments where conversation_handle = handle;
    else
        delete from servicebroker.conversation_endpoints where conversation_handle = handle;
        perform servicebroker.remove_empty_group(own.conversation_group_id);
    end if;
    -- note in the peer's row how many messages this endpoint has sent, for sys.conversation_endpoints
    update servicebroker.conversation_endpoints set receive_sequence = own.send_sequence
     where conversation_id = own.conversation_id and is_initiator = not own.is_initiator;
end $$;

-- The body of an Error, the same as `error_body` of model/messages.py: XML in UTF-16 with a byte order mark. A
-- character that XML cannot carry becomes U+FFFD.
create or replace function servicebroker.error_body(code integer, description text) returns bytea language plpgsql immutable as $$
declare
    carried text := (
        select coalesce(string_agg(case when ascii(c) < 32 and ascii(c) not in (9, 10, 13) or ascii(c) in (65534, 65535)
                                        then chr(65533) else c end, '' order by place), '')
          from string_to_table(description, null) with ordinality letters (c, place));
begin
    carried := format('<?xml version="1.0"?><Error xmlns="{error_namespace}"><Code>%s</Code><Description>%s</Description></Error>',
                      code, replace(replace(replace(carried, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'));
    return decode('fffe', 'hex') || (
        select string_agg(decode(lpad(to_hex(((unit & 255) << 8) | (unit >> 8)), 4, '0'), 'hex'), '' order by place, half)
          from string_to_table(carried, null) with ordinality letters (c, place)
         cross join lateral (
               select 1 as half, case when ascii(c) < 65536 then ascii(c) else 55296 + (ascii(c) - 65536 >> 10) end as unit
                union all
               select 2, 56320 + (ascii(c) - 65536 & 1023) where ascii(c) >= 65536) units);
end $$;

-- ---------------------------------------------------------------- status, notifications, traces, failures

-- GET_TRANSMISSION_STATUS. Empty if no message waits, and for a handle that is unknown or not the caller's.
create or replace function servicebroker_fence.transmission_status(
    database integer, handle uuid, me uuid default servicebroker_fence.me()
) returns text language plpgsql stable security definer {pinned} as $$
begin
    if servicebroker.own_refusal(me, 'SEND', database, handle) is not null then
        return '';
    end if;
    return coalesce(
        (select t.transmission_status from servicebroker.transmission_queue t
          where t.conversation_handle = handle order by t.message_sequence_number limit 1),
        (select {queue_off} from servicebroker.arrivals a
           join servicebroker.arrived_fragments f using (conversation_handle)
          where a.conversation_handle = handle and f.message_sequence_number < a.receive_sequence limit 1),
        '');
end $$;

create or replace function servicebroker_fence.service_changes(queue_id integer, me uuid default servicebroker_fence.me())
returns setof integer language plpgsql stable security definer {pinned} as $$
#variable_conflict use_variable
begin
    if servicebroker.receive_refusal(me, queue_id) is null then
        return query select q.service_changes from servicebroker.queues q where q.queue_id = queue_id;
    end if;
end $$;

-- The same as find_expected_types in engine/catalog/catalog.sql.
create or replace function servicebroker_fence.expected_types(queue_id integer, me uuid default servicebroker_fence.me())
returns table (message_type text, contract text, service text) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_variable
begin
    if servicebroker.receive_refusal(me, queue_id) is null then
        return query select distinct t.name, c.name, s.name from servicebroker.services s
            join servicebroker.service_contract_usages using (database_id, service_id)
            join servicebroker.service_contracts c using (database_id, service_contract_id)
            join servicebroker.service_contract_message_usages u using (database_id, service_contract_id)
            join servicebroker.message_types t using (database_id, message_type_id)
            where s.queue_id = queue_id and u.is_sent_by_initiator and not u.is_sent_by_target order by 1, 2, 3;
    end if;
end $$;

-- Let this session be notified of messages for these queues, and for no others.
create or replace function servicebroker_fence.wait_for(queues integer[], me uuid default servicebroker_fence.me())
returns void language plpgsql security definer {pinned} as $$
declare
    own integer[] := array(
        select queue from unnest(queues) queue where servicebroker.receive_refusal(me, queue) is null);
begin
    delete from servicebroker.waiting_readers
     where pid = pg_backend_pid() and queue_id <> all (own) or pid <> all (select a.pid from pg_stat_activity a);
    insert into servicebroker.waiting_readers (queue_id, pid)
    select queue, pg_backend_pid() from unnest(own) queue on conflict do nothing;
end $$;

-- The last arrival number that a message of the queue has drawn.
create or replace function servicebroker_fence.drawn(queue_id integer, me uuid default servicebroker_fence.me())
returns bigint language plpgsql security definer {pinned} as $$
declare
    last bigint;
begin
    if servicebroker.receive_refusal(me, queue_id) is null then
        execute format('select last_value from servicebroker.queue_%s_order', queue_id) into last;
    end if;
    return last;
end $$;

-- Store the trace context (engine/conversation/traces.py) of messages that the caller has sent.
create or replace function servicebroker_fence.leave_traces(
    database integer, handles uuid[], numbers bigint[], many integer, context bytea,
    me uuid default servicebroker_fence.me()
) returns void language plpgsql security definer {pinned} as $$
begin
    insert into servicebroker.trace_contexts
    select e.conversation_id, e.is_initiator, number, context, clock_timestamp()
      from unnest(handles, numbers) s (handle, first)
      join servicebroker.conversation_endpoints e on e.conversation_handle = s.handle
     cross join generate_series(s.first, least(least(s.first, e.send_sequence) + many, e.send_sequence) - 1) number
     where octet_length(context) = {trace_bytes} and s.first >= 0 and many > 0
       and servicebroker.own_refusal(me, 'SEND', database, s.handle) is null
        on conflict do nothing;
end $$;

-- Return and delete the trace contexts of messages that the caller has received, in the order of the messages.
create or replace function servicebroker_fence.take_traces(
    database integer, handles uuid[], numbers bigint[], me uuid default servicebroker_fence.me()
) returns table (context bytea) language plpgsql security definer {pinned} as $$
#variable_conflict use_column
begin
    return query
        with own as (
            select handle from unnest(handles) handle group by handle
            having servicebroker.own_refusal(me, 'SEND', database, handle) is null),
        gone as (
            delete from servicebroker.trace_contexts t
             using unnest(handles, numbers) with ordinality m (handle, number, place)
              join own using (handle)
              join servicebroker.conversation_endpoints e on e.conversation_handle = handle
             where t.conversation_id = e.conversation_id and t.is_from_initiator = not e.is_initiator
               and t.message_sequence_number = number
            returning place, context)
        select context from gone order by place;
end $$;

-- Failures of messages (engine/conversation/failed_messages.py) in queues that the caller may receive from.
create or replace function servicebroker_fence.failures(
    database integer, handle uuid, number bigint, type_id integer, me uuid default servicebroker_fence.me()
) returns table (failures integer, first_failed_at timestamptz, first_error text)
language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    if servicebroker.own_refusal(me, 'SEND', database, handle) is null then
        return query
            select f.failures, f.first_failed_at, f.first_error from servicebroker.failed_messages f
             where f.conversation_handle = handle and f.message_sequence_number = number and f.message_type_id = type_id;
    end if;
end $$;

-- Return whether a time is possible for the arrival or the failure of a message.
create or replace function servicebroker.is_time(at timestamptz) returns boolean language sql immutable
return coalesce(at >= timestamptz '1970-01-01 00:00:00+00' and at < timestamptz '9999-12-31 00:00:00+00', false);

-- Return the refusal of a caller's report of a failed message, or null if it is stored. Others read these rows, so only
-- values that the engine could have written are allowed.
create or replace function servicebroker.failure_refusal(
    number bigint, type_id integer, failures integer, first_failed_at timestamptz, errors text[]
) returns text[] language sql stable return case
    when coalesce(number, -1) < 0
        then array['402', 'the number of the message', coalesce(number::text, 'NULL'), 'a bigint, 0 or more']
    when type_id is null then array['402', 'the message type', 'NULL', 'an int']
    when failures is null or failures not between 1 and {maximum_failures}
        then array['402', 'the number of failures', coalesce(failures::text, 'NULL'), 'an int from 1 to {maximum_failures}']
    when not servicebroker.is_time(first_failed_at)
        then array['402', 'the time of the first failure', coalesce(first_failed_at::text, 'NULL'), 'a time from 1970 to 9999']
    when array_position(errors, null) is not null then array['402', 'the error', 'NULL', 'a text']
end;

create or replace function servicebroker_fence.track_failure(
    database integer, handle uuid, number bigint, type_id integer, failures integer, first_failed_at timestamptz,
    first_error text, last_error text, after float8, me uuid default servicebroker_fence.me()
) returns void language plpgsql security definer {pinned} as $$
#variable_conflict use_variable
declare
    own record;
    until timestamptz;
begin
    perform servicebroker.refuse_with(servicebroker.own_refusal(me, 'SEND', database, handle));
    perform servicebroker.refuse_with(servicebroker.failure_refusal(
        number, type_id, failures, first_failed_at, array[first_error, last_error]));
    if after is null or not (after >= 0 and after < {maximum_pause}) then  -- NaN is greater than all
        perform servicebroker.refuse(
            402, 'the pause', coalesce(after::text, 'NULL'), 'a number of seconds from 0 to {maximum_pause}');
    end if;
    until := case when after > 0 then clock_timestamp() + make_interval(secs => after) end;
    select e.queue_id, e.conversation_group_id, e.priority into own
      from servicebroker.conversation_endpoints e where e.conversation_handle = handle;
    delete from servicebroker.failed_messages f where f.conversation_handle = handle;
    insert into servicebroker.failed_messages values (
        handle, own.queue_id, own.conversation_group_id, own.priority, number, type_id, failures,
        least(first_failed_at, clock_timestamp()), clock_timestamp(), left(first_error, {error_kept}),
        left(last_error, {error_kept}), until);
    if until is not null then
        update servicebroker.queues q set held_until = greatest(q.held_until, until) where q.queue_id = own.queue_id;
    end if;
end $$;

create or replace function servicebroker_fence.forget_failures(
    database integer, handles uuid[], me uuid default servicebroker_fence.me()
) returns void language plpgsql security definer {pinned} as $$
begin
    delete from servicebroker.failed_messages f where f.conversation_handle = any (
        array(select handle from unnest(handles) handle where servicebroker.own_refusal(me, 'SEND', database, handle) is null));
end $$;

create or replace function servicebroker_fence.sweep_failures(queue_id integer, me uuid default servicebroker_fence.me())
returns void language plpgsql security definer {pinned} as $$
begin
    perform servicebroker.refuse_with(servicebroker.receive_refusal(me, queue_id));
    execute format(
        'delete from servicebroker.failed_messages where conversation_handle = any (array('
        'select conversation_handle from servicebroker.failed_messages f where queue_id = %1$s and not exists ('
        'select from servicebroker.queue_%1$s m where m.priority = f.priority '
        'and m.conversation_group_id = f.conversation_group_id and m.conversation_handle = f.conversation_handle '
        'and m.message_sequence_number = f.message_sequence_number) and not exists ('
        -- a DialogTimer or Error of an expiry that the reader's own RECEIVE inserted: the rollback removed it, and the
        -- next RECEIVE inserts it again
        'select from servicebroker.conversation_endpoints e where e.conversation_handle = f.conversation_handle and ('
        'f.message_type_id = {timer_id} and e.dialog_timer is not null or f.message_type_id = {error_id} '
        'and e.state = any (%2$L::text[]))) for update skip locked))', queue_id, array[{states_that_fail}]);
end $$;

create or replace function servicebroker_fence.set_aside(
    database integer, handle uuid, number bigint, type_id integer, body bytea, enqueued timestamptz, failures integer,
    first_failed_at timestamptz, error text, traceback text, me uuid default servicebroker_fence.me()
) returns void language plpgsql security definer {pinned} as $$
begin
    perform servicebroker.refuse_with(servicebroker.own_refusal(me, 'SEND', database, handle));
    perform servicebroker.refuse_with(coalesce(
        servicebroker.failure_refusal(number, type_id, failures, first_failed_at, array[error, traceback]),
        case when not servicebroker.is_time(enqueued)
                  then array['402', 'the time of the message', coalesce(enqueued::text, 'NULL'), 'a time from 1970 to 9999']
             when octet_length(body) > {maximum_body} then array['8459', '{maximum_body}'] end));
    insert into servicebroker.set_aside_messages (database_id, queue_id, queue_name, conversation_handle,
           conversation_group_id, message_sequence_number, service_name, service_contract_name, message_type_name,
           message_type_id, validation, message_body, message_enqueue_time, far_service, far_broker_instance, failures,
           first_failed_at, set_aside_at, error, traceback)
    select e.database_id, e.queue_id, q.schema_name || '.' || q.name, handle, e.conversation_group_id, number, s.name,
           coalesce(c.name, ''), coalesce(t.name, ''), type_id, coalesce(t.validation, 'N'), body,
           least(enqueued, clock_timestamp()), e.far_service, e.far_broker_instance, set_aside.failures,
           least(set_aside.first_failed_at, clock_timestamp()), clock_timestamp(), left(set_aside.error, {error_kept}),
           right(set_aside.traceback, {traceback_kept})
      from servicebroker.conversation_endpoints e
      join servicebroker.queues q using (queue_id)
      join servicebroker.services s using (service_id)
      left join servicebroker.service_contracts c
        on c.database_id = e.database_id and c.service_contract_id = e.service_contract_id
      left join servicebroker.message_types t on t.database_id = e.database_id and t.message_type_id = type_id
     where e.conversation_handle = handle;
end $$;

-- Automatic poison detection: set STATUS = OFF, the same as engine/activation/poison_detection.py. A process that has
-- the instance open as the owner posts the event.
create or replace function servicebroker_fence.disable_queue(
    queue_id integer, me uuid default servicebroker_fence.me(), out database_id integer, out name text
) language plpgsql security definer {pinned} as $$
#variable_conflict use_variable
begin
    if servicebroker.receive_refusal(me, queue_id) is not null then
        return;
    end if;
    update servicebroker.queues q set is_receive_enabled = false, is_enqueue_enabled = false
     where q.queue_id = queue_id and q.is_poison_message_handling_enabled
       and (q.is_receive_enabled or q.is_enqueue_enabled)
    returning q.database_id, q.name into database_id, name;
    if not found then
        return;
    end if;
    insert into servicebroker.disabled_queues as d (queue_id) values (queue_id)
        on conflict on constraint disabled_queues_pkey do update set at = excluded.at;
    insert into servicebroker.events_to_post values (queue_id, '{queue_disabled}') on conflict do nothing;
    perform pg_notify('servicebroker', (-queue_id)::text), pg_notify('{monitors_channel}', ''),
            pg_notify('{delivery_channel}', '');
end $$;

-- ---------------------------------------------------------------- servicebroker doctor for a restricted role

-- The number of rows at which a count stops, for a caller who asks for `most`.
create or replace function servicebroker.counted(most integer) returns integer language sql immutable
return least(greatest(most, 0), {max_counted_rows});

-- The queues that the caller may receive from, with their state. Messages are counted up to `most`.
create or replace function servicebroker_fence.own_queues(most integer, me uuid default servicebroker_fence.me())
returns table (
    name text, is_on boolean, messages bigint, oldest timestamptz, readers bigint, holders bigint, is_activated boolean,
    procedure text, max_readers integer, hosted boolean, is_piped boolean, failing bigint, is_for_callers boolean
) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
declare
    one record;
begin
    for one in
        select q.*, d.name as database_name from servicebroker.queues q join servicebroker.databases d using (database_id)
         where q.queue_id >= {first_user_id} and servicebroker.receive_refusal(me, q.queue_id) is null
         order by d.name, q.schema_name, q.name
    loop
        name := one.database_name || '.' || one.schema_name || '.' || one.name;
        is_on := one.is_receive_enabled;
        is_activated := one.is_activation_enabled;
        procedure := one.activation_procedure;
        max_readers := one.max_readers;
        hosted := true;  -- the caller may not see which process runs the procedure, or which pipeline reads
        is_piped := false;
        execute format(
            'select count(*), min(message_enqueue_time), '
            'coalesce(bool_and(conversation_group_id between {lowest_request} and {highest_request}), false) '
            'from (select message_enqueue_time, conversation_group_id from servicebroker.queue_%s '
            'order by priority desc, queuing_order limit $1) q', one.queue_id)
           into messages, oldest, is_for_callers using servicebroker.counted(most);
        readers := (select count(*)
            from servicebroker.readers_here() w
            where w.queue_id = one.queue_id and not w.is_monitor);
        holders := (
            select count(distinct l.pid) from pg_locks l
             where l.locktype = 'relation' and l.granted and l.mode = 'RowExclusiveLock'
               and l.database = (select oid from pg_database where datname = current_database())
               and l.relation = to_regclass('servicebroker.queue_' || one.queue_id));
        failing := (select count(*) from servicebroker.failed_messages f where f.queue_id = one.queue_id);
        return next;
    end loop;
end $$;

-- Waiting messages of the transmission queue, of services whose queue the caller may receive from.
create or replace function servicebroker_fence.own_waits(most integer, me uuid default servicebroker_fence.me())
returns table (to_service text, status text, messages bigint, oldest timestamptz)
language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
declare
    own integer[] := array(
        select q.queue_id from servicebroker.queues q where servicebroker.receive_refusal(me, q.queue_id) is null);
begin
    return query
        select e.far_service::text, t.transmission_status, count(*), min(t.enqueue_time)
          from (select w.* from servicebroker.transmission_queue w where w.conversation_handle not in (
                       select d.conversation_handle from servicebroker.transmission_queue d
                        where d.delayed_until > clock_timestamp()) limit servicebroker.counted(most)) t
          join servicebroker.conversation_endpoints e using (conversation_handle)
         where e.queue_id = any (own) group by 1, 2 order by 4 limit 100;
end $$;

-- The state of a conversation that the caller may send on; no row for any other. `error` is the body of an Error that
-- waits in the queue.
create or replace function servicebroker_fence.own_conversation(
    database integer, handle uuid, most integer, me uuid default servicebroker_fence.me()
) returns table (
    state text, far_service text, lifetime timestamptz, queue text, is_on boolean, messages bigint, oldest timestamptz,
    waits bigint, status text, failures integer, last_error text, held_until timestamptz, error bytea, readers bigint,
    is_activated boolean, sent timestamptz, delayed_until timestamptz
) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
declare
    one record;
begin
    if servicebroker.own_refusal(me, 'SEND', database, handle) is not null then
        return;
    end if;
    select e.state, e.far_service, e.lifetime, e.queue_id, e.priority, e.conversation_group_id,
           d.name || '.' || q.schema_name || '.' || q.name as queue, q.is_receive_enabled, q.is_activation_enabled
      into one
      from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
      join servicebroker.databases d on d.database_id = e.database_id
     where e.conversation_handle = handle;
    state := one.state;
    far_service := one.far_service;
    lifetime := one.lifetime;
    queue := one.queue;
    is_on := one.is_receive_enabled;
    is_activated := one.is_activation_enabled;
    execute format(
        'select count(*), min(message_enqueue_time), (array_agg(message_body) filter (where message_type_id = {error_id}))[1] '
        'from (select * from servicebroker.queue_%s where priority = $1 and conversation_group_id = $2 '
        'and conversation_handle = $3 limit $4) m', one.queue_id)
       into messages, oldest, error using one.priority, one.conversation_group_id, handle,
             servicebroker.counted(most);
    select count(*), coalesce((array_agg(t.transmission_status order by t.message_sequence_number))[1], ''), min(t.enqueue_time),
           (array_agg(t.delayed_until order by t.message_sequence_number))[1]
      into waits, status, sent, delayed_until
      from (select w.* from servicebroker.transmission_queue w
             where w.conversation_handle = handle limit servicebroker.counted(most)) t;
    select f.failures, f.last_error, f.held_until into failures, last_error, held_until
      from servicebroker.failed_messages f where f.conversation_handle = handle;
    failures := coalesce(failures, 0);
    last_error := coalesce(last_error, '');
    readers := (select count(*)
            from servicebroker.readers_here() w
            where w.queue_id = one.queue_id and not w.is_monitor);
    return next;
end $$;

-- ---------------------------------------------------------------- requests

-- The queue for the answers on a conversation of the caller (engine/conversation/requests.py).
create or replace function servicebroker_fence.answer_queue(
    database integer, handle uuid, me uuid default servicebroker_fence.me()
) returns table (queue_id integer, name text) language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    if servicebroker.own_refusal(me, 'SEND', database, handle) is null then
        return query
            select q.queue_id, q.schema_name || '.' || q.name
              from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
             where e.conversation_handle = handle and e.database_id = database;
    end if;
end $$;

-- Return those of the conversations that have messages in the queue, or were moved to another queue that the caller may
-- read.
create or replace function servicebroker_fence.answered(
    queue_id integer, handles uuid[], me uuid default servicebroker_fence.me()
) returns setof uuid language plpgsql stable security definer {pinned} as $$
begin
    if servicebroker.receive_refusal(me, queue_id) is null then
        return query execute format(
            'select e.conversation_handle from servicebroker.conversation_endpoints e '
            'where e.conversation_handle = any ($1) '
            'and case e.queue_id when %1$s then exists (select from servicebroker.queue_%1$s m '
            'where m.priority = e.priority and m.conversation_group_id = e.conversation_group_id '
            'and m.conversation_handle = e.conversation_handle) '
            'else servicebroker.receive_refusal($2, e.queue_id) is null end', queue_id) using handles, me;
    end if;
end $$;

-- Return some conversations with messages in the queue, of the lowest groups between `lowest` and `highest`, or one row
-- with a refusal.
create or replace function servicebroker_fence.late_answers(
    queue_id integer, lowest uuid, highest uuid, me uuid default servicebroker_fence.me()
) returns table (conversation_group_id uuid, conversation_handle uuid, refusal text[])
language plpgsql stable security definer {pinned} as $$
#variable_conflict use_column
begin
    refusal := servicebroker.receive_refusal(me, queue_id);
    if refusal is not null then
        return next;
        return;
    end if;
    return query execute format(
        'select conversation_group_id, conversation_handle, null::text[] from (select distinct m.conversation_group_id, '
        'm.conversation_handle from generate_series(1, 10) as p (level) cross join lateral ('
        'select conversation_group_id, conversation_handle from servicebroker.queue_%s '
        'where priority = p.level and conversation_group_id between $1 and $2 '
        'order by conversation_group_id limit 100) m) late order by 1', queue_id) using lowest, highest;
end $$;

-- ---------------------------------------------------------------- grants

-- Only the owner and granted roles may execute functions. A user who called an inner function directly could let it
-- resolve names to objects of his own. Functions that views call are for everybody who reads the views.
revoke execute on all functions in schema servicebroker, servicebroker_fence from public;
grant execute on function servicebroker.rows_here(anyelement), servicebroker.readers_here(),
    servicebroker.approximate_count(integer), servicebroker.shown_number(smallint, integer) to public;

do $$
declare
    role text;
begin
    for role in select f.postgres_role from servicebroker.fenced_roles f join pg_roles on rolname = f.postgres_role loop
        execute format('grant execute on all functions in schema servicebroker_fence to %I', role);
    end loop;
end $$;
