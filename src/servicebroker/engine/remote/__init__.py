"""Conversations with other instances: what leaves, what arrives, where to, and what is known of the peers."""
