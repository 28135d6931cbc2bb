-- The size of a type in bytes, -1 for MAX and xml; and its precision and scale.

-- The size of fractional seconds: in bytes, and in characters with the decimal point.
create or replace function tsql.fraction_bytes(size text) returns integer language sql immutable parallel safe
return case when coalesce(nullif(size, '')::integer, 7) < 3 then 0 when size in ('3', '4') then 1 else 2 end;
create or replace function tsql.fraction_characters(size text) returns integer language sql immutable parallel safe
return case when size = '0' then 0 else coalesce(nullif(size, '')::integer, 7) + 1 end;

create or replace function tsql.column_bytes(type text, size text) returns smallint language sql immutable strict parallel safe
return case when size = 'max' or type in ('xml', 'text', 'varchar', 'bytea') and size = '' then -1
            when type in ('nvarchar', 'nchar') then 2 * nullif(size, '')::integer
            when type in ('varchar', 'char', 'varbinary', 'binary') then nullif(size, '')::integer
            else case type when 'sysname' then 256 when 'uniqueidentifier' then 16 when 'uuid' then 16 when 'tinyint' then 1 when 'bit' then 1
                           when 'smallint' then 2 when 'int2' then 2 when 'int' then 4 when 'int4' then 4 when 'date' then 3
                           when 'decimal' then case when size = '' then 9 when split_part(size, ',', 1)::integer < 10 then 5
                                                    when split_part(size, ',', 1)::integer < 20 then 9
                                                    when split_part(size, ',', 1)::integer < 29 then 13 else 17 end
                           when 'time' then 3 + tsql.fraction_bytes(size) when 'datetime2' then 6 + tsql.fraction_bytes(size)
                           when 'datetimeoffset' then 8 + tsql.fraction_bytes(size)
                           when 'real' then 4 when 'smallmoney' then 4 when 'smalldatetime' then 4 else 8 end end::smallint;

create or replace function tsql.type_precision(type text) returns integer language sql immutable strict parallel safe
return case type when 'bit' then 1 when 'tinyint' then 3 when 'smallint' then 5 when 'int' then 10 when 'bigint' then 19
                 when 'decimal' then 38 when 'numeric' then 38 when 'money' then 19 when 'smallmoney' then 10 when 'float' then 53 when 'real' then 24
                 when 'date' then 10 when 'time' then 16 when 'datetime' then 23 when 'smalldatetime' then 16 when 'datetime2' then 27
                 when 'datetimeoffset' then 34 when 'nvarchar' then 4000 when 'nchar' then 4000 when 'varchar' then 8000 when 'char' then 8000
                 when 'varbinary' then 8000 when 'binary' then 8000 when 'sysname' then 128 when 'uniqueidentifier' then 16 when 'xml' then -1 end;
create or replace function tsql.type_scale(type text) returns integer language sql immutable strict parallel safe
return case when type in ('tinyint', 'smallint', 'int', 'bigint', 'smalldatetime', 'date') then 0
            when type in ('money', 'smallmoney') then 4 when type in ('decimal', 'numeric') then 38 when type = 'datetime' then 3
            when type in ('datetime2', 'time', 'datetimeoffset') then 7 end;

-- The precision of a column in sys.columns: 0 if the type is neither a number nor a time.
create or replace function tsql.column_precision(type text, size text) returns integer language sql immutable parallel safe
return case type when 'decimal' then split_part(size, ',', 1)::integer when 'time' then 8 + tsql.fraction_characters(size)
                 when 'datetime2' then 19 + tsql.fraction_characters(size) when 'datetimeoffset' then 26 + tsql.fraction_characters(size)
            else case when type in ('bit', 'tinyint', 'smallint', 'int', 'bigint', 'money', 'smallmoney', 'float', 'real', 'date', 'datetime', 'smalldatetime')
                      then tsql.type_precision(type) else 0 end end;
create or replace function tsql.column_scale(type text, size text) returns integer language sql immutable parallel safe
return case when type = 'decimal' then split_part(size, ',', 2)::integer
            when type in ('time', 'datetime2', 'datetimeoffset') then coalesce(nullif(size, '')::integer, 7)
            when type in ('money', 'smallmoney', 'datetime') then tsql.type_scale(type) else 0 end;

-- Scale and precision as ODBC reports them, by system_type_id.
create or replace function tsql.odbc_scale(type integer, scale integer) returns integer language sql immutable parallel safe
return case when type in (41, 42, 43, 106, 108) then scale when type in (60, 122) then 4 when type = 61 then 3
            when type in (40, 48, 52, 56, 58, 127) then 0 end;
create or replace function tsql.odbc_precision(type integer, size integer, "precision" integer) returns integer language sql immutable parallel safe
return case when type in (34, 35) then 2147483647 when type = 99 then 1073741823 when type = 36 then 36 when type = 98 then 8000
            when type in (231, 239) then case size when -1 then 0 else size / 2 end
            when type in (165, 167, 173, 175) then greatest(size, 0) when type = 62 then 15 when type = 59 then 7 when type = 241 then 0
            else "precision" end;
