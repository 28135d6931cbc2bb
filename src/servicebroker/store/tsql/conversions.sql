-- CAST and CONVERT: one function for each target type, overloaded by the source type. Errors have T-SQL's numbers and
-- texts.

create or replace function tsql.refuse(number integer, said text) returns void language plpgsql immutable as $$
begin
    raise exception using
        errcode = case when number < 10000 then 'S' || lpad(number::text, 4, '0') else 'SB000' end,
        message = format('Msg %s, Level 16, State 1: %s', number, said);
end $$;

-- --- UTF-16 and code page 1252; the character U+0000, which no text of PostgreSQL can hold, becomes tsql.zero() ---

create or replace function tsql.utf16_decoded(bytes bytea) returns text language plpgsql immutable strict parallel safe as $$
declare
    digits text := encode(bytes, 'hex');
    units integer[];
    signs text[] := '{}';
    high integer;
    unit integer;
begin
    if octet_length(bytes) % 2 = 1 then digits := digits || '00'; end if;
    if digits ~ '^(?:[0-7][0-9a-f]00)*$' then
        digits := regexp_replace(digits, '(..)00', '\1', 'g');
        if digits !~ '^(?:..)*00' then return convert_from(decode(digits, 'hex'), 'UTF8'); end if;
        digits := regexp_replace(digits, '(..)', '\100', 'g');
    end if;
    bytes := decode(digits, 'hex');
    for place in 0 .. octet_length(bytes) / 2 - 1 loop
        unit := get_byte(bytes, place * 2) + get_byte(bytes, place * 2 + 1) * 256;
        if unit = 0 then
            if high is not null then signs := signs || chr(65533); high := null; end if;
            signs := signs || tsql.zero();
        elsif unit between 55296 and 56319 then
            if high is not null then signs := signs || chr(65533); end if;
            high := unit;
        elsif unit between 56320 and 57343 then
            signs := signs || case when high is null or (high = 56319 and unit = 57343) then chr(65533)  -- U+10FFFF
                                   else chr(65536 + (high - 55296) * 1024 + unit - 56320) end;
            high := null;
        else
            if high is not null then signs := signs || chr(65533); high := null; end if;
            signs := signs || chr(unit);
        end if;
    end loop;
    return array_to_string(signs, '') || case when high is null then '' else chr(65533) end;
end $$;

create or replace function tsql.utf16_encoded(said text) returns bytea language plpgsql immutable strict parallel safe as $$
declare
    units text;
begin
    if octet_length(said) = length(said) then
        return decode(regexp_replace(encode(convert_to(said, 'UTF8'), 'hex'), '(..)', '\100', 'g'), 'hex');
    end if;
    select string_agg(
               case when sign = tsql.zero() then '0000' when point < 65536 then lpad(to_hex(point % 256), 2, '0') || lpad(to_hex(point / 256), 2, '0')
                    else lpad(to_hex((55296 + (point - 65536) / 1024) % 256), 2, '0')
                         || lpad(to_hex((55296 + (point - 65536) / 1024) / 256), 2, '0')
                         || lpad(to_hex((56320 + (point - 65536) % 1024) % 256), 2, '0')
                         || lpad(to_hex((56320 + (point - 65536) % 1024) / 256), 2, '0')
               end, '' order by place) into units
      from (select ascii(sign) as point, sign, place from regexp_split_to_table(said, '') with ordinality as s(sign, place)) p;
    return decode(coalesce(units, ''), 'hex');
end $$;

-- A text in code page 1252: characters that it lacks become question marks. The five bytes that it leaves undefined are
-- the characters of the same number.
create or replace function tsql.single(said text) returns text language sql immutable strict parallel safe
return case when octet_length(said) = length(said) then said
            else regexp_replace(said, '[^\u0001-\u007f\u0081\u008d\u008f\u0090\u009d\u00a0-\u00ff€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ' || tsql.zero() || ']', '?', 'g') end;

create or replace function tsql.single_encoded(said text) returns bytea language plpgsql immutable strict parallel safe as $$
begin
    said := tsql.single(said);
    if said !~ ('[\u0081\u008d\u008f\u0090\u009d' || tsql.zero() || ']') then return convert_to(said, 'WIN1252'); end if;
    return (select decode(string_agg(
                       case when sign = tsql.zero() then '00'
                            when ascii(sign) between 128 and 159 then to_hex(ascii(sign))
                            else encode(convert_to(sign, 'WIN1252'), 'hex') end, '' order by place), 'hex')
              from regexp_split_to_table(said, '') with ordinality s(sign, place));
end $$;

create or replace function tsql.single_decoded(bytes bytea) returns text language plpgsql immutable strict parallel safe as $$
begin
    return convert_from(bytes, 'WIN1252');
exception when others then
    return (select string_agg(
                       case when get_byte(bytes, place) = 0 then tsql.zero()
                            when get_byte(bytes, place) in (129, 141, 143, 144, 157) then chr(get_byte(bytes, place))
                            else convert_from(substring(bytes, place + 1, 1), 'WIN1252') end, '' order by place)
              from generate_series(0, octet_length(bytes) - 1) place);
end $$;

create or replace function tsql.uuid_bytes(id uuid) returns bytea language sql immutable strict parallel safe
return (select substring(b, 4, 1) || substring(b, 3, 1) || substring(b, 2, 1) || substring(b, 1, 1)
               || substring(b, 6, 1) || substring(b, 5, 1) || substring(b, 8, 1) || substring(b, 7, 1)
               || substring(b, 9, 8) from (select uuid_send(id) as b) own);

create or replace function tsql.hexadecimal(bytes bytea, style integer) returns text language sql immutable strict parallel safe
return case style when 1 then '0x' else '' end || upper(encode(bytes, 'hex'));

create or replace function tsql.from_hexadecimal(said text, style integer) returns bytea
language plpgsql immutable strict parallel safe as $$
begin
    if style = 1 and said !~* '^0x' or (case style when 1 then substr(said, 3) else said end) !~* '^([0-9a-f]{2})*$' then
        perform tsql.refuse(8114, 'Error converting data type nvarchar to varbinary.');
    end if;
    return decode(case style when 1 then substr(said, 3) else said end, 'hex');
end $$;

create or replace function tsql.padded(bytes bytea, size integer) returns bytea language sql immutable strict parallel safe
return substring(bytes || decode(repeat('00', greatest(0, size - octet_length(bytes))), 'hex'), 1, size);

-- --- to strings ---

-- float as text: 6 significant digits, with style 1 eight, 2 sixteen, 3 seventeen. tsql/conversion.py has the same
-- rules in Python: _float_text and _money.
create or replace function tsql.float_text(number float8, style integer) returns text language sql immutable strict parallel safe
return (select case when number = 0 and style not in (1, 2, 3) then '0'
                    when style in (1, 2, 3) or exponent not between -4 and 5 then
                         case when style in (1, 2, 3) then mantissa else trim_scale(mantissa::numeric)::text end
                         || 'e' || case when exponent < 0 then '-' else '+' end || lpad(abs(exponent)::text, 3, '0')
                    else trim_scale(mantissa::numeric * power(10::numeric, exponent))::text end
          from (select split_part(said, 'e', 1) as mantissa, split_part(said, 'e', 2)::integer as exponent
                  from (select btrim(to_char(number, '9.' || repeat('9', case style when 1 then 7 when 2 then 15 when 3 then 16 else 5 end)
                                                      || 'EEEE')) as said) written) parts);

create or replace function tsql.float_text(number float8) returns text language sql immutable strict parallel safe return tsql.float_text(number, 0);

-- money as text: two decimals, in style 1 with commas; four decimals in style 2.
create or replace function tsql.money_text(amount numeric, style integer) returns text language sql immutable strict parallel safe
return case style when 1 then to_char(round(amount, 2), 'FM999G999G999G999G999G990D00') when 2 then round(amount, 4)::text
                  when 126 then round(amount, 4)::text else round(amount, 2)::text end;

create or replace function tsql.moment_text(moment timestamp, style integer) returns text
language plpgsql immutable strict parallel safe as $$
declare
    masks constant jsonb := '{"1": "MM/DD/YY", "2": "YY.MM.DD", "3": "DD/MM/YY", "4": "DD.MM.YY", "5": "DD-MM-YY",
        "8": "HH24:MI:SS", "10": "MM-DD-YY", "11": "YY/MM/DD", "12": "YYMMDD", "14": "HH24:MI:SS:MS", "20": "YYYY-MM-DD HH24:MI:SS",
        "21": "YYYY-MM-DD HH24:MI:SS.MS", "23": "YYYY-MM-DD", "24": "HH24:MI:SS", "25": "YYYY-MM-DD HH24:MI:SS.MS",
        "101": "MM/DD/YYYY", "102": "YYYY.MM.DD", "103": "DD/MM/YYYY", "104": "DD.MM.YYYY", "105": "DD-MM-YYYY",
        "106": "DD Mon YYYY", "107": "Mon DD, YYYY", "108": "HH24:MI:SS", "110": "MM-DD-YYYY", "111": "YYYY/MM/DD",
        "112": "YYYYMMDD", "113": "DD Mon YYYY HH24:MI:SS:MS", "114": "HH24:MI:SS:MS", "120": "YYYY-MM-DD HH24:MI:SS",
        "121": "YYYY-MM-DD HH24:MI:SS.MS", "126": "YYYY-MM-DD\"T\"HH24:MI:SS.MS", "127": "YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\""}';
    zone text;
begin
    if style in (0, 100) then
        return to_char(moment, 'Mon ') || lpad(to_char(moment, 'FMDD'), 2) || to_char(moment, ' YYYY ')
            || lpad(to_char(moment, 'FMHH12:MIAM'), 7);
    elsif style in (9, 109) then
        return to_char(moment, 'Mon ') || lpad(to_char(moment, 'FMDD'), 2) || to_char(moment, ' YYYY ')
            || lpad(to_char(moment, 'FMHH12:MI:SS:MSAM'), 14);
    elsif not masks ? style::text then
        perform tsql.refuse(281, format('%s is not a valid style number when converting from datetime to a character string.', style));
    end if;
    if style in (126, 127) and date_part('microsecond', moment)::integer % 1000000 = 0 then
        return to_char(moment, replace(masks ->> style::text, '.MS', ''));
    end if;
    return to_char(moment, masks ->> style::text);
end $$;

create or replace function tsql.to_nvarchar(said text) returns text language sql immutable parallel safe return said;
create or replace function tsql.to_nvarchar(said text, style integer) returns text language sql immutable parallel safe return said;
create or replace function tsql.to_nvarchar(bytes bytea) returns text language sql immutable parallel safe return tsql.utf16_decoded(bytes);
create or replace function tsql.to_nvarchar(bytes bytea, style integer) returns text language sql immutable parallel safe
return case style when 0 then tsql.utf16_decoded(bytes) else tsql.hexadecimal(bytes, style) end;
create or replace function tsql.to_nvarchar(id uuid) returns text language sql immutable parallel safe return upper(id::text);
create or replace function tsql.to_nvarchar(number smallint) returns text language sql immutable parallel safe return number::text;
create or replace function tsql.to_nvarchar(number integer) returns text language sql immutable parallel safe return number::text;
create or replace function tsql.to_nvarchar(number bigint) returns text language sql immutable parallel safe return number::text;
create or replace function tsql.to_nvarchar(number numeric) returns text language sql immutable parallel safe return number::text;
create or replace function tsql.to_nvarchar(number numeric, style integer) returns text language sql immutable parallel safe
return number::text;
create or replace function tsql.to_nvarchar(number integer, style integer) returns text language sql immutable parallel safe return number::text;
create or replace function tsql.to_nvarchar(number float8) returns text language sql immutable parallel safe return tsql.float_text(number);
create or replace function tsql.to_nvarchar(number float8, style integer) returns text language sql immutable parallel safe
return tsql.float_text(number, style);
create or replace function tsql.to_nvarchar(moment timestamp) returns text language sql immutable parallel safe return tsql.moment_text(moment, 0);
create or replace function tsql.to_nvarchar(moment timestamp, style integer) returns text language sql immutable parallel safe
return tsql.moment_text(moment, style);
create or replace function tsql.to_nvarchar(moment timestamptz) returns text language sql immutable parallel safe
return tsql.moment_text(moment at time zone 'UTC', 0);
create or replace function tsql.to_nvarchar(moment timestamptz, style integer) returns text language sql immutable parallel safe
return tsql.moment_text(moment at time zone 'UTC', style);
create or replace function tsql.to_nvarchar(day date) returns text language sql immutable parallel safe return to_char(day, 'YYYY-MM-DD');
create or replace function tsql.to_nvarchar(day date, style integer) returns text language sql immutable parallel safe
return tsql.moment_text(day, case when style = 121 then 23 else style end);
create or replace function tsql.to_nvarchar(moment time) returns text language sql immutable parallel safe return moment::text;
create or replace function tsql.to_nvarchar(moment time, style integer) returns text language sql immutable parallel safe
return case when style in (0, 100) then to_char(timestamp '1900-01-01' + moment, 'FMHH12:MIAM')
            when style in (8, 24, 108) then to_char(timestamp '1900-01-01' + moment, 'HH24:MI:SS') else moment::text end;
create or replace function tsql.to_nvarchar(truth boolean) returns text language sql immutable parallel safe return truth::integer::text;

-- datetime2, time and datetimeoffset as text, with `scale` digits of a second.
create or replace function tsql.scaled_text(moment timestamp, scale integer) returns text language sql immutable strict parallel safe
return to_char(moment, 'YYYY-MM-DD HH24:MI:SS') || case scale when 0 then '' else left(to_char(moment, '.US') || '0', scale + 1) end;
create or replace function tsql.scaled_text(moment time, scale integer) returns text language sql immutable strict parallel safe
return substr(tsql.scaled_text(date '2000-01-01' + moment, scale), 12);
create or replace function tsql.scaled_text(moment timestamptz, scale integer) returns text language sql immutable strict parallel safe
return tsql.scaled_text(moment at time zone 'UTC', scale) || ' +00:00';

-- datetime2 and time as text of a style, with `scale` digits of a second where a datetime has milliseconds.
create or replace function tsql.scaled_style(moment timestamp, scale integer, style integer) returns text language sql immutable strict parallel safe
return case when style in (9, 13, 14, 21, 25, 109, 113, 114, 121, 126, 127)
            then regexp_replace(tsql.moment_text(moment, style), '(:\d\d)[.:]\d{3}(?=[APZ]|$)',
                                '\1' || substr(tsql.scaled_text(moment, scale), 20))
            else tsql.moment_text(moment, style) end;
create or replace function tsql.scaled_style(moment time, scale integer, style integer) returns text language sql immutable strict parallel safe
return case when style in (0, 100) then to_char(timestamp '1900-01-01' + moment, 'FMHH12:MIAM')
            when style in (9, 109) then substr(tsql.scaled_style(timestamp '1900-01-01' + moment, scale, style), 13)
            when style in (8, 20, 24, 108, 120) or style in (126, 127) and date_trunc('second', moment) = moment
            then to_char(timestamp '1900-01-01' + moment, 'HH24:MI:SS')
            else tsql.scaled_text(moment, scale) end;

do $$
declare
    source text;
begin
    foreach source in array array['text', 'uuid', 'smallint', 'integer', 'bigint', 'numeric', 'float8', 'timestamp', 'timestamptz', 'date', 'time'] loop
        execute format('create or replace function tsql.to_varchar(value %s) returns text language sql immutable parallel safe '
                       'return tsql.single(tsql.to_nvarchar(value))', source);
    end loop;
    foreach source in array array['text', 'integer', 'numeric', 'float8', 'timestamp', 'timestamptz', 'date', 'time'] loop
        execute format('create or replace function tsql.to_varchar(value %s, style integer) returns text language sql immutable parallel safe '
                       'return tsql.single(tsql.to_nvarchar(value, style))', source);
    end loop;
end $$;
create or replace function tsql.to_varchar(bytes bytea) returns text language sql immutable parallel safe return tsql.single_decoded(bytes);
create or replace function tsql.to_varchar(bytes bytea, style integer) returns text language sql immutable parallel safe
return case style when 0 then tsql.single_decoded(bytes) else tsql.hexadecimal(bytes, style) end;

-- --- to bytes ---

create or replace function tsql.to_varbinary(said text) returns bytea language sql immutable parallel safe return tsql.utf16_encoded(said);
create or replace function tsql.to_varbinary(said text, style integer) returns bytea language sql immutable parallel safe
return case style when 0 then tsql.utf16_encoded(said) else tsql.from_hexadecimal(said, style) end;
create or replace function tsql.to_varbinary_single(said text) returns bytea language sql immutable parallel safe
return tsql.single_encoded(said);
create or replace function tsql.to_varbinary_single(said text, style integer) returns bytea language sql immutable parallel safe
return case style when 0 then tsql.single_encoded(said) else tsql.from_hexadecimal(said, style) end;
create or replace function tsql.to_varbinary_xml(said text) returns bytea language sql immutable parallel safe
return '\xfffe'::bytea || tsql.utf16_encoded(said);
create or replace function tsql.to_varbinary(bytes bytea) returns bytea language sql immutable parallel safe return bytes;
create or replace function tsql.to_varbinary(bytes bytea, style integer) returns bytea language sql immutable parallel safe return bytes;
create or replace function tsql.to_varbinary(number smallint) returns bytea language sql immutable parallel safe return int2send(number);
create or replace function tsql.to_varbinary(number integer) returns bytea language sql immutable parallel safe return int4send(number);
create or replace function tsql.to_varbinary(number bigint) returns bytea language sql immutable parallel safe return int8send(number);
create or replace function tsql.to_varbinary(id uuid) returns bytea language sql immutable parallel safe return tsql.uuid_bytes(id);
create or replace function tsql.to_varbinary(moment timestamp) returns bytea language sql immutable parallel safe
return int4send(moment::date - date '1900-01-01')
       || int4send((date_part('epoch', moment - date_trunc('day', moment)) * 300)::integer);

-- --- to numbers ---

-- `source`, nvarchar or varchar, is named in errors. Functions whose names end with _single convert varchar.
create or replace function tsql.whole_of_text(value text, type text, low numeric, high numeric, source text) returns numeric
language plpgsql immutable strict parallel safe as $$
declare
    said text := btrim(value, E' \t\r\n');
begin
    if said in ('', '-', '+') then return 0; end if;
    if said !~ '^[+-]?\d+$' then
        perform tsql.refuse(245, format('Conversion failed when converting the %s value ''%s'' to data type %s.', source, left(value, 200), type));
    end if;
    if said::numeric not between low and high then
        if type = 'bigint' then perform tsql.refuse(8115, 'Arithmetic overflow error converting expression to data type bigint.'); end if;
        perform tsql.refuse(case type when 'int' then 248 else 244 end,
                            format('The conversion of the %s value ''%s'' overflowed an %s column.%s', source, left(value, 200),
                                   case type when 'tinyint' then 'INT1' when 'smallint' then 'INT2' else type end,
                                   case type when 'int' then '' else ' Use a larger integer column.' end));
    end if;
    return said::numeric;
end $$;
create or replace function tsql.whole(value text, type text, low numeric, high numeric) returns numeric
language sql immutable strict parallel safe return tsql.whole_of_text(value, type, low, high, 'nvarchar');

create or replace function tsql.whole(value numeric, type text, low numeric, high numeric) returns numeric
language plpgsql immutable strict parallel safe as $$
begin
    if trunc(value) not between low and high then
        perform tsql.refuse(8115, format('Arithmetic overflow error converting expression to data type %s.', type));
    end if;
    return trunc(value);
end $$;

-- Conversion of an integer to a smaller type; tsql.tiny checks results of calculations. For int the error number is
-- that of a calculation.
create or replace function tsql.whole_of_integer(value bigint, type text, low bigint, high bigint) returns bigint
language plpgsql immutable strict parallel safe as $$
begin
    if value not between low and high and type in ('tinyint', 'smallint') then
        perform tsql.refuse(220, format('Arithmetic overflow error for data type %s, value = %s.', type, value));
    end if;
    return tsql.whole(value::numeric, type, low, high);
end $$;
create or replace function tsql.whole_of_float(value float8, type text, low numeric, high numeric) returns numeric
language plpgsql immutable strict parallel safe as $$
begin
    if trunc(value) not between low and high then
        perform tsql.refuse(232, format('Arithmetic overflow error for type %s, value = %s.', type, round(value::numeric, 6)));
    end if;
    return trunc(value::numeric);
end $$;
create or replace function tsql.money_within(value numeric, type text, low numeric, high numeric) returns numeric
language plpgsql immutable strict parallel safe as $$
begin
    if round(value, 4) not between low and high then
        perform tsql.refuse(8115, format('Arithmetic overflow error converting expression to data type %s.', type));
    end if;
    return round(value, 4);
end $$;
create or replace function tsql.money_written(value text, type text) returns numeric language plpgsql immutable strict parallel safe as $$
declare
    said text := regexp_replace(btrim(value), '^([+-]?)[$€£]', '\1');
begin
    if said ~ '^[+-]?,*\.?$' then return 0; end if;  -- signs without a digit
    if said !~ '^[+-]?[\d,]*\.?\d*$' then
        perform tsql.refuse(case type when 'money' then 235 else 293 end,
                            format('Cannot convert a char value to %s. The char value has incorrect syntax.', type));
    end if;
    return replace(said, ',', '')::numeric;
end $$;

create or replace function tsql.datetime_of_days(days float8) returns timestamp language plpgsql immutable strict parallel safe as $$
begin
    if days < -53690 or days >= 2958464 then
        perform tsql.refuse(8115, 'Arithmetic overflow error converting expression to data type datetime.');
    end if;
    return timestamp '1900-01-01' + days * interval '1 day';
end $$;

-- The number in the last eight bytes, big-endian.
create or replace function tsql.number_of(bytes bytea) returns bigint language sql immutable strict parallel safe
return ('x' || right(repeat('0', 16) || encode(bytes, 'hex'), 16))::bit(64)::bigint;

do $$
declare
    target record;
    source text;
begin
    for target in select k.column1, k.column2, b.low as column3, b.high as column4, k.column3 as column5
                    from (values ('int', 'integer', 4), ('bigint', 'bigint', 8), ('smallint', 'smallint', 2), ('tinyint', 'smallint', 1)) k
                    join tsql.bounds() b on b.type = k.column1 loop
        foreach source in array array['text', 'numeric'] loop
            execute format('create or replace function tsql.to_%s(value %s) returns %s language sql immutable parallel safe '
                           'return tsql.whole(value, %L, %s, %s)::%s', target.column1, source, target.column2,
                           target.column1, target.column3, target.column4, target.column2);
        end loop;
        execute format('create or replace function tsql.to_%s_single(value text) returns %s language sql immutable parallel safe '
                       'return tsql.whole_of_text(value, %L, %s, %s, ''varchar'')::%s', target.column1, target.column2,
                       target.column1, target.column3, target.column4, target.column2);
        foreach source in array array['smallint', 'integer', 'bigint', 'float8'] loop
            execute format('create or replace function tsql.to_%s(value %s) returns %s language sql immutable parallel safe '
                           'return tsql.whole_of_%s(value, %L, %s, %s)::%s', target.column1, source, target.column2,
                           case source when 'float8' then 'float' else 'integer' end,
                           target.column1, target.column3, target.column4, target.column2);
        end loop;
        execute format('create or replace function tsql.to_%s(value boolean) returns %s language sql immutable parallel safe '
                       'return value::integer::%s', target.column1, target.column2, target.column2);
        execute format('create or replace function tsql.to_%s(value timestamp) returns %s language sql immutable parallel safe '
                       'return tsql.whole_of_integer((value + interval ''12 hours'')::date - date ''1900-01-01'', %L, %s, %s)::%s',
                       target.column1, target.column2, target.column1, target.column3, target.column4, target.column2);
        if target.column5 = 4 then
            execute 'create or replace function tsql.to_int(value bytea) returns integer language sql immutable parallel safe '
                    'return (''x'' || right(''00000000'' || encode(value, ''hex''), 8))::bit(32)::integer';
        elsif target.column5 = 1 then
            execute 'create or replace function tsql.to_tinyint(value bytea) returns smallint language sql immutable parallel safe '
                    'return (tsql.number_of(value) & 255)::smallint';
        elsif target.column5 = 2 then
            execute 'create or replace function tsql.to_smallint(value bytea) returns smallint language sql immutable parallel safe '
                    'return ((tsql.number_of(value) << 48) >> 48)::smallint';
        else
            execute 'create or replace function tsql.to_bigint(value bytea) returns bigint language sql immutable parallel safe '
                    'return tsql.number_of(value)';
        end if;
        execute format('create or replace function tsql.to_%s(value anyelement, style integer) returns %s language sql immutable '
                       'parallel safe as ''select tsql.to_%s(value)''', target.column1, target.column2, target.column1);
    end loop;
    foreach source in array array['smallint', 'integer', 'bigint', 'numeric', 'float8'] loop
        execute format('create or replace function tsql.to_bit(value %s) returns smallint language sql immutable parallel safe '
                       'return (value <> 0)::integer::smallint', source);
        execute format('create or replace function tsql.to_decimal(value %s) returns numeric language sql immutable parallel safe '
                       'return value::numeric', source);
        execute format('create or replace function tsql.to_float(value %s) returns float8 language sql immutable parallel safe '
                       'return value::float8', source);
        execute format('create or replace function tsql.to_datetime(value %s) returns timestamp language sql immutable parallel safe '
                       'return tsql.datetime_of_days(value::float8)', source);
    end loop;
    for target in select * from tsql.bounds() where type in ('money', 'smallmoney') loop
        foreach source in array array['smallint', 'integer', 'bigint', 'numeric', 'float8'] loop
            execute format('create or replace function tsql.to_%s(value %s) returns numeric language sql immutable parallel safe '
                           'return tsql.money_within(value::numeric, %1$L, %3$s, %4$s)', target.type, source, target.low, target.high);
        end loop;
        execute format('create or replace function tsql.to_%s(value text) returns numeric language sql immutable parallel safe '
                       'return tsql.to_%1$s(tsql.money_written(value, %1$L))', target.type);
        execute format('create or replace function tsql.to_%s(value anyelement, style integer) returns numeric language sql immutable '
                       'parallel safe as ''select tsql.to_%1$s(value)''', target.type);
    end loop;
end $$;
-- The text of a number, if it fits into a string type of this size. If not: the error `number` with the text
-- `otherwise`, or, if `number` is 0, that text itself.
create or replace function tsql.fitted(said text, size integer, number integer, otherwise text) returns text
language plpgsql immutable parallel safe as $$
begin
    if length(said) > size then
        if number > 0 then perform tsql.refuse(number, otherwise); end if;
        return otherwise;
    end if;
    return said;
end $$;
-- The number if it fits into a decimal, else null.
create or replace function tsql.within(number numeric, scale integer, most numeric) returns numeric language plpgsql immutable strict parallel safe as $$
begin
    return case when abs(round(number, scale)) < most then number end;
end $$;
-- The result of a calculation with decimals. More than 38 digits are an overflow.
create or replace function tsql.wide(number numeric) returns numeric language plpgsql immutable strict parallel safe as $$
begin
    if abs(number) >= 1e38 then perform tsql.refuse(8115, 'Arithmetic overflow error converting expression to data type numeric.'); end if;
    return number;
end $$;
-- The result of a calculation with tinyint, checked as tinyint: PostgreSQL's smallint would allow 300.
create or replace function tsql.tiny(value integer) returns smallint language sql immutable strict parallel safe
return tsql.to_tinyint(value::numeric);

-- A datetime as a number: days since 1900-01-01, with fractions.
create or replace function tsql.to_decimal(value timestamp) returns numeric language sql immutable parallel safe
return extract(epoch from value - timestamp '1900-01-01') / 86400;
create or replace function tsql.to_money(value timestamp) returns numeric language sql immutable parallel safe return round(tsql.to_decimal(value), 4);
create or replace function tsql.to_float(value timestamp) returns float8 language sql immutable parallel safe return tsql.to_decimal(value)::float8;
create or replace function tsql.to_bit(value timestamp) returns smallint language sql immutable parallel safe
return (value <> timestamp '1900-01-01')::integer::smallint;

create or replace function tsql.bit_of_text(value text, source text) returns smallint language plpgsql immutable strict parallel safe as $$
begin
    return case lower(btrim(value)) when 'true' then 1 when 'false' then 0 when '' then 0
                else (tsql.whole_of_text(value, 'bit', -9e30, 9e30, source) <> 0)::integer end;
end $$;
create or replace function tsql.to_bit(value text) returns smallint language sql immutable strict parallel safe return tsql.bit_of_text(value, 'nvarchar');
create or replace function tsql.to_bit_single(value text) returns smallint language sql immutable strict parallel safe return tsql.bit_of_text(value, 'varchar');
create or replace function tsql.to_bit(value bytea) returns smallint language sql immutable parallel safe
return (tsql.number_of(value) <> 0)::integer::smallint;
create or replace function tsql.to_bit(value boolean) returns smallint language sql immutable parallel safe return value::integer::smallint;

create or replace function tsql.decimal_of_text(value text, source text) returns numeric language plpgsql immutable strict parallel safe as $$
begin
    if btrim(value) !~ '^[+-]?(\d+\.?\d*|\.\d+)$' then
        perform tsql.refuse(8114, format('Error converting data type %s to numeric.', source));
    end if;
    return btrim(value)::numeric;
end $$;
create or replace function tsql.to_decimal(value text) returns numeric language sql immutable strict parallel safe return tsql.decimal_of_text(value, 'nvarchar');
create or replace function tsql.to_decimal_single(value text) returns numeric language sql immutable strict parallel safe return tsql.decimal_of_text(value, 'varchar');

create or replace function tsql.float_of_text(value text, source text) returns float8 language plpgsql immutable strict parallel safe as $$
begin
    if btrim(value) = '' then return 0; end if;
    if btrim(value) !~* '^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$' then
        perform tsql.refuse(8114, format('Error converting data type %s to float.', source));
    end if;
    return btrim(value)::float8;
end $$;
create or replace function tsql.to_float(value text) returns float8 language sql immutable strict parallel safe return tsql.float_of_text(value, 'nvarchar');
create or replace function tsql.to_float_single(value text) returns float8 language sql immutable strict parallel safe return tsql.float_of_text(value, 'varchar');

-- --- to identifiers ---

create or replace function tsql.to_uniqueidentifier(value text) returns uuid language plpgsql immutable strict parallel safe as $$
declare
    said text := case when left(value, 1) = '{' then substr(value, 2, 36) else left(value, 36) end;
begin
    if said !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        perform tsql.refuse(8169, 'Conversion failed when converting from a character string to uniqueidentifier.');
    end if;
    return said::uuid;
end $$;
create or replace function tsql.to_uniqueidentifier(value uuid) returns uuid language sql immutable parallel safe return value;
create or replace function tsql.to_uniqueidentifier(value bytea) returns uuid language sql immutable strict parallel safe
return encode((select substring(b, 4, 1) || substring(b, 3, 1) || substring(b, 2, 1) || substring(b, 1, 1)
                      || substring(b, 6, 1) || substring(b, 5, 1) || substring(b, 8, 1) || substring(b, 7, 1)
                      || substring(b, 9, 8) from (select tsql.padded(value, 16) as b) own), 'hex')::uuid;

-- --- to times ---

-- A text whose date has the order of SET DATEFORMAT, with its date as month/day/year. A year of four digits may stand at the
-- end in every order; one at the beginning is no matter of this function.
create or replace function tsql.in_usual_order(value text, date_order text) returns text language plpgsql immutable strict parallel safe as $$
declare
    with_year constant text := '^(\d{1,2})\s*([-/.])\s*(\d{1,2})\s*\2\s*(\d{4})(?!\d)';
    with_two_digits constant text := '^(\d{1,2})\s*([-/.])\s*(\d{1,2})\s*\2\s*(\d{1,2})(?!\d)';
begin
    if value ~ with_year then
        return case when date_order in ('dmy', 'dym', 'ydm') then regexp_replace(value, with_year, '\3/\1/\4') else value end;
    end if;
    return regexp_replace(value, with_two_digits, case date_order when 'dmy' then '\3/\1/\4' when 'ymd' then '\3/\4/\1'
        when 'ydm' then '\4/\3/\1' when 'myd' then '\1/\4/\3' when 'dym' then '\4/\1/\3' else '\1/\3/\4' end);
end $$;
-- A moment whose year has two digits in the text: 50 to 69 are of the 20th century, while PostgreSQL begins it at 70.
create or replace function tsql.in_century(moment timestamp, said text) returns timestamp language sql immutable parallel safe
return case when extract(year from moment) between 2050 and 2069 and regexp_replace(said, '[T ]*\d{1,2}:.*$', '') !~ '\d{4}|^$'
              or extract(year from moment) between 2050 and 2069 and said ~ '^\d{6}(\D|$)' then moment - interval '100 years'
            else moment end;
-- Read a date and time. The text may end with an offset of at most 14 hours. With `is_clock` the offset is ignored, as
-- for datetime2, date and time; otherwise the result is in UTC.
create or replace function tsql.moment_of(value text, style integer, is_clock boolean) returns timestamp
language plpgsql stable strict parallel safe as $$
declare
    said text := btrim(value);
    date_order constant text := nullif(current_setting('servicebroker.date_order', true), '');
    zone text[];
    masks constant jsonb := '{"101": "MM/DD/YYYY HH24:MI:SS.MS", "102": "YYYY.MM.DD HH24:MI:SS.MS", "103": "DD/MM/YYYY HH24:MI:SS.MS", "2": "YY.MM.DD HH24:MI:SS.MS",
        "104": "DD.MM.YYYY HH24:MI:SS.MS", "105": "DD-MM-YYYY HH24:MI:SS.MS", "110": "MM-DD-YYYY HH24:MI:SS.MS", "5": "DD-MM-YY HH24:MI:SS.MS",
        "111": "YYYY/MM/DD HH24:MI:SS.MS", "3": "DD/MM/YY HH24:MI:SS.MS", "4": "DD.MM.YY HH24:MI:SS.MS", "1": "MM/DD/YY HH24:MI:SS.MS",
        "10": "MM-DD-YY HH24:MI:SS.MS", "11": "YY/MM/DD HH24:MI:SS.MS"}';
begin
    if said = '' then return '1900-01-01'; end if;
    if said like '%:%:%:%' then  -- thousandths of a second after a colon: 10:00:00:5 is 10:00:00.005
        said := coalesce((select m[1] || '.' || lpad(m[2], 3, '0') || m[3]
                            from regexp_match(said, '^(.*\d:\d{1,2}:\d{1,2}):(\d{1,3})(?!\d)(.*)$') m), said);
    end if;
    if style = 0 and date_order is not null then said := tsql.in_usual_order(said, date_order); end if;
    if masks ? style::text then return tsql.in_century(to_timestamp(said, masks ->> style::text) at time zone 'UTC', said); end if;
    if said ~ '^\d{1,2}:' then said := '1900-01-01 ' || said; end if;
    if said ~ '^\d{4}$' then said := said || '-01-01'; end if;
    if said ~* '^(now|today|tomorrow|yesterday|epoch|-?infinity|allballs)' then raise invalid_datetime_format; end if;
    said := regexp_replace(said, '(\.\d{6})\d+', '\1');
    if said ~ ':.*[+-]\d+$' then raise invalid_datetime_format; end if;
    zone := regexp_match(said, ':.*?(\s*(?:z|[+-](\d{1,2}):(\d\d)))$', 'i');
    if zone[2]::integer * 60 + zone[3]::integer > 840 then raise invalid_datetime_format; end if;
    if zone is null then return tsql.in_century(said::timestamp, said); end if;
    if is_clock then return left(said, -length(zone[1]))::timestamp; end if;
    return said::timestamptz at time zone 'UTC';
exception when datetime_field_overflow or invalid_datetime_format or invalid_parameter_value or invalid_time_zone_displacement_value then
    perform tsql.refuse(241, 'Conversion failed when converting date and/or time from character string.');
end $$;
create or replace function tsql.moment_of(value text, style integer) returns timestamp language sql stable strict parallel safe
return tsql.moment_of(value, style, false);

create or replace function tsql.no_such_datetime(source text, target text) returns void language plpgsql immutable as $$
begin
    perform tsql.refuse(242, format('The conversion of a %s data type to a %s data type resulted in an out-of-range value.', source, target));
end $$;
-- Check the range of datetime and smalldatetime. A year or day out of range has another error than a text that is no
-- date: see `_DATED` in tsql/conversion.py.
create or replace function tsql.in_datetime(value timestamp, source text) returns timestamp language plpgsql immutable strict parallel safe as $$
begin
    if value < '1753-01-01' then perform tsql.no_such_datetime(source, 'datetime'); end if;
    return value;
end $$;
create or replace function tsql.to_minute(value timestamp) returns timestamp language plpgsql immutable strict parallel safe as $$
declare
    rounded constant timestamp := date_trunc('minute', value + interval '30.001 seconds');  -- 29.998 seconds are no minute
begin
    if rounded < '1900-01-01' or rounded >= '2079-06-07' then perform tsql.no_such_datetime('datetime', 'smalldatetime'); end if;
    return rounded;
end $$;
create or replace function tsql.datetime_of(value text, style integer) returns timestamp language plpgsql stable strict parallel safe as $$
begin
    if style = 0 and current_setting('servicebroker.date_order', true) in ('dmy', 'dym', 'ydm') then  -- also of 2024-02-03, unless T follows
        value := regexp_replace(value, '^(\s*\d{4})\s*([-/.])\s*(\d{1,2})\s*\2\s*(\d{1,2})(?![\dTt])', '\1-\4-\3');
    end if;
    return tsql.in_datetime(tsql.moment_of(value, style), 'varchar');
exception when sqlstate 'S0241' then
    if btrim(value) ~* '^(\d{8}|\d{1,4}([-/.])\d{1,2}\2\d{1,4})?(^|[ T]|$)(\d{1,2}:\d{1,2}(:\d{1,2}([.:]\d+)?)?( ?[AP]M)?)?$' then
        perform tsql.no_such_datetime('varchar', 'datetime');
    end if;
    raise;
end $$;

create or replace function tsql.to_datetime(value text) returns timestamp language sql stable parallel safe return tsql.datetime_of(value, 0);
create or replace function tsql.to_datetime(value text, style integer) returns timestamp language sql stable parallel safe return tsql.datetime_of(value, style);
create or replace function tsql.to_datetime(value timestamp) returns timestamp language sql immutable parallel safe return tsql.in_datetime(value, 'datetime2');
create or replace function tsql.to_datetime(value timestamptz) returns timestamp language sql immutable parallel safe
return tsql.in_datetime(value at time zone 'UTC', 'datetimeoffset');
create or replace function tsql.to_datetime(value date) returns timestamp language sql immutable parallel safe return tsql.in_datetime(value::timestamp, 'date');
create or replace function tsql.to_datetime(value time) returns timestamp language sql immutable parallel safe return date '1900-01-01' + value;
-- Handle an overflow after rounding to `digits` digits of a second: a timestamp stays at the last moment of the year
-- 9999, a time wraps to 00:00.
create or replace function tsql.no_later(value timestamp, digits integer) returns timestamp language sql immutable parallel safe
return case when value < timestamp '10000-01-01' then value
            else timestamp '9999-12-31 23:59:59' + (1 - power(10::numeric, -digits)) * interval '1 second' end;
create or replace function tsql.no_later(value time, digits integer) returns time language sql immutable parallel safe
return case when value < time '24:00' then value else time '00:00' end;
create or replace function tsql.to_datetime2(value text) returns timestamp language sql stable parallel safe return tsql.moment_of(value, 0, true);
create or replace function tsql.to_datetime2(value text, style integer) returns timestamp language sql stable parallel safe return tsql.moment_of(value, style, true);
create or replace function tsql.to_datetime2(value timestamp) returns timestamp language sql immutable parallel safe return value;
create or replace function tsql.to_datetime2(value timestamptz) returns timestamp language sql immutable parallel safe return value at time zone 'UTC';
create or replace function tsql.to_datetime2(value date) returns timestamp language sql immutable parallel safe return value::timestamp;
create or replace function tsql.to_datetime2(value time) returns timestamp language sql immutable parallel safe return date '1900-01-01' + value;
create or replace function tsql.to_date(value text) returns date language sql stable parallel safe return tsql.moment_of(value, 0, true)::date;
create or replace function tsql.to_date(value text, style integer) returns date language sql stable parallel safe return tsql.moment_of(value, style, true)::date;
create or replace function tsql.to_date(value timestamp) returns date language sql immutable parallel safe return value::date;
create or replace function tsql.to_date(value timestamptz) returns date language sql immutable parallel safe return (value at time zone 'UTC')::date;
create or replace function tsql.to_date(value date) returns date language sql immutable parallel safe return value;
create or replace function tsql.to_time(value text) returns time language sql stable parallel safe return tsql.moment_of(value, 0, true)::time;
create or replace function tsql.to_time(value text, style integer) returns time language sql stable parallel safe return tsql.moment_of(value, style, true)::time;
create or replace function tsql.to_time(value timestamp) returns time language sql immutable parallel safe return value::time;
create or replace function tsql.to_time(value timestamptz) returns time language sql immutable parallel safe return (value at time zone 'UTC')::time;
create or replace function tsql.to_time(value time) returns time language sql immutable parallel safe return value;
create or replace function tsql.to_datetimeoffset(value text) returns timestamptz language sql stable parallel safe return tsql.moment_of(value, 0) at time zone 'UTC';
create or replace function tsql.to_datetimeoffset(value text, style integer) returns timestamptz language sql stable parallel safe
return tsql.moment_of(value, style) at time zone 'UTC';
create or replace function tsql.to_datetimeoffset(value timestamp) returns timestamptz language sql immutable parallel safe return value at time zone 'UTC';
create or replace function tsql.to_datetimeoffset(value timestamptz) returns timestamptz language sql immutable parallel safe return value;

-- --- TRY_CAST and TRY_CONVERT: null instead of an error ---

do $$
declare
    target record;
begin
    for target in values ('to_nvarchar', 'text'), ('to_varchar', 'text'), ('to_varbinary', 'bytea'), ('to_varbinary_single', 'bytea'),
                         ('to_int', 'integer'), ('to_bigint', 'bigint'), ('to_smallint', 'smallint'), ('to_tinyint', 'smallint'),
                         ('to_bit', 'smallint'), ('to_decimal', 'numeric'), ('to_money', 'numeric'), ('to_smallmoney', 'numeric'), ('to_float', 'float8'),
                         ('to_uniqueidentifier', 'uuid'), ('to_datetime', 'timestamp'), ('to_datetime2', 'timestamp'),
                         ('to_date', 'date'), ('to_time', 'time'),
                         ('to_datetimeoffset', 'timestamptz'), ('to_xml', 'text'), ('to_xml_single', 'text') loop
        execute format('create or replace function tsql.try_%s(value anyelement) returns %s language plpgsql stable as '
                       '$f$ begin return tsql.%s(value); exception when others then return null; end $f$',
                       target.column1, target.column2, target.column1);
        execute format('create or replace function tsql.try_%s(value anyelement, style integer) returns %s language plpgsql stable as '
                       '$f$ begin return tsql.%s(value, style); exception when others then return null; end $f$',
                       target.column1, target.column2, target.column1);
    end loop;
end $$;
