-- Names of event notifications are unique on their queue, no more in the whole database.
drop index servicebroker.event_notifications_name;
drop index servicebroker.event_notifications_queue;
create unique index event_notifications_name on servicebroker.event_notifications (queue_id, lower(name));
