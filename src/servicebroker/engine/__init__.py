"""The verbs, as generators of statements: no connection, no clock, no thread in here."""
