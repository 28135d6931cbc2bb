-- Whose certificate the peer had shown that has brought a fragment: each has a quota of them (decision 412). '' of a peer
-- without a certificate, of what came before this migration, and of what was complete when it came.

alter table servicebroker.arrived_fragments add column owner text not null default '';
