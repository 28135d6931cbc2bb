-- sys.parameters: [name, type, is output, has a default] of each parameter, as CREATE has read them; of what was made
-- before nobody knows. What a scalar function returns stands first, without a name.
alter table servicebroker.tsql_modules add column parameters jsonb;
