"""Queues that start their own readers: internal activation, its procedures and its tasks."""
