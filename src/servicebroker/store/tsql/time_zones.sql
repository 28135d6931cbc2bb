-- Offsets of datetimeoffset, and the PostgreSQL names of Windows time zones. A datetimeoffset is a timestamptz; its
-- offset is a second value, in minutes, which the translator passes along where it knows it.

-- The Windows time zones of AT TIME ZONE and sys.time_zone_info.
create or replace function tsql.time_zones() returns table (name text, zone text) language sql immutable parallel safe rows 141 as $$ values
    ('Dateline Standard Time', 'Etc/GMT+12'), ('UTC-11', 'Etc/GMT+11'), ('Aleutian Standard Time', 'America/Adak'),
    ('Hawaiian Standard Time', 'Pacific/Honolulu'), ('Marquesas Standard Time', 'Pacific/Marquesas'), ('Alaskan Standard Time', 'America/Anchorage'),
    ('UTC-09', 'Etc/GMT+9'), ('Pacific Standard Time (Mexico)', 'America/Tijuana'), ('UTC-08', 'Etc/GMT+8'),
    ('Pacific Standard Time', 'America/Los_Angeles'), ('US Mountain Standard Time', 'America/Phoenix'),
    ('Mountain Standard Time (Mexico)', 'America/Mazatlan'), ('Mountain Standard Time', 'America/Denver'),
    ('Yukon Standard Time', 'America/Whitehorse'), ('Central America Standard Time', 'America/Guatemala'),
    ('Central Standard Time', 'America/Chicago'), ('Easter Island Standard Time', 'Pacific/Easter'),
    ('Central Standard Time (Mexico)', 'America/Mexico_City'), ('Canada Central Standard Time', 'America/Regina'),
    ('SA Pacific Standard Time', 'America/Bogota'), ('Eastern Standard Time (Mexico)', 'America/Cancun'),
    ('Eastern Standard Time', 'America/New_York'), ('Haiti Standard Time', 'America/Port-au-Prince'), ('Cuba Standard Time', 'America/Havana'),
    ('US Eastern Standard Time', 'America/Indiana/Indianapolis'), ('Turks And Caicos Standard Time', 'America/Grand_Turk'),
    ('Paraguay Standard Time', 'America/Asuncion'), ('Atlantic Standard Time', 'America/Halifax'), ('Venezuela Standard Time', 'America/Caracas'),
    ('Central Brazilian Standard Time', 'America/Cuiaba'), ('SA Western Standard Time', 'America/La_Paz'),
    ('Pacific SA Standard Time', 'America/Santiago'), ('Newfoundland Standard Time', 'America/St_Johns'),
    ('Tocantins Standard Time', 'America/Araguaina'), ('E. South America Standard Time', 'America/Sao_Paulo'),
    ('SA Eastern Standard Time', 'America/Cayenne'), ('Argentina Standard Time', 'America/Argentina/Buenos_Aires'),
    ('Greenland Standard Time', 'America/Godthab'), ('Montevideo Standard Time', 'America/Montevideo'),
    ('Magallanes Standard Time', 'America/Punta_Arenas'), ('Saint Pierre Standard Time', 'America/Miquelon'),
    ('Bahia Standard Time', 'America/Bahia'), ('UTC-02', 'Etc/GMT+2'), ('Mid-Atlantic Standard Time', 'Etc/GMT+2'),
    ('Azores Standard Time', 'Atlantic/Azores'), ('Cape Verde Standard Time', 'Atlantic/Cape_Verde'), ('UTC', 'Etc/UTC'),
    ('GMT Standard Time', 'Europe/London'), ('Greenwich Standard Time', 'Atlantic/Reykjavik'), ('Sao Tome Standard Time', 'Africa/Sao_Tome'),
    ('Morocco Standard Time', 'Africa/Casablanca'), ('W. Europe Standard Time', 'Europe/Berlin'), ('Central Europe Standard Time', 'Europe/Budapest'),
    ('Romance Standard Time', 'Europe/Paris'), ('Central European Standard Time', 'Europe/Warsaw'),
    ('W. Central Africa Standard Time', 'Africa/Lagos'), ('Jordan Standard Time', 'Asia/Amman'), ('GTB Standard Time', 'Europe/Bucharest'),
    ('Middle East Standard Time', 'Asia/Beirut'), ('Egypt Standard Time', 'Africa/Cairo'), ('E. Europe Standard Time', 'Europe/Chisinau'),
    ('Syria Standard Time', 'Asia/Damascus'), ('West Bank Standard Time', 'Asia/Hebron'), ('South Africa Standard Time', 'Africa/Johannesburg'),
    ('FLE Standard Time', 'Europe/Kiev'), ('Israel Standard Time', 'Asia/Jerusalem'), ('South Sudan Standard Time', 'Africa/Juba'),
    ('Kaliningrad Standard Time', 'Europe/Kaliningrad'), ('Sudan Standard Time', 'Africa/Khartoum'), ('Libya Standard Time', 'Africa/Tripoli'),
    ('Namibia Standard Time', 'Africa/Windhoek'), ('Arabic Standard Time', 'Asia/Baghdad'), ('Turkey Standard Time', 'Europe/Istanbul'),
    ('Arab Standard Time', 'Asia/Riyadh'), ('Belarus Standard Time', 'Europe/Minsk'), ('Russian Standard Time', 'Europe/Moscow'),
    ('E. Africa Standard Time', 'Africa/Nairobi'), ('Iran Standard Time', 'Asia/Tehran'), ('Arabian Standard Time', 'Asia/Dubai'),
    ('Astrakhan Standard Time', 'Europe/Astrakhan'), ('Azerbaijan Standard Time', 'Asia/Baku'), ('Russia Time Zone 3', 'Europe/Samara'),
    ('Mauritius Standard Time', 'Indian/Mauritius'), ('Saratov Standard Time', 'Europe/Saratov'), ('Georgian Standard Time', 'Asia/Tbilisi'),
    ('Volgograd Standard Time', 'Europe/Volgograd'), ('Caucasus Standard Time', 'Asia/Yerevan'), ('Afghanistan Standard Time', 'Asia/Kabul'),
    ('West Asia Standard Time', 'Asia/Tashkent'), ('Ekaterinburg Standard Time', 'Asia/Yekaterinburg'), ('Pakistan Standard Time', 'Asia/Karachi'),
    ('Qyzylorda Standard Time', 'Asia/Qyzylorda'), ('India Standard Time', 'Asia/Kolkata'), ('Sri Lanka Standard Time', 'Asia/Colombo'),
    ('Nepal Standard Time', 'Asia/Kathmandu'), ('Central Asia Standard Time', 'Asia/Bishkek'), ('Bangladesh Standard Time', 'Asia/Dhaka'),
    ('Omsk Standard Time', 'Asia/Omsk'), ('Myanmar Standard Time', 'Asia/Yangon'), ('SE Asia Standard Time', 'Asia/Bangkok'),
    ('Altai Standard Time', 'Asia/Barnaul'), ('W. Mongolia Standard Time', 'Asia/Hovd'), ('North Asia Standard Time', 'Asia/Krasnoyarsk'),
    ('N. Central Asia Standard Time', 'Asia/Novosibirsk'), ('Tomsk Standard Time', 'Asia/Tomsk'), ('China Standard Time', 'Asia/Shanghai'),
    ('North Asia East Standard Time', 'Asia/Irkutsk'), ('Singapore Standard Time', 'Asia/Singapore'),
    ('W. Australia Standard Time', 'Australia/Perth'), ('Taipei Standard Time', 'Asia/Taipei'), ('Ulaanbaatar Standard Time', 'Asia/Ulaanbaatar'),
    ('Aus Central W. Standard Time', 'Australia/Eucla'), ('Transbaikal Standard Time', 'Asia/Chita'), ('Tokyo Standard Time', 'Asia/Tokyo'),
    ('North Korea Standard Time', 'Asia/Pyongyang'), ('Korea Standard Time', 'Asia/Seoul'), ('Yakutsk Standard Time', 'Asia/Yakutsk'),
    ('Cen. Australia Standard Time', 'Australia/Adelaide'), ('AUS Central Standard Time', 'Australia/Darwin'),
    ('E. Australia Standard Time', 'Australia/Brisbane'), ('AUS Eastern Standard Time', 'Australia/Sydney'),
    ('West Pacific Standard Time', 'Pacific/Port_Moresby'), ('Tasmania Standard Time', 'Australia/Hobart'),
    ('Vladivostok Standard Time', 'Asia/Vladivostok'), ('Lord Howe Standard Time', 'Australia/Lord_Howe'),
    ('Bougainville Standard Time', 'Pacific/Bougainville'), ('Russia Time Zone 10', 'Asia/Srednekolymsk'), ('Magadan Standard Time', 'Asia/Magadan'),
    ('Norfolk Standard Time', 'Pacific/Norfolk'), ('Sakhalin Standard Time', 'Asia/Sakhalin'),
    ('Central Pacific Standard Time', 'Pacific/Guadalcanal'), ('Russia Time Zone 11', 'Asia/Kamchatka'),
    ('New Zealand Standard Time', 'Pacific/Auckland'), ('UTC+12', 'Etc/GMT-12'), ('Fiji Standard Time', 'Pacific/Fiji'),
    ('Kamchatka Standard Time', 'Asia/Kamchatka'), ('Chatham Islands Standard Time', 'Pacific/Chatham'), ('UTC+13', 'Etc/GMT-13'),
    ('Tonga Standard Time', 'Pacific/Tongatapu'), ('Samoa Standard Time', 'Pacific/Apia'), ('Line Islands Standard Time', 'Pacific/Kiritimati')
$$;
create or replace function tsql.zone_named(said text) returns text language plpgsql immutable strict parallel safe as $$
declare
    found_zone constant text := (select t.zone from tsql.time_zones() t where lower(t.name) = lower(rtrim(said)));
begin
    if found_zone is null then
        perform tsql.refuse(9820, format('The time zone parameter ''%s'' provided to AT TIME ZONE clause is invalid.', said));
    end if;
    return found_zone;
end $$;

create or replace function tsql.own_clock(moment timestamptz, minutes integer) returns timestamp language sql immutable strict parallel safe
return moment at time zone 'UTC' + minutes * interval '1 minute';
create or replace function tsql.at_offset(clock timestamp, minutes integer) returns timestamptz language sql immutable strict parallel safe
return (clock - minutes * interval '1 minute') at time zone 'UTC';
create or replace function tsql.offset_in_zone(moment timestamptz, zone text) returns integer language sql immutable strict parallel safe
return (extract(epoch from (moment at time zone zone) - (moment at time zone 'UTC')) / 60)::integer;
-- A local time in a zone. A time that occurs twice, at the end of summer time, means the first one; PostgreSQL takes
-- the second.
create or replace function tsql.in_zone(clock timestamp, zone text) returns timestamptz language plpgsql immutable strict parallel safe as $$
declare
    later constant timestamptz := clock at time zone zone;
    width constant interval := ((later - interval '3 hours') at time zone zone) - ((later at time zone zone) - interval '3 hours');
begin
    return case when width > interval '0' and ((later - width) at time zone zone) = clock then later - width else later end;
end $$;

-- An offset such as '+05:30' in minutes. `caller` is the T-SQL function that an error names.
create or replace function tsql.offset_minutes(said text, caller text) returns integer language plpgsql immutable strict parallel safe as $$
declare
    part constant text[] := regexp_match(btrim(said), '^([+-])(\d{1,2}):(\d\d)$');
begin
    if part is null or part[3]::integer > 59 then return tsql.offset_minutes(null::integer, caller, true); end if;
    return tsql.offset_minutes(case part[1] when '-' then -1 else 1 end * (part[2]::integer * 60 + part[3]::integer), caller);
end $$;
create or replace function tsql.offset_minutes(minutes integer, caller text, is_wrong boolean default false) returns integer
language plpgsql immutable parallel safe as $$
begin
    if is_wrong or abs(minutes) > 840 then
        perform tsql.refuse(9812, format('The timezone provided to builtin function %s is invalid.', caller));
    end if;
    return minutes;
end $$;
-- The instant itself, or NULL if the offset is NULL.
create or replace function tsql.with_minutes(moment timestamptz, minutes integer) returns timestamptz language sql immutable strict parallel safe
return moment + 0 * minutes * interval '1 minute';
-- The offset at the end of the text of a datetimeoffset, in minutes.
create or replace function tsql.offset_said(value text) returns integer language sql immutable strict parallel safe
return (select coalesce(case part[1] when '-' then -1 else 1 end * (part[2]::integer * 60 + part[3]::integer), 0)
          from (select regexp_match(btrim(value), ':.*([+-])(\d{1,2}):(\d\d)$') as part) found);
create or replace function tsql.offset_text(minutes integer) returns text language sql immutable strict parallel safe
return case when minutes < 0 then '-' else '+' end || lpad((abs(minutes) / 60)::text, 2, '0') || ':' || lpad((abs(minutes) % 60)::text, 2, '0');

-- A pattern of FORMAT with the offset written in place of z, zz, zzz and K.
create or replace function tsql.offset_mask(mask text, minutes integer) returns text language sql immutable strict parallel safe
return (select string_agg(case
            when part in ('zzz', 'K') then '"' || tsql.offset_text(minutes) || '"'
            when part = 'zz' then '"' || left(tsql.offset_text(minutes), 3) || '"'
            when part = 'z' then '"' || left(tsql.offset_text(minutes), 1) || abs(minutes) / 60 || '"'
            else part end, '' order by place)
          from regexp_matches(case when mask in ('o', 'O') then 'yyyy-MM-ddTHH:mm:ss.fffffffzzz' else mask end,
                              '(''[^'']*''|"[^"]*"|\\.|z{1,3}|K|.)', 'g')
               with ordinality found(groups, place), lateral (select groups[1] as part) one);

create or replace function tsql.scaled_text(moment timestamptz, scale integer, minutes integer) returns text language sql immutable strict parallel safe
return tsql.scaled_text(tsql.own_clock(moment, minutes), scale) || ' ' || tsql.offset_text(minutes);
create or replace function tsql.offset_styled(moment timestamptz, scale integer, minutes integer, style integer) returns text
language sql immutable strict parallel safe
return case
    when style in (21, 25, 121) then tsql.scaled_text(moment, scale, minutes)
    when style = 126 then replace(tsql.scaled_text(tsql.own_clock(moment, minutes), scale), ' ', 'T') || tsql.offset_text(minutes)
    when style = 127 then replace(tsql.scaled_text(moment at time zone 'UTC', scale), ' ', 'T') || 'Z'
    when style in (0, 9, 13, 20, 100, 109, 113, 120) then tsql.moment_text(tsql.own_clock(moment, minutes), style) || ' ' || tsql.offset_text(minutes)
    else tsql.moment_text(tsql.own_clock(moment, minutes), style) end;
-- A datetimeoffset in FOR XML and FOR JSON.
create or replace function tsql.document_moment(moment timestamptz, scale integer, minutes integer) returns text
language sql immutable strict parallel safe
return tsql.scaled_style(tsql.own_clock(moment, minutes), scale, 126) || case minutes when 0 then 'Z' else tsql.offset_text(minutes) end;
-- The text that the session reads as one datetimeoffset: the instant first, so that it sorts, then the offset.
create or replace function tsql.with_offset(moment timestamptz, minutes integer) returns text language sql immutable strict parallel safe
return to_char(moment at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || ' ' || minutes;

create or replace function tsql.datetimeoffset_of_parts(year integer, month integer, day integer, hour integer, minute integer, second integer,
                                                        fractions integer, hour_offset integer, minute_offset integer, digits integer)
returns timestamptz language plpgsql immutable strict parallel safe as $$
begin
    if abs(hour_offset * 60 + minute_offset) > 840 or abs(minute_offset) > 59 or hour_offset * minute_offset < 0 then
        perform tsql.refuse(289, 'Cannot construct data type datetimeoffset, some of the arguments have values which are not valid.');
    end if;
    return tsql.at_offset(tsql.moment_of_parts(year, month, day, hour, minute, second, fractions, digits), hour_offset * 60 + minute_offset);
end $$;

create or replace view tsql.time_zone_info with (security_invoker = true) as
select t.name, tsql.offset_text(tsql.offset_in_zone(statement_timestamp(), t.zone)) as current_utc_offset,
       (tsql.offset_in_zone(statement_timestamp(), t.zone)
        > least(tsql.offset_in_zone(date_trunc('year', statement_timestamp()), t.zone),
                tsql.offset_in_zone(date_trunc('year', statement_timestamp()) + interval '6 months', t.zone)))::integer::smallint as is_currently_dst
  from tsql.time_zones() t;
