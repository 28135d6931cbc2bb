-- User-defined functions of T-SQL are functions of PostgreSQL, and their text stands beside that of procedures.
alter table servicebroker.tsql_modules drop constraint tsql_modules_kind_check;
alter table servicebroker.tsql_modules add constraint tsql_modules_kind_check check (kind in ('P', 'TR', 'FN', 'IF'));
