-- RECEIVE moves its marks in a transaction that has written, too: for that transaction only (queue.sql, survey). What goes back
-- to the marks without condition does the same there.
create or replace function servicebroker.unconditional_marks(queue_id integer) returns bigint[] language plpgsql as $$
declare
    setting text := format('servicebroker.survey_%s', queue_id);
    last servicebroker.survey := current_setting(setting)::servicebroker.survey;
    is_local boolean := pg_current_xact_id_if_assigned() is not null;
begin
    perform set_config(format('servicebroker.marks_%s', queue_id), last.base::text, is_local);
    last.held := '{}';
    last.patience := least(last.patience * 2, interval '1 hour');
    last.drawn := null;
    last.writers := null;
    perform set_config(setting, last::text, is_local);
    return last.base;
end $$;
