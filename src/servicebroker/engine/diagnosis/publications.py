"""Publications of logical replication because of which PostgreSQL refuses UPDATE and DELETE on some tables.

A subscriber identifies rows by the replica identity of the table. Every table of the broker has one (decision 162).
Tables of applications may have none, or a publication may leave out columns of it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from servicebroker.store.statements import Statement, Steps

Reason = Literal["identity", "columns", "filter"]


class BlockingPublication(NamedTuple):
    """A publication, and the tables whose rows cannot be changed because of it.

    Attributes:
        name: the name of the publication.
        reason: `identity`: the tables have no replica identity. `columns`: the publication's list of columns leaves
            some of the identity out. `filter`: its condition on rows uses columns outside of the identity.
        tables: the names of three tables at most.
        table_count: the number of tables.
    """

    name: str
    reason: Reason
    tables: str
    table_count: int


def find_blocking(most: int) -> Steps[list[BlockingPublication]]:
    """Find the publications because of which rows of some tables cannot be changed."""
    rows = yield Statement(
        "publications.find_blocking",
        "with published as (select p.pubname, g.place, t.attnames, r.prattrs, r.prqual, g.place::oid as relid "
        "  from pg_publication p join pg_publication_tables t using (pubname) "
        "  cross join lateral (select format('%I.%I', t.schemaname, t.tablename)::regclass as place) g "
        "  left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = g.place "
        "  where p.pubupdate or p.pubdelete), "
        # with publish_via_partition_root the view names the root, while the partitions are changed
        "changed as (select p.*, c.oid as part, c.relreplident, format('%I.%I', n.nspname, c.relname) as name "
        "  from published p "
        "  left join lateral pg_partition_tree(p.place) f on f.isleaf "
        "  join pg_class c on c.oid = coalesce(f.relid, p.place) and c.relkind = 'r' "
        "  join pg_namespace n on n.oid = c.relnamespace), "
        "identified as (select c.*, case c.relreplident when 'f' then "
        "    array(select attname from pg_attribute where attrelid = c.part and attnum > 0 and not attisdropped) "
        "    else (select array(select a.attname from unnest(i.indkey[0:i.indnkeyatts - 1]) k (attnum) "
        "        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum) from pg_index i "
        "      where i.indrelid = c.part and i.indisvalid and case c.relreplident when 'i' then i.indisreplident "
        "        when 'd' then i.indisprimary and i.indimmediate else false end) end as identity from changed c), "
        "judged as (select pubname, name, case when identity is null then 'identity' "
        # PostgreSQL 18 also refuses an identity with generated columns that are not published
        "    when (prattrs is not null or current_setting('server_version_num')::int >= 180000) "
        "      and not identity <@ attnames then 'columns' "
        "    when relreplident <> 'f' and exists (select from regexp_matches(prqual::text, ':varattno (\\d+)', 'g') m "
        "      join pg_attribute a on a.attrelid = i.relid and a.attnum = m[1]::int where a.attname <> all (identity)) "
        "    then 'filter' end as reason from identified i), "
        "numbered as (select pubname, reason, name, "
        "    row_number() over (partition by pubname, reason order by name), "
        "    count(*) over (partition by pubname, reason) as count from judged where reason is not null) "
        "select pubname::text, reason, string_agg(name, ', ' order by name), count from numbered where row_number <= 3 "
        f"group by 1, 2, 4 order by 1, 2 limit {most}",
        prepared=False,
    )
    return [BlockingPublication(*row) for row in rows]
