-- Template of one queue: its tables, indexes, functions and view. A line `-- name:` begins a part, and
-- store/queue.py puts the parts together. {id} is queue_id. Other slots are parts of this file or locks of
-- store/locks.py.
--
-- Words: `queuing_order` is the arrival number of a message, drawn from a sequence. A group is a conversation group:
-- RECEIVE locks it by an advisory lock, so that one transaction at a time has its messages. A mark is an arrival
-- number, one for each priority, below which the session need not search (see survey). `at` is the present time, given
-- by the caller.

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
    is_shared boolean not null default false,  -- message_body is the key of a reader of a shared body
    message_body bytea
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- name: arrival
-- The order in which messages are received. Unique, so that it can be the replica identity.
create unique index queue_{id}_arrival on servicebroker.queue_{id} (priority desc, queuing_order);

-- name: group
create index queue_{id}_group on servicebroker.queue_{id}
    (priority, conversation_group_id, conversation_handle, rank, queuing_order);

-- name: retained
-- Messages that RETENTION keeps until their conversation ends: status 0 if received, 3 if sent. They are in a table of
-- their own, so that RECEIVE does not read past them.
create table if not exists servicebroker.retained_{id} (
    status smallint not null,
    priority smallint not null,
    queuing_order bigint not null default nextval('servicebroker.queue_{id}_order'),
    conversation_group_id uuid not null,
    conversation_handle uuid not null,
    message_sequence_number bigint not null,
    service_id integer not null,
    service_contract_id integer not null,
    message_type_id integer not null,
    validation "char" not null,
    message_enqueue_time timestamptz not null default clock_timestamp(),
    is_shared boolean not null default false,
    message_body bytea
);

-- name: retained_conversation
-- Searches are by conversation. `queuing_order` makes the index unique, so that it can be the replica identity.
create unique index if not exists retained_{id}_conversation
    on servicebroker.retained_{id} (conversation_handle, queuing_order);

-- name: identity
-- Replica identity. Without one, a publication of the table would refuse the DELETE of RECEIVE. For a deleted row an
-- index writes only its columns into the WAL, FULL would write the body, too (decision 162). It is set only where it is
-- missing, because setting it locks the table.
if not (select indisreplident from pg_index where indexrelid = 'servicebroker.queue_{id}_arrival'::regclass) then
    alter table servicebroker.queue_{id} replica identity using index queue_{id}_arrival;
end if;
if not (select indisreplident from pg_index where indexrelid = 'servicebroker.retained_{id}_conversation'::regclass) then
    alter table servicebroker.retained_{id} replica identity using index retained_{id}_conversation;
end if;

-- name: row_security
-- Disable row-level security, which an event trigger may have enabled on every new table. Our permissions and the view
-- decide who may read a queue.
if exists (select from pg_class where oid in ('servicebroker.queue_{id}'::regclass, 'servicebroker.retained_{id}'::regclass)
           and relrowsecurity) then
    alter table servicebroker.queue_{id} disable row level security, no force row level security;
    alter table servicebroker.retained_{id} disable row level security, no force row level security;
end if;

-- name: receives
-- Two counters for the queue monitor: all RECEIVEs of a monitored queue, and those without WHERE that found nothing.
-- They are sequences, so that a rollback does not undo them, and unlogged, so that they assign no transaction id.
create unlogged sequence if not exists servicebroker.queue_{id}_receives cache 1;

-- name: empty_receives
create unlogged sequence if not exists servicebroker.queue_{id}_empty_receives cache 1;

-- name: fire_timers
-- Insert DialogTimer messages for due conversation timers of this queue, at most 100. A row that another transaction
-- has locked is left to the next call.
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
-- Fail conversations of this queue whose lifetime is over, at most 100, and return how many. Each gets an Error
-- message, and its undelivered messages are deleted. Each side expires by itself, as if the other were in another
-- instance. A row that another transaction has locked is left to the next call. A side that has ended already is left
-- alone: its application never sees the error. A first statement locks the rows, so that the second one has a snapshot
-- with all that was sent and committed before the lock.
create or replace function servicebroker.expire_{id}(at timestamptz) returns bigint language plpgsql as $$
declare
    handles uuid[] := array(
        select conversation_handle from servicebroker.conversation_endpoints
         where queue_id = {id} and lifetime <= at and can_expire and state not in ('DO', 'ER', 'CD')
         order by lifetime limit 100 for update skip locked);
begin
    if handles = '{}' then
        return 0;
    end if;
    with due as (
        update servicebroker.conversation_endpoints
           set state = 'ER', can_expire = false, dialog_timer = null
         where conversation_handle = any (handles)
        returning *
    ), unsent as (
        delete from servicebroker.transmission_queue
         where conversation_handle = any (handles)
        returning is_shared, message_body
    ), unread as (
        delete from servicebroker.shared_body_readers
         where reader = any (array(select message_body from unsent where is_shared))
    )
    insert into servicebroker.queue_{id}
        (message_sequence_number, stamp, conversation_group_id, conversation_handle, service_id,
         service_contract_id, message_type_id, priority, rank, bucket, validation, message_body)
    select 0, greatest(pg_current_xact_id(), (select peer.last_stamp from servicebroker.conversation_endpoints peer
                                               where peer.conversation_handle = due.far_handle),
                       (select a.last_stamp from servicebroker.arrivals a
                         where a.conversation_handle = due.conversation_handle)),
           conversation_group_id, conversation_handle, service_id, service_contract_id, 1, priority, 1,
           uuid_hash(conversation_group_id) & 1023, 'X', {expired}
      from due;
    return cardinality(handles);
end $$;

-- name: survey
-- Advance the session's marks of the queue, and return them. A mark, one for each priority, is an arrival number below
-- which the queue has no message and will never get one. RECEIVE searches from the mark, so it skips the dead rows that
-- others have consumed and vacuum may not remove yet.
-- Arrival numbers up to `drawn` are settled once all transactions have ended that could write to the table when `drawn`
-- was read. If one of them stays open for longer than `patience`, the marks advance without it. From then on they
-- are conditional: they hold only while it is still open. RECEIVE checks that, and else returns to the last
-- unconditional marks, which `base` keeps.
-- If our own transaction has written, marks are set for this transaction only: its rollback, also to a savepoint,
-- brings back deleted messages, and must bring back the marks, too.
-- marks: elements 1 to 10 are the priorities; element 11 is 1 if the marks are conditional.
create or replace function servicebroker.survey_{id}(marks bigint[]) returns bigint[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
declare
    last servicebroker.survey := nullif(current_setting('servicebroker.survey_{id}', true), '')::servicebroker.survey;
    drawn bigint;
    writers xid8[];
    open xid8[];
    decided bigint;
    is_local boolean := pg_current_xact_id_if_assigned() is not null;
begin
    if current_setting('transaction_isolation') <> 'read committed'
       or clock_timestamp() between last.looked_at and last.looked_at + interval '10 ms' then
        return marks;
    end if;
    last.held := coalesce(last.held, '{}');
    last.patience := coalesce(last.patience, interval '100 ms');
    last.looked_at := clock_timestamp();
    select case when is_called then last_value else 0 end into drawn from servicebroker.queue_{id}_order;
    open := servicebroker.unfinished(last.writers);
    if open = '{}' and last.drawn > drawn - 50 then  -- so few new numbers are not worth a search for writers
        decided := last.drawn;
        drawn := last.drawn;
        writers := last.writers;
    else
        writers := array(
            select unnest(servicebroker.writers('servicebroker.queue_{id}')) except select unnest(last.held));
        if writers = '{}' then
            decided := drawn;
        elsif open = '{}' then
            decided := last.drawn;
        elsif last.looked_at > last.drawn_at + last.patience then
            decided := last.drawn;
            if last.held = '{}' then
                last.base := marks;
            end if;
            last.held := last.held || open;
            writers := array(select unnest(writers) except select unnest(open));
        end if;
    end if;
    if decided is not null then
        marks := array(
            select greatest(marks[p.level], least(decided + 1, (
                   select m.queuing_order from servicebroker.queue_{id} m
                    where m.priority = p.level and m.queuing_order >= marks[p.level]
                    order by m.queuing_order limit 1)))
              from generate_series(1, 10) as p (level) order by p.level)
            || (last.held <> '{}')::integer::bigint;
        perform set_config('servicebroker.marks_{id}', marks::text, is_local);
    end if;
    if decided is not null or last.drawn is null then
        last.drawn := drawn;
        last.drawn_at := last.looked_at;
        last.writers := writers;
    end if;
    perform set_config('servicebroker.survey_{id}', last::text, is_local);
    return marks;
end $$;

-- name: receive
-- RECEIVE: lock a group, delete at most `top` of its messages, and return them.
-- This is a function and not one statement, because each of its statements needs its own snapshot: the messages that
-- the previous owner of the group has just committed must be visible.
-- Locks: the group stays locked until the transaction ends. Without `handle` and `in_group` the function skips groups
-- that others have locked; with one of them it waits. Under a savepoint (then xmax of a row is not the transaction's
-- own id) the client makes the session keep the lock, too.
-- Result: the messages in any order, to be sorted by the first three columns. Values that are equal for all messages
-- are only in the first rows, since a column costs a tenth of a message. With `only_lock` the messages stay in the
-- queue, and the one row has only conversation_group_id. A row of nulls: there is no message. No row: there is none
-- with `only_lock`, RECEIVE is not allowed, or `handle` or `in_group` has no message; the client finds out which.
-- Plans are pinned, because without statistics the planner would sort a whole group. OFFSET 0 keeps one index search
-- for each priority, from its mark. Without it, a join would read all dead rows of the group.
create or replace function servicebroker.receive_{id}(
    top integer, at timestamptz, handle uuid default null, in_group uuid default null, only_lock boolean default false
) returns table (
    descent smallint,                -- minus the priority
    conversation_handle bytea,
    place bigint,                    -- rank << 61 | queuing_order
    message_sequence_number bigint,
    kind bigint,                     -- service_contract_id << 32 | message_type_id
    validation "char", message_body bytea, message_enqueue_time timestamptz,
    conversation_group_id uuid, service_id integer, transaction_id xid8, under_savepoint boolean
) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    marks bigint[];                  -- by priority; the eleventh is 1 if they are conditional
    level integer;                   -- the priority that is searched
    lower_level integer;
    oldest bigint;                   -- the arrival number of the first message
    drawn bigint;
    candidates uuid[];
    candidate uuid;
    previous uuid;
    stage integer;
    places tid[];
    enabled boolean;
    monitored boolean;
    holds boolean;                   -- groups may be held back until the time of a retry
    due boolean;
    fired boolean := false;
begin
    if in_group is not null then
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(in_group));
    end if;
    marks := coalesce(nullif(current_setting('servicebroker.marks_{id}', true), ''), '{0,0,0,0,0,0,0,0,0,0,0}');
    loop
        places := '{}';
        -- one query for all that the usual RECEIVE needs, which takes the oldest message of the highest priority
        select q.is_receive_enabled, q.is_monitored, coalesce(q.held_until > at, false), coalesce(pg_sequence_last_value('servicebroker.queue_{id}_order'::regclass), 0), head.level,
               head.queuing_order, head.conversation_group_id,
               exists (select from servicebroker.conversation_endpoints e
                        where e.queue_id = {id} and e.dialog_timer <= at)
            or exists (select from servicebroker.conversation_endpoints e
                        where e.queue_id = {id} and e.lifetime <= at
                          and e.can_expire and e.state not in ('DO', 'ER', 'CD'))
          into enabled, monitored, holds, drawn, level, oldest, candidate, due
          from (select o.is_receive_enabled, o.is_monitored, o.held_until  -- not the whole row: each column costs time
                  from servicebroker.queues o where o.queue_id = {id} offset 0) q
          left join lateral (
               select p.level, first.* from (select generate_series(10, 1, -1)) as p (level)
                cross join lateral (select m.queuing_order, m.conversation_group_id from servicebroker.queue_{id} m
                                     where m.priority = p.level and m.queuing_order >= marks[p.level]
                                     order by m.queuing_order limit 1) first
                limit 1) head on true;
        if monitored and enabled and not fired then
            perform nextval('servicebroker.queue_{id}_receives');
        end if;
        -- a pipeline that reads the queue holds this lock, since the messages of a planned batch must not change
        if top <= 0 or not coalesce(enabled, false) or not pg_try_advisory_xact_lock_shared({pipeline_lock}, {id}) then
            return;
        end if;
        if due and not fired then
            perform servicebroker.fire_timers_{id}(at);
            perform servicebroker.expire_{id}(at);
            fired := true;
            continue;
        end if;
        -- many numbers between a mark and the first message are dead rows of consumed messages: advance the marks
        due := oldest - marks[level] > 100;
        for empty_level in coalesce(level, 0) + 1 .. 10 loop
            due := due or drawn - marks[empty_level] > 100;
        end loop;
        if due then
            marks := servicebroker.survey_{id}(marks);
        end if;

        -- the usual RECEIVE: one message of the group that has the oldest; if another reader was faster, search below
        if top = 1 and handle is null and in_group is null and not only_lock and not holds and marks[11] = 0
           and pg_try_advisory_xact_lock({group_lock}, uuid_hash(candidate)) then
            return query
                {delete} g.ctid = (
                    select m.ctid from servicebroker.queue_{id} m
                     where m.priority = level and m.conversation_group_id = candidate and m.queuing_order >= marks[level]
                     order by m.conversation_handle, m.rank, m.queuing_order limit 1)
                {first};
            if found then
                return;
            end if;
        end if;

        <<search>>
        begin
            if handle is not null then
                loop  -- the group may change while we wait for its lock
                    select e.conversation_group_id, e.priority into candidate, level
                      from servicebroker.conversation_endpoints e
                     where e.conversation_handle = handle and e.queue_id = {id};
                    exit when candidate is null or candidate = previous;
                    perform pg_advisory_xact_lock({group_lock}, uuid_hash(candidate));
                    previous := candidate;
                end loop;
                places := array(
                    select m.ctid from servicebroker.queue_{id} m
                     where m.priority = level and m.conversation_group_id = candidate
                       and m.conversation_handle = handle and m.queuing_order >= marks[level]
                     order by m.rank, m.queuing_order limit top);
                exit search;
            end if;
            candidates := array[candidate];
            if in_group is not null then
                candidates := array[in_group];
                level := (select p.level from generate_series(10, 1, -1) as p (level)
                           where exists (select from servicebroker.queue_{id} m
                                          where m.priority = p.level and m.conversation_group_id = in_group
                                            and m.queuing_order >= marks[p.level] offset 0) limit 1);
            end if;
            while level is not null loop
                -- stage 1: the group of the oldest message; 2: the groups of the oldest 64; 3: each group in turn
                stage := 1;
                previous := '00000000-0000-0000-0000-000000000000';
                loop
                    foreach candidate in array candidates loop
                        if holds and in_group is null then  -- not in one condition, which would start the subquery each time
                            continue when exists (
                                select from servicebroker.failed_messages f
                                 where f.conversation_group_id = candidate and f.held_until > at);
                        end if;
                        continue when not pg_try_advisory_xact_lock({group_lock}, uuid_hash(candidate));
                        places := array(
                            select m.ctid from servicebroker.queue_{id} m
                             where m.priority = level and m.conversation_group_id = candidate
                               and m.queuing_order >= marks[level]
                             order by m.conversation_handle, m.rank, m.queuing_order limit top);
                        exit search when places <> '{}';
                    end loop;
                    exit search when in_group is not null;
                    stage := stage + 1;
                    if stage = 2 then
                        candidates := array(
                            select w.conversation_group_id
                              from (select q.conversation_group_id, q.queuing_order from servicebroker.queue_{id} q
                                     where q.priority = level and q.queuing_order >= marks[level]
                                     order by q.queuing_order limit 64) w
                             group by w.conversation_group_id order by min(w.queuing_order));
                    else
                        previous := (select q.conversation_group_id from servicebroker.queue_{id} q
                                      where q.priority = level and q.conversation_group_id > previous
                                        and q.queuing_order >= marks[level]
                                      order by q.conversation_group_id limit 1);
                        exit when previous is null;
                        candidates := array[previous];
                    end if;
                end loop;
                select p.level, array[first.conversation_group_id] into level, candidates
                  from generate_series(level - 1, 1, -1) as p (level)
                 cross join lateral (select m.conversation_group_id from servicebroker.queue_{id} m
                                      where m.priority = p.level and m.queuing_order >= marks[p.level]
                                      order by m.queuing_order limit 1) first
                 limit 1;
            end loop;
        end search;

        if handle is null and places <> '{}' and cardinality(places) < top and not only_lock then
            for lower_level in  -- fill up with messages of the group's conversations of lower priorities
                select p.level from generate_series(level - 1, 1, -1) as p (level)
                 where exists (select from servicebroker.queue_{id} m
                                where m.priority = p.level and m.conversation_group_id = candidate
                                  and m.queuing_order >= marks[p.level] offset 0)
            loop
                places := places || array(
                    select m.ctid from servicebroker.queue_{id} m
                     where m.priority = lower_level and m.conversation_group_id = candidate
                       and m.queuing_order >= marks[lower_level]
                     order by m.conversation_handle, m.rank, m.queuing_order limit top - cardinality(places));
                exit when cardinality(places) = top;
            end loop;
        end if;
        -- check conditional marks after the searches: if they still hold, no message was below them in those snapshots
        exit when marks[11] = 0 or servicebroker.marks_hold({id});
        marks := servicebroker.unconditional_marks({id});
    end loop;

    if places = '{}' then
        if handle is not null or in_group is not null then  -- the rest of the queue may still have messages
            return;
        end if;
        if monitored then
            perform nextval('servicebroker.queue_{id}_empty_receives');
        end if;
        if not only_lock then
            return query select null::smallint, null::bytea, null::bigint, null::bigint, null::bigint, null::"char",
                null::bytea, null::timestamptz, null::uuid, null::integer, null::xid8, null::boolean;
        end if;
        return;
    end if;
    if only_lock then
        return query select null::smallint, null::bytea, null::bigint, null::bigint, null::bigint, null::"char",
            null::bytea, null::timestamptz, candidate, null::integer, null::xid8, null::boolean;
        return;
    end if;
    -- the first 8 rows have all columns, so that a few messages need one statement only
    return query
        {delete} g.ctid = any (places[:8])
        {first};
    if not found then  -- the service was dropped meanwhile, with its messages
        return;
    end if;
    if cardinality(places) > 8 then
        return query
            {delete} g.ctid = any (places[9:])
            {returning} (-g.priority)::smallint, uuid_send(g.conversation_handle),
                      g.rank::bigint << 61 | g.queuing_order, g.message_sequence_number,
                      g.service_contract_id::bigint << 32 | g.message_type_id,
                      g.validation, {body}, g.message_enqueue_time,
                      null::uuid, null::integer, null::xid8, null::boolean
            {from_gone};
    end if;
end $$;

-- name: receive_groups
-- RECEIVE from at most `groups` groups: those of the oldest messages of the highest priorities, at most `top` messages
-- from each. The first group is found by `receive`, which also fires timers. The others are searched in at most 8 pages
-- of the oldest messages of each priority, so that a reader never scans a long queue for more groups.
-- Result: the columns of `receive`, all in each row; groups one after the other, the messages of each in any order. A
-- row of nulls: there is no message. No row: RECEIVE is not allowed. With `leaves` the groups are locked and their
-- messages stay in the queue; `take` deletes those of one group.
create or replace function servicebroker.receive_groups_{id}(
    top integer, at timestamptz, groups integer, leaves boolean default false
) returns table (
    descent smallint, conversation_handle bytea, place bigint, message_sequence_number bigint, kind bigint,
    validation "char", message_body bytea, message_enqueue_time timestamptz,
    conversation_group_id uuid, service_id integer, transaction_id xid8, under_savepoint boolean
) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    page_size constant integer := greatest(64, 2 * groups);
    marks bigint[];
    levels integer[];                -- priorities that have messages, the highest first
    level integer;
    last_number bigint;              -- the last arrival number of the pages read so far
    held uuid[];                     -- groups that are held back until the time of a retry
    candidates uuid[];
    taken uuid[];
    places tid[];
    seen integer;
begin
    taken := array(select r.conversation_group_id
                     from servicebroker.receive_{id}(least(top, 1), at, only_lock => true) r);
    if taken = '{}' then
        if top > 0 and (select q.is_receive_enabled from servicebroker.queues q where q.queue_id = {id})
           and pg_try_advisory_xact_lock_shared({pipeline_lock}, {id}) then
            return query select null::smallint, null::bytea, null::bigint, null::bigint, null::bigint, null::"char",
                null::bytea, null::timestamptz, null::uuid, null::integer, null::xid8, null::boolean;
        end if;
        return;
    end if;
    marks := coalesce(nullif(current_setting('servicebroker.marks_{id}', true), ''), '{0,0,0,0,0,0,0,0,0,0,0}');
    if marks[11] <> 0 then  -- conditional marks may stop to hold during the search
        marks := servicebroker.unconditional_marks({id});
    end if;
    levels := array(
        select p.level from generate_series(10, 1, -1) as p (level)
         where exists (select from servicebroker.queue_{id} m
                        where m.priority = p.level and m.queuing_order >= marks[p.level] offset 0));
    held := array(
        select f.conversation_group_id from servicebroker.failed_messages f
          join servicebroker.queues q on q.queue_id = f.queue_id and q.held_until > at
         where f.queue_id = {id} and f.held_until > at);
    <<search>>
    foreach level in array levels loop
        last_number := marks[level] - 1;
        for page in 1 .. 8 loop
            exit search when cardinality(taken) >= groups;
            select array_agg(w.conversation_group_id order by w.first_number), max(w.last_number), sum(w.messages)
              into candidates, last_number, seen
              from (select l.conversation_group_id, min(l.queuing_order) as first_number,
                           max(l.queuing_order) as last_number, count(*) as messages
                      from (select m.conversation_group_id, m.queuing_order from servicebroker.queue_{id} m
                             where m.priority = level and m.queuing_order > last_number
                             order by m.queuing_order limit page_size) l
                     group by l.conversation_group_id) w;
            taken := taken || array(
                select c.in_group from unnest(candidates) as c (in_group)
                 where case when c.in_group = any (taken) or c.in_group = any (held) then false
                            else pg_try_advisory_xact_lock({group_lock}, uuid_hash(c.in_group)) end
                 limit groups - cardinality(taken));
            exit when seen is null or seen < page_size;
        end loop;
    end loop;
    -- a statement after the locks, whose snapshot has all that the previous owners of the groups have committed
    places := array(
        select m.place from unnest(taken) as t (in_group)
         cross join lateral (
               select first.place from unnest(levels) as p (level)
                cross join lateral (select q.ctid as place from servicebroker.queue_{id} q
                                     where q.priority = p.level and q.conversation_group_id = t.in_group
                                       and q.queuing_order >= marks[p.level]
                                     order by q.conversation_handle, q.rank, q.queuing_order limit top) first
                limit top) m);
    if leaves then
        return query
            select (-g.priority)::smallint, uuid_send(g.conversation_handle), g.rank::bigint << 61 | g.queuing_order,
                   g.message_sequence_number, g.service_contract_id::bigint << 32 | g.message_type_id,
                   g.validation, {kept_body}, g.message_enqueue_time,
                   g.conversation_group_id, g.service_id, pg_current_xact_id(), false
              from servicebroker.queue_{id} g where g.ctid = any (places)
             order by array_position(taken, g.conversation_group_id);
        return;
    end if;
    return query
        with gone as (
            delete from servicebroker.queue_{id} g where g.ctid = any (places) returning g.*, g.xmax as deleter
        ){retained}
        select (-g.priority)::smallint, uuid_send(g.conversation_handle), g.rank::bigint << 61 | g.queuing_order,
               g.message_sequence_number, g.service_contract_id::bigint << 32 | g.message_type_id,
               g.validation, {body}, g.message_enqueue_time,
               g.conversation_group_id, g.service_id, pg_current_xact_id(), g.deleter <> pg_current_xact_id()::xid
          from gone g order by array_position(taken, g.conversation_group_id);
end $$;

-- name: take
-- The second half of a RECEIVE with `leaves`: delete these messages of one group, given by priority and arrival number,
-- and return how many there were. This transaction may have received some of them meanwhile. The first half has locked
-- the group; the lock is taken here once more, without waiting.
create or replace function servicebroker.take_{id}(in_group uuid, levels smallint[], numbers bigint[])
returns bigint language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
    places tid[];
    taken bigint := 0;
begin
    if pg_try_advisory_xact_lock_shared({pipeline_lock}, {id})
       and pg_try_advisory_xact_lock({group_lock}, uuid_hash(in_group)) then
        places := array(
            select m.ctid from unnest(levels, numbers) as w (level, number)
             cross join lateral (select q.ctid, q.conversation_group_id as own from servicebroker.queue_{id} q
                                  where q.priority = w.level and q.queuing_order = w.number
                                 offset 0) m  -- without it the planner may choose the index of groups and scan a whole group
             where m.own = in_group);
        with gone as (
            delete from servicebroker.queue_{id} g where g.ctid = any (places) returning g.*
        ){retained}
        select count(*) + 0 * count({body}) into taken from gone g;
    end if;
    return taken;
end $$;

-- name: first
-- The columns that RECEIVE returns for its first messages.
{returning} (-g.priority)::smallint, uuid_send(g.conversation_handle), g.rank::bigint << 61 | g.queuing_order,
          g.message_sequence_number, g.service_contract_id::bigint << 32 | g.message_type_id,
          g.validation, {body}, g.message_enqueue_time,
          g.conversation_group_id, g.service_id, pg_current_xact_id(), {deleter} <> pg_current_xact_id()::xid
{from_gone}

-- name: end_dialog
-- END CONVERSATION in the usual case: both endpoints are in this instance, and no message waits between them in the
-- transmission queue. It closes this endpoint and deletes its unread messages. The caller's statement inserts the
-- peer's EndDialog into the queue `far` (`end_dialog` in engine/conversation/enqueue.py). If the peer has ended,
-- `finish_dialog` is called. In any other case `done` is false and nothing was changed; engine/conversation/end.py then
-- goes step by step.
-- Parameters and results: `version` is the catalog version of the queue under which permissions were checked, or null.
-- `number` is the sequence number of the EndDialog, null if the peer gets none. `is_due`: closed endpoints can be
-- removed. `kept`: the key of the group's lock, if the session keeps it beyond a savepoint.
-- One statement locks both rows, the target first as everywhere, and updates the peer. The first query takes single
-- values instead of a join: the plan of a join would describe all columns of the rows each time.
create or replace function servicebroker.end_dialog_{id}(
    handle uuid, at timestamptz, far integer, version bigint, out done boolean, out number bigint, out stamp xid8,
    out far_group_id uuid, out far_handle uuid, out far_service_id integer, out far_contract_id integer,
    out far_priority smallint, out is_due boolean, out kept integer
) language plpgsql set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    conversation_group uuid;
    peer_handle uuid;
    own_is_initiator boolean;
    own_priority smallint;
    has_ended boolean;               -- the peer
    is_open boolean;                 -- both brokers are on, and the peer's queue
    received bigint;                 -- the next sequence number of the peer, which sends no more
    has_messages boolean;
    under_savepoint boolean;
begin
    done := false;
    loop
        -- no row lock here: if the conversation may be parked, the lock of parking comes first
        -- (engine/conversation/endpoints.py)
        select e.conversation_group_id, e.far_handle, e.is_initiator, e.priority, e.state = 'DI',
               e.state = 'CO' and (
                   select q.is_enqueue_enabled and (
                          select d.is_broker_enabled from servicebroker.databases d where d.database_id = q.database_id)
                     from servicebroker.queues q where q.queue_id = far) and (
                   select not q.keeps_retained and (version is null or q.catalog_version = version) and (
                          select d.is_broker_enabled from servicebroker.databases d where d.database_id = q.database_id)
                     from servicebroker.queues q where q.queue_id = {id})
          into conversation_group, peer_handle, own_is_initiator, own_priority, has_ended, is_open
          from servicebroker.conversation_endpoints e
         where e.conversation_handle = handle and e.queue_id = {id} and e.far_queue_id is not null and not e.is_remote;
        if has_ended then
            select f.done, f.is_due, f.kept into done, is_due, kept from servicebroker.finish_dialog_{id}(handle, at, version) f;
            return;
        end if;
        if not coalesce(is_open, false) then
            return;
        end if;
        exit when pg_try_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));  -- then read the row again
    end loop;
    if own_is_initiator then
        with peer as materialized (
            select p.conversation_handle from servicebroker.conversation_endpoints p
             where p.conversation_handle = peer_handle and p.state = 'CO' and p.far_queue_id is not null
               for update
        ), own as materialized ({ending}, peer
             where e.far_handle = peer.conversation_handle and {is_endable}
               for update of e
        ) {told}
    else
        with own as materialized ({ending}
             where e.far_handle = peer_handle and {is_endable}
               for update
        ) {told}
    end if;
    done := found;
    if not done then
        return;
    end if;
    -- a further statement, whose snapshot has all that the peer sent until its row was locked
    if own_is_initiator then
        delete from servicebroker.conversation_endpoints e where e.conversation_handle = handle
        returning e.xmax <> pg_current_xact_id()::xid, {unread}, {due} into under_savepoint, has_messages, is_due;
        delete from servicebroker.conversation_groups g
         where g.conversation_group_id = conversation_group and not exists (
               select from servicebroker.conversation_endpoints e where e.conversation_group_id = conversation_group);
        if not found then  -- other conversations of the group may be ending at the same time
            perform servicebroker.remove_empty_group(conversation_group);
        end if;
    else
        update servicebroker.conversation_endpoints e
           set state = 'CD', can_expire = false, send_sequence = number + 1, last_stamp = stamp, receive_sequence = received,
               dialog_timer = null, far_handle = null, far_queue_id = null, security_timestamp = at + {replay_protection}
         where e.conversation_handle = handle
        returning e.xmin <> pg_current_xact_id()::xid, {unread}, {due} into under_savepoint, has_messages, is_due;
    end if;
    if has_messages then
        perform servicebroker.purge('queue_{id}', handle, own_priority, conversation_group);
    end if;
    if under_savepoint then
        kept := servicebroker.keep_lock(uuid_hash(conversation_group));
    end if;
end $$;

-- name: ending
-- The query by which END locks its own endpoint.
            select e.send_sequence, greatest(e.last_stamp, pg_current_xact_id()) as last_stamp, e.far_group_id,
                   e.far_service_id, e.far_contract_id, e.far_priority
              from servicebroker.conversation_endpoints e

-- name: is_endable
-- The condition under which END may close its own endpoint. Another session may have changed it since the first query.
e.conversation_handle = handle and e.state = 'CO' and e.lifetime > at and e.conversation_group_id = conversation_group
               and e.queue_id = {id} and e.far_queue_id = far and not e.is_remote and coalesce(e.security, 'N') = 'N'

-- name: told
-- Note in the peer's endpoint that this side has ended. From then on the peer sends no more.
update servicebroker.conversation_endpoints p set state = 'DI', receive_sequence = own.send_sequence + 1
          from own where p.conversation_handle = peer_handle and p.state = 'CO' and p.far_queue_id is not null
        returning own.send_sequence, own.last_stamp, own.far_group_id, peer_handle, own.far_service_id, own.far_contract_id,
                  own.far_priority, p.send_sequence
             into number, stamp, far_group_id, far_handle, far_service_id, far_contract_id, far_priority, received;

-- name: unread
exists (select from servicebroker.queue_{id} m
                           where m.priority = own_priority and m.conversation_group_id = conversation_group
                             and m.conversation_handle = handle)

-- name: due
(select c.security_timestamp from servicebroker.conversation_endpoints c
                    where c.security_timestamp is not null order by c.security_timestamp limit 1) <= at

-- name: finish_dialog
-- END CONVERSATION if the peer has ended: delete the unread messages of this endpoint, and close it; delete it if it is
-- an initiator without dialog security. The peer gets no message. Parameters and results are those of `end_dialog`. The
-- first query needs no lock: a peer that is closed or gone stays so, and this side sends no more. Only a peer in
-- another instance may still send an Error, and messages of this side may wait for it, which nobody will read.
create or replace function servicebroker.finish_dialog_{id}(
    handle uuid, at timestamptz, version bigint, out done boolean, out is_due boolean, out kept integer
) language plpgsql set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    conversation uuid;
    conversation_group uuid;
    is_removed boolean;
    own_is_remote boolean;
    own_priority smallint;
    sent bigint;                     -- the next sequence number of this side
    is_unknown boolean;              -- the peer's endpoint does not have `sent` yet
    has_messages boolean;
    is_left boolean;                 -- rows remain of messages that this side, of a remote peer, has sent or not read
    under_savepoint boolean;
begin
    done := false;
    loop
        select e.conversation_id, e.conversation_group_id, e.is_removed, e.is_remote, e.priority, e.send_sequence,
               p.state is not null and p.receive_sequence is distinct from e.send_sequence
          into conversation, conversation_group, is_removed, own_is_remote, own_priority, sent, is_unknown
          from (select o.conversation_id, o.conversation_group_id, o.is_initiator, o.is_remote, o.priority, o.send_sequence,
                       o.is_initiator and coalesce(o.security, 'N') = 'N' as is_removed
                  from servicebroker.conversation_endpoints o
                 where o.conversation_handle = handle and o.state = 'DI' and (
                       select not q.keeps_retained and (version is null or q.catalog_version = version)
                         from servicebroker.queues q where q.queue_id = {id}) offset 0) e
          left join lateral (
               select p.state, p.receive_sequence from servicebroker.conversation_endpoints p
                where p.conversation_id = e.conversation_id and p.is_initiator = not e.is_initiator offset 0) p on true
         where p.state is null or (p.state = 'CD' and not e.is_remote);
        if not found then
            return;
        end if;
        exit when pg_try_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));  -- then read the row again
    end loop;
    if own_is_remote then  -- lock first, so that the next statement sees what the daemon has stored before
        perform from servicebroker.conversation_endpoints e where {is_finishable} for update;
        if not found then
            return;
        end if;
    end if;
    if is_removed then
        if is_unknown then  -- whoever locks both rows locks the target's first
            update servicebroker.conversation_endpoints p set receive_sequence = sent
             where p.conversation_id = conversation and not p.is_initiator and p.state = 'CD';
        end if;
        delete from servicebroker.conversation_endpoints e where {is_finishable}
        returning e.xmax <> pg_current_xact_id()::xid, {unread}, {left}, {due}
             into under_savepoint, has_messages, is_left, is_due;
        if not found then
            return;
        end if;
        delete from servicebroker.conversation_groups g
         where g.conversation_group_id = conversation_group and not exists (
               select from servicebroker.conversation_endpoints e where e.conversation_group_id = conversation_group);
        if not found then  -- other conversations of the group may be ending at the same time
            perform servicebroker.remove_empty_group(conversation_group);
        end if;
    else
        update servicebroker.conversation_endpoints e
           set state = 'CD', can_expire = false, dialog_timer = null, far_handle = null, far_queue_id = null,
               security_timestamp = at + {replay_protection}
         where {is_finishable}
        returning e.xmin <> pg_current_xact_id()::xid, {unread}, {left}, {due}
             into under_savepoint, has_messages, is_left, is_due;
        if not found then
            return;
        end if;
        if is_unknown then
            update servicebroker.conversation_endpoints p set receive_sequence = sent
             where p.conversation_id = conversation and p.is_initiator;
        end if;
    end if;
    done := true;
    if has_messages then
        perform servicebroker.purge('queue_{id}', handle, own_priority, conversation_group);
    end if;
    if is_left then
        perform servicebroker.purge('transmission_queue', handle);
        delete from servicebroker.arrived_fragments f where f.conversation_handle = handle;
    end if;
    if under_savepoint then
        kept := servicebroker.keep_lock(uuid_hash(conversation_group));
    end if;
end $$;

-- name: end_remote
-- END CONVERSATION if the peer is in another instance, and there are no delayed or retained messages. It inserts
-- EndDialog into the transmission queue, after the messages sent before, and deletes the unread messages of this
-- endpoint. Parameters and results are those of `end_dialog`; `is_told` is true if EndDialog was inserted. If the peer
-- has ended, `finish_dialog` is called.
create or replace function servicebroker.end_remote_{id}(
    handle uuid, at timestamptz, version bigint, out done boolean, out is_told boolean, out is_due boolean, out kept integer
) language plpgsql set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    conversation_group uuid;
    own_priority smallint;
    has_ended boolean;               -- the peer
    is_open boolean;
    number bigint;
    has_messages boolean;
    is_beside boolean;               -- arrived_fragments has messages of the conversation
    under_savepoint boolean;
begin
    done := false;
    is_told := false;
    loop
        select e.conversation_group_id, e.priority, e.state = 'DI',
               e.state = 'CO' and (
                   select not q.keeps_retained and (version is null or q.catalog_version = version) and (
                          select d.is_broker_enabled from servicebroker.databases d where d.database_id = q.database_id)
                     from servicebroker.queues q where q.queue_id = {id})
               -- no peer in this instance, to which the routes may have led back
               and not exists (select from servicebroker.conversation_endpoints p
                                where p.conversation_id = e.conversation_id and p.is_initiator = not e.is_initiator)
          into conversation_group, own_priority, has_ended, is_open
          from servicebroker.conversation_endpoints e
         where e.conversation_handle = handle and e.queue_id = {id} and e.is_remote and e.far_handle is null;
        if has_ended then
            select f.done, f.is_due, f.kept into done, is_due, kept from servicebroker.finish_dialog_{id}(handle, at, version) f;
            return;
        end if;
        if not coalesce(is_open, false) then
            return;
        end if;
        exit when pg_try_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));
        perform pg_advisory_xact_lock({group_lock}, uuid_hash(conversation_group));  -- then read the row again
    end loop;
    -- lock first, so that the next statement sees what the daemon or another sender has written
    perform from servicebroker.conversation_endpoints e
      where e.conversation_handle = handle and e.state = 'CO' and e.lifetime > at and e.is_remote and e.far_handle is null
        and e.conversation_group_id = conversation_group and e.queue_id = {id}
        for update;
    if not found then
        return;
    end if;
    update servicebroker.conversation_endpoints e
       set send_sequence = e.send_sequence + 1, state = 'DO', far_queue_id = null, dialog_timer = null
     where e.conversation_handle = handle and not exists (
           select from servicebroker.transmission_queue t where t.conversation_handle = handle and t.delayed_until is not null)
    returning e.send_sequence - 1, e.xmin <> pg_current_xact_id()::xid, {unread},
              exists (select from servicebroker.arrived_fragments f where f.conversation_handle = handle)
         into number, under_savepoint, has_messages, is_beside;
    if not found then
        return;
    end if;
    insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, message_type_name, is_end_of_dialog)
    values (handle, number, '{end_dialog}', true);
    done := true;
    is_told := true;
    if has_messages then
        perform servicebroker.purge('queue_{id}', handle, own_priority, conversation_group);
    end if;
    if is_beside then
        delete from servicebroker.arrived_fragments f using servicebroker.arrivals a
         where f.conversation_handle = handle and a.conversation_handle = handle
           and f.message_sequence_number < a.receive_sequence;
    end if;
    if under_savepoint then
        kept := servicebroker.keep_lock(uuid_hash(conversation_group));
    end if;
end $$;

-- name: left
e.is_remote and (
                  exists (select from servicebroker.transmission_queue t where t.conversation_handle = handle)
                  or exists (select from servicebroker.arrived_fragments f where f.conversation_handle = handle))

-- name: is_finishable
-- The condition under which END may close its own endpoint if the peer has ended.
e.conversation_handle = handle and e.state = 'DI' and e.conversation_group_id = conversation_group and e.queue_id = {id}
           and (e.is_remote and e.far_handle is null or e.far_queue_id is not null and coalesce(e.security, 'N') = 'N')

-- name: look
-- The state of the queue for its monitor: whether a message is receivable, and the counters. It also fires due timers,
-- since the queue may have no reader. A message is receivable if no session has locked its group. The groups are
-- checked one by one until one is free; at most as many are locked as there are readers.
create or replace function servicebroker.look_{id}(
    at timestamptz, out receivable boolean, out arrivals bigint, out receives bigint, out empty bigint,
    out waiting integer, out due timestamptz
) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
declare
    marks bigint[] := coalesce(nullif(current_setting('servicebroker.marks_{id}', true), ''), '{0,0,0,0,0,0,0,0,0,0,0}');
    level integer;
    oldest bigint;
    candidate uuid;
    locked bigint[];
    surveyed boolean := false;
begin
    if marks[11] <> 0 and not servicebroker.marks_hold({id}) then
        marks := servicebroker.unconditional_marks({id});
    end if;
    select least(
        (select e.dialog_timer from servicebroker.conversation_endpoints e
          where e.queue_id = {id} and e.dialog_timer is not null order by e.dialog_timer limit 1),
        (select e.lifetime from servicebroker.conversation_endpoints e
          where e.queue_id = {id} and e.can_expire and e.state not in ('DO', 'ER', 'CD')
          order by e.lifetime limit 1)) into due;
    if due <= at then
        perform servicebroker.fire_timers_{id}(at);
        perform servicebroker.expire_{id}(at);
        due := at;  -- more may be due, since each call fires at most 100
    end if;
    select case when o.is_called then o.last_value else 0 end, case when r.is_called then r.last_value else 0 end,
           case when n.is_called then n.last_value else 0 end into arrivals, receives, empty
      from servicebroker.queue_{id}_order o, servicebroker.queue_{id}_receives r, servicebroker.queue_{id}_empty_receives n;
    select count(*) into waiting from servicebroker.waiting_readers w where w.queue_id = {id} and not w.is_monitor;
    receivable := false;
    for level in reverse 10 .. 1 loop
        oldest := (select m.queuing_order from servicebroker.queue_{id} m
                    where m.priority = level and m.queuing_order >= marks[level] order by m.queuing_order limit 1);
        if not surveyed and coalesce(oldest, arrivals) - marks[level] > 100 then
            marks := servicebroker.survey_{id}(marks);
            surveyed := true;
        end if;
        continue when oldest is null;
        locked := coalesce(locked, array(
            select l.objid::bigint from pg_locks l
             where l.locktype = 'advisory' and l.granted and l.classid = {group_lock} and l.objsubid = 2
               and l.database = (select d.oid from pg_database d where d.datname = current_database())));
        candidate := '00000000-0000-0000-0000-000000000000';
        loop
            candidate := (select m.conversation_group_id from servicebroker.queue_{id} m
                           where m.priority = level and m.conversation_group_id > candidate
                             and m.queuing_order >= marks[level]
                           order by m.conversation_group_id limit 1);
            exit when candidate is null;
            if (uuid_hash(candidate)::bigint & 4294967295) <> all (locked) then
                receivable := true;
                return;
            end if;
        end loop;
    end loop;
end $$;

-- name: close
-- PostgreSQL grants EXECUTE on a new function to PUBLIC. Revoke it.
revoke execute on function servicebroker.fire_timers_{id}, servicebroker.expire_{id}, servicebroker.survey_{id},
    servicebroker.receive_{id}, servicebroker.receive_groups_{id}, servicebroker.take_{id}, servicebroker.end_dialog_{id},
    servicebroker.finish_dialog_{id}, servicebroker.end_remote_{id},
    servicebroker.look_{id} from public;

-- name: taken_body
-- The body of a received row `g`, without RETENTION. It removes the row's claim on a shared body.
case when g.is_shared then servicebroker.take_shared_body(g.message_body) else g.message_body end

-- name: kept_body
-- The body of a received row `g` that RETENTION keeps, or that stays in the queue.
case when g.is_shared then (select b.body from servicebroker.shared_bodies b
                              join servicebroker.shared_body_readers r using (body_id)
                             where r.reader = g.message_body)
     else g.message_body end

-- name: retain
-- With RETENTION, a further part of the statement of RECEIVE: copy the deleted rows `gone`.
, retained as (
    insert into servicebroker.retained_{id}
    select 0, q.priority, q.queuing_order, q.conversation_group_id, q.conversation_handle, q.message_sequence_number,
           q.service_id, q.service_contract_id, q.message_type_id, q.validation, q.message_enqueue_time, q.is_shared,
           q.message_body
      from {deleted} q)

-- name: view
create or replace view {schema}.{view} with (security_invoker = true) as
select q.status, q.priority, q.queuing_order, q.conversation_group_id, q.conversation_handle,
       q.message_sequence_number, s.name as service_name, q.service_id, c.name as service_contract_name,
       q.service_contract_id, t.name as message_type_name, q.message_type_id, q.validation::text as validation,
       case when q.is_shared then (select b.body from servicebroker.shared_bodies b
                                     join servicebroker.shared_body_readers r using (body_id)
                                    where r.reader = q.message_body)
            else q.message_body end as message_body,
       q.message_enqueue_time
  from (select 1::smallint as status, priority, queuing_order, conversation_group_id, conversation_handle,
               message_sequence_number, service_id, service_contract_id, message_type_id, validation,
               message_enqueue_time, is_shared, message_body
          from servicebroker.queue_{id}
         union all
        select * from servicebroker.retained_{id}
         union all
        select 2::smallint, i.priority, null, i.conversation_group_id, i.conversation_handle,
               i.message_sequence_number, i.service_id, i.service_contract_id, i.message_type_id, i.validation,
               i.message_enqueue_time, false, i.message_body
          from servicebroker.incomplete_messages i where i.queue_id = {id}) q
  join servicebroker.services s on s.service_id = q.service_id
  left join servicebroker.service_contracts c
    on c.database_id = s.database_id and c.service_contract_id = q.service_contract_id
  left join servicebroker.message_types t
    on t.database_id = s.database_id and t.message_type_id = q.message_type_id;

-- name: refuse
-- Refuse changes through the view. The row trigger makes PostgreSQL accept the statement; refuse_all is fired even
-- without rows.
create or replace trigger refuse instead of insert or update or delete on {schema}.{view}
    for each row execute function servicebroker.refuse_update();

-- name: refuse_all
create or replace trigger refuse_all before insert or update or delete on {schema}.{view}
    for each statement execute function servicebroker.refuse_update();
