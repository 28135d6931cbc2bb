-- Arithmetic that follows T-SQL's types, and functions of numbers.

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
        execute format('create or replace function tsql.plus(a %s, b timestamp) returns timestamp language sql immutable parallel safe '
                       'return tsql.plus(b, a)', of);
        execute format('create or replace function tsql.plus(a text, b %s) returns %s language sql immutable parallel safe '
                       'return (a::numeric + b)::%s', of, of, of);
        execute format('create or replace function tsql.plus(a %s, b text) returns %s language sql immutable parallel safe '
                       'return (a + b::numeric)::%s', of, of, of);
    end loop;
end $$;
create or replace function tsql.plus(a text, b text) returns text language sql immutable parallel safe return a || b;
create or replace function tsql.plus(a bytea, b bytea) returns bytea language sql immutable parallel safe return a || b;
create or replace function tsql.plus(a timestamp, b timestamp) returns timestamp language sql immutable parallel safe
return a + (b - timestamp '1900-01-01');
create or replace function tsql.minus(a timestamp, b timestamp) returns timestamp language sql immutable parallel safe
return timestamp '1900-01-01' + (a - b);

create or replace function tsql.round(number numeric, digits integer, how integer default 0) returns numeric
language sql immutable strict parallel safe
return round(case how when 0 then round(number, digits) else trunc(number, digits) end, scale(number));
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
return coalesce(btrim(said) ~* '^[$+-]?[$]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?$' or btrim(said) ~ '^([$+.,-]|[+-][$.]|[$][.])$', false)::integer;
create or replace function tsql.isnumeric(number float8) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number numeric) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number integer) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(number bigint) returns integer language sql immutable parallel safe return (number is not null)::integer;
create or replace function tsql.isnumeric(bytes bytea) returns integer language sql immutable parallel safe return 0;
create or replace function tsql.isnumeric(moment timestamp) returns integer language sql immutable parallel safe return 0;
create or replace function tsql.isnumeric(id uuid) returns integer language sql immutable parallel safe return 0;

-- Check the number of rows of TOP and FETCH, and of OFFSET.
create or replace function tsql.rows_taken(number bigint) returns bigint language plpgsql immutable parallel safe as $$
begin
    if number is null then
        perform tsql.refuse(1060, 'The number of rows provided for a TOP or FETCH clauses row count parameter must be an integer.');
    elsif number < 0 then perform tsql.refuse(127, 'A TOP N or FETCH rowcount value may not be negative.');
    end if;
    return number;
end $$;
create or replace function tsql.rows_left_out(number bigint) returns bigint language plpgsql immutable parallel safe as $$
begin
    if number is null then perform tsql.refuse(10743, 'The number of rows provided for a OFFSET clause must be an integer.');
    elsif number < 0 then perform tsql.refuse(10742, 'The offset specified in a OFFSET clause may not be negative.');
    end if;
    return number;
end $$;

-- Bits of whole numbers.
create or replace function tsql.bit_count(number bigint) returns bigint language sql immutable strict parallel safe return bit_count(number::bit(64));
create or replace function tsql.bit_count(number integer) returns bigint language sql immutable strict parallel safe return bit_count(number::bit(32));
create or replace function tsql.bit_count(number smallint) returns bigint language sql immutable strict parallel safe
return bit_count((number::integer & 65535)::bit(32));
create or replace function tsql.bit_count(bytes bytea) returns bigint language sql immutable strict parallel safe return bit_count(bytes);
create or replace function tsql.bit_place(place integer, bits integer) returns integer language plpgsql immutable strict parallel safe as $$
begin
    if place not between 0 and bits - 1 then perform tsql.refuse(8114, format('The bit %s is outside of the %s bits of the value.', place, bits)); end if;
    return place;
end $$;
do $$
declare
    of text; bits integer;
begin
    for of, bits in values ('integer', 32), ('bigint', 64) loop
        execute format('create or replace function tsql.get_bit(number %1$s, place integer) returns smallint language sql immutable strict parallel safe '
                       'return ((number >> tsql.bit_place(place, %2$s)) & 1)::smallint', of, bits);
        execute format('create or replace function tsql.set_bit(number %1$s, place integer, value integer default 1) returns %1$s language sql immutable '
                       'strict parallel safe return set_bit(number::bit(%2$s), %2$s - 1 - tsql.bit_place(place, %2$s), (value <> 0)::integer)::%1$s', of, bits);
        execute format('create or replace function tsql.left_shift(number %1$s, places integer) returns %1$s language sql immutable strict parallel safe '
                       'return (case when places >= 0 then number::bit(%2$s) << least(places, %2$s) else number::bit(%2$s) >> least(-places, %2$s) end)::%1$s', of, bits);
        execute format('create or replace function tsql.right_shift(number %1$s, places integer) returns %1$s language sql immutable strict parallel safe '
                       'return tsql.left_shift(number, -places)', of);
    end loop;
end $$;
create or replace function tsql.get_bit(number smallint, place integer) returns smallint language sql immutable strict parallel safe
return tsql.get_bit(number::integer, place);
create or replace function tsql.set_bit(number smallint, place integer, value integer default 1) returns integer language sql immutable strict parallel safe
return tsql.set_bit(number::integer, place, value);
create or replace function tsql.left_shift(number smallint, places integer) returns integer language sql immutable strict parallel safe
return tsql.left_shift(number::integer, places);
create or replace function tsql.right_shift(number smallint, places integer) returns integer language sql immutable strict parallel safe
return tsql.right_shift(number::integer, places);

-- rowversion: one sequence for all tables, drawn from for every written row.
create sequence if not exists tsql.rowversions;
create or replace function tsql.next_rowversion() returns bytea language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    select int8send(nextval('tsql.rowversions'::regclass));
end;
create or replace function tsql.last_rowversion() returns bytea language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select int8send(case when is_called then last_value else 0 end) from tsql.rowversions;
end;
create or replace function tsql.stamp_rowversion() returns trigger language plpgsql as $$
begin
    return jsonb_populate_record(new, jsonb_build_object(tg_argv[0], '\x' || encode(tsql.next_rowversion(), 'hex')));
end $$;

-- --- sequences ---

-- NEXT VALUE FOR with OVER. `place` is the row's position in the order of OVER. PL/pgSQL, so that the planner cannot
-- drop the argument, and with it the order.
create or replace function tsql.next_value(sequence regclass, place bigint) returns bigint language plpgsql volatile as $$
begin
    return nextval(sequence);
end $$;

-- Several NEXT VALUE FOR of one sequence in a row return the same number. `place` is the position of the expression in
-- the row: when it comes a second time, a new row has begun. Rows of VALUES may lack positions, so in_row marks their
-- beginning. The drawn number is kept in a setting with the time of the statement. PL/pgSQL, so that the planner cannot
-- drop `number`, the row's position in the order of OVER.
create or replace function tsql.in_row(number bigint) returns boolean language plpgsql volatile as $$
begin
    perform set_config('servicebroker.drawn_row', number::text, true);
    return true;
end $$;
create or replace function tsql.next_in_row(sequence regclass, place text, number bigint default null) returns bigint
language plpgsql volatile as $$
declare
    setting constant text := 'servicebroker.drawn_' || sequence::oid;
    said constant jsonb := nullif(current_setting(setting, true), '');
    statement constant text := statement_timestamp();
    row_begun constant text := coalesce(current_setting('servicebroker.drawn_row', true), '');
    is_same constant boolean := coalesce(said ->> 0 = statement and said ->> 3 = row_begun and not said -> 2 ? place, false);
    drawn constant bigint := case when is_same then (said ->> 1)::bigint else nextval(sequence) end;
begin
    perform set_config(setting, jsonb_build_array(statement, drawn,
                                                  case when is_same then said -> 2 else '[]' end || to_jsonb(place), row_begun)::text, true);
    return drawn;
end $$;

create or replace function tsql.sequence_state(sequence regclass, out last_value bigint, out is_called boolean) language plpgsql stable as $$
begin
    execute format('select s.last_value, s.is_called from %s s', sequence) into last_value, is_called;
end $$;

-- ALTER SEQUENCE. NO MINVALUE and NO MAXVALUE become the bounds of the type; PostgreSQL would use 1 or -1 for one of
-- them.
create or replace function tsql.alter_sequence(sequence regclass, clauses text) returns void language plpgsql as $$
declare
    of regtype := (select s.seqtypid from pg_sequence s where s.seqrelid = sequence);
    most bigint := (select b.high from tsql.bounds() b
                     where b.type = case of when 'smallint'::regtype then 'smallint' when 'integer'::regtype then 'int' else 'bigint' end);
begin
    if of is null then
        raise exception using errcode = '42809', message = format('"%s" is not a sequence', sequence);
    end if;
    execute format('alter sequence %s %s', sequence,
                   replace(replace(clauses, 'NO MINVALUE', 'MINVALUE ' || -most - 1), 'NO MAXVALUE', 'MAXVALUE ' || most));
end $$;

-- The next level of a recursive common table expression. Beyond MAXRECURSION it is refused.
create or replace function tsql.level(before integer, most integer) returns integer language plpgsql immutable parallel safe as $$
begin
    if most > 0 and before >= most then
        perform tsql.refuse(530, format('The statement terminated. The maximum recursion %s has been exhausted before statement completion.', most));
    end if;
    return before + 1;
end $$;

-- PERCENTILE_CONT and PERCENTILE_DISC.
create or replace function tsql.percentile_cont(known float8[], part float8, is_down boolean) returns float8
language plpgsql immutable parallel safe as $$
begin
    if part not between 0 and 1 then perform tsql.refuse(10751, 'The percentile value must be between 0 and 1.'); end if;
    return (select percentile_cont(case when is_down then 1 - part else part end) within group (order by one) from unnest(known) one);
end $$;
create or replace function tsql.percentile_disc(known anyarray, part float8, is_down boolean) returns anyelement
language plpgsql immutable parallel safe as $$
begin
    if part not between 0 and 1 then perform tsql.refuse(10751, 'The percentile value must be between 0 and 1.'); end if;
    if is_down then return (select percentile_disc(part) within group (order by one desc) from unnest(known) one); end if;
    return (select percentile_disc(part) within group (order by one) from unnest(known) one);
end $$;

create or replace function tsql.sign(number anyelement) returns anyelement language sql immutable strict parallel safe
as $$ select case when number < 0 then number - number - 1 when number > 0 then number - number + 1 else number - number end $$;

-- Advance the sequence of an IDENTITY column to an explicitly inserted number, and return the number. Other sessions
-- may draw at the same time, and the sequence must never go back. So up to 1,000 steps are drawn one by one; beyond
-- that setval is used, under a lock (locks.TSQL_IDENTITY) against other sessions that do the same.
drop function if exists tsql.count_on(text, text);
create or replace function tsql.count_on(counter pg_sequence, number bigint) returns bigint language plpgsql volatile strict as $$
declare
    sequence constant regclass := counter.seqrelid;
    step constant numeric := counter.seqincrement;
    before constant numeric := counter.seqstart - step;
    steps constant numeric := (number - coalesce(pg_sequence_last_value(sequence), before)) / step;
begin
    if steps <= 0 then return number; end if;
    if steps <= 1000 and steps = trunc(steps) then
        while (number - nextval(sequence)) * step > 0 loop end loop;
        return number;
    end if;
    perform pg_advisory_xact_lock(1396834339, sequence::oid::integer);
    if (number - coalesce(pg_sequence_last_value(sequence), before)) * step > 0 then perform setval(sequence, number); end if;
    return number;
end $$;
