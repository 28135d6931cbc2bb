-- Functions of several statements that return a table, which sys.objects calls TF; the views are made again.
alter table servicebroker.tsql_modules drop constraint tsql_modules_kind_check;
alter table servicebroker.tsql_modules add constraint tsql_modules_kind_check check (kind in ('P', 'TR', 'FN', 'IF', 'TF'));
