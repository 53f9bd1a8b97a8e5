"""Affinity: plugins that keep what belongs together at one endpoint, or near one: sessions, labels, topology, lengths.

What an endpoint has in its cache is `epp.scheduling.prefix`.
"""
