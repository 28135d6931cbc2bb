-- COMPRESS and DECOMPRESS: gzip (RFC 1952) of deflate (RFC 1951) in plpgsql, since PostgreSQL has no function for it.

create or replace function tsql.crc_table() returns bigint[] language plpgsql immutable parallel safe as $$
declare
    made bigint[] := '{}';
    rest bigint;
begin
    for number in 0..255 loop
        rest := number;
        for digit in 1..8 loop
            rest := case when rest & 1 = 1 then (rest >> 1) # 3988292384 else rest >> 1 end;
        end loop;
        made := made || rest;
    end loop;
    return made;
end $$;
create or replace function tsql.crc32(bytes bytea) returns bigint language plpgsql immutable strict parallel safe as $$
declare
    crc_table constant bigint[] := tsql.crc_table();
    rest bigint := 4294967295;
begin
    for place in 0..octet_length(bytes) - 1 loop
        rest := (rest >> 8) # crc_table[((rest # get_byte(bytes, place)) & 255) + 1];
    end loop;
    return rest # 4294967295;
end $$;
-- A number as four bytes, little-endian.
create or replace function tsql.four_bytes(number bigint) returns bytea language sql immutable strict parallel safe
return substring(int8send(number), 8, 1) || substring(int8send(number), 7, 1) || substring(int8send(number), 6, 1) || substring(int8send(number), 5, 1);

-- The smallest length of each length symbol (from 257), and the smallest distance of each distance symbol (from 0).
create or replace function tsql.deflate_lengths() returns integer[] language sql immutable parallel safe
return '{3,4,5,6,7,8,9,10,11,13,15,17,19,23,27,31,35,43,51,59,67,83,99,115,131,163,195,227,258}'::integer[];
create or replace function tsql.deflate_distances() returns integer[] language sql immutable parallel safe
return '{1,2,3,4,5,7,9,13,17,25,33,49,65,97,129,193,257,385,513,769,1025,1537,2049,3073,4097,6145,8193,12289,16385,24577}'::integer[];
-- The number of extra bits of a length symbol, and of a distance symbol.
create or replace function tsql.length_bits(symbol integer) returns integer language sql immutable parallel safe
return case when symbol < 265 or symbol = 285 then 0 else (symbol - 261) / 4 end;
create or replace function tsql.distance_bits(symbol integer) returns integer language sql immutable parallel safe
return case when symbol < 4 then 0 else (symbol - 2) / 2 end;

-- Compress into one block with the fixed Huffman codes. Repetitions are searched in the last 4,096 bytes.
create or replace function tsql.compress(data bytea) returns bytea language plpgsql immutable strict parallel safe as $$
declare
    window_size constant integer := 4096;
    lengths constant integer[] := tsql.deflate_lengths();
    distances constant integer[] := tsql.deflate_distances();
    codes integer[];   -- of the symbols from 0, the first bit lowest
    sizes integer[];
    size constant integer := octet_length(data);
    place integer := 0;
    first integer;
    source integer;
    low integer;
    high integer;
    middle integer;
    symbol integer;
    hold bigint := 3;  -- bits that wait for their byte: the last block, with the standard's codes
    held integer := 3;
    piece bytea := '';
    done bytea := '\x1f8b0800000000000400';
begin
    select array_agg(reverse(code)::bit(9)::integer >> (9 - length(code)) order by number), array_agg(length(code) order by number)
      into codes, sizes
      from (select n as number, case when n < 144 then (48 + n)::bit(8)::text when n < 256 then (256 + n)::bit(9)::text
                                     when n < 280 then (n - 256)::bit(7)::text else (n - 88)::bit(8)::text end as code
              from generate_series(0, 285) n) known;
    while place < size loop
        low := 0;
        if size - place >= 4 then
            first := greatest(place - window_size, 0);
            source := first - 1 + position(substring(data, place + 1, 4) in substring(data, first + 1, place - first + 3));
            if source >= first then
                low := 4;
                high := least(258, size - place);
                while low < high loop
                    middle := (low + high + 1) / 2;
                    if substring(data, source + 1, middle) = substring(data, place + 1, middle) then low := middle; else high := middle - 1; end if;
                end loop;
            end if;
        end if;
        if low = 0 then
            symbol := get_byte(data, place) + 1;
            hold := hold | (codes[symbol]::bigint << held);
            held := held + sizes[symbol];
            place := place + 1;
        else
            symbol := 256 + width_bucket(low, lengths);
            hold := hold | (codes[symbol + 1]::bigint << held) | ((low - lengths[symbol - 256])::bigint << (held + sizes[symbol + 1]));
            held := held + sizes[symbol + 1] + tsql.length_bits(symbol);
            first := place - source;
            symbol := width_bucket(first, distances) - 1;
            hold := hold | (reverse(symbol::bit(5)::text)::bit(5)::bigint << held) | ((first - distances[symbol + 1])::bigint << (held + 5));
            held := held + 5 + tsql.distance_bits(symbol);
            place := place + low;
        end if;
        while held >= 8 loop
            piece := piece || set_byte('\x00', 0, (hold & 255)::integer);
            hold := hold >> 8;
            held := held - 8;
        end loop;
        if octet_length(piece) > 1000 then
            done := done || piece;
            piece := '';
        end if;
    end loop;
    -- the end of the block is the code 0 of 7 bits
    held := held + 7;
    while held > 0 loop
        piece := piece || set_byte('\x00', 0, (hold & 255)::integer);
        hold := hold >> 8;
        held := held - 8;
    end loop;
    return done || piece || tsql.four_bytes(tsql.crc32(data)) || tsql.four_bytes(size);
end $$;

-- A decoding table for a canonical Huffman code, from the code lengths of the symbols 0, 1, ... The index is the code
-- with a leading 1 bit, the value is the symbol.
create or replace function tsql.huffman_table(sizes integer[]) returns integer[] language plpgsql immutable strict parallel safe as $$
declare
    longest constant integer := (select coalesce(max(s), 0) from unnest(sizes) s);
    made integer[] := array_fill(null::integer, array[2 << longest]);
    code integer := 0;
begin
    for size in 1..longest loop
        for place in 1..cardinality(sizes) loop
            if sizes[place] = size then
                made[(1 << size) + code] := place - 1;
                code := code + 1;
            end if;
        end loop;
        code := code * 2;
    end loop;
    return made;
end $$;
create or replace function tsql.decompress(data bytea) returns bytea language plpgsql immutable strict parallel safe as $$
declare
    kept_size constant integer := 32768;  -- bytes of the output that may be repeated
    lengths constant integer[] := tsql.deflate_lengths();
    distances constant integer[] := tsql.deflate_distances();
    place integer := 10;
    flags constant integer := case when octet_length(data) >= 18 then get_byte(data, 3) else 0 end;
    hold bigint := 0;
    held integer := 0;
    is_last boolean := false;
    kind integer;
    symbols integer[];
    steps integer[];
    sizes integer[];
    counts integer[];
    key integer;
    symbol integer;
    size integer;
    distance integer;
    repeated integer;
    part bytea;
    tail bytea := '';
    done bytea := '';
begin
    if octet_length(data) < 18 or substring(data, 1, 3) <> '\x1f8b08' then raise array_subscript_error; end if;
    if flags & 4 > 0 then place := place + 2 + get_byte(data, place) + 256 * get_byte(data, place + 1); end if;
    for name in 1..((flags >> 3) & 1) + ((flags >> 4) & 1) loop
        place := place + position('\x00'::bytea in substring(data, place + 1));
    end loop;
    if flags & 2 > 0 then place := place + 2; end if;
    while not is_last loop
        while held < 3 loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
        is_last := hold & 1 = 1;
        kind := (hold >> 1) & 3;
        hold := hold >> 3;
        held := held - 3;
        if kind = 0 then
            place := place - held / 8;  -- whole bytes that were read ahead
            hold := 0;
            held := 0;
            size := get_byte(data, place) + 256 * get_byte(data, place + 1);
            if size + place + 4 > octet_length(data) then raise array_subscript_error; end if;
            tail := tail || substring(data, place + 5, size);
            place := place + 4 + size;
        elsif kind = 1 then
            symbols := tsql.huffman_table(array_fill(8, array[144]) || array_fill(9, array[112]) || array_fill(7, array[24]) || array_fill(8, array[8]));
            steps := tsql.huffman_table(array_fill(5, array[30]));
        elsif kind = 2 then
            while held < 14 loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
            counts := array[257 + (hold & 31)::integer, 1 + ((hold >> 5) & 31)::integer, 4 + ((hold >> 10) & 15)::integer];
            hold := hold >> 14;
            held := held - 14;
            sizes := array_fill(0, array[19]);
            for number in 1..counts[3] loop
                while held < 3 loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
                sizes[1 + ('{16,17,18,0,8,7,9,6,10,5,11,4,12,3,13,2,14,1,15}'::integer[])[number]] := hold & 7;
                hold := hold >> 3;
                held := held - 3;
            end loop;
            steps := tsql.huffman_table(sizes);
            sizes := '{}';
            while cardinality(sizes) < counts[1] + counts[2] loop
                key := 1;
                loop
                    if held = 0 then hold := get_byte(data, place); place := place + 1; held := 8; end if;
                    key := (key << 1) | (hold & 1)::integer;
                    hold := hold >> 1;
                    held := held - 1;
                    symbol := steps[key];
                    exit when symbol is not null;
                    if key > 65535 then raise array_subscript_error; end if;
                end loop;
                if symbol < 16 then
                    sizes := sizes || symbol;
                    continue;
                end if;
                while held < 7 loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
                size := case symbol when 16 then 2 when 17 then 3 else 7 end;
                repeated := (hold & ((1 << size) - 1)) + case symbol when 18 then 11 else 3 end;
                hold := hold >> size;
                held := held - size;
                sizes := sizes || array_fill(case symbol when 16 then sizes[cardinality(sizes)] else 0 end, array[repeated]);
            end loop;
            symbols := tsql.huffman_table(sizes[:counts[1]]);
            steps := tsql.huffman_table(sizes[counts[1] + 1:counts[1] + counts[2]]);
        else
            raise array_subscript_error;
        end if;
        while kind > 0 loop
            key := 1;
            loop
                if held = 0 then hold := get_byte(data, place); place := place + 1; held := 8; end if;
                key := (key << 1) | (hold & 1)::integer;
                hold := hold >> 1;
                held := held - 1;
                symbol := symbols[key];
                exit when symbol is not null;
                if key > 65535 then raise array_subscript_error; end if;
            end loop;
            if symbol < 256 then
                tail := tail || set_byte('\x00', 0, symbol);
            elsif symbol = 256 then
                exit;
            else
                size := tsql.length_bits(symbol);
                while held < size loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
                repeated := lengths[symbol - 256] + (hold & ((1 << size) - 1));
                hold := hold >> size;
                held := held - size;
                key := 1;
                loop
                    if held = 0 then hold := get_byte(data, place); place := place + 1; held := 8; end if;
                    key := (key << 1) | (hold & 1)::integer;
                    hold := hold >> 1;
                    held := held - 1;
                    symbol := steps[key];
                    exit when symbol is not null;
                    if key > 65535 then raise array_subscript_error; end if;
                end loop;
                size := tsql.distance_bits(symbol);
                while held < size loop hold := hold | (get_byte(data, place)::bigint << held); place := place + 1; held := held + 8; end loop;
                distance := distances[symbol + 1] + (hold & ((1 << size) - 1));
                hold := hold >> size;
                held := held - size;
                if distance is null or repeated is null or distance > octet_length(tail) then raise array_subscript_error; end if;
                part := substring(tail, octet_length(tail) - distance + 1, least(distance, repeated));
                while octet_length(part) < repeated loop part := part || part; end loop;
                tail := tail || substring(part, 1, repeated);
            end if;
            if octet_length(tail) > 2 * kept_size then
                done := done || substring(tail, 1, octet_length(tail) - kept_size);
                tail := substring(tail, octet_length(tail) - kept_size + 1);
            end if;
        end loop;
    end loop;
    done := done || tail;
    place := place - held / 8;
    if substring(data, place + 1, 4) <> tsql.four_bytes(tsql.crc32(done)) then raise array_subscript_error; end if;
    return done;
exception when array_subscript_error or null_value_not_allowed then
    perform tsql.refuse(9803, 'Invalid data for type "varbinary".');
end $$;
