"""What metric gates read: the load of a target, from Prometheus or from metrics pages."""
