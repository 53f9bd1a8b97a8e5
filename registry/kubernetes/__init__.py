"""Membership by being a Pod: what the Pod knows of itself, and whether a Service selects it.

Readiness is the probe's. Nothing is written to the API server.
"""
