"""Writes Envoy's configuration for `python -m epp envoy-config`; no other package does."""
