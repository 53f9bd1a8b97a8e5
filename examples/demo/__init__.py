"""A demo of the picker: simulated workers, the picker and a real Envoy, with workers that join, fail and drain."""
