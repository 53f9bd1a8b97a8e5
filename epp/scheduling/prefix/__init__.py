"""Prefix caches: which endpoint holds the beginning of which prompt.

The index, its blocks, and the producer and scorer that use it. Pure.
"""
