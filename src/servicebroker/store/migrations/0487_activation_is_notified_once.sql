-- A monitor that has sent QUEUE_ACTIVATION leaves that to the next process with the queue's lease: it sends none again before a RECEIVE.
alter table servicebroker.queue_monitors
    add column notified_version bigint,
    add column receives bigint not null default 0;
