-- Functions of dates and times. All clocks are UTC; a week begins on Sunday.

create or replace function tsql.now() returns timestamp language sql stable parallel safe
return statement_timestamp() at time zone 'UTC';

create or replace function tsql.dateadd(part text, number bigint, moment timestamp) returns timestamp
language plpgsql immutable strict parallel safe as $$
declare
    made timestamp;
begin
    made := moment + case part
        when 'year' then make_interval(years => number::integer) when 'quarter' then make_interval(months => number::integer * 3)
        when 'month' then make_interval(months => number::integer) when 'week' then make_interval(days => number::integer * 7)
        when 'day' then make_interval(days => number::integer) when 'dayofyear' then make_interval(days => number::integer)
        when 'weekday' then make_interval(days => number::integer)
        when 'hour' then number * interval '1 hour' when 'minute' then number * interval '1 minute'
        when 'second' then number * interval '1 second' when 'millisecond' then number * interval '1 millisecond'
        when 'microsecond' then number * interval '1 microsecond' when 'nanosecond' then number / 1000 * interval '1 microsecond' end;
    if made >= '10000-01-01' or made < '0001-01-01' then raise datetime_field_overflow; end if;
    return made;
exception when datetime_field_overflow or numeric_value_out_of_range then
    perform tsql.refuse(517, 'Adding a value to a ''datetime'' column caused an overflow.');
end $$;
create or replace function tsql.dateadd(part text, number bigint, moment timestamptz) returns timestamp language sql immutable strict parallel safe
return tsql.dateadd(part, number, moment at time zone 'UTC');
create or replace function tsql.dateadd(part text, number bigint, day date) returns timestamp language sql immutable strict parallel safe
return tsql.dateadd(part, number, day::timestamp);
create or replace function tsql.dateadd(part text, number bigint, moment time) returns timestamp language sql immutable strict parallel safe
return tsql.dateadd(part, number, date '1900-01-01' + moment);

-- Check that a result of DATEDIFF is an int. DATEDIFF_BIG is not checked.
create or replace function tsql.datediff_fits(number bigint) returns integer language plpgsql immutable strict parallel safe as $$
begin
    if number not between -2147483648 and 2147483647 then
        perform tsql.refuse(535, 'The datediff function resulted in an overflow. The number of dateparts separating two date/time instances '
                                 'is too large. Try to use datediff with a less precise datepart.');
    end if;
    return number;
end $$;
-- The number of boundaries of the date part between two times. All branches are numeric: float8 has too few digits.
create or replace function tsql.datediff(part text, first timestamp, last timestamp) returns bigint
language sql immutable strict parallel safe
return case part
    when 'year' then extract(year from last) - extract(year from first)
    when 'quarter' then (extract(year from last) - extract(year from first)) * 4 + extract(quarter from last) - extract(quarter from first)
    when 'month' then (extract(year from last) - extract(year from first)) * 12 + extract(month from last) - extract(month from first)
    when 'week' then floor((last::date - date '1899-12-31') / 7.0) - floor((first::date - date '1899-12-31') / 7.0)
    when 'day' then last::date - first::date when 'dayofyear' then last::date - first::date
    when 'weekday' then last::date - first::date
    when 'hour' then extract(epoch from date_trunc('hour', last) - date_trunc('hour', first)) / 3600
    when 'minute' then extract(epoch from date_trunc('minute', last) - date_trunc('minute', first)) / 60
    when 'second' then extract(epoch from date_trunc('second', last) - date_trunc('second', first))
    when 'millisecond' then extract(epoch from date_trunc('milliseconds', last) - date_trunc('milliseconds', first)) * 1000
    when 'microsecond' then extract(epoch from last - first) * 1000000
    when 'nanosecond' then extract(epoch from last - first) * 1000000000 end::bigint;
do $$
declare
    one text; other text;
begin
    foreach one in array array['timestamp', 'timestamptz', 'date', 'time'] loop
        foreach other in array array['timestamp', 'timestamptz', 'date', 'time'] loop
            if (one, other) <> ('timestamp', 'timestamp') then
                execute format('create or replace function tsql.datediff(part text, first %s, last %s) returns bigint language sql '
                               'immutable strict parallel safe return tsql.datediff(part, tsql.to_datetime(first), tsql.to_datetime(last))', one, other);
            end if;
        end loop;
    end loop;
end $$;

create or replace function tsql.datepart(part text, moment timestamp) returns integer language sql immutable strict parallel safe
return case part
    when 'dayofyear' then date_part('doy', moment) when 'weekday' then date_part('dow', moment) + 1
    when 'week' then floor((date_part('doy', moment) + date_part('dow', date_trunc('year', moment)) - 1) / 7) + 1
    when 'iso_week' then date_part('week', moment)
    when 'second' then floor(date_part('second', moment))
    when 'millisecond' then floor(date_part('milliseconds', moment))::integer % 1000
    when 'microsecond' then date_part('microseconds', moment)::integer % 1000000
    when 'nanosecond' then date_part('microseconds', moment)::integer % 1000000 * 1000
    when 'year' then date_part('year', moment) when 'quarter' then date_part('quarter', moment) when 'month' then date_part('month', moment)
    when 'day' then date_part('day', moment) when 'hour' then date_part('hour', moment) when 'minute' then date_part('minute', moment) end::integer;
create or replace function tsql.datename(part text, moment timestamp) returns text language sql immutable strict parallel safe
return case part when 'month' then to_char(moment, 'FMMonth') when 'weekday' then to_char(moment, 'FMDay') else tsql.datepart(part, moment)::text end;
do $$
declare
    one text;
begin
    foreach one in array array['timestamptz', 'date', 'time'] loop
        execute format('create or replace function tsql.datepart(part text, moment %s) returns integer language sql immutable strict parallel safe '
                       'return tsql.datepart(part, tsql.to_datetime(moment))', one);
        execute format('create or replace function tsql.datename(part text, moment %s) returns text language sql immutable strict parallel safe '
                       'return tsql.datename(part, tsql.to_datetime(moment))', one);
    end loop;
end $$;
-- DATEFROMPARTS. Parts that are no date are refused with SQL Server's error.
create or replace function tsql.date_of(year integer, month integer, day integer) returns date language plpgsql immutable strict parallel safe as $$
begin
    if year not between 1 and 9999 then raise datetime_field_overflow; end if;
    return make_date(year, month, day);
exception when datetime_field_overflow then
    perform tsql.refuse(289, 'Cannot construct data type date, some of the arguments have values which are not valid.');
end $$;
create or replace function tsql.moment_of_parts(year integer, month integer, day integer, hour integer, minute integer, second integer,
                                                fractions integer, digits integer) returns timestamp
language plpgsql immutable strict parallel safe as $$
begin
    if year not between 1 and 9999 or hour > 23 or second > 59 or fractions >= power(10, digits) or fractions < 0 then
        raise datetime_field_overflow;
    end if;
    return make_timestamp(year, month, day, hour, minute, second + fractions / power(10::numeric, digits)::float8);
exception when datetime_field_overflow then
    perform tsql.refuse(289, 'Cannot construct data type datetime, some of the arguments have values which are not valid.');
end $$;
create or replace function tsql.time_of_parts(hour integer, minute integer, second integer, fractions integer, digits integer) returns time
language plpgsql immutable strict parallel safe as $$
begin
    if hour > 23 or second > 59 or fractions >= power(10, digits) or fractions < 0 then raise datetime_field_overflow; end if;
    return make_time(hour, minute, second + fractions / power(10::numeric, digits)::float8);
exception when datetime_field_overflow then
    perform tsql.refuse(289, 'Cannot construct data type time, some of the arguments have values which are not valid.');
end $$;
create or replace function tsql.datetrunc(part text, moment timestamp) returns timestamp language plpgsql immutable strict parallel safe as $$
begin
    if part in ('weekday', 'nanosecond') then
        perform tsql.refuse(9810, format('The datepart %s is not supported by date function datetrunc.', part));
    end if;
    return case part when 'week' then date_trunc('day', moment) - date_part('dow', moment) * interval '1 day'
                     when 'iso_week' then date_trunc('week', moment) when 'dayofyear' then date_trunc('day', moment)
                     when 'millisecond' then date_trunc('milliseconds', moment) when 'microsecond' then date_trunc('microseconds', moment)
                     else date_trunc(part, moment) end;
end $$;
create or replace function tsql.date_bucket(part text, width integer, moment timestamp, origin timestamp) returns timestamp
language plpgsql immutable strict parallel safe as $$
declare
    months integer := width * case part when 'month' then 1 when 'quarter' then 3 when 'year' then 12 end;
    buckets integer;
begin
    if width < 1 then perform tsql.refuse(9834, 'Invalid bucket width value passed to date_bucket function. Only positive values are allowed.'); end if;
    if part not in ('year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second', 'millisecond') then
        perform tsql.refuse(9810, format('The datepart %s is not supported by date function date_bucket.', part));
    end if;
    if months is null then return date_bin(width * ('1 ' || part)::interval, moment, origin); end if;
    buckets := floor(((date_part('year', moment) - date_part('year', origin)) * 12 + date_part('month', moment) - date_part('month', origin)) / months);
    if origin + make_interval(months => buckets * months) > moment then buckets := buckets - 1; end if;
    return origin + make_interval(months => buckets * months);
end $$;
do $$
declare
    one text;
begin
    foreach one in array array['timestamptz', 'date', 'time'] loop
        execute format('create or replace function tsql.datetrunc(part text, moment %s) returns timestamp language sql immutable strict parallel safe '
                       'return tsql.datetrunc(part, tsql.to_datetime(moment))', one);
    end loop;
end $$;
create or replace function tsql.eomonth(moment timestamp, months integer default 0) returns date language sql immutable strict parallel safe
return (date_trunc('month', moment) + make_interval(months => months + 1) - interval '1 day')::date;
create or replace function tsql.eomonth(moment timestamptz, months integer default 0) returns date language sql immutable strict parallel safe
return tsql.eomonth(moment at time zone 'UTC', months);
create or replace function tsql.isdate(said text) returns integer language plpgsql stable parallel safe as $$
begin
    return (tsql.moment_of(said, 0) is not null and btrim(said) <> '')::integer;
exception when others then return 0;
end $$;
