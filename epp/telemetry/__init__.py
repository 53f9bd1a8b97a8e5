"""The picker's metrics: counters, gauges of the pool, and the pages on the metrics port."""
