"""Principals and their permissions; certificates and keys, as rows."""
