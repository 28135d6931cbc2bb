-- The highest timeline of a cluster that was seen is told to its servers: with the signature of the one that said so.

alter table servicebroker.mirrored_pairs add column evidence bytea not null default '';
