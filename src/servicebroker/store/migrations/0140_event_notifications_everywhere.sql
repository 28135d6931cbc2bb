-- Event notifications on a database, whose queue is null, and on the server.
alter table servicebroker.event_notifications alter column queue_id drop not null;
alter table servicebroker.event_notifications add column is_of_server boolean not null default false;
create unique index event_notifications_of_database on servicebroker.event_notifications (database_id, lower(name))
    where queue_id is null and not is_of_server;
create unique index event_notifications_of_server on servicebroker.event_notifications (lower(name)) where is_of_server;
drop view if exists tsql.server_event_notifications;
