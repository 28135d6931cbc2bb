-- the numbers of the queues and services that every database has; unique in the instance
create sequence servicebroker.system_ids maxvalue 65535;
