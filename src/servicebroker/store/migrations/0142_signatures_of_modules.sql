-- The certificate that a user, or a login, stands for; the modules that certificates have signed. A master key may be encrypted
-- by several passwords.
alter table servicebroker.principals add column certificate_thumbprint bytea;
create unique index principals_certificate on servicebroker.principals (database_id, certificate_thumbprint);
alter table servicebroker.logins add column certificate_thumbprint bytea unique;
create table servicebroker.module_signatures (
    module_id integer not null references servicebroker.tsql_modules on delete cascade,
    thumbprint bytea not null,
    is_counter boolean not null,
    signature bytea not null,
    primary key (module_id, thumbprint, is_counter)
);
alter table servicebroker.master_keys add column more_passwords bytea[] not null default '{}';
