"""SELECT and what stands in it."""
