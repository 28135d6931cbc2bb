"""Text to tree, and what is taken apart by its words."""
