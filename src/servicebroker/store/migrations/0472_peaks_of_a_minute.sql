-- A row of ten minutes has the peak of ten; who reads minutes wants that of its minute. Null: as peak.
alter table servicebroker.history add column minute_peak bigint;
