-- The statements of grants.py.

-- name: grant
insert into servicebroker.permissions values ($1, $2, $3, $4, $6, $5, $7::"char")
on conflict (database_id, grantee_id, class, major_id, permission, grantor_id)
do update set state = greatest(permissions.state, excluded.state)

-- name: deny
insert into servicebroker.permissions
select $1, $2, $3, grantee, $6, $5, $7::"char" from unnest($4::int[]) grantee

-- name: revoke
update servicebroker.permissions set state = $7::"char" where database_id = $1 and class = $2
and major_id = $3 and grantee_id = $4 and permission = $5 and state = $8::"char"
and ($6::int is null or grantor_id = $6)

-- name: find_holders
with recursive here as (select * from servicebroker.permissions
where database_id = $1 and class = $2 and major_id = $3 and permission = $5),
holders (id) as (select $4::int union select p.grantee_id from here p join holders h on p.grantor_id = h.id)
select id, exists (select from here where grantee_id = $4 and state = $6::"char") from holders
where id = $4 or $7::bool and id <> $8
