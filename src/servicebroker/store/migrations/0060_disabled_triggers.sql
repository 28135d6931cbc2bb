-- DISABLE TRIGGER: the trigger stays, and is not run. The views for T-SQL are made again, for sys.triggers.
alter table servicebroker.tsql_modules add column is_disabled boolean not null default false;
