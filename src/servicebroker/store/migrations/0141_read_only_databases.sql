-- ALTER DATABASE SET READ_ONLY: the broker is off meanwhile, and as it was when the database can be written again.
alter table servicebroker.databases add column is_read_only boolean not null default false;
alter table servicebroker.databases add column broker_when_writable boolean not null default true;
