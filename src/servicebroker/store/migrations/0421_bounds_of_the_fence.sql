-- The functions of the fence take no impossible times and counts any more (decision 421). What a role had stored becomes
-- possible: no message failed after its last failure, and none is held for more than a hundred years.

update servicebroker.failed_messages
   set first_failed_at = case when first_failed_at between '1970-01-01 00:00:00+00' and last_failed_at
                              then first_failed_at else last_failed_at end,
       held_until = case when held_until < clock_timestamp() + interval '100 years' then held_until end,
       failures = least(greatest(failures, 1), 1000000000)
 where first_failed_at not between '1970-01-01 00:00:00+00' and last_failed_at
    or held_until >= clock_timestamp() + interval '100 years' or failures not between 1 and 1000000000;

update servicebroker.queues set held_until = null
 where held_until >= clock_timestamp() + interval '100 years'
   and database_id in (select database_id from servicebroker.databases where not is_read_only);

update servicebroker.set_aside_messages
   set first_failed_at = case when first_failed_at between '1970-01-01 00:00:00+00' and set_aside_at
                              then first_failed_at else set_aside_at end,
       message_enqueue_time = case when message_enqueue_time between '1970-01-01 00:00:00+00' and set_aside_at
                                   then message_enqueue_time else set_aside_at end,
       failures = least(greatest(failures, 1), 1000000000)
 where first_failed_at not between '1970-01-01 00:00:00+00' and set_aside_at
    or message_enqueue_time not between '1970-01-01 00:00:00+00' and set_aside_at
    or failures not between 1 and 1000000000;
