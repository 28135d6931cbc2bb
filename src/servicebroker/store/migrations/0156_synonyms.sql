-- CREATE SYNONYM: other names of what is in schemas; their text is the name of what they stand for.
alter table servicebroker.tsql_modules drop constraint tsql_modules_kind_check;
alter table servicebroker.tsql_modules add constraint tsql_modules_kind_check check (kind in ('P', 'TR', 'FN', 'IF', 'TF', 'SN'));
