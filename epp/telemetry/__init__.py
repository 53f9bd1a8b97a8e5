"""What the picker counts and shows: counters, gauges of the pool, the pages on the metrics port."""
