-- CAST between binary and other types: the bytes in which SQL Server stores a value, and their values.

-- The last `size` bytes, padded with zeros on the left: types other than strings are cut and padded on the left.
create or replace function tsql.low_bytes(bytes bytea, size integer) returns bytea language sql immutable strict parallel safe
return substring(decode(repeat('00', greatest(0, size - octet_length(bytes))), 'hex') || bytes,
                 greatest(0, octet_length(bytes) - size) + 1);

create or replace function tsql.turned(bytes bytea) returns bytea language sql immutable strict parallel safe
return coalesce((select string_agg(substring(bytes, place, 1), ''::bytea order by place desc)
                   from generate_series(1, octet_length(bytes)) place), ''::bytea);

-- A number of at least 0 as at most 16 bytes, big-endian; and back.
create or replace function tsql.natural_bytes(number numeric, size integer) returns bytea language sql immutable strict parallel safe
return tsql.low_bytes(int8send(div(number, 18446744073709551616)::bigint)
                      || int8send((mod(number, 18446744073709551616)
                                   - case when mod(number, 18446744073709551616) > 9223372036854775807
                                          then 18446744073709551616 else 0 end)::bigint), size);
create or replace function tsql.natural_of(bytes bytea) returns numeric language sql immutable strict parallel safe
return coalesce((select sum(get_byte(bytes, place) * power(256::numeric, octet_length(bytes) - 1 - place))
                   from generate_series(0, octet_length(bytes) - 1) place), 0)::numeric(39, 0);

create or replace function tsql.byte_of(number integer) returns bytea language sql immutable strict parallel safe
return substring(int4send(number), 4, 1);

-- --- to bytes ---

-- A decimal: four bytes of header, then as many words of four bytes as the number needs.
create or replace function tsql.bytes_of_decimal(value numeric, digits integer, scale integer) returns bytea
language sql immutable strict parallel safe
return (select tsql.byte_of(digits) || tsql.byte_of(scale) || '\x00'::bytea || tsql.byte_of((value >= 0)::integer)
               || tsql.turned(tsql.natural_bytes(whole, case when whole < 4294967296 then 4 when whole < 18446744073709551616 then 8
                                                             when whole < 79228162514264337593543950336 then 12 else 16 end))
          from (select round(abs(value) * power(10::numeric, scale)) as whole) number);
create or replace function tsql.bytes_of_money(value numeric) returns bytea language sql immutable strict parallel safe
return int8send((value * 10000)::bigint);
create or replace function tsql.bytes_of_float(value float8) returns bytea language sql immutable strict parallel safe return float8send(value);
create or replace function tsql.bytes_of_real(value float8) returns bytea language sql immutable strict parallel safe return float4send(value::real);
create or replace function tsql.bytes_of_date(value date) returns bytea language sql immutable strict parallel safe
return tsql.turned(substring(int4send(value - date '0001-01-01'), 2, 3));
create or replace function tsql.bytes_of_time(value time, scale integer) returns bytea language sql immutable strict parallel safe
return tsql.byte_of(scale) || tsql.turned(tsql.natural_bytes(
           round(extract(epoch from value) * power(10::numeric, scale)), case when scale < 3 then 3 when scale < 5 then 4 else 5 end));
create or replace function tsql.bytes_of_datetime2(value timestamp, scale integer) returns bytea language sql immutable strict parallel safe
return tsql.bytes_of_time(value::time, scale) || tsql.bytes_of_date(value::date);
create or replace function tsql.bytes_of_datetimeoffset(value timestamptz, scale integer) returns bytea
language sql immutable strict parallel safe
return tsql.bytes_of_datetime2(value at time zone 'UTC', scale) || '\x0000'::bytea;
create or replace function tsql.bytes_of_smalldatetime(value timestamp) returns bytea language sql immutable strict parallel safe
return tsql.natural_bytes(value::date - date '1900-01-01', 2)
       || tsql.natural_bytes(floor(extract(epoch from value::time) / 60), 2);

-- --- from bytes ---

create or replace function tsql.decimal_of_bytes(bytes bytea) returns numeric language plpgsql immutable strict parallel safe as $$
begin
    if octet_length(bytes) < 5 then perform tsql.refuse(8114, 'Error converting data type varbinary to numeric.'); end if;
    return tsql.natural_of(tsql.turned(substring(bytes, 5))) * case get_byte(bytes, 3) when 0 then -1 else 1 end
           / power(10::numeric, get_byte(bytes, 1));
end $$;
create or replace function tsql.money_of_bytes(bytes bytea) returns numeric language sql immutable strict parallel safe
return tsql.number_of(bytes) / 10000.0;
create or replace function tsql.smallmoney_of_bytes(bytes bytea) returns numeric language sql immutable strict parallel safe
return tsql.to_int(bytes) / 10000.0;
create or replace function tsql.date_of_bytes(bytes bytea) returns date language sql immutable strict parallel safe
return date '0001-01-01' + tsql.natural_of(tsql.turned(substring(bytes, 1, 3)))::integer;
create or replace function tsql.datetime_of_bytes(bytes bytea) returns timestamp language sql immutable strict parallel safe
return timestamp '1900-01-01' + tsql.to_int(substring(tsql.low_bytes(bytes, 8), 1, 4)) * interval '1 day'
       + tsql.to_int(bytes) / 300.0 * interval '1 second';
create or replace function tsql.smalldatetime_of_bytes(bytes bytea) returns timestamp language sql immutable strict parallel safe
return timestamp '1900-01-01' + tsql.natural_of(substring(tsql.low_bytes(bytes, 4), 1, 2))::float8 * interval '1 day'
       + tsql.natural_of(substring(tsql.low_bytes(bytes, 4), 3, 2))::float8 * interval '1 minute';
create or replace function tsql.time_of_bytes(bytes bytea) returns time language plpgsql immutable strict parallel safe as $$
begin
    if octet_length(bytes) < 4 then
        perform tsql.refuse(241, 'Conversion failed when converting date and/or time from binary.');
    end if;
    return time '00:00' + (tsql.natural_of(tsql.turned(substring(bytes, 2))) / power(10::numeric, get_byte(bytes, 0)))::float8
                          * interval '1 second';
end $$;
create or replace function tsql.datetime2_of_bytes(bytes bytea) returns timestamp language plpgsql immutable strict parallel safe as $$
begin
    if octet_length(bytes) < 7 then
        perform tsql.refuse(241, 'Conversion failed when converting date and/or time from binary.');
    end if;
    return tsql.date_of_bytes(substring(bytes, octet_length(bytes) - 2)) + tsql.time_of_bytes(substring(bytes, 1, octet_length(bytes) - 3));
end $$;

create or replace function tsql.sha1(data bytea) returns bytea language plpgsql immutable strict parallel safe as $$
declare
    mask constant bigint := 4294967295;
    h bigint[] := array[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
    whole bytea := data || '\x80'::bytea || decode(repeat('00', (119 - length(data) % 64) % 64), 'hex') || int8send(length(data)::bigint * 8);
    w bigint[];
    a bigint; b bigint; c bigint; d bigint; e bigint; f bigint; k bigint; t bigint;
begin
    for block in 0 .. length(whole) / 64 - 1 loop
        w := '{}';
        for i in 0 .. 15 loop
            t := block * 64 + i * 4;
            w := w || ((get_byte(whole, t::integer)::bigint << 24) | (get_byte(whole, t::integer + 1)::bigint << 16)
                       | (get_byte(whole, t::integer + 2)::bigint << 8) | get_byte(whole, t::integer + 3));
        end loop;
        for i in 17 .. 80 loop
            t := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
            w := w || (((t << 1) | (t >> 31)) & mask);
        end loop;
        a := h[1]; b := h[2]; c := h[3]; d := h[4]; e := h[5];
        for i in 1 .. 80 loop
            if i <= 20 then f := (b & c) | (~b & mask & d); k := 1518500249;
            elsif i <= 40 then f := b # c # d; k := 1859775393;
            elsif i <= 60 then f := (b & c) | (b & d) | (c & d); k := 2400959708;
            else f := b # c # d; k := 3395469782;
            end if;
            t := ((((a << 5) | (a >> 27)) & mask) + f + e + k + w[i]) & mask;
            e := d; d := c; c := ((b << 30) | (b >> 2)) & mask; b := a; a := t;
        end loop;
        h := array[(h[1] + a) & mask, (h[2] + b) & mask, (h[3] + c) & mask, (h[4] + d) & mask, (h[5] + e) & mask];
    end loop;
    return substr(int8send(h[1]), 5) || substr(int8send(h[2]), 5) || substr(int8send(h[3]), 5) || substr(int8send(h[4]), 5) || substr(int8send(h[5]), 5);
end $$;
