"""The input of metric gates: the load of a target, from Prometheus or from metrics pages."""
