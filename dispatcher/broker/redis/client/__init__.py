"""The connection to Redis: its commands, batches of them, and what Redis publishes."""
