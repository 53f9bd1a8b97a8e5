"""The dispatcher's metrics."""
