-- What the objects of a queue were when they were made last (servicebroker.fingerprint): as long as they are that, nobody has touched
-- them, and `check` need not compare their definitions. 0 before they are made, null where they are to be compared each time.
alter table servicebroker.queues add column fingerprint bigint;
alter table servicebroker.queues alter column fingerprint set default 0;
