-- Functions of strings and bytes.

create or replace function tsql.datalength(said text) returns integer language sql immutable parallel safe
return 2 * length(said) + 2 * (length(said) - length(regexp_replace(said, '[\U00010000-\U0010ffff]', '', 'g')));
create or replace function tsql.datalength_single(said text) returns integer language sql immutable parallel safe return length(said);
create or replace function tsql.datalength(day date) returns integer language sql immutable parallel safe return case when day is not null then 3 end;
create or replace function tsql.datalength(moment time) returns integer language sql immutable parallel safe return case when moment is not null then 5 end;
create or replace function tsql.datalength(moment timestamptz) returns integer language sql immutable parallel safe return case when moment is not null then 10 end;
create or replace function tsql.datalength(number real) returns integer language sql immutable parallel safe return case when number is not null then 4 end;
create or replace function tsql.datalength(bytes bytea) returns integer language sql immutable parallel safe return octet_length(bytes);
create or replace function tsql.datalength(number smallint) returns integer language sql immutable parallel safe return 2 + 0 * number;
create or replace function tsql.datalength(number integer) returns integer language sql immutable parallel safe return case when number is not null then 4 end;
create or replace function tsql.datalength(number bigint) returns integer language sql immutable parallel safe return case when number is not null then 8 end;
create or replace function tsql.datalength(number float8) returns integer language sql immutable parallel safe return case when number is not null then 8 end;
create or replace function tsql.datalength(number numeric) returns integer language sql immutable parallel safe return case when number is not null then 9 end;
create or replace function tsql.datalength(moment timestamp) returns integer language sql immutable parallel safe return case when moment is not null then 8 end;
create or replace function tsql.datalength(id uuid) returns integer language sql immutable parallel safe return case when id is not null then 16 end;

create or replace function tsql.not_negative(number integer) returns integer language plpgsql immutable strict parallel safe as $$
begin
    if number < 0 then perform tsql.refuse(536, 'Invalid length parameter passed to the left or right function.'); end if;
    return number;
end $$;

create or replace function tsql.checked_length(start integer, size integer) returns integer language plpgsql immutable strict parallel safe as $$
begin
    if size < 0 then perform tsql.refuse(537, 'Invalid length parameter passed to the LEFT or SUBSTRING function.'); end if;
    return greatest(0, least(size::bigint, size::bigint + start - 1))::integer;
end $$;
create or replace function tsql.substring(said text, start integer, size integer) returns text language sql immutable strict parallel safe
return substr(said, greatest(start, 1), tsql.checked_length(start, size));
create or replace function tsql.substring(bytes bytea, start integer, size integer) returns bytea language sql immutable strict parallel safe
return substring(bytes, greatest(start, 1), tsql.checked_length(start, size));

create or replace function tsql.charindex(sought text, said text, start integer default 1) returns integer
language sql immutable strict parallel safe
return (select case when sought = '' or found = 0 then 0 else found + greatest(start, 1) - 1 end
          from (select strpos(substr(said, greatest(start, 1)), sought) as found) own);

create or replace function tsql.patindex(expression text, said text) returns integer language sql immutable strict parallel safe
return (select coalesce(length((regexp_match(said, '^(.*?)' || expression))[1]) + 1, 0));

create or replace function tsql.like_pattern(pattern text, escape text default '') returns text
language plpgsql immutable strict parallel safe as $$
declare
    said text := '^';
    at integer := 1;
    sign text;
    stop integer;
    members text;
begin
    while at <= length(pattern) loop
        sign := substr(pattern, at, 1);
        if escape <> '' and sign = escape and at < length(pattern) then
            at := at + 1;
            said := said || regexp_replace(substr(pattern, at, 1), '([\\.+*?()\[\]{}|^$])', '\\\1');
        elsif sign = '%' then said := said || '.*';
        elsif sign = '_' then said := said || '.';
        elsif sign = '[' then
            stop := strpos(substr(pattern, at + 1 + (substr(pattern, at + 1, 1) = '^')::integer), ']');
            if stop = 0 then said := said || '\[';
            else
                members := substr(pattern, at + 1, stop - 1 + (substr(pattern, at + 1, 1) = '^')::integer);
                at := at + length(members) + 1;
                said := said || case when left(members, 1) = '^' then '[^' else '[' end
                    || regexp_replace(case when left(members, 1) = '^' then substr(members, 2) else members end, '([\\\[\]^])', '\\\1', 'g') || ']';
            end if;
        else said := said || regexp_replace(sign, '([\\.+*?()\[\]{}|^$])', '\\\1');
        end if;
        at := at + 1;
    end loop;
    return said || '$';
end $$;
create or replace function tsql.patindex_of(pattern text, said text) returns integer language sql immutable strict parallel safe
return case when left(pattern, 1) = '%' then tsql.patindex(substr(tsql.like_pattern(substr(pattern, 2)), 2), said)
            else (said ~ tsql.like_pattern(pattern))::integer end;

create or replace function tsql.replace(said text, sought text, by text) returns text language sql immutable strict parallel safe
return case when sought = '' then said else replace(said, sought, by) end;
create or replace function tsql.stuff(said text, start integer, size integer, by text) returns text language sql immutable parallel safe
return case when start < 1 or start > length(said) or size < 0 then null
            else left(said, start - 1) || coalesce(by, '') || substr(said, start + size) end;
create or replace function tsql.replicate(said text, times integer) returns text language sql immutable strict parallel safe
return case when times < 0 then null else repeat(said, times) end;
create or replace function tsql.str(number float8, size integer default 10, digits integer default 0) returns text
language sql immutable strict parallel safe
return (select case when length(whole) > size then repeat('*', size)
                    else lpad(case when length(said) > size then rtrim(left(said, size), '.') else said end, size) end
          from (select round(number::numeric, least(digits, 16))::text as said, split_part(round(number::numeric, 0)::text, '.', 1) as whole) own);
create or replace function tsql.translate(said text, signs text, by text) returns text language plpgsql immutable strict parallel safe as $$
begin
    if length(signs) <> length(by) then
        perform tsql.refuse(9828, 'The second and third arguments of the TRANSLATE built-in function must contain an equal number of characters.');
    end if;
    return translate(said, signs, by);
end $$;
-- Letters of one kind that stand together, or with h or w between them, count once.
create or replace function tsql.soundex(said text) returns text language sql immutable strict parallel safe
return (select case when word = '' then '0000'
                    else rpad(left(word, 1) || replace(substr(regexp_replace(translate(regexp_replace(word, '(?!^)[HW]', '', 'g'),
                             'BFPVCGJKQSXZDTLMNRAEIOUYHW', '11112222222233455600000000'), '(\d)\1+', '\1', 'g'), 2), '0', ''), 4, '0') end
          from (select upper(coalesce(substring(said from '^[A-Za-z]+'), '')) as word) own)::varchar(4);
create or replace function tsql.difference(one text, other text) returns integer language sql immutable strict parallel safe
return (select count(*)::integer from generate_series(1, 4) place
         where substr(tsql.soundex(one), place, 1) = substr(tsql.soundex(other), place, 1));
create or replace function tsql.base64_encode(bytes bytea, for_urls integer default 0) returns text language sql immutable strict parallel safe
return case when for_urls = 0 then translate(encode(bytes, 'base64'), E'\n', '')
            else translate(encode(bytes, 'base64'), E'+/=\n', '-_') end;
create or replace function tsql.base64_decode(said text) returns bytea language plpgsql immutable strict parallel safe as $$
begin
    return decode(rpad(translate(said, '-_=', '+/'), (length(translate(said, '=', '')) + 3) / 4 * 4, '='), 'base64');
exception when invalid_parameter_value then
    perform tsql.refuse(9803, 'Invalid data for type "base64".');
end $$;
create or replace function tsql.char(number integer) returns text language sql immutable strict parallel safe
return case when number between 1 and 255 then tsql.single_decoded(set_byte('\x00'::bytea, 0, number)) end;
create or replace function tsql.nchar(number integer) returns text language sql immutable strict parallel safe
return case when number between 1 and 55295 or number between 57344 and 65535 then chr(number) end;
create or replace function tsql.quotename(said text, sign text default '[') returns text language sql immutable strict parallel safe
return case when length(said) > 128 then null
            when sign in ('[', ']') then '[' || replace(said, ']', ']]') || ']'
            when sign in ('''', '"', '`') then sign || replace(said, sign, sign || sign) || sign
            when sign in ('(', ')') then '(' || replace(said, ')', '))') || ')'
            when sign in ('{', '}') then '{' || replace(said, '}', '}}') || '}'
            when sign in ('<', '>') then '<' || replace(said, '>', '>>') || '>' end;
create or replace function tsql.parsename(said text, part integer) returns text language sql immutable strict parallel safe
return (select case when cardinality(parts) > 4 then null else nullif(btrim(parts[cardinality(parts) + 1 - part], '[]"'), '') end
          from (select string_to_array(said, '.') as parts) own);
create or replace function tsql.string_escape(said text, kind text) returns text language sql immutable strict parallel safe
return case lower(kind) when 'json' then replace(substr(to_json(said)::text, 2, length(to_json(said)::text) - 2), '/', '\/') end;
create or replace function tsql.formatmessage(pattern text, variadic said text[] default '{}') returns text
language plpgsql immutable parallel safe as $$
declare
    done text := '';
    rest text := pattern;
    part text[];  -- before, flags, width, precision, kind, behind
    place integer := 0;
    shown text;
begin
    loop
        part := regexp_match(rest, '^(.*?)%([-+ 0#]*)(\d*)(?:\.(\d+))?(?:h|l|I64)?([diouxXs%])(.*)$');
        if part is null then return done || rest; end if;
        if part[5] = '%' then shown := '%';
        else
            place := place + 1;
            shown := coalesce(said[place], '(null)');
            if part[5] in ('x', 'X', 'o') and said[place] is not null then
                shown := case part[5] when 'o' then tsql.octal(shown::bigint) else to_hex(shown::integer) end;
                if part[5] = 'X' then shown := upper(shown); end if;
            elsif part[5] = 's' and part[4] is not null then shown := left(shown, part[4]::integer);
            elsif part[2] ~ '\+' and left(shown, 1) <> '-' then shown := '+' || shown;
            end if;
            if length(shown) < nullif(part[3], '')::integer then
                shown := case when part[2] ~ '-' then rpad(shown, part[3]::integer) when part[2] ~ '0' and left(shown, 1) = '-'
                                   then '-' || lpad(substr(shown, 2), part[3]::integer - 1, '0')
                              else lpad(shown, part[3]::integer, case when part[2] ~ '0' then '0' else ' ' end) end;
            end if;
        end if;
        done := done || part[1] || shown;
        rest := part[6];
    end loop;
end $$;
create or replace function tsql.octal(number bigint) returns text language plpgsql immutable strict parallel safe as $$
declare
    digits text := '';
begin
    loop
        digits := number % 8 || digits;
        number := number / 8;
        if number = 0 then return digits; end if;
    end loop;
end $$;
create or replace function tsql.string_parts(said text, separator text) returns table (value text, ordinal bigint)
language plpgsql immutable parallel safe rows 10 as $$
begin
    if separator is null or length(separator) <> 1 then
        perform tsql.refuse(214, 'Procedure expects parameter ''separator'' of type ''nchar(1)/nvarchar(1)''.');
    end if;
    return query select p, o from unnest(string_to_array(said, separator)) with ordinality parts(p, o);
end $$;
-- What views were made with before there was an ordinal.
create or replace function tsql.string_split(said text, separator text) returns table (value text) language sql immutable parallel safe rows 10
begin atomic
    select p.value from tsql.string_parts(said, separator) p;
end;
create or replace function tsql.format(number numeric, mask text) returns text language plpgsql immutable strict parallel safe as $$
declare
    digits integer := coalesce(nullif(substr(mask, 2), '')::integer, case when upper(left(mask, 1)) in ('D', 'G', 'X') then 0 else 2 end);
begin
    return case upper(left(mask, 1))
        when 'N' then to_char(round(number, digits), 'FM999,999,999,999,999,990' || case when digits > 0 then '.' || repeat('0', digits) else '' end)
        when 'F' then round(number, digits)::text
        when 'D' then case when number < 0 then '-' else '' end || lpad(abs(trunc(number))::text, greatest(digits, length(abs(trunc(number))::text)), '0')
        when 'P' then to_char(round(number * 100, digits), 'FM999,999,990' || case when digits > 0 then '.' || repeat('0', digits) else '' end) || '%'
        when 'X' then upper(to_hex(number::bigint))
        when 'G' then trim_scale(number)::text
        when '0' then lpad(round(number)::text, length(mask), '0') end;
exception when invalid_text_representation then
    if mask ~ '^0+$' then return lpad(round(number)::text, length(mask), '0'); end if;
    perform tsql.refuse(40515, format('FORMAT with ''%s'' is not supported here. Use N, F, D, P or X with a number of digits.', mask));
end $$;
create or replace function tsql.format(number integer, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.format(number bigint, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.format(number float8, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.format(moment timestamp, mask text) returns text language sql immutable strict parallel safe
return case when mask in ('d', 'D') then to_char(moment, 'FMMM/FMDD/YYYY')
            else to_char(moment, replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(mask,
                'MMMM', 'FMMonth'), 'MMM', 'Mon'), 'mm', 'MI'), 'HH', 'HH24'), 'hh', 'HH12'), 'ss', 'SS'), 'fff', 'MS'), 'tt', 'AM'), 'yyyy', 'YYYY'), 'dd', 'DD')) end;
create or replace function tsql.format(day date, mask text) returns text language sql immutable strict parallel safe return tsql.format(day::timestamp, mask);
