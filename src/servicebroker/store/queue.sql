-- One queue: its table, its indexes, its functions, its view; one statement under each name.
-- {id} is the number of the queue.

-- name: sequence
create sequence servicebroker.queue_{id}_order cache 1;

-- name: table
create table servicebroker.queue_{id} (
    queuing_order bigint not null default nextval('servicebroker.queue_{id}_order'),
    message_sequence_number bigint not null,
    stamp xid8 not null,             -- frontier of the Spark source: never below an unfinished transaction's id
    message_enqueue_time timestamptz not null default clock_timestamp(),
    conversation_group_id uuid not null,
    conversation_handle uuid not null,
    service_id integer not null,
    service_contract_id integer not null,
    message_type_id integer not null,
    priority smallint not null,
    rank smallint not null default 2,  -- received first: 0 DialogTimer, 1 Error
    bucket smallint not null,          -- 0 to 1023, hash of the group: splits a read among workers
    validation "char" not null,
    message_body bytea
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- name: arrival
create index queue_{id}_arrival on servicebroker.queue_{id} (priority desc, queuing_order);

-- name: group
create index queue_{id}_group on servicebroker.queue_{id}
    (priority, conversation_group_id, conversation_handle, rank, queuing_order);

-- name: fire_timers
-- DialogTimer messages for the timers of this queue that are due. A row that another transaction holds is
-- left for the next look.
create or replace function servicebroker.fire_timers_{id}(at timestamptz) returns void language sql as $$
    with due as (
        update servicebroker.conversation_endpoints
           set dialog_timer = null
         where conversation_handle = any (array(
               select conversation_handle from servicebroker.conversation_endpoints
                where queue_id = {id} and dialog_timer <= at
                order by dialog_timer limit 100 for update skip locked))
        returning conversation_handle, conversation_group_id, service_id, service_contract_id, priority, state
    )
    insert into servicebroker.queue_{id}
        (message_sequence_number, stamp, conversation_group_id, conversation_handle, service_id,
         service_contract_id, message_type_id, priority, rank, bucket, validation)
    select 0, pg_current_xact_id(), conversation_group_id, conversation_handle, service_id,
           service_contract_id, 5, priority, 0, uuid_hash(conversation_group_id) & 1023, 'E'
      from due where state <> 'CD';
$$;

-- name: expire
-- An Error message for each conversation of this queue whose lifetime is over; what it had not delivered is dropped.
-- Each side expires by itself, as it would if the other were far away. A row that another transaction holds is left
-- for the next look, and so is a side that has ended already: its application never sees the error.
create or replace function servicebroker.expire_{id}(at timestamptz) returns bigint language sql as $$
    with due as (
        update servicebroker.conversation_endpoints
           set state = 'ER', dialog_timer = null
         where conversation_handle = any (array(
               select conversation_handle from servicebroker.conversation_endpoints
                where queue_id = {id} and lifetime <= at and state in ('SO', 'SI', 'CO', 'DI', 'DO') and state <> 'DO'
                order by lifetime limit 100 for update skip locked))
        returning *
    ), unsent as (
        delete from servicebroker.transmission_queue
         where conversation_handle = any (array(select conversation_handle from due))
    ), told as (
        insert into servicebroker.queue_{id}
            (message_sequence_number, stamp, conversation_group_id, conversation_handle, service_id,
             service_contract_id, message_type_id, priority, rank, bucket, validation, message_body)
        select 0, greatest(pg_current_xact_id(), (select peer.last_stamp from servicebroker.conversation_endpoints peer
                                                   where peer.conversation_handle = due.far_handle)),
               conversation_group_id, conversation_handle, service_id, service_contract_id, 1, priority, 1,
               uuid_hash(conversation_group_id) & 1023, 'X', {expired}
          from due
        returning 1
    )
    select count(*) from told;
$$;

-- name: receive
-- RECEIVE. A function and not one statement, because each of its statements needs a snapshot of its own: what
-- the previous owner of a group has just committed must be seen. Locks the group it takes from until the
-- transaction ends; without `handle` and `in_group` it skips groups that others have locked, with them it waits.
-- Under a savepoint (a row's xmax is then not the transaction's own id) the client makes the session keep the lock
-- too. With `only_lock` it takes the group and leaves the messages: one row, of which the group counts.
-- Plans are pinned: on a fresh table the statistics would choose to sort a whole group.
create or replace function servicebroker.receive_{id}(
    top integer, at timestamptz, handle uuid default null, in_group uuid default null, only_lock boolean default false
) returns table (
    priority smallint, queuing_order bigint, conversation_group_id uuid, conversation_handle uuid,
    message_sequence_number bigint, service_id integer, service_contract_id integer, message_type_id integer,
    validation "char", message_body bytea, message_enqueue_time timestamptz, transaction_id xid8, under_savepoint boolean
) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    level smallint;                -- the priority being looked at
    lower_level smallint;
    candidates uuid[];
    candidate uuid;
    previous uuid;
    stage integer;
    taken integer := 0;
    fresh integer;
    enabled boolean;
    timers_due boolean;
    lifetimes_due boolean;
begin
    if in_group is not null then
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(in_group));
    end if;
    -- one look for everything that the usual RECEIVE needs to know: it takes the oldest message of the highest priority
    select q.is_receive_enabled, head.priority, head.conversation_group_id,
           exists (select from servicebroker.conversation_endpoints e
                    where e.queue_id = {id} and e.dialog_timer <= at),
           exists (select from servicebroker.conversation_endpoints e
                    where e.queue_id = {id} and e.lifetime <= at
                      and e.state in ('SO', 'SI', 'CO', 'DI', 'DO') and e.state <> 'DO')
      into enabled, level, candidate, timers_due, lifetimes_due
      from servicebroker.queues q
      left join lateral (select m.priority, m.conversation_group_id from servicebroker.queue_{id} m
                          order by m.priority desc, m.queuing_order limit 1) head on true
     where q.queue_id = {id};
    -- a pipeline that reads the queue holds its lock, and plans batches that must not change under it
    if top <= 0 or not coalesce(enabled, false) or not pg_try_advisory_xact_lock_shared({pipeline_lock}, {id}) then
        return;
    end if;
    if timers_due then
        perform servicebroker.fire_timers_{id}(at);
    end if;
    if lifetimes_due then
        perform servicebroker.expire_{id}(at);
    end if;
    if timers_due or lifetimes_due then
        select m.priority, m.conversation_group_id into level, candidate from servicebroker.queue_{id} m
         order by m.priority desc, m.queuing_order limit 1;
    end if;

    if handle is not null then
        loop  -- the group may change while we wait for its lock
            select e.conversation_group_id into candidate from servicebroker.conversation_endpoints e
             where e.conversation_handle = handle and e.queue_id = {id};
            exit when candidate is null or candidate = previous;
            perform pg_advisory_xact_lock({group_lock}, uuid_hash(candidate));
            previous := candidate;
        end loop;
        if candidate is null then return; end if;
        return query
            with gone as (
                delete from servicebroker.queue_{id} q
                 where q.ctid = any (array(
                       select m.ctid from servicebroker.queue_{id} m
                        where m.priority = (select e.priority from servicebroker.conversation_endpoints e
                                             where e.conversation_handle = handle)
                          and m.conversation_group_id = candidate and m.conversation_handle = handle
                        order by m.rank, m.queuing_order limit top))
                returning q.*, q.xmax as deleter)
            select g.priority, g.queuing_order, g.conversation_group_id, g.conversation_handle,
                   g.message_sequence_number, g.service_id, g.service_contract_id, g.message_type_id,
                   g.validation, g.message_body, g.message_enqueue_time,
                   pg_current_xact_id(), g.deleter <> pg_current_xact_id()::xid
              from gone g order by g.rank, g.queuing_order;
        return;
    end if;

    candidates := array[coalesce(in_group, candidate)];
    while level is not null loop
        -- stage 1: the oldest message's group; 2: the groups of the oldest 64; 3: every group, one by one
        stage := 1;
        previous := '00000000-0000-0000-0000-000000000000';
        loop
            foreach candidate in array candidates loop
                continue when not pg_try_advisory_xact_lock({group_lock}, uuid_hash(candidate));
                if only_lock then
                    continue when not exists (select from servicebroker.queue_{id} q
                                               where q.priority = level and q.conversation_group_id = candidate);
                    return query select null::smallint, null::bigint, candidate, null::uuid, null::bigint, null::integer,
                        null::integer, null::integer, null::"char", null::bytea, null::timestamptz,
                        null::xid8, null::boolean;
                    return;
                end if;
                lower_level := level;
                while lower_level is not null and taken < top loop
                    return query
                        with gone as (
                            delete from servicebroker.queue_{id} q
                             where q.ctid = any (array(
                                   select m.ctid from servicebroker.queue_{id} m
                                    where m.priority = lower_level and m.conversation_group_id = candidate
                                    order by m.conversation_handle, m.rank, m.queuing_order
                                    limit top - taken))
                            returning q.*, q.xmax as deleter)
                        select g.priority, g.queuing_order, g.conversation_group_id, g.conversation_handle,
                               g.message_sequence_number, g.service_id, g.service_contract_id,
                               g.message_type_id, g.validation, g.message_body, g.message_enqueue_time,
                               pg_current_xact_id(), g.deleter <> pg_current_xact_id()::xid
                          from gone g order by g.conversation_handle, g.rank, g.queuing_order;
                    get diagnostics fresh = row_count;
                    taken := taken + fresh;
                    exit when taken >= top or (taken = 0 and in_group is null);
                    lower_level := (select max(q.priority) from servicebroker.queue_{id} q
                                     where q.priority < lower_level);
                end loop;
                if taken > 0 then return; end if;
            end loop;
            exit when in_group is not null;
            stage := stage + 1;
            if stage = 2 then
                candidates := array(
                    select w.conversation_group_id
                      from (select q.conversation_group_id, q.queuing_order from servicebroker.queue_{id} q
                             where q.priority = level order by q.queuing_order limit 64) w
                     group by w.conversation_group_id order by min(w.queuing_order));
            else
                previous := (select q.conversation_group_id from servicebroker.queue_{id} q
                              where q.priority = level and q.conversation_group_id > previous
                              order by q.conversation_group_id limit 1);
                exit when previous is null;
                candidates := array[previous];
            end if;
        end loop;
        exit when in_group is not null;
        select q.priority, array[q.conversation_group_id] into level, candidates from servicebroker.queue_{id} q
         where q.priority < level order by q.priority desc, q.queuing_order limit 1;
    end loop;
end $$;

-- name: view
create view {schema}.{view} with (security_invoker = true) as
select 1::smallint as status, q.priority, q.queuing_order, q.conversation_group_id, q.conversation_handle,
       q.message_sequence_number, s.name as service_name, q.service_id, c.name as service_contract_name,
       q.service_contract_id, t.name as message_type_name, q.message_type_id, q.validation::text as validation,
       q.message_body, q.message_enqueue_time
  from servicebroker.queue_{id} q
  join servicebroker.services s on s.service_id = q.service_id
  left join servicebroker.service_contracts c
    on c.database_id = s.database_id and c.service_contract_id = q.service_contract_id
  left join servicebroker.message_types t
    on t.database_id = s.database_id and t.message_type_id = q.message_type_id;

-- name: refuse
-- a view with a trigger for each row counts as one that can be written; the other is fired before, and without rows
create or replace trigger refuse instead of insert or update or delete on {schema}.{view}
    for each row execute function servicebroker.refuse_update();

-- name: refuse_all
create or replace trigger refuse_all before insert or update or delete on {schema}.{view}
    for each statement execute function servicebroker.refuse_update();
