-- The statements of unfinished_arrivals.py.

-- name: drop_unfinished.delete_fragments
delete from servicebroker.arrived_fragments where ctid = any (array(select f.ctid from servicebroker.arrived_fragments f
where f.conversation_handle = any ($1) and f.message_sequence_number >= coalesce((select receive_sequence
from servicebroker.arrivals a where a.conversation_handle = f.conversation_handle), 0)
for update skip locked))
