"""Expressions, functions, conversions and conditions."""
