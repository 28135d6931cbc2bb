"""XML and JSON: documents made, read and changed."""
