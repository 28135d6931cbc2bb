-- What the catalog views (store/views.sql) need of the tables.

-- the next number that the peer would have sent, kept here when its row may go
alter table servicebroker.conversation_endpoints add column receive_sequence bigint;

create schema sys;
