-- A message with delayed_until waits for that time in the transmission queue (engine/delivery/delayed_messages.py). Both
-- indexes hold delayed messages only: a message that is not delayed writes no entry.
alter table servicebroker.transmission_queue add column delayed_until timestamptz;
create index transmission_queue_delayed on servicebroker.transmission_queue
    (conversation_handle, message_sequence_number) where delayed_until is not null;
create index transmission_queue_due on servicebroker.transmission_queue (delayed_until) where delayed_until is not null;
-- SEND takes a time: these have one parameter more, or two.
drop function if exists servicebroker.send_on(uuid, text, bytea[], integer, integer[]);
drop function if exists servicebroker_fence.send_all(integer, uuid[], text, bytea[], uuid);
