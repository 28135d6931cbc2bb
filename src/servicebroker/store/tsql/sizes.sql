-- How many bytes a column of a type takes, -1 for MAX and xml.

create or replace function tsql.column_bytes(type text, size text) returns smallint language sql immutable strict parallel safe
return case when size = 'max' or type in ('xml', 'text', 'varchar', 'bytea') and size = '' then -1
            when type in ('nvarchar', 'nchar') then 2 * nullif(size, '')::integer
            when type in ('varchar', 'char', 'varbinary', 'binary') then nullif(size, '')::integer
            else case type when 'sysname' then 256 when 'uniqueidentifier' then 16 when 'uuid' then 16 when 'tinyint' then 1 when 'bit' then 1
                           when 'smallint' then 2 when 'int2' then 2 when 'int' then 4 when 'int4' then 4 when 'date' then 3 when 'decimal' then 9
                           when 'real' then 4 when 'smallmoney' then 4 when 'smalldatetime' then 4 else 8 end end::smallint;
