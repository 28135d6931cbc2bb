"""XML and JSON: creation, queries and changes of documents."""
