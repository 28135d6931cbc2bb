-- What is kept of messages that no sender cuts like that goes: a stranger has left it, when arrivals were not judged by their
-- shape (decision 410). The figures are those of protocol/limits.py. A peer sends again what is not there.

delete from servicebroker.arrived_fragments f
 using (
    select conversation_handle, message_sequence_number, min(fragments) as least, max(fragments) as most,
           min(fragment) as lowest, max(fragment) as highest, count(distinct run) as runs,
           bool_or(fragments > 1 and size <> 32768 and (fragment < fragments - 1 or size not between 1 and 32767)) as is_misshapen
      from (
        select conversation_handle, message_sequence_number, fragment, fragments, coalesce(octet_length(message_body), 0) as size,
               fragment - row_number() over (partition by conversation_handle, message_sequence_number order by fragment) as run
          from servicebroker.arrived_fragments) one
     group by 1, 2) m
  left join servicebroker.arrivals a using (conversation_handle)
 where f.conversation_handle = m.conversation_handle and f.message_sequence_number = m.message_sequence_number
   and m.message_sequence_number >= coalesce(a.receive_sequence, 0)  -- what is below is complete
   and (m.least <> m.most or m.most > 28800 or m.lowest < 0 or m.highest >= m.most or m.runs > 64 or m.is_misshapen
        or m.message_sequence_number >= coalesce(a.receive_sequence, 0) + 16384);
