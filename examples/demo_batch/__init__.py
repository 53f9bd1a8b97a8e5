"""Batch work in the spare capacity of the demo's pool: Redis, the dispatcher, and interactive users beside it."""
