-- The fence asks as the other verbs do: permissions on a schema hold for the queues in it, and fixed roles deny.
alter table servicebroker.needs add column denied_to integer[] not null default '{}';
drop function if exists servicebroker.refusal(text, integer, integer[], integer, integer, integer, text);
