"""Which runs tables need, and training those that are missing."""
