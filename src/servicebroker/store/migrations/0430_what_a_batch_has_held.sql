-- What the last batch of a query of the Spark writer has held (decision 430); 0 where a version before this has sent it.
-- Of a batch job `batch` says that.

alter table servicebroker.writers add column digest bigint not null default 0;
