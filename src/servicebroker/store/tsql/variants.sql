-- sql_variant: a text that begins with the type of the value and a colon, as int:5.

-- Make an sql_variant. The type of a string or of bytes is an argument, since it has a length; other types follow from
-- the PostgreSQL type.
do $$
declare
    of text; form text; kind text;
begin
    for of, form, kind in values
        ('text', 'value', 'nvarchar(4000)'), ('smallint', 'value::text', 'smallint'), ('integer', 'value::text', 'int'), ('bigint', 'value::text', 'bigint'),
        ('numeric', 'value::text', 'decimal(38,10)'), ('float8', 'value::text', 'float'), ('uuid', 'upper(value::text)', 'uniqueidentifier'),
        ('bytea', 'encode(value, ''hex'')', 'varbinary(8000)'), ('timestamp', 'to_char(value, ''YYYY-MM-DD HH24:MI:SS.US'')', 'datetime2(7)'),
        ('timestamptz', 'to_char(value at time zone ''UTC'', ''YYYY-MM-DD HH24:MI:SS.US'') || ''+00:00''', 'datetimeoffset(7)'),
        ('date', 'to_char(value, ''YYYY-MM-DD'')', 'date'), ('time', 'value::text', 'time(7)')
    loop
        execute format('create or replace function tsql.variant(value %s, kind text default %L) returns text language sql immutable strict parallel safe '
                       'return kind || '':'' || %s', of, kind, form);
    end loop;
end $$;
create or replace function tsql.variant_base(said text) returns text language sql immutable strict parallel safe return substring(said from '^\w+');
create or replace function tsql.variant_raw(said text) returns text language sql immutable strict parallel safe
return substr(said, strpos(said, ':') + 1);
create or replace function tsql.variant_scale(said text) returns integer language sql immutable strict parallel safe
return coalesce(substring(said from '^\w+\((\d)\):')::integer, 7);
-- The rank of a type family in comparisons: a value of a higher family is greater than any of a lower one.
create or replace function tsql.variant_rank(said text) returns integer language sql immutable strict parallel safe
return case when tsql.variant_base(said) in ('datetime', 'smalldatetime', 'datetime2', 'datetimeoffset', 'date', 'time') then 5
            when tsql.variant_base(said) in ('float', 'real') then 4
            when tsql.variant_base(said) in ('nvarchar', 'varchar', 'nchar', 'char', 'sysname') then 2
            when tsql.variant_base(said) in ('binary', 'varbinary') then 1 when tsql.variant_base(said) = 'uniqueidentifier' then 0 else 3 end;
create or replace function tsql.variant_number(said text) returns numeric language sql immutable strict parallel safe
return case when tsql.variant_rank(said) in (3, 4) then tsql.variant_raw(said)::float8::text::numeric end;
create or replace function tsql.variant_text(said text) returns text language sql stable strict parallel safe
return case tsql.variant_base(said) when 'datetime' then tsql.moment_text(tsql.variant_raw(said)::timestamp, 0)
            when 'smalldatetime' then tsql.moment_text(tsql.variant_raw(said)::timestamp, 0)
            when 'datetime2' then tsql.scaled_text(tsql.variant_raw(said)::timestamp, tsql.variant_scale(said))
            when 'datetimeoffset' then tsql.scaled_text(tsql.variant_raw(said)::timestamptz, tsql.variant_scale(said))
            when 'time' then tsql.scaled_text(tsql.variant_raw(said)::time, tsql.variant_scale(said))
            when 'float' then tsql.float_text(tsql.variant_raw(said)::float8) when 'real' then tsql.float_text(tsql.variant_raw(said)::float8)
            when 'money' then tsql.money_text(tsql.variant_raw(said)::numeric, 0)
            when 'smallmoney' then tsql.money_text(tsql.variant_raw(said)::numeric, 0)
            when 'varbinary' then tsql.utf16_decoded(decode(tsql.variant_raw(said), 'hex'))
            when 'binary' then tsql.utf16_decoded(decode(tsql.variant_raw(said), 'hex'))
            else tsql.variant_raw(said) end;
create or replace function tsql.variant_bytes(said text) returns bytea language plpgsql immutable strict parallel safe as $$
declare
    base text := tsql.variant_base(said);
begin
    if base in ('varbinary', 'binary') then return decode(tsql.variant_raw(said), 'hex'); end if;
    if base in ('varchar', 'char') then return tsql.to_varbinary_single(tsql.variant_raw(said)); end if;
    if base in ('nvarchar', 'nchar', 'sysname') then return tsql.to_varbinary(tsql.variant_raw(said)); end if;
    if base = 'int' then return tsql.to_varbinary(tsql.variant_raw(said)::integer); end if;
    if base = 'bigint' then return tsql.to_varbinary(tsql.variant_raw(said)::bigint); end if;
    if base = 'uniqueidentifier' then return tsql.uuid_bytes(tsql.variant_raw(said)::uuid); end if;
    perform tsql.refuse(529, format('Explicit conversion from data type sql_variant of %s to varbinary is not allowed.', base));
end $$;
create or replace function tsql.variant_compare(one text, other text) returns integer language plpgsql stable strict parallel safe as $$
declare
    rank integer := tsql.variant_rank(one);
begin
    if rank <> tsql.variant_rank(other) then return sign(rank - tsql.variant_rank(other)); end if;
    return case when rank in (3, 4) then sign(tsql.variant_number(one) - tsql.variant_number(other))
                when rank = 5 then sign(extract(epoch from tsql.to_datetime(tsql.variant_raw(one)) - tsql.to_datetime(tsql.variant_raw(other))))
                when tsql.variant_raw(one) = tsql.variant_raw(other) then 0
                when tsql.in_order(tsql.variant_raw(one)) < tsql.in_order(tsql.variant_raw(other)) then -1 else 1 end;
end $$;
create or replace function tsql.variant_property(said text, property text) returns text language plpgsql stable strict parallel safe as $$
declare
    base text := tsql.variant_base(said);
    sizes text[] := string_to_array(substring(said from '^\w+\(([^)]*)\):'), ',');
    bytes integer := case when base in ('varchar', 'char') then length(tsql.variant_raw(said))
                          when base in ('nvarchar', 'nchar', 'sysname') then tsql.datalength(tsql.variant_raw(said))
                          when base in ('varbinary', 'binary') then octet_length(tsql.variant_raw(said)) / 2
                          when base = 'decimal' then case when sizes[1]::integer <= 9 then 5 when sizes[1]::integer <= 19 then 9
                                                          when sizes[1]::integer <= 28 then 13 else 17 end
                          else (select t.max_length from tsql.system_types t where t.name = base) end;
begin
    return case lower(property)
        when 'basetype' then 'nvarchar(128):' || base
        when 'precision' then 'int:' || case when base = 'decimal' then sizes[1]::integer
                                             when base in ('varchar', 'char', 'nvarchar', 'nchar', 'varbinary', 'binary') then 0
                                             else tsql.type_precision(base) end
        when 'scale' then 'int:' || case when base = 'decimal' then sizes[2]::integer when sizes is not null and base in ('datetime2', 'time', 'datetimeoffset')
                                         then sizes[1]::integer else coalesce(tsql.type_scale(base), 0) end
        when 'maxlength' then 'int:' || case when base in ('nvarchar', 'nchar') then 2 * sizes[1]::integer
                                             when base in ('varchar', 'char', 'varbinary', 'binary') then sizes[1]::integer else bytes end
        when 'totalbytes' then 'int:' || bytes + 2 + case when base in ('varchar', 'char', 'nvarchar', 'nchar') then 6
                                                          when base in ('varbinary', 'binary', 'decimal') then 2
                                                          when base in ('datetime2', 'time', 'datetimeoffset') then 1 else 0 end
        when 'collation' then case when tsql.variant_rank(said) = 2 then 'nvarchar(128):Latin1_General_BIN2' end end;
end $$;
