"""Runs Prometheus over the demo's cluster and draws the dashboards of `charts/` from its answers.

What these programs measure is on their own metrics pages; nothing here counts anything.
"""
