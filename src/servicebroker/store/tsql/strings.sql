-- Functions of strings and bytes.

create or replace function tsql.datalength(said text) returns integer language sql immutable parallel safe
return 2 * length(said) + 2 * (length(said) - length(regexp_replace(said, '[\U00010000-\U0010fffe]', '', 'g')));  -- tsql.zero() is one unit
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
    if number < 0 then perform tsql.refuse(536, 'Invalid length parameter passed to the right function.'); end if;
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

-- A bracket expression of LIKE as one of a regular expression. U+0000 is the lowest character, but tsql.zero(), which
-- stands for it, is the highest. So a range from it becomes tsql.zero() and all up to the end; a range up to it is
-- empty.
create or replace function tsql.like_class(inside text) returns text language plpgsql immutable strict parallel safe as $$
declare
    negated boolean := left(inside, 1) = '^';
    members text := case when negated then substr(inside, 2) else inside end;
begin
    members := regexp_replace(members, '([\\\[\]^])', '\\\1', 'g');
    if strpos(members, tsql.zero()) > 0 then
        members := replace(members, tsql.zero() || '-' || tsql.zero(), tsql.zero());
        members := regexp_replace(members, tsql.zero() || '-(?=.)', tsql.zero() || '\\u0001-', 'g');
        members := regexp_replace(members, '(\\.|[^\\])-' || tsql.zero(), '', 'g');
    end if;
    return case when members <> '' then case when negated then '[^' else '[' end || members || ']'
                when negated then '.' else '(?!)' end;
end $$;
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
                said := said || tsql.like_class(members);
            end if;
        else said := said || regexp_replace(sign, '([\\.+*?()\[\]{}|^$])', '\\\1');
        end if;
        at := at + 1;
    end loop;
    return said || '$';
end $$;
-- Check an ESCAPE character that is known only at run time.
create or replace function tsql.escape_sign(sign text) returns text language plpgsql immutable strict parallel safe as $$
begin
    if length(sign) <> 1 then
        perform tsql.refuse(506, format('The invalid escape character "%s" was specified in a LIKE predicate.', sign));
    end if;
    return sign;
end $$;
create or replace function tsql.patindex_of(pattern text, said text) returns integer language sql immutable strict parallel safe
return case when left(pattern, 1) = '%' then tsql.patindex(substr(tsql.like_pattern(substr(pattern, 2)), 2), said)
            else (said ~ tsql.like_pattern(pattern))::integer end;

create or replace function tsql.replace(said text, sought text, by text) returns text language sql immutable strict parallel safe
return case when sought = '' then said else replace(said, sought, by) end;
-- MIN and MAX in a collation that ignores case, of text and char.
create or replace function tsql.lesser_folded(first anyelement, second anyelement) returns anyelement
language plpgsql immutable strict parallel safe as $$
begin
    return case when (lower(first::text), first::text) <= (lower(second::text), second::text) then first else second end;
end $$;
create or replace function tsql.greater_folded(first anyelement, second anyelement) returns anyelement
language plpgsql immutable strict parallel safe as $$
begin
    return case when (lower(first::text), second::text) >= (lower(second::text), first::text) then first else second end;
end $$;
create or replace aggregate tsql.min_folded(anyelement) (sfunc = tsql.lesser_folded, stype = anyelement, combinefunc = tsql.lesser_folded, parallel = safe);
create or replace aggregate tsql.max_folded(anyelement) (sfunc = tsql.greater_folded, stype = anyelement, combinefunc = tsql.greater_folded, parallel = safe);
-- REPLACE in a collation that ignores case.
create or replace function tsql.replace_folded(said text, sought text, by text) returns text language sql immutable strict parallel safe
return case when sought = '' then said
            else regexp_replace(said, regexp_replace(sought, '([\W_])', '\\\1', 'g'), replace(by, '\', '\\'), 'gi') end;
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
-- SOUNDEX. Adjacent letters with the same digit count once, also with h or w between them.
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
return case when number between 0 and 255 then tsql.single_decoded(set_byte('\x00'::bytea, 0, number)) end;
create or replace function tsql.nchar(number integer) returns text language sql immutable strict parallel safe
return case when number between 1 and 55295 or number between 57344 and 65535 then chr(number) when number = 0 then tsql.zero() end;
-- ASCII and UNICODE: the code of the first byte or character; NULL for an empty string.
create or replace function tsql.ascii(said text) returns integer language sql immutable parallel safe
return case when ascii(said) between 1 and 127 then ascii(said) when said <> '' then get_byte(tsql.single_encoded(left(said, 1)), 0) end;
create or replace function tsql.unicode(said text) returns integer language sql immutable parallel safe
return case when said <> '' then coalesce(nullif(ascii(said), ascii(tsql.zero())), 0) end;
-- A form of the text that sorts U+0000 first, for <, > and so on where no index is used.
create or replace function tsql.in_order(said text) returns text language sql immutable parallel safe
return case when strpos(said, tsql.zero()) = 0 and strpos(said, chr(1)) = 0 then said
            else replace(replace(said, chr(1), chr(1) || chr(2)), tsql.zero(), chr(1) || chr(1)) end;
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
return case lower(kind) when 'json' then replace(replace(substr(to_json(said)::text, 2, length(to_json(said)::text) - 2), '/', '\/'), tsql.zero(), '\u0000') end;
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
-- The text of a message of sp_addmessage, in English.
create or replace function tsql.message_text(number integer) returns text language sql stable strict parallel safe
return (select m.text from servicebroker.tsql_messages m where m.message_id = number and m.language_id = 1033);
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
-- STRING_SPLIT without an ordinal, which views of older versions call.
create or replace function tsql.string_split(said text, separator text) returns table (value text) language sql immutable parallel safe rows 10
begin atomic
    select p.value from tsql.string_parts(said, separator) p;
end;
create or replace function tsql.format(number numeric, mask text) returns text language plpgsql immutable strict parallel safe as $$
declare
    kind text := upper(left(mask, 1));
    digits integer;
    rounded numeric;
    sign text;
    grouped text;
    parts text[];
begin
    if mask ~ '^[NFDPXGCnfdpxgc]\d{0,2}$' then
        digits := coalesce(nullif(substr(mask, 2), '')::integer, case when kind in ('D', 'G', 'X') then 0 else 2 end);
        rounded := round(case kind when 'P' then number * 100 when 'D' then trunc(number) else number end, digits);
        sign := case when rounded < 0 then '-' else '' end;
        grouped := to_char(abs(rounded), 'FM999,999,999,999,999,990' || case when digits > 0 then '.' || repeat('0', digits) else '' end);
        return case kind
            when 'N' then sign || grouped
            when 'P' then sign || grouped || '%'
            when 'C' then case when rounded < 0 then '($' || grouped || ')' else '$' || grouped end
            when 'F' then rounded::text
            when 'D' then sign || lpad(abs(trunc(number))::text, greatest(digits, length(abs(trunc(number))::text)), '0')
            when 'X' then lpad(upper(to_hex(number::bigint)), greatest(digits, length(to_hex(number::bigint))), '0')
            else trim_scale(number)::text end;
    end if;
    -- digits by places: 0 is one that is always there, # one that may be, a comma between them groups by three
    parts := regexp_match(mask, '^([^#0.,%]*)([#0,]*)(?:\.([#0]+))?(%?)([^#0.,%]*)$');
    if parts is null or parts[2] || coalesce(parts[3], '') = '' then
        perform tsql.refuse(40515, format('FORMAT with ''%s'' is not supported here. Use N, F, D, P, C or X with a number of digits, or 0 and #.', mask));
    end if;
    digits := length(coalesce(parts[3], ''));
    rounded := round(case when parts[4] = '%' then number * 100 else number end, digits);
    grouped := abs(rounded)::text;
    return case when rounded < 0 then '-' else '' end || parts[1]
        || tsql.whole_digits(split_part(grouped, '.', 1), length(replace(replace(parts[2], ',', ''), '#', '')), strpos(parts[2], ',') > 0)
        || coalesce('.' || nullif(tsql.kept_digits(split_part(grouped, '.', 2), parts[3]), ''), '') || parts[4] || parts[5];
end $$;
create or replace function tsql.whole_digits(said text, needed integer, is_grouped boolean) returns text language sql immutable parallel safe
return (select case when is_grouped then reverse(regexp_replace(reverse(shown), '(\d{3})(?=\d)', '\1,', 'g')) else shown end
          from (select lpad(ltrim(said, '0'), greatest(needed, length(ltrim(said, '0'))), '0') as shown) digits);
create or replace function tsql.kept_digits(said text, mask text) returns text language sql immutable parallel safe
return (select case when length(shown) < needed then rpad(shown, needed, '0') else shown end
          from (select rtrim(said, '0') as shown, length(rtrim(coalesce(mask, ''), '#')) as needed) digits);
create or replace function tsql.format(number integer, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.format(number bigint, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.format(number float8, mask text) returns text language sql immutable strict parallel safe return tsql.format(number::numeric, mask);
create or replace function tsql.refuse_part(part text, mask text) returns text language plpgsql immutable strict parallel safe as $$
begin
    perform tsql.refuse(40515, format('%s in FORMAT with ''%s'' is not supported here. Use y, M, d, H, h, m, s, f and t, or put it between quotation marks.', part, mask));
    return null;
end $$;
-- FORMAT of a date and time by a .NET pattern. A single letter is the name of a standard pattern.
create or replace function tsql.format(moment timestamp, mask text) returns text language sql immutable strict parallel safe
return (select string_agg(case
            when part ~ '^[zKgF]' then
                tsql.refuse_part(part, mask)
            when part ~ '^[''"\\]' then btrim(ltrim(part, '\'), '''"')
            when part ~ '^f+$' then left(to_char(moment, 'US') || '0', length(part))
            when part in ('h', 'H', 'd', 'M', 'm', 's') then
                ltrim(to_char(moment, case part when 'h' then 'HH12' when 'H' then 'HH24' when 'd' then 'DD' when 'M' then 'MM' when 'm' then 'MI' else 'SS' end), '0')
                || case when to_char(moment, case part when 'H' then 'HH24' when 'm' then 'MI' when 's' then 'SS' else 'YYYY' end) = '00' then '0' else '' end
            when part ~ '^[yMdHhmst]' then to_char(moment, case part when 'yyyy' then 'YYYY' when 'yy' then 'YY' when 'y' then 'YY' when 'yyy' then 'YYYY'
                when 'MMMM' then 'FMMonth' when 'MMM' then 'Mon' when 'MM' then 'MM' when 'dddd' then 'FMDay' when 'ddd' then 'Dy' when 'dd' then 'DD'
                when 'HH' then 'HH24' when 'hh' then 'HH12' when 'mm' then 'MI' when 'ss' then 'SS' when 'tt' then 'AM'
                else 'AM' end)
            else part end, '' order by place)
          from regexp_matches(case mask when 'd' then 'M/d/yyyy' when 'D' then 'dddd, MMMM d, yyyy' when 't' then 'h:mm tt' when 'T' then 'h:mm:ss tt'
                                        when 'g' then 'M/d/yyyy h:mm tt' when 'G' then 'M/d/yyyy h:mm:ss tt' when 'f' then 'dddd, MMMM d, yyyy h:mm tt'
                                        when 'F' then 'dddd, MMMM d, yyyy h:mm:ss tt' when 's' then 'yyyy-MM-ddTHH:mm:ss' when 'M' then 'MMMM d'
                                        when 'm' then 'MMMM d' when 'Y' then 'MMMM yyyy' when 'y' then 'MMMM yyyy' when 'u' then 'yyyy-MM-dd HH:mm:ssZ'
                                        when 'o' then 'yyyy-MM-ddTHH:mm:ss.fffffff' when 'O' then 'yyyy-MM-ddTHH:mm:ss.fffffff' else mask end,
                              '(d{1,4}|M{1,4}|y{1,4}|H{1,2}|h{1,2}|m{1,2}|s{1,2}|f{1,7}|t{1,2}|z{1,3}|g{1,2}|K|F{1,7}|''[^'']*''|"[^"]*"|\\.|.)', 'g')
               with ordinality found(groups, place), lateral (select groups[1] as part) one);
create or replace function tsql.in_english(mask text, culture text) returns text language plpgsql immutable parallel safe as $$
begin
    if lower(culture) not in ('', 'en', 'en-us', 'en_us', 'iv') then
        perform tsql.refuse(40515, format('FORMAT for the culture ''%s'' is not supported here. Use ''en-US'', or leave it out.', culture));
    end if;
    return mask;
end $$;
create or replace function tsql.format(day date, mask text) returns text language sql immutable strict parallel safe return tsql.format(day::timestamp, mask);
-- Refuse the text of PARSE. NULL is NULL. It is stable, or the planner would call it for a constant that is right.
create or replace function tsql.not_parsed(said text, type text, culture text) returns text language plpgsql stable strict parallel safe as $$
begin
    perform tsql.refuse(9819, format('Error converting string value ''%s'' into data type %s using culture ''%s''.', said, type, culture));
    return null;
end $$;
-- PARSE: a number in en-US format as a text for CAST. Commas are removed. money may have a currency sign, and
-- parentheses for a negative number.
create or replace function tsql.parsed(said text, is_money boolean) returns text language sql immutable strict parallel safe
return case
    when said ~ '^\s*[-+]?\s*\d[\d,]*(\.\d*)?\s*$' then replace(replace(said, ',', ''), ' ', '')
    when is_money and said ~ '^\s*[-+]?\s*\$?\s*\d[\d,]*(\.\d*)?\s*$' then regexp_replace(said, '[$,\s]', '', 'g')
    when is_money and said ~ '^\s*\(\s*\$?\s*\d[\d,]*(\.\d*)?\s*\)\s*$' then '-' || regexp_replace(said, '[$,()\s]', '', 'g')
    else said end;
