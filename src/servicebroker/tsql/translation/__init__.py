"""T-SQL queries, changes of rows and definitions of tables, written as PostgreSQL's SQL. `relational` is the way in."""
