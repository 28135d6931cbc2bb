-- ALTER LOGIN ... DISABLE: who is that login, a peer, is let in no longer.
alter table servicebroker.logins add column is_disabled boolean not null default false;
