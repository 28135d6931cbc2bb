-- The statements of shared_bodies.py.

-- name: store
insert into servicebroker.shared_bodies (body) values ($1) returning body_id

-- name: remove_if_unread
delete from servicebroker.shared_bodies where body_id = $1
and not exists (select from servicebroker.shared_body_readers where body_id = $1)

-- name: delete_unreferenced_bodies
delete from servicebroker.shared_bodies where body_id = any (array(select body_id from servicebroker.shared_bodies b where not exists (select from servicebroker.shared_body_readers r where r.body_id = b.body_id)
order by body_id limit $1 for update skip locked)) returning 1
