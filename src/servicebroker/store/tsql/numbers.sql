-- Arithmetic whose meaning depends on the types, and functions of numbers.

do $$
declare
    of text;
begin
    foreach of in array array['smallint', 'integer', 'bigint', 'numeric', 'float8'] loop
        execute format('create or replace function tsql.plus(a %s, b %s) returns %s language sql immutable parallel safe return (a + b)::%s', of, of, of, of);
        execute format('create or replace function tsql.minus(a %s, b %s) returns %s language sql immutable parallel safe return (a - b)::%s', of, of, of, of);
        execute format('create or replace function tsql.plus(a timestamp, b %s) returns timestamp language sql immutable parallel safe '
                       'return a + b::float8 * interval ''1 day''', of);
        execute format('create or replace function tsql.minus(a timestamp, b %s) returns timestamp language sql immutable parallel safe '
                       'return a - b::float8 * interval ''1 day''', of);
        execute format('create or replace function tsql.plus(a text, b %s) returns %s language sql immutable parallel safe '
                       'return (a::numeric + b)::%s', of, of, of);
        execute format('create or replace function tsql.plus(a %s, b text) returns %s language sql immutable parallel safe '
                       'return (a + b::numeric)::%s', of, of, of);
    end loop;
end $$;
create or replace function tsql.plus(a text, b text) returns text language sql immutable parallel safe return a || b;
create or replace function tsql.plus(a bytea, b bytea) returns bytea language sql immutable parallel safe return a || b;
create or replace function tsql.minus(a timestamp, b timestamp) returns timestamp language sql immutable parallel safe
return timestamp '1900-01-01' + (a - b);

create or replace function tsql.round(number numeric, digits integer, how integer default 0) returns numeric
language sql immutable strict parallel safe return case how when 0 then round(number, digits) else trunc(number, digits) end;
create or replace function tsql.round(number float8, digits integer, how integer default 0) returns float8
language sql immutable strict parallel safe return tsql.round(number::numeric, digits, how)::float8;
create or replace function tsql.round(number integer, digits integer, how integer default 0) returns integer
language sql immutable strict parallel safe return tsql.round(number::numeric, digits, how)::integer;
create or replace function tsql.round(number bigint, digits integer, how integer default 0) returns bigint
language sql immutable strict parallel safe return tsql.round(number::numeric, digits, how)::bigint;

create or replace function tsql.power(base integer, exponent float8) returns integer language sql immutable strict parallel safe
return trunc(power(base::numeric, exponent::numeric))::integer;
create or replace function tsql.power(base bigint, exponent float8) returns bigint language sql immutable strict parallel safe
return trunc(power(base::numeric, exponent::numeric))::bigint;
create or replace function tsql.power(base numeric, exponent float8) returns numeric language sql immutable strict parallel safe
return round(power(base, exponent::numeric), scale(base));
create or replace function tsql.power(base float8, exponent float8) returns float8 language sql immutable strict parallel safe
return power(base, exponent);

create or replace function tsql.log(number float8, base float8 default null) returns float8 language sql immutable parallel safe
return case when base is null then ln(number) else ln(number) / ln(base) end;
create or replace function tsql.rand(seed integer default null) returns float8 language plpgsql volatile as $$
begin
    if seed is not null then perform setseed((seed % 1000003) / 1000003.0); end if;
    return random();
end $$;
create or replace function tsql.checksum(said text) returns integer language sql immutable parallel safe return hashtext(said);

create or replace function tsql.isnumeric(said text) returns integer language sql immutable parallel safe
return coalesce(btrim(said) ~* '^[$+-]?[$]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?$', false)::integer;
create or replace function tsql.isnumeric(number float8) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number numeric) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number integer) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number bigint) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(bytes bytea) returns integer language sql immutable parallel safe return 0;
create or replace function tsql.isnumeric(moment timestamp) returns integer language sql immutable parallel safe return 0;
create or replace function tsql.isnumeric(id uuid) returns integer language sql immutable parallel safe return 0;

-- rowversion: a number that rises with every row written, in any table.
create sequence if not exists tsql.rowversions;
create or replace function tsql.next_rowversion() returns bytea language sql volatile security definer set search_path = pg_catalog
begin atomic
    select int8send(nextval('tsql.rowversions'::regclass));
end;
create or replace function tsql.stamp_rowversion() returns trigger language plpgsql as $$
begin
    return jsonb_populate_record(new, jsonb_build_object(tg_argv[0], '\x' || encode(tsql.next_rowversion(), 'hex')));
end $$;
