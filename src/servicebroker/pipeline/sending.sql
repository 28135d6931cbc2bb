-- The statements of sending.py.

-- name: record_batch.insert
insert into servicebroker.writers as w (writer, batch, messages, digest) values ($1, $2, $3, $4)
on conflict (writer) do update set batch = excluded.batch, messages = excluded.messages,
digest = excluded.digest, committed_at = clock_timestamp() where w.batch < excluded.batch returning true

-- name: record_batch.find
select batch, messages, digest from servicebroker.writers where writer = $1

-- name: record_job.insert
insert into servicebroker.writers (writer, batch, messages) values ($1, $2, $3)
on conflict do nothing returning true

-- name: record_job.find
select batch, messages, committed_at from servicebroker.writers where writer = $1

-- name: pieces
select slot, attempt, piece, message_type_name, messages from servicebroker.writer_stage
where attempt = any ($1) order by slot, array_position($1, attempt), piece

-- name: send_slot
update servicebroker.writer_conversations set sent = $2 where conversation_handle = $1

-- name: bodies
select bodies from servicebroker.writer_stage where attempt = $1 and piece = $2

-- name: begin
insert into servicebroker.writer_conversations (conversation_handle, writer, slot, begun_at)
values ($1, $2, $3, $4)

-- name: retire
update servicebroker.writer_conversations set is_in_use = false where conversation_handle = $1

-- name: delete_staged.delete_writer_stage
delete from servicebroker.writer_stage where writer = $1 or staged_at < $2

-- name: delete_staged.delete_writers
delete from servicebroker.writers w where committed_at < $1 and not exists (select from servicebroker.writer_conversations c where c.writer = w.writer and is_in_use)

-- name: end_answered.find_answered
select c.conversation_handle, e.queue_id, e.state from servicebroker.writer_conversations c
join servicebroker.conversation_endpoints e using (conversation_handle)
where not c.is_in_use and e.state in ('DI', 'ER') order by c.begun_at limit $1 for update of c skip locked

-- name: end_answered.delete_conversations
delete from servicebroker.writer_conversations c where not is_in_use and not exists (select from servicebroker.conversation_endpoints e
where e.conversation_handle = c.conversation_handle and e.state <> 'CD')
