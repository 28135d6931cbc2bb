-- The statements of recycling.py.

-- name: use_conversation
insert into servicebroker.session_conversations as s
(database_id, from_service, to_service, service_contract_name, end_of_stream, session, sent)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (database_id, from_service, to_service, service_contract_name, session)
do update set sent = s.sent + excluded.sent returning s.conversation_handle, s.sent

-- name: assign
update servicebroker.session_conversations set conversation_handle = $6 where database_id = $1
and from_service = $2 and to_service = $3 and service_contract_name = $4 and session = $5

-- name: unassign
update servicebroker.session_conversations set conversation_handle = null, sent = $2
where conversation_handle = $1

-- name: release
delete from servicebroker.session_conversations where conversation_handle = $1 returning end_of_stream

-- name: find_conversations
select conversation_handle from servicebroker.session_conversations where database_id = $1
and from_service = $2 and to_service = $3 and service_contract_name = $4 and conversation_handle is not null
order by session

-- name: find_queue
select q.schema_name || '.' || q.name from servicebroker.services s join servicebroker.queues q
using (queue_id) where s.database_id = $1 and s.name = $2

-- name: store_answers
insert into servicebroker.session_answers
(database_id, from_service, conversation_handle, message_type_id, message_body)
select $1, * from unnest($2::text[], $3::uuid[], $4::int[], $5::bytea[])

-- name: next_answer
select answer_id, from_service, conversation_handle, message_type_id, message_body
from servicebroker.session_answers where database_id = $1 and from_service in (select other.name from servicebroker.services s join servicebroker.services other using (queue_id)
where s.database_id = $1 and s.name = $2) order by answer_id limit 1 for update skip locked

-- name: remove_answer
delete from servicebroker.session_answers where answer_id = $1

-- name: record_error
with kept as (insert into servicebroker.session_errors
(database_id, from_service, conversation_handle, code, description, received_at)
values ($1, $2, $3, $4, $5, $6) returning error_id)
delete from servicebroker.session_errors where error_id <= (select error_id from kept) - $7

-- name: find_errors
select conversation_handle, code, description, received_at from servicebroker.session_errors
where database_id = $1 and from_service = $2 order by error_id
