"""Expressions, conditions, conversions and functions."""
