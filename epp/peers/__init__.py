"""Tells other pickers what this one sends where, and counts what they send as its own (docs/peers.md).

There is no store, no leader and no agreement: each picker tells all others, and what one told goes with its connection.
"""
