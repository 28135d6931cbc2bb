"""T-SQL: Service Broker scripts run as they are.

`tokens` and `parser` make statements (`syntax`) of text, `session` runs them. What is relational stays text for
`relational`, which writes PostgreSQL's SQL.
"""
